//! Censuses of ranks: when they are sent, to whom, and that their changes add up.

use std::collections::BTreeMap;

use super::{Said, ToAgent, World, is_of};
use memtape_core::limits::CENSUSES_PER_REPORT_MAX;
use memtape_proto::v1;

impl World {
    pub(crate) fn censuses(&self, rank: usize) -> Vec<&v1::Census> {
        let rank = &self.ranks[rank];
        let reports = self.said.iter().filter_map(|said| match said {
            Said::Report(report) => Some(report),
            _ => None,
        });
        let ranks = reports.flat_map(|report| &report.ranks);
        ranks.filter(|each| is_of(&each.tape_id, rank)).flat_map(|each| &each.censuses).collect()
    }

    fn ticks(&mut self, count: u32) {
        for _ in 0..count {
            self.tick();
            // Acknowledged: the number of reports on their way is bounded.
            self.say(ToAgent::ReportAck(v1::ReportAck { number: u64::MAX }));
        }
    }
}

/// What a receiver has after these messages: bytes of each line, by cohort.
fn received(censuses: &[&v1::Census]) -> BTreeMap<u64, BTreeMap<u64, u64>> {
    let mut lines: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for census in censuses {
        if census.is_whole {
            lines.clear();
        }
        for line in &census.lines {
            assert_eq!(line.first_steps.len(), line.bytes.len());
            assert_eq!(line.first_steps.len(), line.blocks.len());
            let cohorts = line.first_steps.iter().copied().zip(line.bytes.iter().copied());
            lines.insert(line.line, cohorts.collect());
        }
    }
    lines
}

#[test]
fn a_rank_is_counted_every_few_steps_and_changes_are_sent() {
    let mut world = World::new(2, |_| ());
    world.connect();
    world.train(40);
    world.ticks(3);
    let first = world.censuses(0);
    assert_eq!(first.iter().map(|census| census.is_whole).collect::<Vec<_>>(), [true]);
    assert_eq!((first[0].step, first[0].lines.len()), (40, 1));
    assert_eq!(first[0].lines[0].bytes.iter().sum::<u64>(), 40 * 512);
    assert!(!first[0].lines[0].frames.is_empty(), "the line is named");
    assert_eq!(world.censuses(1).len(), 1, "the other rank has its turn");

    world.ticks(10);
    assert_eq!(world.censuses(0).len(), 1, "no step has passed");
    let now = world.now;
    world.ranks[0].alloc(now, 1 << 40, 4096);
    world.ticks(70);
    assert_eq!(world.censuses(0).len(), 2, "a rank that hangs is counted once a minute");
    world.ranks[0].free(now, 1 << 40, 4096);
    world.train(40);
    world.ticks(3);
    world.train(3);
    world.ticks(20);
    let all = world.censuses(0);
    assert_eq!(all.len(), 3, "three steps are no reason to count again");
    assert!(!all[2].is_whole && all[2].lines[0].frames.is_empty(), "the name is known");
    let sum: u64 = received(&all).values().flat_map(BTreeMap::values).sum();
    assert_eq!(sum, 80 * 512);
}

#[test]
fn every_rank_is_reported_when_reports_are_full() {
    let ranks = 3 * CENSUSES_PER_REPORT_MAX;
    let mut world = World::new(ranks as u32, |_| ());
    world.connect();
    // Before each report there is a new census of every rank.
    for _ in 0..12 {
        world.train(20);
        world.ticks(1);
    }
    let counts: Vec<usize> = (0..ranks).map(|rank| world.censuses(rank).len()).collect();
    let (least, most) = (counts.iter().min(), counts.iter().max());
    assert!(least >= Some(&3) && most <= Some(&5), "{counts:?}");
}

#[test]
fn a_new_stream_begins_with_a_whole_census() {
    let mut world = World::new(1, |_| ());
    world.connect();
    world.train(20);
    world.ticks(2);
    world.connect();
    world.tick();
    let wholes: Vec<bool> = world.censuses(0).iter().map(|census| census.is_whole).collect();
    assert_eq!(wholes, [true, true]);
}

#[test]
fn a_dead_rank_is_counted_once_more() {
    let mut world = World::new(1, |_| ());
    world.connect();
    world.train(20);
    world.ticks(2);
    // In the middle of a step: only the last census has it.
    let now = world.now;
    world.ranks[0].alloc(now, 1 << 40, 4096);
    world.ranks[0].kill();
    world.ticks(30);
    let censuses = world.censuses(0);
    assert_eq!(censuses.iter().map(|census| census.step).collect::<Vec<_>>(), [20, 20]);
    let sum: u64 = received(&censuses).values().flat_map(BTreeMap::values).sum();
    assert_eq!(sum, 20 * 512 + 4096);
    assert!(world.down(0).is_some(), "the end follows");
}

#[test]
fn the_last_census_of_a_rank_that_exited_has_what_it_held_before() {
    let mut world = World::new(1, |_| ());
    world.connect();
    world.train(20);
    world.ticks(2);
    world.train(5);
    let now = world.now;
    (1..=25).for_each(|step| world.ranks[0].free(now, step << 16, 512));
    world.ranks[0].exit();
    world.ticks(30);
    let censuses = world.censuses(0);
    assert_eq!(censuses.iter().map(|census| census.step).collect::<Vec<_>>(), [20, 25]);
    let sum: u64 = received(&censuses).values().flat_map(BTreeMap::values).sum();
    assert_eq!(sum, 25 * 512);
    assert!(world.down(0).is_some(), "the end follows");
}

#[test]
fn a_lying_table_makes_no_number_that_is_refused() {
    let mut world = World::new(1, |_| ());
    world.connect();
    let now = world.now;
    for block in 0..3 {
        world.ranks[0].alloc(now, (1 + block) << 40, u64::MAX / 8);
    }
    world.ticks(2);
    let censuses = world.censuses(0);
    let line = &censuses[0].lines[0];
    assert!(line.bytes.iter().all(|bytes| *bytes <= 1 << 53), "{:?}", line.bytes);
}

//! A user who floods the folder of tapes takes no more than an equal part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use memtape_agent::Config;
use memtape_agent::testing::{MemoryRank, MemoryTapes, SMALL, SimulatedAgent};
use memtape_core::identity::Identity;
use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_core::tape::layout::Sizes;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{Said, World};

const TINY: Sizes = Sizes { events: 16, table_entries: 16, step_records: 16, ..SMALL };

impl World {
    /// Tapes that were announced of this user.
    fn announced(&self, uid: u32) -> usize {
        let ups = self.said.iter().filter_map(|said| match said {
            Said::RankUp(up) => up.owner.as_ref(),
            _ => None,
        });
        ups.filter(|owner| owner.uid == uid).count()
    }

    fn no_room(&self) -> u64 {
        let mut reports = self.said.iter().rev().filter_map(|said| match said {
            Said::Report(report) => report.refused,
            _ => None,
        });
        reports.next().map_or(0, |refused| refused.no_room)
    }
}

fn flood(world: &World, tapes: &MemoryTapes, pids: std::ops::Range<u32>) -> Vec<MemoryRank> {
    let identity = Identity { job: "flood".to_string(), ..Identity::default() };
    let start = |pid| MemoryRank::start_of(tapes, 1001, world.now, (7, pid), &identity, TINY);
    pids.map(start).collect()
}

#[test]
fn a_flood_of_tapes_keeps_no_other_user_out() {
    let mut world = World::new(2, |_| ());
    let tapes = world.tapes.clone();
    let max = TAPES_PER_NODE_MAX as u32;
    let _flood = flood(&world, &tapes, 10_000..10_000 + max + 76);
    // The tapes are there before the agent is.
    let config = Config { node: "node-1".to_string(), ..Config::default() };
    let node = world.node.clone();
    world.agent = SimulatedAgent::new(world.now, "boot-1", config, node, tapes.clone(), None);
    world.connect();
    for _ in 0..10 {
        world.train(1);
        world.tick();
    }
    assert_eq!(world.steps(0).last(), Some(&10), "a rank that was there before");
    assert!(world.no_room() > 0, "what found no room is counted");
    // A rank that starts while the agent is full.
    let identity = Identity { job: "late".to_string(), ..Identity::default() };
    let late = MemoryRank::start(&tapes, world.now, (7, 9), &identity, SMALL);
    world.ranks.push(late);
    for _ in 0..10 {
        world.train(1);
        world.tick();
    }
    assert_eq!(world.steps(2).last(), Some(&10), "a rank that came later");
    assert!(world.announced(1001) >= TAPES_PER_NODE_MAX - 3, "the others are known");
}

/// Counts the lines of this thread.
#[derive(Clone, Default)]
struct Lines(Arc<AtomicU64>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, SeqCst);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn tapes_that_come_and_go_have_a_rate_in_the_log() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let mut world = World::new(1, |config| config.dead_tape_bytes_max = 0);
        let tapes = world.tapes.clone();
        world.connect();
        world.tick();
        for pid in (0..3_000).step_by(50) {
            let mut ranks = flood(&world, &tapes, 10_000 + pid..10_050 + pid);
            world.tick();
            ranks.iter_mut().for_each(MemoryRank::exit);
            world.tick();
        }
        assert!(world.announced(1001) > 250, "{}", world.announced(1001));
        let before = lines.0.load(SeqCst);
        // 64 tapes at once, then one in 10 s for 120 s; at most four lines about each.
        assert!(before < 4 * 80, "{before} lines");
        flood_of_another(&mut world, &tapes);
        assert!(lines.0.load(SeqCst) > before, "another user's tape is named");
    });
}

fn flood_of_another(world: &mut World, tapes: &MemoryTapes) {
    let identity = Identity { job: "late".to_string(), ..Identity::default() };
    world.ranks.push(MemoryRank::start_of(tapes, 7, world.now, (7, 9), &identity, TINY));
    world.tick();
}

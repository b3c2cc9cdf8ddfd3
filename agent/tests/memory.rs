//! What an agent takes of memory and of reads, whatever its tapes say.

use memtape_agent::testing::{MemoryRank, SMALL};
use memtape_core::identity::Identity;
use memtape_core::limits::{CENSUS_BYTES_MAX, SNAPSHOT_BYTES_MAX};
use memtape_core::tape::layout::{CURSOR_MAX, Sizes, head};
use memtape_proto::v1;

use super::{Event, UploadEnd, World};

/// Memory that is not for captures.
const OTHERS_BYTES: u64 = CENSUS_BYTES_MAX + SNAPSHOT_BYTES_MAX as u64;

/// A world whose captures have this memory, and more turns than it is enough for.
fn world(ranks: u32, capture_bytes_max: u64) -> World {
    let mut world = World::new(ranks, |config| {
        config.rewinds_max = 100;
        config.memory_bytes_max = OTHERS_BYTES + capture_bytes_max;
    });
    world.train(10);
    world.connect();
    world.tick();
    world
}

#[test]
fn rewinds_wait_for_their_part_of_the_memory() {
    const MEMORY: u64 = 100 << 20;
    let mut world = world(24, MEMORY);
    world.ask("cap-1", 5, 60_000);
    let mut turns = Vec::new();
    while !world.rewinds.is_empty() {
        assert!(world.agent.memory_bytes() <= MEMORY, "{}", world.agent.memory_bytes());
        turns.push(world.rewinds.len());
        world.do_rewinds();
    }
    assert!(turns.iter().all(|&at_once| (2..24).contains(&at_once)), "{turns:?}");
    assert_eq!((turns.iter().sum::<usize>(), world.uploads.len()), (24, 24));
    let outcomes: Vec<_> = world.answers().iter().map(|answer| answer.outcome()).collect();
    assert_eq!(outcomes, [v1::RankOutcome::Aligned; 24]);
    for (id, ..) in std::mem::take(&mut world.uploads) {
        world.handle(Event::Uploaded { id, end: UploadEnd::Stored });
    }
    assert_eq!(world.agent.memory_bytes(), 0);
}

#[test]
fn a_tape_that_claims_all_memory_is_rewound_alone() {
    const MEMORY: u64 = 100 << 20;
    let mut world = world(3, MEMORY);
    let large = Sizes { table_entries: 1 << 18, ..SMALL };
    let liar = Identity { job: "liar".to_string(), ..Identity::default() };
    let liar = MemoryRank::start_of(&world.tapes, 1001, world.now, (7, 900), &liar, large);
    liar.set_head(head::LIVE_BLOCKS, u64::MAX);
    world.ranks.insert(1, liar);
    world.tick();
    world.ask("cap-1", 0, 60_000);
    let mut turns = Vec::new();
    while !world.rewinds.is_empty() {
        assert!(world.agent.memory_bytes() <= MEMORY, "{}", world.agent.memory_bytes());
        turns.push(world.rewinds.len());
        world.do_rewinds();
        // What waits for its upload has its part of the memory, too.
        for (id, ..) in std::mem::take(&mut world.uploads) {
            world.handle(Event::Uploaded { id, end: UploadEnd::Stored });
        }
    }
    assert_eq!(turns, [1, 1, 2], "the others are before and after it");
    let outcomes: Vec<_> = world.answers().iter().map(|answer| answer.outcome()).collect();
    assert_eq!(outcomes, [v1::RankOutcome::Aligned; 4]);
}

#[test]
fn a_state_that_is_larger_than_the_memory_is_refused_in_its_part() {
    let mut world = world(1, 4 << 10);
    world.ask("cap-1", 5, 60_000);
    world.do_rewinds();
    let [answer] = world.answers()[..] else { panic!("one answer") };
    assert_eq!(answer.outcome(), v1::RankOutcome::NoTape);
    assert!(answer.detail.contains("4096 bytes of memory"), "{}", answer.detail);
    assert!(answer.detail.contains("--memory-bytes-max"), "{}", answer.detail);
    assert_eq!((world.agent.memory_bytes(), world.uploads.len()), (0, 0));
}

/// A step beyond any number, and records that cover none: the coordinator would close the stream of
/// the whole node.
#[test]
fn a_tape_that_covers_no_step_is_reported() {
    let mut world = World::new(2, |_| ());
    let identity = Identity { job: "liar".to_string(), ..Identity::default() };
    let liar = MemoryRank::start_of(&world.tapes, 1001, world.now, (7, 900), &identity, SMALL);
    liar.set_head(head::RESERVED, 1 << 20);
    liar.set_head(head::STEPS_WRITTEN, 1 << 20);
    liar.set_step(u64::MAX);
    world.tick();
    world.connect();
    world.train(3);
    world.tick();
    let reports = world.said.iter().filter_map(|said| match said {
        super::Said::Report(report) => Some(report),
        _ => None,
    });
    let ranks: Vec<_> = reports.flat_map(|report| &report.ranks).collect();
    let of_liar = ranks.iter().filter(|rank| liar.tape_id().starts_with(&rank.tape_id));
    assert!(of_liar.clone().count() > 0, "it is reported, too");
    for rank in of_liar {
        assert_eq!((rank.step, rank.oldest_step), (CURSOR_MAX, 0), "{rank:?}");
    }
    assert_eq!(world.steps(0).last(), Some(&3));
}

/// Step records that were never written, as many as a tape can say: 8 MiB of each tape, all holes.
#[test]
fn tapes_of_holes_cost_few_reads_and_delay_no_report() {
    const TAPES: u32 = 12;
    const WORDS_MAX: u64 = 8_192;
    let mut world = World::new(2, |_| ());
    let holes = Sizes { step_records: 1 << 16, events: 16, table_entries: 16, ..SMALL };
    let flood: Vec<MemoryRank> = (0..TAPES)
        .map(|pid| {
            let identity = Identity { job: "flood".to_string(), ..Identity::default() };
            let tapes = &world.tapes;
            let rank =
                MemoryRank::start_of(tapes, 1001, world.now, (7, 900 + pid), &identity, holes);
            rank.set_head(head::STEPS_WRITTEN, 1 << 40);
            rank.set_step(5);
            rank
        })
        .collect();
    world.tick();
    world.connect();
    for round in 1..=10 {
        world.train(1);
        let before = world.tapes.words_read();
        world.tick();
        let of_each = (world.tapes.words_read() - before) / u64::from(TAPES + 2);
        assert!(of_each <= WORDS_MAX, "{of_each} words of each tape in one look");
        assert_eq!(world.steps(0).last(), Some(&round), "every look has its report");
    }
    assert_eq!(flood.len(), TAPES as usize);
}

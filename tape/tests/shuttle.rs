//! shuttle: long histories in random schedules, with as many preemptions as it takes.
//!
//! It finds what needs many events: a ring that wraps again and again under a reader, tables that
//! fill and empty, a stalled thread that is lapped. All its threads see memory as one: a missing
//! fence is for `loom.rs`. Runs with
//! `RUSTFLAGS="--cfg memtape_shuttle" cargo test -p memtape-core --test shuttle`.
//! `MEMTAPE_SCHEDULES` sets the number of schedules; a failure prints its own, to be replayed.
#![cfg(memtape_shuttle)]

mod model;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use memtape_tape::rewind::PointInTime;
use model::{Act, Fault, GRANULE, Model};

const BLOCK: u64 = 0x7000_0000_0000;
const SEGMENT: u64 = 0x7100_0000_0000;

fn schedules() -> usize {
    std::env::var("MEMTAPE_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(2_000)
}

/// One writer against one reader that looks again and again; returns how often it got an answer.
fn race(model: Model, moment: PointInTime) -> usize {
    let model = Arc::new(model);
    let answers = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&answers);
    let run = move || {
        let memory = model.memory();
        let writer = {
            let (model, memory) = (Arc::clone(&model), Arc::clone(&memory));
            shuttle::thread::spawn(move || model.write(&memory))
        };
        for _ in 0..3 {
            counted.fetch_add(usize::from(model.read(&memory, moment)), Ordering::Relaxed);
        }
        writer.join().expect("the writer ends");
    };
    // Few preemptions at chosen places find other things than many at random.
    let run = Arc::new(run);
    let again = Arc::clone(&run);
    shuttle::check_pct(move || again(), schedules() / 2, 3);
    shuttle::check_random(move || run(), schedules() / 2);
    answers.load(Ordering::Relaxed)
}

/// Two dozen events on two addresses and a segment, by a seed.
fn long(seed: u64) -> Vec<Act> {
    let mut acts = Vec::new();
    let (mut random, mut in_use, mut mapped) = (seed | 1, [0u8; 2], false);
    while acts.len() < 24 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let which = (random >> 20) as usize % 2;
        let address = BLOCK + which as u64 * 512;
        if random.is_multiple_of(5) {
            let act = if mapped { Act::Unmap(SEGMENT, 2) } else { Act::Map(SEGMENT, 2) };
            acts.push(act);
            mapped = !mapped;
            continue;
        }
        let (act, next) = match in_use[which] {
            0 => (Act::Alloc(address, 512 * (1 + (random >> 30) % 8)), 1),
            1 if random.is_multiple_of(3) => (Act::Defer(address), 2),
            1 => (Act::Free(address), 0),
            _ => (Act::Complete(address), 0),
        };
        acts.push(act);
        in_use[which] = next;
    }
    acts
}

#[test]
fn long_histories_in_a_ring_that_holds_them_are_right() {
    for seed in [11, 12] {
        let answers = race(Model::new(32, 4, &[], &long(seed)), PointInTime::Present);
        assert_eq!(answers, schedules() / 2 * 2 * 3, "refused, though nothing was overwritten");
    }
}

#[test]
fn long_histories_in_a_ring_of_two_are_refused_or_right() {
    for seed in [21, 22] {
        let answers = race(Model::new(2, 4, &[], &long(seed)), PointInTime::Present);
        assert!(answers > 0, "never answered");
    }
}

#[test]
fn a_finished_step_stays_what_it_was() {
    let before = [Act::Alloc(BLOCK, 4096), Act::Map(SEGMENT, 1), Act::Step(1)];
    let acts = [Act::Free(BLOCK), Act::Unmap(SEGMENT, 1), Act::Alloc(BLOCK, 512)];
    race(Model::new(4, 4, &before, &acts), PointInTime::EndOf(1));
}

#[test]
#[should_panic(expected = "is none of")]
fn a_writer_that_is_done_too_early_is_found() {
    race(Model::new(32, 4, &[], &long(11)).broken(Fault::DoneEarly), PointInTime::Present);
}

#[test]
#[should_panic(expected = "is none of")]
fn a_writer_that_changes_the_table_first_is_found() {
    race(Model::new(32, 4, &[], &long(11)).broken(Fault::TableFirst), PointInTime::Present);
}

/// Not a promise, but why `loom.rs` is needed.
#[test]
fn a_writer_without_fences_is_not_found_here() {
    race(Model::new(32, 4, &[], &long(11)).broken(Fault::NoOrder), PointInTime::Present);
}

/// Three writers of a lane that no mutex guards: each writes alone, or counts its event as lost.
#[test]
fn writers_of_the_host_lane_never_write_at_once() {
    let model = Arc::new(Model::new(4, 4, &[], &[]));
    let race = move || {
        let memory = model.memory();
        let inside = Arc::new(shuttle::sync::atomic::AtomicUsize::new(0));
        let writers: Vec<_> = (0..3)
            .map(|_| {
                let (model, memory) = (Arc::clone(&model), Arc::clone(&memory));
                let inside = Arc::clone(&inside);
                shuttle::thread::spawn(move || {
                    model.lane(&memory).try_lock(|_| {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                        inside.fetch_sub(1, Ordering::SeqCst);
                    })
                })
            })
            .collect();
        let got = writers.into_iter().filter_map(|writer| writer.join().ok());
        assert!(got.filter(|&got| got).count() > 0, "no thread got a lane that is free");
    };
    shuttle::check_random(race, schedules());
}

/// The sizes are small, not trivial: the histories hold what they claim.
#[test]
fn histories_map_defer_and_reuse() {
    let acts = long(11);
    let has = |which: fn(&Act) -> bool| acts.iter().any(which);
    assert!(has(|act| matches!(act, Act::Defer(_))) && has(|act| matches!(act, Act::Map(..))));
    assert_eq!(GRANULE, memtape_tape::write::GRANULE_SMALL);
}

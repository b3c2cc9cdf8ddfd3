//! loom: every schedule of a few events with at most two preemptions, and for each everything
//! that a weakly ordered processor may show.
//!
//! It finds a missing fence, which no test on x86 and no checker of schedules can see. It cannot
//! go far: three events and a reader are some ten thousand executions. Long histories are for
//! `shuttle.rs`. Runs with `RUSTFLAGS="--cfg memtape_loom" cargo test -p memtape-core --test loom`.
#![cfg(memtape_loom)]

mod model;

use std::sync::Arc;
use std::time::Duration;

use memtape_tape::rewind::PointInTime;
use model::{Act, Fault, GRANULE, Model};

/// A search that is not done by then ends without a finding: on a slow machine some are not.
const SEARCH_MAX: Duration = Duration::from_secs(10);

const BLOCK: u64 = 0x7000_0000_0000;
const SEGMENT: u64 = 0x7100_0000_0000;

fn explore(preemptions_max: usize, race: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.max_branches = 20_000;
    builder.max_duration = Some(SEARCH_MAX);
    builder.checkpoint_interval = 200; // how often it looks at the clock
    builder.check(race);
}

/// One writer against one reader.
fn race(model: Model, moment: PointInTime, never_refused: bool) {
    let model = Arc::new(model);
    explore(2, move || {
        let memory = model.memory();
        let writer = {
            let (model, memory) = (Arc::clone(&model), Arc::clone(&memory));
            loom::thread::spawn(move || model.write(&memory))
        };
        let answered = model.read(&memory, moment);
        assert!(answered || !never_refused, "refused, though nothing was overwritten");
        writer.join().expect("the writer ends");
    });
}

/// A block is taken back and its address handed out again: the reader must see either block, or
/// none, never one with the other's size.
fn reuse() -> Model {
    let before = [Act::Alloc(BLOCK, 512), Act::Step(1)];
    Model::new(4, 2, &before, &[Act::Free(BLOCK), Act::Alloc(BLOCK, 1024)])
}

#[test]
fn a_reused_address_shows_its_old_or_its_new_block() {
    race(reuse(), PointInTime::Present, true);
}

#[test]
fn a_finished_step_stays_what_it_was() {
    race(reuse(), PointInTime::EndOf(1), true);
}

#[test]
fn a_deferred_free_is_in_use_or_pending_or_gone() {
    let before = [Act::Alloc(BLOCK, 512)];
    let model = Model::new(4, 2, &before, &[Act::Defer(BLOCK), Act::Complete(BLOCK)]);
    race(model, PointInTime::Present, true);
}

/// One event changes two entries of the segment table.
#[test]
fn a_range_is_mapped_whole_or_not_at_all() {
    let model = Model::new(4, 2, &[Act::Alloc(BLOCK, 512)], &[Act::Map(SEGMENT, 2)]);
    race(model, PointInTime::Present, true);
}

#[test]
fn a_part_of_a_segment_is_unmapped_or_not() {
    let race_of = [Act::Unmap(SEGMENT + GRANULE, 1)];
    race(Model::new(4, 2, &[Act::Map(SEGMENT, 2)], &race_of), PointInTime::Present, true);
}

/// Three events in a ring of two: the reader may be overtaken, and then says so.
#[test]
fn a_ring_that_wraps_is_refused_or_right() {
    let acts = [Act::Free(BLOCK), Act::Alloc(BLOCK, 1024), Act::Free(BLOCK)];
    race(Model::new(2, 2, &[Act::Alloc(BLOCK, 512)], &acts), PointInTime::Present, false);
}

/// A finished step holds a block, which is then taken back.
fn taken_back() -> Model {
    Model::new(4, 2, &[Act::Alloc(BLOCK, 512), Act::Step(1)], &[Act::Free(BLOCK)])
}

/// Shows in events that change two entries: one of them is there, and nothing says so.
#[test]
#[should_panic(expected = "is none of")]
fn a_writer_that_is_done_too_early_is_found() {
    let model = Model::new(4, 2, &[], &[Act::Map(SEGMENT, 2)]);
    race(model.broken(Fault::DoneEarly), PointInTime::Present, true);
}

#[test]
#[should_panic(expected = "is none of")]
fn a_writer_that_changes_the_table_first_is_found() {
    race(taken_back().broken(Fault::TableFirst), PointInTime::EndOf(1), true);
}

/// What `shuttle.rs` cannot see.
#[test]
#[should_panic(expected = "is none of")]
fn a_writer_without_fences_is_found() {
    race(taken_back().broken(Fault::NoOrder), PointInTime::EndOf(1), true);
}

#[test]
fn the_order_of_a_check_and_its_words_does_not_matter() {
    race(reuse().broken(Fault::CheckFirst), PointInTime::Present, true);
}

/// Two writers of a lane that no mutex guards: each writes alone, or counts its event as lost.
#[test]
fn two_writers_of_the_host_lane_never_write_at_once() {
    let model = Arc::new(Model::new(4, 2, &[], &[]));
    explore(2, move || {
        let memory = model.memory();
        let inside = Arc::new(loom::cell::UnsafeCell::new(0u64));
        let write = {
            let model = Arc::clone(&model);
            move |memory: &[_], inside: &loom::cell::UnsafeCell<u64>| {
                // The cell fails the model when two are inside at once, or when the second does
                // not see all that the first did.
                model.lane(memory).try_lock(|_| inside.with_mut(|_| ()))
            }
        };
        let other = {
            let (write, memory, inside) = (write.clone(), Arc::clone(&memory), Arc::clone(&inside));
            loom::thread::spawn(move || write(&memory, &inside))
        };
        let mine = write(&memory, &inside);
        let others = other.join().expect("the writer ends");
        assert!(mine || others, "no thread got a lane that is free");
    });
}

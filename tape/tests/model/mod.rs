//! What both model checkers share: a tiny tape, short histories, and all states they may show.
//!
//! A writer goes through a few events of a lane while a reader rewinds the tape. Every state that
//! the reader gets must be one that the lane was in between two events; a refusal is an answer only
//! where the ring is so small that the writer overtakes the reader.
//!
//! A test that passes says little until it has failed: each checker is also given writers that are
//! broken on purpose. They are the real writer's own stores, recorded, with one thing changed
//! ([`Fault`]), so nothing in the writer has to know of it.

use std::sync::Arc;

use memtape_tape::atomic::{AtomicU64, Op, Ordering, fence, recorded};
use memtape_tape::event::Kind;
use memtape_tape::layout::{ENTRY_WORDS, head, header};
use memtape_tape::layout::{LaneLayout, Layout, SEGMENT_WORDS, SLOT_WORDS, Tracker};
use memtape_tape::read::Tape;
use memtape_tape::rewind::{PointInTime, RewindError};
use memtape_tape::snapshot::RankSnapshot;
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};

#[path = "../harness/small.rs"]
mod small;

/// One granule of an expandable segment.
pub(crate) const GRANULE: u64 = 2 << 20;

/// What a writer does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    /// Hands out a block: address and size.
    Alloc(u64, u64),
    /// Takes it back.
    Free(u64),
    /// Takes it back while another stream uses it.
    Defer(u64),
    /// That stream is done.
    Complete(u64),
    /// Maps this number of granules at an address.
    Map(u64, u64),
    /// Unmaps them.
    Unmap(u64, u64),
    /// A step ends.
    Step(u64),
}

/// Blocks (address, size, deferred) and mapped granules, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    blocks: Vec<(u64, u64, bool)>,
    granules: Vec<u64>,
}

impl State {
    fn apply(&mut self, act: Act) {
        match act {
            Act::Alloc(address, size) => self.blocks.push((address, size, false)),
            Act::Free(address) | Act::Complete(address) => {
                self.blocks.retain(|block| block.0 != address);
            }
            Act::Defer(address) => {
                self.blocks.iter_mut().filter(|b| b.0 == address).for_each(|b| b.2 = true);
            }
            Act::Map(address, count) => {
                self.granules.extend((0..count).map(|index| address + index * GRANULE));
            }
            Act::Unmap(address, count) => {
                self.granules.retain(|at| !(address..address + count * GRANULE).contains(at));
            }
            Act::Step(_) => {}
        }
        self.blocks.sort_unstable();
        self.granules.sort_unstable();
    }

    fn of(snapshot: &RankSnapshot) -> Self {
        let device = &snapshot.devices[0];
        let blocks = device.blocks.iter().map(|b| (b.address, b.size, b.pending)).collect();
        let granules = device.segments.iter().flat_map(|segment| {
            (0..segment.size / GRANULE).map(|index| segment.address + index * GRANULE)
        });
        Self { blocks, granules: granules.collect() }
    }
}

/// What is wrong with a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `DONE` rises before the tables change.
    DoneEarly,
    /// The tables change before the event is reserved and published.
    TableFirst,
    /// The check is stored before the words that it binds: harmless, since it binds them.
    CheckFirst,
    /// All fences are gone, and nothing is released.
    NoOrder,
}

/// A tape before the race, the stores of the race, and all states it may show.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    layout: Layout,
    front: Vec<u64>,
    script: Vec<(Option<usize>, Op)>,
    states: Vec<State>,
}

impl Model {
    /// A ring of `slots` and tables of `entries`, in which `before` has happened and `race` is
    /// going to.
    pub(crate) fn new(slots: usize, entries: usize, before: &[Act], race: &[Act]) -> Self {
        let layout = small::small_layout(slots, entries, 2);
        let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let words = Words(&memory);
        let mut state = State::default();
        // Recorded as well: a fence outside of a checker's run needs no checker.
        recorded(|| {
            words.format(&layout, &Birth::default());
            words.open_lane(0, &layout);
            words.set(header::TRACKER, Tracker::Attached as u64);
            before.iter().for_each(|&act| step(words, &layout, &mut state, act));
        });
        let front = memory.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let mut states = vec![state.clone()];
        let script = recorded(|| {
            for &act in race {
                step(words, &layout, &mut state, act);
                states.push(state.clone());
            }
        });
        let base = std::ptr::from_ref(&memory[0]).addr();
        let index = |op: &Op| match op {
            Op::Store(address, ..) => Some((address - base) / size_of::<AtomicU64>()),
            Op::Fence(_) => None,
        };
        let script = script.into_iter().map(|op| (index(&op), op)).collect();
        Self { layout, front, script, states }
    }

    /// The same with a writer that is broken.
    pub(crate) fn broken(mut self, fault: Fault) -> Self {
        let lane = self.layout.lanes[0];
        let is = |entry: &(Option<usize>, Op), from: usize, to: usize| {
            entry.0.is_some_and(|index| (from..to).contains(&index))
        };
        let done = lane.head + head::DONE;
        let mut events: Vec<Vec<(Option<usize>, Op)>> = Vec::new();
        for event in self.script.split_inclusive(|entry| is(entry, done, done + 1)) {
            let mut event = event.to_vec();
            let tables = |entry: &(Option<usize>, Op)| is(entry, lane.table, lane.steps);
            let check = |entry: &(Option<usize>, Op)| {
                is(entry, lane.ring, lane.table)
                    && entry.0.is_some_and(|at| (at - lane.ring) % SLOT_WORDS == 0)
            };
            let slot = |entry: &(Option<usize>, Op)| is(entry, lane.ring, lane.table);
            match fault {
                Fault::DoneEarly => shift(&mut event, |e| is(e, done, done + 1), tables),
                Fault::TableFirst => shift(&mut event, tables, |_| true),
                Fault::CheckFirst => shift(&mut event, check, slot),
                Fault::NoOrder => {
                    event.retain(|entry| entry.0.is_some());
                    for (_, op) in &mut event {
                        if let Op::Store(.., order) = op {
                            *order = Ordering::Relaxed;
                        }
                    }
                }
            }
            events.push(event);
        }
        self.script = events.concat();
        self
    }

    /// The tape before the race. Only words that decide are the checker's own: the marks of what
    /// is done, a slot's check, address and size, an entry's address, size and last word.
    pub(crate) fn memory(&self) -> Arc<Vec<AtomicU64>> {
        let lane = self.layout.lanes[0];
        let words = self.front.iter().enumerate().map(|(index, &value)| {
            if decides(&lane, index) { AtomicU64::checked(value) } else { AtomicU64::new(value) }
        });
        Arc::new(words.collect())
    }

    /// Writes the race.
    pub(crate) fn write(&self, memory: &[AtomicU64]) {
        for &(index, op) in &self.script {
            match (op, index) {
                (Op::Store(_, value, order), Some(index)) => memory[index].store(value, order),
                (Op::Fence(order), _) => fence(order),
                (Op::Store(..), None) => unreachable!("a store has a place"),
            }
        }
    }

    /// Reads a moment while the race is on; `false` when it was refused because the writer had
    /// overtaken the reader.
    pub(crate) fn read(&self, memory: &[AtomicU64], moment: PointInTime) -> bool {
        let tape = Tape::open(memory).expect("the tape is sound");
        match tape.snapshot(moment, None, 0) {
            Ok(snapshot) => {
                let found = State::of(&snapshot);
                // The end of a step is the one state before the race.
                let may = if moment == PointInTime::Present {
                    &self.states[..]
                } else {
                    &self.states[..1]
                };
                assert!(may.contains(&found), "{moment:?}: {found:?} is none of {may:?}");
                true
            }
            Err(RewindError::NotCovered { .. } | RewindError::Damaged) => false,
            Err(other) => panic!("{moment:?}: {other}"),
        }
    }

    /// Where the lock of the first lane is, and the lane.
    pub(crate) fn lane<'a>(&self, memory: &'a [AtomicU64]) -> Lane<'a> {
        Lane::new(Words(memory), self.layout.lanes[0], 0)
    }
}

/// Moves the stores that `which` picks in front of the first that `before` picks.
fn shift<T: Copy>(event: &mut Vec<T>, which: impl Fn(&T) -> bool, before: impl Fn(&T) -> bool) {
    let Some(at) = event.iter().position(&before) else { return };
    let (moved, rest): (Vec<T>, Vec<T>) = event[at..].iter().partition(|each| which(each));
    event.truncate(at);
    event.extend(moved.into_iter().chain(rest));
}

fn decides(lane: &LaneLayout, index: usize) -> bool {
    let within = |first: usize, end: usize| (first..end).contains(&index);
    if within(lane.head, lane.ring) {
        matches!(index - lane.head, head::RESERVED | head::DONE | head::LOCK)
    } else if within(lane.ring, lane.table) {
        matches!((index - lane.ring) % SLOT_WORDS, 0 | 4)
    } else if within(lane.table, lane.segments) {
        matches!((index - lane.table) % ENTRY_WORDS, 0 | 1 | 3)
    } else {
        within(lane.segments, lane.steps) && (index - lane.segments) % SEGMENT_WORDS == 0
    }
}

fn step(words: Words<'_>, layout: &Layout, state: &mut State, act: Act) {
    state.apply(act);
    let lane = Lane::new(words, layout.lanes[0], 0);
    let totals = Totals { allocated: 1, reserved: 2 };
    let range = |address, count| Grant { address, size: count * GRANULE, ..Grant::default() };
    match act {
        Act::Alloc(address, size) => {
            lane.alloc(1, Grant { address, size, ..Grant::default() }, totals)
        }
        Act::Free(address) => lane.free(1, address, 1, totals),
        Act::Defer(address) => lane.free_deferred(1, address, 1, totals),
        Act::Complete(address) => lane.free_completed(1, address),
        Act::Map(address, count) => lane.segment(1, Kind::SegmentMap, range(address, count)),
        Act::Unmap(address, count) => lane.segment(1, Kind::SegmentUnmap, range(address, count)),
        Act::Step(number) => words.mark_step(1, number),
    }
}

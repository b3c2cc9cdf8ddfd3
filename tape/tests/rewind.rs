//! The rewound tape against a plain replay of the same history.
//!
//! The oracle keeps the set of live blocks after every step, the slow and obvious way. Whatever
//! the history (address reuse, a ring that wraps many times, threads that take turns, a reader
//! that races the writer), a step that the tape covers must give exactly the oracle's state, and
//! one that it no longer covers must be refused.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memtape_tape::layout::{HOST_LANE, Layout, Sizes};
use memtape_tape::read::Tape;
use memtape_tape::rewind::{PointInTime, RewindError};
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};
use proptest::prelude::*;

/// Address → (size, birth step).
type State = BTreeMap<u64, (u64, u64)>;

fn grant(address: u64, size: u64) -> Grant {
    Grant { address, size, ..Grant::default() }
}

struct Rig {
    memory: Vec<AtomicU64>,
    layout: Layout,
}

impl Rig {
    fn new(events: usize, table_entries: usize, step_records: usize) -> Self {
        let segment_entries = 64;
        let interned_words = 512;
        let sizes = Sizes { events, table_entries, step_records, segment_entries, interned_words };
        let layout = Layout::new(sizes);
        // Only the first device's lane is used: the others need no memory.
        let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let words = Words(&memory);
        words.format(&layout, &Birth::default());
        words.open_lane(0, &layout);
        Self { memory, layout }
    }

    fn words(&self) -> Words<'_> {
        Words(&self.memory)
    }

    fn lane(&self) -> Lane<'_> {
        Lane::new(self.words(), self.layout.lanes[0], 0)
    }

    fn tape(&self) -> Tape<&[AtomicU64]> {
        Tape::open(self.memory.as_slice()).expect("a tape that was just made opens")
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { place: u8, size: u32 },
    Free { place: u8 },
    Step,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (any::<u8>(), 1u32..1 << 20).prop_map(|(place, size)| Op::Alloc { place, size }),
        4 => any::<u8>().prop_map(|place| Op::Free { place }),
        1 => Just(Op::Step),
    ]
}

/// A history applied to both sides.
struct Run<'a> {
    lane: Lane<'a>,
    words: Words<'a>,
    live: State,
    /// State at the end of step `i + 1`, and events that had happened by then.
    at_step: Vec<(State, u64)>,
    events: u64,
    time_ns: u64,
}

impl<'a> Run<'a> {
    fn new(rig: &'a Rig) -> Self {
        Self {
            lane: rig.lane(),
            words: rig.words(),
            live: State::new(),
            at_step: Vec::new(),
            events: 0,
            time_ns: 0,
        }
    }

    fn apply(&mut self, op: &Op) {
        self.time_ns += 10;
        let address = |place: u8| 0x7000_0000_0000 + u64::from(place) * 512;
        match *op {
            Op::Alloc { place, size } if !self.live.contains_key(&address(place)) => {
                let step = self.at_step.len() as u64;
                self.live.insert(address(place), (u64::from(size), step));
                let totals = self.totals();
                self.lane.alloc(self.time_ns, grant(address(place), u64::from(size)), totals);
                self.events += 1;
            }
            Op::Free { place } if self.live.contains_key(&address(place)) => {
                self.live.remove(&address(place));
                self.lane.free(self.time_ns, address(place), 1, self.totals());
                self.events += 1;
            }
            Op::Step => {
                self.at_step.push((self.live.clone(), self.events));
                self.words.mark_step(self.time_ns, self.at_step.len() as u64);
            }
            _ => {}
        }
    }

    fn totals(&self) -> Totals {
        let allocated = self.live.values().map(|(size, _)| size).sum();
        Totals { allocated, reserved: allocated + 4096 }
    }
}

fn state_of(snapshot: &memtape_tape::snapshot::RankSnapshot) -> State {
    let blocks = snapshot.devices.iter().flat_map(|device| &device.blocks);
    blocks.map(|block| (block.address, (block.size, block.birth_step))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_covered_step_is_exact_and_every_other_is_refused(
        ops in prop::collection::vec(any_op(), 1..1500),
        ring in prop::sample::select(vec![64usize, 128, 1024]),
    ) {
        let rig = Rig::new(ring, 4096, 64);
        let mut run = Run::new(&rig);
        for op in &ops {
            run.apply(op);
        }
        let tape = rig.tape();
        let steps = run.at_step.len() as u64;
        let oldest = tape.oldest_step();
        let present = tape.snapshot(PointInTime::Present, None, 0).unwrap();
        prop_assert_eq!(state_of(&present), run.live.clone());

        for (index, (expected, cursor)) in run.at_step.iter().enumerate() {
            let step = index as u64 + 1;
            let covered = run.events - cursor <= ring as u64;
            let bytes_max = tape.snapshot_bytes(16);
            let within = tape.snapshot_within(PointInTime::EndOf(step), None, 16, bytes_max);
            prop_assert_eq!(&within, &tape.snapshot(PointInTime::EndOf(step), None, 16));
            match tape.snapshot(PointInTime::EndOf(step), None, 16) {
                Ok(snapshot) => {
                    prop_assert!(covered, "step {step} came back though it is overwritten");
                    prop_assert_eq!(&state_of(&snapshot), expected);
                    let allocated: u64 = expected.values().map(|(size, _)| size).sum();
                    prop_assert_eq!(snapshot.devices[0].allocated, allocated);
                    prop_assert_eq!(snapshot.step, step);
                    prop_assert!(snapshot.devices[0].trace.len() <= 16);
                    prop_assert!(step >= oldest, "oldest_step says {oldest}");
                }
                Err(RewindError::NotCovered { .. }) => {
                    // The step index holds 64 records, the ring fewer events than `ring`.
                    prop_assert!(!covered || steps - step >= 63, "step {step} is covered");
                    prop_assert!(step < oldest || oldest == 0, "oldest_step says {oldest}");
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        let beyond = tape.snapshot(PointInTime::EndOf(steps + 1), None, 0);
        prop_assert_eq!(beyond, Err(RewindError::NotReached { step: steps + 1, reached: steps }));
    }

    #[test]
    fn earlier_sums_come_from_the_same_tape(
        ops in prop::collection::vec(any_op(), 200..600), early in 1u64..20,
    ) {
        let rig = Rig::new(4096, 4096, 256);
        let mut run = Run::new(&rig);
        for op in ops.iter().chain([&Op::Step]) {
            run.apply(op);
        }
        let steps = run.at_step.len() as u64;
        prop_assume!(early < steps);
        let snapshot = rig.tape().snapshot(PointInTime::EndOf(steps), Some(early), 0).unwrap();
        prop_assert_eq!(snapshot.before_step, early);
        let past = &run.at_step[early as usize - 1].0;
        let uses = &snapshot.devices[0].before;
        prop_assert_eq!(uses.iter().map(|u| u.blocks).sum::<u64>(), past.len() as u64);
        prop_assert_eq!(
            uses.iter().map(|u| u.bytes).sum::<u64>(),
            past.values().map(|(size, _)| size).sum::<u64>()
        );
    }

    #[test]
    fn step_records_hold_floors_and_peaks(
        ops in prop::collection::vec(any_op(), 1..800),
    ) {
        let rig = Rig::new(4096, 4096, 1024);
        let mut run = Run::new(&rig);
        let (mut floor, mut peak) = (0, 0);
        let mut expected = Vec::new();
        for op in &ops {
            run.apply(op);
            let allocated = run.totals().allocated;
            if matches!(op, Op::Step) {
                expected.push((floor, peak, allocated));
                (floor, peak) = (allocated, allocated);
            } else {
                (floor, peak) = (floor.min(allocated), peak.max(allocated));
            }
        }
        let steps = rig.tape().steps_after(0, 0);
        prop_assert_eq!(steps.missed, 0);
        let mut next = 1;
        for record in &steps.records {
            prop_assert_eq!(record.first_step, next);
            let (floor, peak, end) = expected[record.first_step as usize - 1];
            prop_assert_eq!(
                (record.floor_allocated, record.peak_allocated, record.end_allocated),
                (floor, peak, end)
            );
            next = record.last_step + 1;
        }
        prop_assert_eq!(next, expected.len() as u64 + 1);
    }
}

/// A random operation.
fn op(rng: &mut fastrand::Rng) -> Op {
    let place = rng.u8(..);
    match rng.u8(..9) {
        0..4 => Op::Alloc { place, size: rng.u32(1..1 << 20) },
        4..8 => Op::Free { place },
        _ => Op::Step,
    }
}

#[test]
fn a_reader_that_races_two_writers_is_never_wrong() {
    let seed = std::env::var("MEMTAPE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261);
    println!("MEMTAPE_SEED={seed}");
    let rig = Rig::new(2048, 4096, 4096);
    let run = Mutex::new(Run::new(&rig));
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        // Two threads take turns under a mutex, as PyTorch's threads do under the device mutex.
        let writers: Vec<_> = (0..2u64)
            .map(|thread| {
                let run = &run;
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed + 7919 * (thread + 1));
                    for _ in 0..150_000 {
                        run.lock().unwrap().apply(&op(&mut random));
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            let tape = rig.tape();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut seen = BTreeMap::new();
            while !over.load(Ordering::Acquire) {
                let newest = tape.status().step;
                let step = newest.saturating_sub(random.u64(..40)).max(1);
                match tape.snapshot(PointInTime::EndOf(step), None, 0) {
                    Ok(snapshot) => {
                        seen.insert(step, state_of(&snapshot));
                    }
                    Err(RewindError::NotCovered { .. } | RewindError::NotReached { .. }) => {}
                    Err(other) => panic!("step {step} of {newest}: {other}"),
                }
            }
            seen
        });
        for writer in writers {
            writer.join().unwrap();
        }
        over.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    let run = run.into_inner().unwrap();
    assert!(!seen.is_empty(), "the reader never got a state");
    for (step, state) in seen {
        assert_eq!(state, run.at_step[step as usize - 1].0, "step {step}");
    }
}

#[test]
fn writers_of_a_host_lane_alternate_or_count_losses() {
    let rig = Rig::new(64, 64, 64);
    rig.words().open_lane(HOST_LANE, &rig.layout);
    let host = Lane::new(rig.words(), rig.layout.lanes[HOST_LANE], HOST_LANE as u8);
    let mut inner = true;
    let outer = host.try_lock(|lane| inner = lane.try_lock(|_| {}));
    assert!(outer, "a free lane is taken");
    assert!(!inner, "a lane that is being written is not");
}

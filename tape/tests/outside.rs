//! Memory outside PyTorch's allocator by stack: a rewound tape against a plain replay.
//!
//! The oracle keeps every piece with its stack after each step. Whatever the history, what a
//! snapshot says of a stack now and at the earlier step must be the oracle's to the byte, and where
//! the ring no longer reaches back it must say that it does not know.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memtape_tape::event::Kind;
use memtape_tape::interned::InternedWriter;
use memtape_tape::layout::{CPU_LANE, HOST_LANE, Layout, Sizes, Tracker, head, header};
use memtape_tape::limits::OUTSIDE_STACKS_MAX;
use memtape_tape::read::Tape;
use memtape_tape::rewind::PointInTime;
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::snapshot::{Held, OutsideStack, RankSnapshot};
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};
use proptest::prelude::*;

const RING: usize = 64;

const NOTHING: Totals = Totals { allocated: 0, reserved: 0 };

const PIECES: u64 = 0x7100_0000_0000;

struct Rig {
    memory: Vec<AtomicU64>,
    layout: Layout,
    /// Of one frame each, at lines 1, 2, 3 …
    stacks: Vec<u32>,
}

impl Rig {
    fn new(stacks: u32, events: usize) -> Self {
        let layout = Layout::new(Sizes {
            events,
            table_entries: 1024,
            step_records: 256,
            segment_entries: 128,
            interned_words: 16_384,
        });
        let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let words = Words(&memory);
        words.format(&layout, &Birth::default());
        [0, HOST_LANE, CPU_LANE].iter().for_each(|&lane| words.open_lane(lane, &layout));
        let interned = InternedWriter(words);
        let name = interned.string(b"train.py").expect("room");
        let stack = |line| {
            let frame = interned.frame(name, name, line).expect("room");
            interned.stack(&[frame]).expect("room")
        };
        let stacks = (1..=stacks).map(stack).collect();
        Self { memory, layout, stacks }
    }

    fn words(&self) -> Words<'_> {
        Words(&self.memory)
    }

    fn lane(&self, index: usize) -> Lane<'_> {
        Lane::new(self.words(), self.layout.lanes[index], index as u8)
    }

    fn grant(&self, origin: Origin, address: u64, size: u64, line: u32) -> Grant {
        // Line 0 stands for a stack that could not be taken.
        let stack = line.checked_sub(1).map_or(0, |index| self.stacks[index as usize]);
        Grant { address, size, stack, owner: origin as u16, ..Grant::default() }
    }

    fn take(&self, now_ns: u64, origin: Origin, address: u64, size: u64, line: u32) {
        let lane = if origin == Origin::CpuTensor { CPU_LANE } else { HOST_LANE };
        let grant = self.grant(origin, address, size, line);
        self.lane(lane).of_device(0).alloc(now_ns, grant, NOTHING);
    }

    fn give(&self, now_ns: u64, origin: Origin, address: u64, size: u64) {
        let lane = if origin == Origin::CpuTensor { CPU_LANE } else { HOST_LANE };
        self.lane(lane).of_device(0).free(now_ns, address, size, NOTHING);
    }

    fn at(&self, step: u64, before: u64) -> RankSnapshot {
        let tape = Tape::open(self.memory.as_slice()).expect("a tape that was just made opens");
        tape.snapshot(PointInTime::EndOf(step), Some(before), 0).expect("the device covers it")
    }
}

fn line(snapshot: &RankSnapshot, stack: u32) -> u32 {
    snapshot.frames_of(stack).next().map_or(0, |frame| frame.line)
}

/// What is held by origin and line: now, since the earlier step, then.
type Found = BTreeMap<(Origin, u32), (Held, Held, Option<Held>)>;

fn reported(snapshot: &RankSnapshot) -> Found {
    let of = |each: &OutsideStack| {
        ((each.origin, line(snapshot, each.stack)), (each.held, each.fresh, each.before))
    };
    let all: Found = snapshot.outside_stacks.iter().map(of).collect();
    assert_eq!(all.len(), snapshot.outside_stacks.len(), "each stack once");
    all
}

#[derive(Clone, Debug)]
enum Op {
    Take { slot: u8, size: u32, line: u32, origin: Origin },
    Give { slot: u8 },
    Step,
}

fn any_op() -> impl Strategy<Value = Op> {
    let origins = proptest::sample::select(vec![
        Origin::Nccl,
        Origin::Managed,
        Origin::HostPinned,
        Origin::CpuTensor,
        Origin::CudaMalloc,
    ]);
    prop_oneof![
        4 => (any::<u8>(), 1..1_u32 << 20, 0..4_u32, origins)
            .prop_map(|(slot, size, line, origin)| Op::Take { slot, size, line, origin }),
        3 => any::<u8>().prop_map(|slot| Op::Give { slot }),
        2 => Just(Op::Step),
    ]
}

/// Size, line, origin and the steps finished when it was taken.
type Pieces = BTreeMap<u64, (u64, u32, Origin, u64)>;

/// Carries the history out; the pieces after each step.
fn play(rig: &Rig, ops: &[Op]) -> Vec<Pieces> {
    let mut live = Pieces::new();
    let mut after = vec![Pieces::new()];
    for (now_ns, op) in (10..).zip(ops) {
        let address = |slot: u8| PIECES + u64::from(slot) * (4 << 20);
        match *op {
            Op::Take { slot, size, line, origin } if !live.contains_key(&address(slot)) => {
                let (size, born) = (u64::from(size), after.len() as u64 - 1);
                rig.take(now_ns, origin, address(slot), size, line);
                live.insert(address(slot), (size, line, origin, born));
            }
            Op::Give { slot } => {
                if let Some((size, _, origin, _)) = live.remove(&address(slot)) {
                    rig.give(now_ns, origin, address(slot), size);
                }
            }
            Op::Step => {
                after.push(live.clone());
                rig.words().mark_step(now_ns, after.len() as u64 - 1);
            }
            Op::Take { .. } => {}
        }
    }
    after
}

fn expected(now: &Pieces, was: &Pieces, before: u64, is_known: impl Fn(Origin) -> bool) -> Found {
    let mut found = Found::new();
    for &(size, line, origin, born) in now.values() {
        let entry = found.entry((origin, line)).or_default();
        entry.0.add(size);
        if born >= before {
            entry.1.add(size);
        }
    }
    for &(size, line, origin, _) in was.values().filter(|piece| is_known(piece.2)) {
        found.entry((origin, line)).or_default().2.get_or_insert_default().add(size);
    }
    for ((origin, _), entry) in &mut found {
        if is_known(*origin) {
            entry.2.get_or_insert_default();
        }
    }
    found
}

proptest! {
    #[test]
    fn the_memory_of_stacks_equals_the_memory_taken(
        ops in prop::collection::vec(any_op(), 1..120),
        (early, late) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
    ) {
        // A ring that holds all: then both moments are known.
        let rig = Rig::new(3, 256);
        rig.words().mark_step(1, 0);
        let after = play(&rig, &ops);
        prop_assume!(after.len() > 2);
        let before = 1 + early.index(after.len() - 2);
        let step = before + 1 + late.index(after.len() - 1 - before);
        let found = rig.at(step as u64, before as u64);
        prop_assert_eq!(found.before_step, before as u64);
        let expected = expected(&after[step], &after[before], before as u64, |_| true);
        prop_assert_eq!(reported(&found), expected);
        // Without any of the allocator's segments they are all that there is.
        for of in &found.outside {
            let rows = found.outside_stacks.iter().filter(|row| row.origin == of.origin);
            prop_assert_eq!(rows.map(|row| row.held.bytes).sum::<u64>(), of.bytes);
        }
        prop_assert_eq!(found.outside_stacks_left_out, 0);
    }
}

#[test]
fn a_ring_that_wrapped_leaves_the_births() {
    let rig = Rig::new(2, RING);
    rig.take(1, Origin::HostPinned, PIECES, 4096, 1);
    rig.words().mark_step(2, 1);
    for index in 1..=RING as u64 + 1 {
        rig.take(3, Origin::HostPinned, PIECES + index * 4096, 4096, 2);
    }
    rig.words().mark_step(4, 2);
    let found = rig.at(2, 1);
    let held = |count: u64| Held { bytes: count * 4096, count };
    let new = held(RING as u64 + 1);
    let expected = Found::from([
        ((Origin::HostPinned, 1), (held(1), held(0), None)),
        ((Origin::HostPinned, 2), (new, new, None)),
    ]);
    assert_eq!((reported(&found), found.before_step), (expected, 1));
    let births: Vec<_> = found
        .outside_stacks
        .iter()
        .map(|row| (row.births, row.first_step, row.last_step))
        .collect();
    assert_eq!(births, [(1, 0, 0), (1, 1, 1)]);
}

/// `cudaMalloc` at two lines, one of which is the allocator's.
fn with_segments(tell: impl Fn(&Rig)) -> Found {
    let rig = Rig::new(2, 256);
    tell(&rig);
    let both = |index: u64| {
        let address = PIECES + index * (64 << 20);
        rig.take(10 * index + 1, Origin::CudaMalloc, address, 20 << 20, 1);
        let segment = rig.grant(Origin::Unknown, address, 20 << 20, 1);
        rig.lane(0).segment(10 * index + 2, Kind::SegmentAlloc, segment);
        let block = rig.grant(Origin::Unknown, address, 512, 1);
        let held = Totals { allocated: 512, reserved: 20 << 20 };
        rig.lane(0).alloc(10 * index + 3, block, held);
        rig.take(10 * index + 4, Origin::CudaMalloc, address + (32 << 20), 1 << 20, 2);
    };
    both(0);
    rig.words().mark_step(5, 1);
    both(1);
    rig.words().mark_step(16, 2);
    // The first segment goes back: at the earlier step it was one all the same.
    let segment = rig.grant(Origin::Unknown, PIECES, 20 << 20, 1);
    rig.lane(0).segment(17, Kind::SegmentFree, segment);
    rig.give(18, Origin::CudaMalloc, PIECES, 20 << 20);
    rig.words().mark_step(19, 3);
    reported(&rig.at(3, 1))
}

#[test]
fn segments_of_the_allocator_are_not_other_memory() {
    let attached = |rig: &Rig| rig.words().set(header::TRACKER, Tracker::Attached as u64);
    let held = |count: u64| Held { bytes: count << 20, count };
    let others = ((Origin::CudaMalloc, 2), (held(2), held(1), Some(held(1))));
    assert_eq!(with_segments(attached), Found::from([others]));
    assert_eq!(with_segments(|_| {}), Found::from([others]), "by its blocks");
    // Where blocks are missing nothing tells: whose they are is not guessed.
    let lost = |rig: &Rig| rig.words().count(rig.layout.lanes[0].head + head::LOST_BLOCKS);
    assert_eq!(with_segments(lost), Found::new());
}

/// Without the allocator's trace, pieces with blocks in them may be all that it holds.
#[test]
fn memory_beyond_the_allocators_is_of_other_owners() {
    let check = |reserved: u64, expected: Found| {
        let rig = Rig::new(2, 256);
        let held = Totals { allocated: 512, reserved };
        rig.take(1, Origin::CudaMalloc, PIECES, 20 << 20, 1);
        rig.lane(0).alloc(2, rig.grant(Origin::Unknown, PIECES + 4096, 512, 1), held);
        rig.take(3, Origin::CudaMalloc, PIECES + (64 << 20), 1 << 20, 2);
        rig.words().mark_step(4, 1);
        rig.lane(0).free(5, PIECES + 4096, 512, Totals { allocated: 0, reserved });
        rig.lane(0).alloc(6, rig.grant(Origin::Unknown, PIECES + 8192, 512, 1), held);
        rig.words().mark_step(7, 2);
        assert_eq!(reported(&rig.at(2, 1)), expected, "{reserved} reserved");
    };
    let piece = Held { bytes: 1 << 20, count: 1 };
    let others = ((Origin::CudaMalloc, 2), (piece, Held::default(), Some(piece)));
    check(20 << 20, Found::from([others]));
    check(21 << 20, Found::new());
}

#[test]
fn the_smallest_of_too_many_stacks_are_one() {
    const MORE: u32 = 5;
    let stacks = OUTSIDE_STACKS_MAX as u32 + MORE;
    let rig = Rig::new(stacks, 1024);
    rig.words().mark_step(1, 1);
    for line in 1..=stacks {
        let address = PIECES + u64::from(line) * 65_536;
        rig.take(2, Origin::CpuTensor, address, u64::from(line) * 8, line);
    }
    rig.words().mark_step(3, 2);
    let found = rig.at(2, 1);
    assert_eq!(found.outside_stacks.len(), OUTSIDE_STACKS_MAX);
    assert_eq!(found.outside_stacks_left_out, u64::from(MORE) + 1);
    let sums = reported(&found);
    let rest = (1..=u64::from(MORE) + 1).map(|line| line * 8).sum();
    assert_eq!(sums[&(Origin::CpuTensor, 0)].0, Held { bytes: rest, count: 6 });
    assert_eq!(sums[&(Origin::CpuTensor, stacks)].0.bytes, u64::from(stacks) * 8);
    let sum: u64 = sums.values().map(|(held, ..)| held.bytes).sum();
    assert_eq!(sum, found.outside[0].bytes, "nothing is lost");
}

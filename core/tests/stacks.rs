//! Live memory by stack: sums that are exact to the byte, and ranges of steps that partition.

use memtape_core::diagnosis::files::Past;
use memtape_core::snapshot::failed_request::FailedRequest;
use memtape_core::snapshot::{Block, DeviceSnapshot, Frame, Held, RankSnapshot, StackUse};
use memtape_core::stacks::{AllocationSteps, ComparedStacks, HeldAt, LiveStacks, StackRow};
use memtape_core::tape::rewind::PointInTime;
use proptest::prelude::*;

use crate::census::Rank;

fn frame(file: &str, line: u32, function: &str) -> Frame {
    Frame { file: file.into(), line, function: function.into() }
}

/// A rank with two stacks, a block without one, a pending one, and 7 bytes without a block.
fn sample() -> RankSnapshot {
    let block = |size, stack, birth_step| Block { size, stack, birth_step, ..Block::default() };
    let used = |stack, bytes| StackUse { stack, bytes, blocks: 1 };
    RankSnapshot {
        step: 9,
        before_step: 4,
        devices: vec![DeviceSnapshot {
            allocated: 1000 + 300 + 50 + 7,
            blocks: vec![
                block(1000, 1, 0),
                block(300, 2, 6),
                block(50, 0, 8),
                Block { pending: true, ..block(4096, 1, 8) },
            ],
            before: vec![used(1, 1000), used(2, 400)],
            ..DeviceSnapshot::default()
        }],
        frames: vec![
            Frame::default(),
            frame("/app/train.py", 80, "main"),
            frame("/x/site-packages/torch/nn/functional.py", 5, "linear"),
            frame("/app/train.py", 36, "keep"),
        ],
        stacks: vec![vec![], vec![1], vec![2, 3, 1]],
        ..RankSnapshot::default()
    }
}

fn alone(of: &LiveStacks<'_>) -> ComparedStacks {
    ComparedStacks::of(of, u64::MAX)
}

fn all(of: &RankSnapshot) -> LiveStacks<'_> {
    LiveStacks::of_snapshot(of, AllocationSteps::ALL)
}

fn bytes(rows: &[StackRow<'_>]) -> Vec<(u64, u64)> {
    rows.iter().map(|row| (row.own.held.bytes, row.other_bytes)).collect()
}

#[test]
fn the_sum_equals_the_allocated_bytes() {
    let snapshot = sample();
    let table = alone(&all(&snapshot));
    assert_eq!(table.own(), Held { bytes: 1350, count: 3 });
    assert_eq!(table.own().bytes + table.unrecorded_bytes(), snapshot.devices[0].allocated);
    let stacks = table.stacks();
    assert_eq!(bytes(&stacks), [(50, 0), (1000, 0), (300, 0)]);
    let innermost: Vec<Option<&str>> =
        stacks.iter().map(|row| row.frames.last().map(|frame| frame.function.as_str())).collect();
    assert_eq!(innermost, [None, Some("main"), Some("linear")]);
    let lines = table.lines();
    let line = |at: usize| (lines[at].frame.map(|frame| frame.line), lines[at].own.steps);
    assert_eq!([line(0), line(1)], [(Some(80), Some((1, 1))), (Some(36), Some((7, 7)))]);
    assert_eq!(line(2), (None, Some((9, 9))));
}

/// The blocks of step 7 have birth step 6: six steps had finished when they were allocated.
#[test]
fn a_block_belongs_to_the_step_in_which_it_was_allocated() {
    let snapshot = sample();
    let kept = |from: u64, to: u64| {
        let steps = AllocationSteps::of(from..=to).expect("steps");
        alone(&LiveStacks::of_snapshot(&snapshot, steps)).own().bytes
    };
    assert_eq!([kept(7, 7), kept(6, 6), kept(8, 8), kept(9, 9)], [300, 0, 0, 50]);
    assert_eq!([kept(1, 1), kept(0, 1), kept(2, 9)], [1000, 1000, 350]);
    // What is new since the earlier step is of the steps after it.
    assert_eq!(kept(snapshot.before_step + 1, snapshot.step), 350);
    let (first, last) = (5, 4);
    assert_eq!(AllocationSteps::of(first..=last), None);
    assert_eq!(AllocationSteps::of(0..=0), None);
    assert_eq!(AllocationSteps::last_of(&snapshot), 9);
    let mut within = sample();
    within.devices[0].blocks[2].birth_step = 9;
    assert_eq!(AllocationSteps::last_of(&within), 10, "the step under way");
}

/// On a tape: the step of a block is the step whose record ends next.
#[test]
fn the_steps_of_blocks_are_those_of_the_records_of_a_tape() {
    let mut rank = Rank::new();
    let stack = rank.stack(&[("/app/train.py", 7)]);
    for step in 1..=6 {
        rank.alloc(stack, step << 20);
        rank.end_step(step);
    }
    rank.alloc(stack, 7 << 20);
    let kept = |state: &RankSnapshot, from: u64, to: u64| {
        let steps = AllocationSteps::of(from..=to).expect("steps");
        alone(&LiveStacks::of_snapshot(state, steps)).own()
    };
    let state = rank.state(PointInTime::EndOf(5), Some(3));
    for step in 1..=5 {
        let held = Held { bytes: step << 20, count: 1 };
        assert_eq!(kept(&state, step, step), held, "step {step}");
    }
    assert_eq!(AllocationSteps::last_of(&state), 5);
    let new = kept(&state, state.before_step + 1, state.step);
    let before = alone(&LiveStacks::before(&state).expect("an earlier step")).own();
    assert_eq!((new.count, new.plus(before)), (2, kept(&state, 1, 5)));
    let present = rank.state(PointInTime::Present, None);
    assert_eq!((present.step, AllocationSteps::last_of(&present)), (6, 7), "step 7 is under way");
    assert_eq!(kept(&present, 7, 7).bytes, 7 << 20);
}

/// Memory that a step frees is at the peak, in the step and by the line that allocated it.
#[test]
fn a_peak_has_what_its_step_frees() {
    let mut rank = Rank::new();
    let (weights, batch) =
        (rank.stack(&[("/app/model.py", 3)]), rank.stack(&[("/app/data.py", 5)]));
    rank.alloc(weights, 64 << 20);
    for step in 1..=6 {
        let bytes = if step == 4 { 9 << 20 } else { 2 << 20 };
        let address = rank.alloc(batch, bytes);
        rank.free(address, bytes);
        rank.end_step(step);
    }
    let state = rank.traced(PointInTime::EndOf(6));
    let live = LiveStacks::held_at(&state, HeldAt::Peak, AllocationSteps::ALL).expect("a trace");
    assert_eq!(live.step(), 4);
    let table = alone(&live);
    let lines = table.lines();
    let held: Vec<_> = lines.iter().map(|of| (of.frame.unwrap().line, of.own.held.bytes)).collect();
    assert_eq!(held, [(3, 64 << 20), (5, 9 << 20)]);
    let past = Past::of(&state, &state.devices[0]).peak.expect("a trace");
    assert_eq!((table.own().bytes, past.step), (past.bytes, 4));
    let end = alone(
        &LiveStacks::held_at(&state, HeldAt::StepEnd, AllocationSteps::ALL).expect("the end"),
    );
    assert_eq!(end.own().bytes, 64 << 20);
    assert!(
        LiveStacks::held_at(&sample(), HeldAt::Peak, AllocationSteps::ALL).is_none(),
        "no trace"
    );
}

#[test]
fn a_failed_request_has_the_memory_of_its_time() {
    let uses = vec![StackUse { stack: 2, bytes: 900, blocks: 3 }];
    let failed = FailedRequest { step: 9, allocated: 1000, uses, ..FailedRequest::default() };
    let state = RankSnapshot { failed_request: Some(failed), ..sample() };
    let live = LiveStacks::held_at(&state, HeldAt::FailedRequest, AllocationSteps::ALL)
        .expect("a failed request");
    assert_eq!((live.step(), live.unrecorded_bytes()), (10, 100));
    assert_eq!(alone(&live).own(), Held { bytes: 900, count: 3 });
    assert!(LiveStacks::held_at(&sample(), HeldAt::FailedRequest, AllocationSteps::ALL).is_none());
}

#[test]
fn several_devices_are_apart() {
    let mut snapshot = sample();
    let second = DeviceSnapshot { device: 1, ..snapshot.devices[0].clone() };
    snapshot.devices.push(second);
    let table = alone(&all(&snapshot));
    assert_eq!(table.own(), Held { bytes: 2700, count: 6 });
    assert_eq!(table.unrecorded_bytes(), 14);
    let on_second = table.stacks().iter().filter(|row| row.device == Some(1)).count();
    assert_eq!((on_second, table.lines().len()), (3, 3));
}

#[test]
fn an_earlier_state_is_compared_stack_by_stack() {
    let snapshot = sample();
    let mut table = alone(&all(&snapshot));
    table.add_other(&LiveStacks::before(&snapshot).expect("an earlier step"));
    assert_eq!(bytes(&table.stacks()), [(50, 0), (1000, 1000), (300, 400)]);
    assert_eq!(table.other_bytes(), Some(1400));
    // The line without a stack is 50 bytes above the earlier state, train.py:36 is 100 below.
    let order: Vec<u64> = table.lines().iter().map(|line| line.own.held.bytes).collect();
    assert_eq!(order, [50, 1000, 300]);
    assert!(LiveStacks::before(&RankSnapshot { before_step: 0, ..sample() }).is_none());
}

#[test]
fn the_median_counts_states_without_the_stack() {
    let (snapshot, nothing) = (sample(), LiveStacks::default());
    let full = all(&snapshot);
    let median = |others: &[&LiveStacks<'_>]| {
        let mut table = alone(&nothing);
        others.iter().for_each(|other| table.add_other(other));
        (table.other_bytes(), table.stacks().iter().map(|row| row.other_bytes).sum::<u64>())
    };
    assert_eq!(median(&[&full, &full, &nothing]), (Some(1350), 1350));
    assert_eq!(median(&[&full, &nothing, &nothing]), (Some(0), 0));
    assert_eq!(median(&[&full, &nothing]), (Some(0), 0));
    assert_eq!(median(&[]), (None, 0));
}

#[test]
fn without_room_the_smallest_stacks_are_added_up() {
    let snapshot = sample();
    let live = all(&snapshot);
    // Room for the largest stack, of one frame.
    let mut table = ComparedStacks::of(&live, 500);
    assert_eq!(bytes(&table.stacks()), [(1000, 0)]);
    assert_eq!(table.rest(), (2, Held { bytes: 350, count: 2 }));
    assert_eq!(table.own().bytes, 1350);
    table.add_other(&live);
    assert_eq!((bytes(&table.stacks()), table.other_bytes()), (vec![(1000, 1000)], Some(1350)));
    let nothing = ComparedStacks::of(&live, 0);
    assert_eq!((nothing.rest().1, nothing.own()), (nothing.own(), table.own()));
}

/// Blocks of a few stacks and devices, some pending, some bytes without a block.
fn any_rank() -> impl Strategy<Value = RankSnapshot> {
    let block = (0..1_u64 << 40, 0..9_u32, 0..40_u64, any::<bool>());
    let device = (prop::collection::vec(block, 0..40), 0..1_u64 << 40);
    prop::collection::vec(device, 1..3).prop_map(|devices| {
        let devices = devices.into_iter().enumerate().map(|(device, (blocks, unrecorded))| {
            let block = |(size, stack, birth_step, pending)| Block {
                size,
                stack,
                birth_step,
                pending,
                ..Block::default()
            };
            let blocks: Vec<Block> = blocks.into_iter().map(block).collect();
            let live = blocks.iter().filter(|block| !block.pending).map(|block| block.size);
            let allocated = live.sum::<u64>() + unrecorded;
            DeviceSnapshot { device: device as u8, allocated, blocks, ..DeviceSnapshot::default() }
        });
        let mut frames = vec![Frame::default()];
        frames.extend((1..6).map(|line| frame("/app/train.py", line, "f")));
        // Stack 8 is not there; 5 and 6 say the same.
        let stacks = [&[][..], &[1], &[2, 1], &[3, 2, 1], &[3, 1], &[4, 0, 5], &[4, 5], &[0]];
        let stacks = stacks.map(<[u32]>::to_vec).to_vec();
        RankSnapshot { devices: devices.collect(), frames, stacks, ..sample() }
    })
}

/// Sums over all rows and the rest.
fn sums(table: &ComparedStacks) -> [Held; 2] {
    let add = |sum: Held, held: Held| sum.plus(held);
    let (_, rest) = table.rest();
    let stacks = table.stacks().iter().map(|row| row.own.held).fold(rest, add);
    let lines = table.lines().iter().map(|line| line.own.held).fold(rest, add);
    [stacks, lines]
}

proptest! {
    #[test]
    fn sums_are_exact_to_the_byte(rank in any_rank(), room in 0..6000_u64) {
        let live = all(&rank);
        for bytes_max in [u64::MAX, room] {
            let mut table = ComparedStacks::of(&live, bytes_max);
            table.add_other(&live);
            prop_assert_eq!(sums(&table), [table.own(); 2]);
            prop_assert_eq!(table.own(), alone(&live).own());
            let allocated: u64 = rank.devices.iter().map(|device| device.allocated).sum();
            prop_assert_eq!(table.own().bytes + table.unrecorded_bytes(), allocated);
            let is_same = |row: &StackRow<'_>| row.own.held.bytes == row.other_bytes;
            prop_assert!(table.stacks().iter().all(is_same));
        }
    }

    #[test]
    fn ranges_of_steps_partition(rank in any_rank(), mut cuts in prop::array::uniform3(0..45_u64)) {
        cuts.sort_unstable();
        let [a, b, c] = cuts;
        let kept = |steps| {
            let steps = AllocationSteps::of(steps);
            let live = steps.map(|steps| LiveStacks::of_snapshot(&rank, steps));
            live.map_or_else(ComparedStacks::default, |live| alone(&live))
        };
        let by_stack = |tables: &[ComparedStacks]| {
            let mut rows = std::collections::BTreeMap::<_, Held>::new();
            for row in tables.iter().flat_map(ComparedStacks::stacks) {
                let stack: Vec<Frame> = row.frames.into_iter().cloned().collect();
                let held = rows.entry((row.device, stack)).or_default();
                *held = held.plus(row.own.held);
            }
            rows
        };
        let parts = [kept(a..=b), kept(b + 1..=c)];
        prop_assert_eq!(by_stack(&parts), by_stack(&[kept(a..=c)]));
        let every = kept(1..=AllocationSteps::last_of(&rank));
        prop_assert_eq!(by_stack(&[every]), by_stack(&[alone(&all(&rank))]));
    }
}

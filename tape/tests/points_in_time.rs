//! Segments, pending frees and lanes beside each other, at moments of the past.
//!
//! The oracle for one lane keeps its state after every step, as `tape/tests/rewind.rs` does for
//! plain blocks. The other tests are single cases: what a lane says whose ring no longer reaches
//! back to a moment, and what counts as lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;

use memtape_tape::event::Kind;
use memtape_tape::interned::InternedWriter;
use memtape_tape::layout::{HOST_LANE, Layout, Sizes, Tracker, header};
use memtape_tape::read::{Loss, Tape};
use memtape_tape::rewind::{PointInTime, RewindError};
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::snapshot::{RankSnapshot, Segment};
use memtape_tape::write::GRANULE_SMALL;
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};
use proptest::prelude::*;

/// Events that a lane's ring holds.
const RING: u64 = 64;

const BLOCKS: u64 = 0x7000_0000_0000;
const SEGMENTS: u64 = 0x7100_0000_0000;
const RANGES: u64 = 0x7200_0000_0000;

struct Rig {
    memory: Vec<AtomicU64>,
    layout: Layout,
    /// Ids of three stacks, of one frame each, at lines 1 to 3.
    stacks: Vec<u32>,
}

impl Rig {
    fn new(lanes: &[usize]) -> Self {
        let layout = Layout::new(Sizes {
            events: RING as usize,
            table_entries: 512,
            step_records: 64,
            segment_entries: 128,
            interned_words: 512,
        });
        let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let words = Words(&memory);
        words.format(&layout, &Birth::default());
        lanes.iter().for_each(|&lane| words.open_lane(lane, &layout));
        let interned = InternedWriter(words);
        let name = interned.string(b"f").expect("room");
        let stack = |line| {
            let frame = interned.frame(name, name, line).expect("room");
            interned.stack(&[frame]).expect("room")
        };
        let stacks = (1..=3).map(stack).collect();
        Self { memory, layout, stacks }
    }

    /// Segments come from the allocator.
    fn traced(lanes: &[usize]) -> Self {
        let rig = Self::new(lanes);
        rig.words().set(header::TRACKER, Tracker::Attached as u64);
        rig
    }

    fn words(&self) -> Words<'_> {
        Words(&self.memory)
    }

    fn lane(&self, index: usize) -> Lane<'_> {
        Lane::new(self.words(), self.layout.lanes[index], index as u8)
    }

    fn tape(&self) -> Tape<&[AtomicU64]> {
        Tape::open(self.memory.as_slice()).expect("a tape that was just made opens")
    }

    /// A request of a stack, by its line.
    fn grant(&self, address: u64, size: u64, line: u32) -> Grant {
        let stack = self.stacks[line as usize - 1];
        Grant { address, size, stack, ..Grant::default() }
    }
}

fn totals(reserved: u64) -> Totals {
    Totals { allocated: 512, reserved }
}

fn line(snapshot: &RankSnapshot, stack: u32) -> u32 {
    snapshot.frames_of(stack).next().map_or(0, |frame| frame.line)
}

/// Blocks with size, line and whether they were taken back; segments with their line; granules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    blocks: BTreeMap<u64, (u64, u32, bool)>,
    segments: BTreeMap<u64, u32>,
    granules: BTreeSet<u64>,
}

impl State {
    fn of(snapshot: &RankSnapshot) -> Self {
        let device = &snapshot.devices[0];
        let blocks =
            device.blocks.iter().map(|b| (b.address, (b.size, line(snapshot, b.stack), b.pending)));
        let (ranges, whole): (Vec<_>, Vec<_>) = device.segments.iter().partition(|s| s.expandable);
        let granules = ranges.into_iter().flat_map(|range: &Segment| {
            (0..range.size / GRANULE_SMALL).map(|index| range.address + index * GRANULE_SMALL)
        });
        Self {
            blocks: blocks.collect(),
            segments: whole.iter().map(|s| (s.address, line(snapshot, s.stack))).collect(),
            granules: granules.collect(),
        }
    }

    /// One operation on both sides; the numbers choose which.
    fn apply(&mut self, rig: &Rig, (what, place, line): (u8, u8, u32), now_ns: u64) -> u64 {
        let (lane, place) = (rig.lane(0), u64::from(place % 16));
        match what % 3 {
            0 => self.block(rig, lane, BLOCKS + place * 512, line, now_ns),
            1 => {
                let at = SEGMENTS + place * GRANULE_SMALL;
                let kind = match self.segments.remove(&at) {
                    Some(_) => Kind::SegmentFree,
                    None => {
                        self.segments.insert(at, line);
                        Kind::SegmentAlloc
                    }
                };
                lane.segment(now_ns, kind, rig.grant(at, GRANULE_SMALL, line));
            }
            _ => {
                // A range of which all is mapped, or nothing.
                let at = |index: u64| RANGES + index * GRANULE_SMALL;
                let is_mapped = self.granules.contains(&at(place));
                let same = |index: &u64| self.granules.contains(&at(*index)) == is_mapped;
                let run: Vec<u64> = (place..place + u64::from(line)).take_while(same).collect();
                let size = run.len() as u64 * GRANULE_SMALL;
                let kind = if is_mapped { Kind::SegmentUnmap } else { Kind::SegmentMap };
                for index in run {
                    if is_mapped {
                        self.granules.remove(&at(index));
                    } else {
                        self.granules.insert(at(index));
                    }
                }
                lane.segment(now_ns, kind, rig.grant(at(place), size, line));
            }
        }
        1
    }

    fn block(&mut self, rig: &Rig, lane: Lane<'_>, at: u64, line: u32, now_ns: u64) {
        match self.blocks.get(&at).copied() {
            None => {
                self.blocks.insert(at, (512, line, false));
                lane.alloc(now_ns, rig.grant(at, 512, line), totals(0));
            }
            Some((size, born, false)) if line == 1 => {
                self.blocks.insert(at, (size, born, true));
                lane.free_deferred(now_ns, at, size, totals(0));
            }
            Some((size, _, pending)) => {
                self.blocks.remove(&at);
                if pending {
                    lane.free_completed(now_ns, at);
                } else {
                    lane.free(now_ns, at, size, totals(0));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn segments_and_deferred_frees_are_exact_at_every_covered_step(
        ops in prop::collection::vec((any::<u8>(), any::<u8>(), 1u32..4), 1..400),
    ) {
        let rig = Rig::traced(&[0]);
        // Without one, the device's segments have no owner.
        rig.lane(0).segment(0, Kind::SegmentAlloc, rig.grant(SEGMENTS - GRANULE_SMALL, 512, 1));
        let mut state = State::default();
        state.segments.insert(SEGMENTS - GRANULE_SMALL, 1);
        let (mut events, mut at_step) = (1, Vec::new());
        for (index, &op) in ops.iter().enumerate() {
            let now_ns = index as u64 + 1;
            if op.0 >= 0xe0 {
                at_step.push((state.clone(), events));
                rig.words().mark_step(now_ns, at_step.len() as u64);
            } else {
                events += state.apply(&rig, op, now_ns);
            }
        }
        let tape = rig.tape();
        prop_assert_eq!(State::of(&tape.snapshot(PointInTime::Present, None, 0).unwrap()), state);
        for (index, (expected, cursor)) in at_step.iter().enumerate() {
            match tape.snapshot(PointInTime::EndOf(index as u64 + 1), None, 0) {
                Ok(found) => prop_assert_eq!(&State::of(&found), expected),
                Err(_) => prop_assert!(events - cursor > RING || at_step.len() > 63),
            }
        }
    }
}

/// A segment keeps the stack that took it, whichever stack gives it back.
#[test]
fn a_returned_segment_belongs_to_the_stack_that_took_it() {
    let rig = Rig::traced(&[0]);
    let lane = rig.lane(0);
    let at = |index: u64| RANGES + index * GRANULE_SMALL;
    lane.segment(1, Kind::SegmentAlloc, rig.grant(SEGMENTS, GRANULE_SMALL, 1));
    lane.segment(2, Kind::SegmentMap, rig.grant(at(0), 2 * GRANULE_SMALL, 2));
    lane.segment(3, Kind::SegmentMap, rig.grant(at(8), GRANULE_SMALL, 1));
    lane.segment(4, Kind::SegmentMap, rig.grant(at(9), GRANULE_SMALL, 2));
    rig.words().mark_step(5, 1);
    lane.segment(6, Kind::SegmentFree, rig.grant(SEGMENTS, GRANULE_SMALL, 3));
    lane.segment(7, Kind::SegmentUnmap, rig.grant(at(0), 2 * GRANULE_SMALL, 3));
    lane.segment(8, Kind::SegmentUnmap, rig.grant(at(8), 2 * GRANULE_SMALL, 3));
    let found = rig.tape().snapshot(PointInTime::EndOf(1), None, 8).unwrap();
    let segments = found.devices[0].segments.iter();
    let lines: Vec<_> = segments.map(|s| (s.address, line(&found, s.stack))).collect();
    // Two stacks took the last range, and one event tells of it: unknown.
    assert_eq!(lines, [(SEGMENTS, 1), (at(0), 2), (at(8), 0)]);
}

/// A request fails on device 0 in the second step, while device 1 goes on.
fn failed(before: &[u64], after: &[u64]) -> Result<RankSnapshot, RewindError> {
    let rig = Rig::new(&[0, 1]);
    rig.words().mark_step(1, 1);
    let alloc = |(index, &reserved): (usize, &u64), now_ns| {
        let address = BLOCKS + now_ns * 512;
        rig.lane(1).alloc(now_ns, rig.grant(address, 512, 1), totals(reserved));
        index
    };
    before.iter().enumerate().for_each(|each| _ = alloc(each, 10 + each.0 as u64));
    rig.lane(0).failure(500, Kind::Oom, rig.grant(0, 1 << 40, 1), totals(7));
    after.iter().enumerate().for_each(|each| _ = alloc(each, 1000 + each.0 as u64));
    rig.tape().snapshot(PointInTime::LastOom, None, 0)
}

#[test]
fn another_devices_state_at_a_failed_request_is_exact_or_refused() {
    let blocks = |found: RankSnapshot| found.devices[1].blocks.len();
    assert_eq!(failed(&[4096; 3], &[4096; 5]).map(blocks), Ok(3));
    assert_eq!(failed(&[4096; 3], &[4096; 63]).map(blocks), Ok(3), "its last event is around");
    let refused = failed(&[4096; 3], &[4096; RING as usize]);
    assert!(matches!(refused, Err(RewindError::NotCovered { step: 1, .. })), "{refused:?}");
    assert_eq!(failed(&[], &[4096; RING as usize]).map(blocks), Ok(0), "all its events are later");
}

/// The allocator of the untraced device reports what it holds with each block only.
#[test]
fn the_memory_of_another_device_at_a_failed_request_is_exact_or_unknown() {
    let held = |found: RankSnapshot| found.devices[1].reserved;
    let steady = |after: &[u64]| {
        let rig = Rig::new(&[0, 1]);
        rig.lane(1).alloc(10, rig.grant(BLOCKS, 512, 1), totals(4096));
        rig.words().mark_step(20, 1);
        rig.lane(1).alloc(30, rig.grant(BLOCKS + 512, 512, 1), totals(4096));
        rig.lane(0).failure(500, Kind::Oom, rig.grant(0, 1 << 40, 1), totals(7));
        for (index, &reserved) in after.iter().enumerate() {
            let grant = rig.grant(BLOCKS + 1024 + index as u64 * 512, 512, 1);
            rig.lane(1).alloc(600, grant, totals(reserved));
            rig.words().mark_step(700, index as u64 + 2);
        }
        rig.tape().snapshot(PointInTime::LastOom, None, 0).map(held)
    };
    assert_eq!(steady(&[]), Ok(4096));
    assert_eq!(steady(&[4096, 1 << 20]), Ok(4096), "it grew in a later step");
    assert_eq!(steady(&[1 << 20]), Ok(0), "it grew in the same step, before or after");
}

#[test]
fn a_rank_that_takes_many_blocks_after_a_failed_request_has_gone_on() {
    let is_named = |blocks: u64| {
        let rig = Rig::new(&[0]);
        rig.words().mark_step(1, 1);
        rig.lane(0).failure(500, Kind::Oom, rig.grant(0, 1 << 40, 1), totals(7));
        for index in 0..blocks {
            rig.lane(0).alloc(600 + index, rig.grant(BLOCKS + index * 512, 512, 1), totals(7));
        }
        let found = rig.tape().snapshot(PointInTime::Present, None, 0).expect("it is covered");
        found.failed_request.is_some()
    };
    assert_eq!([0, 32, 33].map(is_named), [true, true, false]);
}

#[test]
fn a_host_ring_that_wrapped_hides_no_device() {
    let rig = Rig::new(&[0, HOST_LANE]);
    let host = rig.lane(HOST_LANE);
    let pinned = |index: u64| Grant {
        owner: Origin::HostPinned as u16,
        ..rig.grant(SEGMENTS + index * 4096, 4096, 1)
    };
    rig.lane(0).alloc(1, rig.grant(BLOCKS, 512, 1), totals(4096));
    host.alloc(2, pinned(0), totals(0));
    rig.words().mark_step(3, 1);
    rig.lane(0).free(4, BLOCKS, 512, totals(4096));
    let then = |missing: bool| {
        let found =
            rig.tape().snapshot(PointInTime::EndOf(1), None, 8).expect("the device covers it");
        let blocks: Vec<u64> = found.devices[0].blocks.iter().map(|b| b.address).collect();
        assert_eq!((blocks, rig.tape().oldest_step()), (vec![BLOCKS], 1));
        assert_eq!((found.outside_missing, found.outside.is_empty()), (missing, missing));
    };
    then(false);
    (1..=RING + 1).for_each(|index| host.alloc(5, pinned(index), totals(0)));
    then(true);
    let now = rig.tape().snapshot(PointInTime::Present, None, 8).unwrap();
    assert!(!now.outside_missing && now.outside[0].count == RING + 2, "{now:?}");
}

#[test]
fn losses_are_reported_by_kind() {
    let rig = Rig::traced(&[0, HOST_LANE]);
    rig.lane(HOST_LANE).free(1, BLOCKS, 512, totals(0));
    assert_eq!(rig.tape().status().lost, 0, "a host lane's unknown frees are no loss");
    rig.lane(0).segment(2, Kind::SegmentFree, rig.grant(SEGMENTS, GRANULE_SMALL, 1));
    rig.lane(0).free(3, BLOCKS, 512, totals(0));
    rig.words().set(header::LOST_STREAM_POOLS, 5);
    // More blocks than the table has entries.
    let host = rig.lane(HOST_LANE);
    let blocks = rig.layout.lanes[HOST_LANE].table_entries as u64 + 4;
    (0..blocks).for_each(|index| host.alloc(4, rig.grant(RANGES + index * 512, 1, 1), totals(0)));
    let losses: BTreeMap<_, _> = rig.tape().status().losses.into_iter().collect();
    assert_eq!(losses[&Loss::Segments], 1);
    assert_eq!(losses[&Loss::UnknownFrees], 1);
    assert_eq!(losses[&Loss::StreamPools], 5);
    assert!(losses[&Loss::HostBlocks] >= 4, "{losses:?}");
    assert_eq!(losses[&Loss::Blocks], 0);
}

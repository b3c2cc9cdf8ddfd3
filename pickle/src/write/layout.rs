//! Lays live blocks out in segments without holes, as PyTorch's snapshots have them.
//!
//! Known segments stay as they are, blocks that lie in no known segment get one invented around
//! them, and the ranges between blocks are filled in. PyTorch's viewers need that: they compute a
//! block's address by adding up the sizes before it, and they stop when an event touches memory
//! that is in no segment.
//!
//! Recorders that do not see `cudaMalloc` know no segments at all; then all of them are invented,
//! from runs of blocks rounded out to 2 MiB. That shows the right blocks at the right addresses,
//! but says little about what the allocator really reserved.
//!
//! A tape may be damaged. A block that overlaps another one, or the edge of a segment, is left
//! out and counted.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use memtape_tape::snapshot::{
    Block, DeviceSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
};

/// PyTorch's small segments have this size, and its larger ones are multiples of it.
pub(crate) const SEGMENT_BYTES_SMALL: u64 = 2 << 20;

/// The layout of one device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// Segments sorted by address; they do not overlap.
    pub segments: Vec<LaidSegment>,
    /// Events which a viewer can replay backwards from these segments.
    pub trace: Vec<TraceEvent>,
    /// Live blocks that could not be placed.
    pub blocks_left_out: u64,
    /// Events that contradict the segments.
    pub events_left_out: u64,
}

/// A segment whose pieces fill it exactly.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaidSegment {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The known segment; none for an invented one.
    pub known: Option<Segment>,
    /// Live blocks and the gaps between them, sorted by address.
    pub pieces: Vec<Piece>,
}

/// A live block or a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// The block; none for a gap.
    pub live: Option<Block>,
}

/// Half-open range of addresses.
type Range = (u64, u64);

/// Lays out one device.
pub fn lay_out(device: &DeviceSnapshot) -> Layout {
    let known = without_overlaps(device.segments.iter().map(|s| range(s.address, s.size)));
    let (trace, gone) = match device.segment_source {
        // The allocator's own word needs no second thought.
        SegmentSource::Allocator => (device.trace.clone(), Vec::new()),
        SegmentSource::None | SegmentSource::Runtime => replayable(&device.trace, &known),
    };
    let gone = without_overlaps(gone.into_iter());
    let live = device.blocks.iter().map(|block| range(block.address, block.size));
    let mut homeless: Vec<Range> = live.filter(|&r| !touches(&known, r)).collect();
    if device.segment_source != SegmentSource::Allocator {
        let freed = trace.iter().filter(|event| event.kind == TraceKind::Free);
        let freed = freed.map(|event| range(event.address, event.size));
        homeless.extend(freed.filter(|&r| !touches(&known, r) && !touches(&gone, r)));
    }
    homeless.retain(|r| r.0 < r.1);
    homeless.sort_unstable();
    let mut ranges = invented(&homeless, &known);
    ranges.extend(&known);
    ranges.sort_unstable();
    let (segments, blocks_left_out) = filled(&ranges, device);
    let events_left_out = (device.trace.len() - trace.len()) as u64;
    Layout { segments, trace, blocks_left_out, events_left_out }
}

fn range(address: u64, size: u64) -> Range {
    (address, address.saturating_add(size))
}

/// The ranges sorted, without empty ones and without ranges that overlap an earlier one.
fn without_overlaps(ranges: impl Iterator<Item = Range>) -> Vec<Range> {
    let mut sorted: Vec<Range> = ranges.filter(|r| r.0 < r.1).collect();
    sorted.sort_unstable();
    let mut kept: Vec<Range> = Vec::with_capacity(sorted.len());
    for candidate in sorted {
        if kept.last().is_none_or(|last| last.1 <= candidate.0) {
            kept.push(candidate);
        }
    }
    kept
}

/// Whether any of the sorted ranges overlaps this one.
fn touches(sorted: &[Range], wanted: Range) -> bool {
    let first_after = sorted.partition_point(|r| r.1 <= wanted.0);
    sorted.get(first_after).is_some_and(|r| r.0 < wanted.1)
}

/// Events that fit the segments when replayed backwards, and the segments that are gone since.
///
/// memory_viz removes the wrong segment when an event names one that it does not have.
fn replayable(trace: &[TraceEvent], known: &[Range]) -> (Vec<TraceEvent>, Vec<Range>) {
    let mut present: BTreeMap<u64, u64> = known.iter().copied().collect();
    let mut gone = Vec::new();
    let mut kept: Vec<TraceEvent> = Vec::with_capacity(trace.len());
    for event in trace.iter().rev() {
        let fits = match event.kind {
            TraceKind::SegmentAlloc => present.remove(&event.address).is_some(),
            TraceKind::SegmentFree => {
                let whole = range(event.address, event.size);
                let fresh = !present.contains_key(&event.address) && whole.0 < whole.1;
                if fresh {
                    present.insert(whole.0, whole.1);
                    gone.push(whole);
                }
                fresh
            }
            TraceKind::Alloc
            | TraceKind::Free
            | TraceKind::FreeDeferred
            | TraceKind::FreeCompleted
            | TraceKind::Snapshot
            | TraceKind::Oom => true,
            // Only the allocator's own word has the first two; PyTorch's traces have no third.
            TraceKind::SegmentMap | TraceKind::SegmentUnmap | TraceKind::MallocFailed => false,
        };
        if fits {
            kept.push(*event);
        }
    }
    kept.reverse();
    (kept, gone)
}

/// Segments around the sorted ranges, rounded out to 2 MiB but never into a known segment.
fn invented(homeless: &[Range], known: &[Range]) -> Vec<Range> {
    let mut made: Vec<Range> = Vec::new();
    let mut gap_of_last = usize::MAX;
    for &(start, end) in homeless {
        let gap = known.partition_point(|r| r.1 <= start);
        let lower_edge = gap.checked_sub(1).and_then(|i| known.get(i)).map_or(0, |r| r.1);
        let upper_edge = known.get(gap).map_or(u64::MAX, |r| r.0);
        let lower = (start - start % SEGMENT_BYTES_SMALL).max(lower_edge);
        let rounded = end.checked_next_multiple_of(SEGMENT_BYTES_SMALL).unwrap_or(u64::MAX);
        let upper = rounded.min(upper_edge);
        match made.last_mut() {
            Some(last) if gap == gap_of_last && last.1 >= lower => last.1 = last.1.max(upper),
            _ => made.push((lower, upper)),
        }
        gap_of_last = gap;
    }
    made
}

/// Puts every block into its segment and fills the gaps; also counts blocks that fit nowhere.
fn filled(ranges: &[Range], device: &DeviceSnapshot) -> (Vec<LaidSegment>, u64) {
    let mut sorted: Vec<&Block> = device.blocks.iter().filter(|block| block.size > 0).collect();
    sorted.sort_unstable_by_key(|block| (block.address, block.size));
    let mut rest = sorted.into_iter().peekable();
    let mut left_out = 0;
    let mut known: BTreeMap<Range, Segment> = BTreeMap::new();
    for segment in &device.segments {
        known.entry(range(segment.address, segment.size)).or_insert(*segment);
    }
    let mut segments = Vec::with_capacity(ranges.len());
    for &(start, end) in ranges {
        let mut pieces = Vec::new();
        let mut filled_to = start;
        while let Some(block) = rest.next_if(|block| block.address < end) {
            let (from, to) = range(block.address, block.size);
            if from < filled_to || to > end {
                left_out += 1;
                continue;
            }
            push_gap(&mut pieces, filled_to, from);
            pieces.push(Piece { address: from, size: to - from, live: Some(*block) });
            filled_to = to;
        }
        push_gap(&mut pieces, filled_to, end);
        let known = known.get(&(start, end)).copied();
        segments.push(LaidSegment { address: start, size: end - start, known, pieces });
    }
    (segments, left_out + rest.count() as u64)
}

fn push_gap(pieces: &mut Vec<Piece>, from: u64, to: u64) {
    if from < to {
        pieces.push(Piece { address: from, size: to - from, live: None });
    }
}

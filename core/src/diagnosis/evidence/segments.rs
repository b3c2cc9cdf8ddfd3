//! What the allocator holds and what of it no tensor uses, from a device's segments and blocks.
//!
//! PyTorch takes segments from the device and cuts blocks out of them. A segment goes back only
//! as a whole, so one small block that lives long holds all of it. Free segments are a cache: the
//! allocator gives them back by itself before it fails. The free parts of used ones are what
//! fragmentation is about.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::account::is_private;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
};

/// A block that is not split is larger than its request by up to so much.
const UNSPLIT_BYTES_MAX: u64 = 1 << 20;

/// Requests of one stack that are each larger than all before, for a tensor that grows: batches of
/// any length have few such among many.
const HIGHS_MIN: usize = 8;

/// A line whose blocks hold segments that are mostly free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) frame: Frame,
    /// Segments of which its block is the oldest.
    pub(crate) segments: u64,
    /// Bytes of its blocks in them.
    pub(crate) used: u64,
    /// Free bytes of those segments.
    pub(crate) free: u64,
}

/// The allocator's memory on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of all segments.
    pub reserved: u64,
    /// Free bytes in segments that have blocks: inactive splits.
    pub inactive: u64,
    /// Number of those splits.
    pub inactive_pieces: u64,
    /// The largest of them.
    pub largest_inactive: u64,
    /// Bytes of segments without blocks.
    pub cached: u64,
    /// Largest free piece in any segment.
    pub(crate) largest_free: u64,
    /// Bytes of segments in private pools.
    pub private: u64,
    /// Bytes of live blocks in them.
    pub private_used: u64,
    /// Number of those pools.
    pub(crate) private_pools: u64,
    /// Some segments grow and shrink: `expandable_segments` is on.
    pub(crate) expandable: bool,
    /// The line that holds most free bytes.
    pub(crate) holder: Option<Holder>,
}

/// What the allocator was asked for lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// The largest request of the trace.
    pub(crate) largest: u64,
    /// Different sizes of large requests.
    pub(crate) large_sizes: u64,
    /// The stack that asked for most of them, each larger than those before; 0 where none did.
    pub(crate) rising_stack: u32,
    /// Different sizes that it asked for.
    pub(crate) rising_sizes: u64,
}

/// The large requests of one stack.
#[derive(Clone, Debug, Default)]
struct Rising {
    sizes: BTreeSet<u64>,
    /// Requests that were larger than all before.
    highs: usize,
}

impl Rising {
    fn take(&mut self, size: u64) {
        if self.sizes.last().is_none_or(|&largest| size > largest) {
            self.highs += 1;
        }
        self.sizes.insert(size);
    }

    /// Is nearly each request larger than those before, by more than the allocator rounds?
    fn rises(&self) -> bool {
        let span = self.sizes.last().zip(self.sizes.first());
        self.highs >= HIGHS_MIN
            && self.highs * 2 > self.sizes.len()
            && span.is_some_and(|(largest, smallest)| largest - smallest > 2 * UNSPLIT_BYTES_MAX)
    }
}

/// None where the segments are not known, or where some of them may be other code's.
pub(crate) fn shape(snapshot: &RankSnapshot, device: &DeviceSnapshot) -> Option<Shape> {
    if device.segment_source != SegmentSource::Allocator || device.segments.is_empty() {
        return None;
    }
    let mut shape = Shape::default();
    let mut pools: BTreeSet<(u64, u64)> = BTreeSet::new();
    let mut holders: BTreeMap<u32, Holder> = BTreeMap::new();
    for segment in &device.segments {
        let blocks = blocks_in(segment, &device.blocks);
        let (used, gaps) = gaps(segment, blocks);
        let free = segment.size.saturating_sub(used);
        let largest = gaps.iter().copied().max().unwrap_or(0);
        shape.reserved = shape.reserved.saturating_add(segment.size);
        shape.expandable |= segment.expandable;
        shape.largest_free = shape.largest_free.max(largest);
        let place = snapshot.stream_pool(segment.stream_pool);
        if is_private(place) {
            let live = blocks.iter().filter(|block| !block.pending).map(|block| block.size);
            shape.private = shape.private.saturating_add(segment.size);
            shape.private_used = live.fold(shape.private_used, u64::saturating_add);
            pools.extend(place.pool);
        }
        if blocks.is_empty() {
            shape.cached = shape.cached.saturating_add(free);
            continue;
        }
        shape.inactive = shape.inactive.saturating_add(free);
        shape.inactive_pieces += gaps.len() as u64;
        shape.largest_inactive = shape.largest_inactive.max(largest);
        // Half of it is free; small segments are no matter.
        let is_held = free >= segment.size / 2;
        if is_held && segment.size > 2 << 20 {
            hold(snapshot, &mut holders, blocks, free);
        }
    }
    shape.private_pools = pools.len() as u64;
    shape.holder = holders.into_values().max_by_key(|holder| holder.free);
    Some(shape)
}

/// The blocks in a segment, of blocks that are sorted by address.
pub(crate) fn blocks_in<'b>(segment: &Segment, blocks: &'b [Block]) -> &'b [Block] {
    let end = segment.address.saturating_add(segment.size);
    let from = blocks.partition_point(|block| block.address < segment.address);
    let inside = blocks.get(from..).unwrap_or_default();
    let to = inside.partition_point(|block| block.address < end);
    inside.get(..to).unwrap_or_default()
}

/// Bytes of a segment that its blocks use, and its free pieces.
pub(crate) fn gaps(segment: &Segment, blocks: &[Block]) -> (u64, Vec<u64>) {
    let end = segment.address.saturating_add(segment.size);
    let (mut used, mut gaps, mut at) = (0_u64, Vec::new(), segment.address);
    for block in blocks {
        let until = block.address.saturating_add(block.size).min(end);
        gaps.push(block.address.saturating_sub(at));
        used = used.saturating_add(until.saturating_sub(block.address.max(at)));
        at = at.max(until);
    }
    gaps.push(end.saturating_sub(at));
    gaps.retain(|&gap| gap > 0);
    (used, gaps)
}

/// The oldest block of a segment is the one that keeps it longest.
fn hold(snapshot: &RankSnapshot, holders: &mut BTreeMap<u32, Holder>, blocks: &[Block], free: u64) {
    let Some(oldest) = blocks.iter().min_by_key(|block| (block.birth_step, block.address)) else {
        return;
    };
    let frames: Vec<&Frame> = snapshot.frames_of(oldest.stack).collect();
    let Some(frame) = telling_frame(&frames) else { return };
    let empty = Holder { frame: frame.clone(), segments: 0, used: 0, free: 0 };
    let holder = holders.entry(oldest.stack).or_insert(empty);
    holder.segments += 1;
    holder.free = holder.free.saturating_add(free);
    let own = blocks.iter().filter(|block| block.stack == oldest.stack);
    holder.used = own.fold(holder.used, |sum, block| sum.saturating_add(block.size));
}

/// What the trace says; `None` where there is none.
pub(crate) fn requests(device: &DeviceSnapshot) -> Option<Requests> {
    if device.trace.is_empty() {
        return None;
    }
    let mut requests = Requests::default();
    let mut sizes: BTreeSet<u64> = BTreeSet::new();
    let mut rising: BTreeMap<u32, Rising> = BTreeMap::new();
    let is_request = |event: &&TraceEvent| matches!(event.kind, TraceKind::Alloc | TraceKind::Oom);
    for event in device.trace.iter().filter(is_request) {
        requests.largest = requests.largest.max(event.size);
        if event.size >= 1 << 20 {
            sizes.insert(event.size);
            rising.entry(event.stack).or_default().take(event.size);
        }
    }
    requests.large_sizes = sizes.len() as u64;
    let rising = rising.into_iter().filter(|(_, of)| of.rises());
    let most = rising.map(|(stack, of)| (stack, of.sizes.len() as u64)).max_by_key(|of| of.1);
    let is_most = |(_, sizes): &(u32, u64)| sizes.saturating_mul(2) > requests.large_sizes;
    if let Some(most) = most.filter(is_most) {
        (requests.rising_stack, requests.rising_sizes) = most;
    }
    Some(requests)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::snapshot::StreamPool;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_tensor_that_is_longer_each_time_makes_most_of_the_sizes() {
        let event = |stack: u32, size: u64| TraceEvent {
            kind: TraceKind::Alloc,
            mono_ns: 0,
            address: 0,
            size,
            detail: 0,
            stack,
            stream_pool: 0,
            step: 0,
        };
        let rising = |trace: Vec<TraceEvent>| {
            let requests = requests(&DeviceSnapshot { trace, ..DeviceSnapshot::default() });
            requests.map(|requests| (requests.rising_stack, requests.rising_sizes))
        };
        let bank = |at: u64| [event(1, MIB + at * MIB / 8), event(2, 4 * MIB), event(3, 512 * at)];
        assert_eq!(rising((0..40).flat_map(bank).collect()), Some((1, 40)));
        // Batches of any length, beside which a bank is one of many.
        let batch = |at: u64| event(2, MIB * (1 + at * 7 % 40));
        let both = |at: u64| bank(at / 4).into_iter().chain([batch(at)]);
        assert_eq!(rising((0..40).map(batch).collect()), Some((0, 0)));
        // Batches of nearly one length, and one size alone.
        let even = |at: u64| event(2, 4 * MIB + at * 7 % 40 * (MIB / 8));
        assert_eq!(rising((0..40).map(even).collect()), Some((0, 0)));
        assert_eq!(rising((0..40).map(|_| event(2, 4 * MIB)).collect()), Some((0, 0)));
        assert_eq!(rising((0..7).flat_map(bank).collect()), Some((0, 0)), "too few");
        assert_eq!(rising((0..40).flat_map(both).collect()), Some((0, 0)));
        assert_eq!(rising(Vec::new()), None);
    }

    #[test]
    fn one_block_holds_a_segment() {
        let frame = Frame { file: "/app/t.py".to_string(), line: 3, function: "f".to_string() };
        let snapshot = RankSnapshot {
            frames: [Frame::default(), frame.clone()].to_vec(),
            stacks: [Vec::new(), [1].to_vec()].to_vec(),
            stream_pools: [
                StreamPool::default(),
                StreamPool { stream: Some(0), pool: Some((0, 2)) },
            ]
            .to_vec(),
            ..RankSnapshot::default()
        };
        let segment = |address: u64, size: u64, place: u16| Segment {
            address,
            size,
            stream_pool: place,
            ..Segment::default()
        };
        let block = |address: u64, size: u64| Block { address, size, stack: 1, ..Block::default() };
        let mut device = DeviceSnapshot {
            segments: [
                segment(0, 100 * MIB, 0),
                segment(200 * MIB, 20 * MIB, 0),
                segment(300 * MIB, 2 * MIB, 1),
            ]
            .to_vec(),
            blocks: [block(40 * MIB, MIB), block(300 * MIB, MIB)].to_vec(),
            ..DeviceSnapshot::default()
        };
        assert_eq!(shape(&snapshot, &device), None, "the segments are not known");
        device.segment_source = SegmentSource::Allocator;
        let expected = Shape {
            reserved: 122 * MIB,
            inactive: 100 * MIB,
            inactive_pieces: 3,
            largest_inactive: 59 * MIB,
            cached: 20 * MIB,
            largest_free: 59 * MIB,
            private: 2 * MIB,
            private_used: MIB,
            private_pools: 1,
            expandable: false,
            holder: Some(Holder { frame, segments: 1, used: MIB, free: 99 * MIB }),
        };
        assert_eq!(shape(&snapshot, &device), Some(expected));
    }
}

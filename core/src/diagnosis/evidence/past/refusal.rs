//! Why a request that failed did not find room in the memory that the allocator held.
//!
//! Free memory between live blocks of a segment (*inactive splits*) can be handed out only gap by
//! gap: each request must fit into one. A segment without any block goes back to the device before
//! a request fails. A gap belongs to one stream, one memory pool, and to small or large blocks.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::replay::Replay;
use crate::diagnosis::evidence::segments::{blocks_in, gaps};
use crate::snapshot::failed_request::FailedRequest;
use crate::snapshot::{
    Block, DeviceSnapshot, RankSnapshot, Segment, StreamPool, TraceEvent, TraceKind,
};

/// Blocks of at most this many bytes come from segments for small blocks (`kSmallSize`).
const SMALL_REQUEST_BYTES_MAX: u64 = 1 << 20;

/// A segment of this size that is not expandable is for small blocks (`kSmallBuffer`).
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// A request that failed, by the trace.
#[derive(Clone, Debug, Default)]
pub struct Refused {
    /// The request.
    pub request: FailedRequest,
    /// Where the free memory was; none where nothing recorded the allocator's segments.
    pub refusal: Option<Refusal>,
}

/// Why a request did not find room in what was free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// Free bytes of segments for its stream, pool and size.
    pub eligible: u64,
    /// Pieces that these are in.
    pub eligible_pieces: u64,
    /// The largest of them.
    pub eligible_largest: u64,
    /// Free bytes that belong to other streams.
    pub other_streams: u64,
    /// Free bytes of other memory pools, such as those of CUDA graphs.
    pub other_pools: u64,
    /// Free bytes of segments for small blocks.
    pub small_segments: u64,
}

/// The segments of a device at an earlier moment, and what was free in them.
pub(crate) struct Earlier<'a> {
    rank: &'a RankSnapshot,
    /// Bytes of all segments.
    pub(crate) reserved: u64,
    /// Bytes of live blocks in them.
    pub(crate) used: u64,
    /// Each segment with its free pieces.
    free: Vec<(Segment, Vec<u64>)>,
}

impl<'a> Earlier<'a> {
    /// The state when this many events had happened.
    pub(crate) fn of(
        rank: &'a RankSnapshot,
        device: &DeviceSnapshot,
        events: &[TraceEvent],
        replay: &Replay,
        moment: usize,
    ) -> Self {
        let blocks = blocks_at(device, events, replay, moment);
        let later = events.get(moment..).unwrap_or_default();
        let mut earlier = Self { rank, reserved: 0, used: 0, free: Vec::new() };
        for segment in segments_before(&device.segments, later) {
            let (used, gaps) = gaps(&segment, blocks_in(&segment, &blocks));
            earlier.reserved = earlier.reserved.saturating_add(segment.size);
            earlier.used = earlier.used.saturating_add(used);
            earlier.free.push((segment, gaps));
        }
        earlier
    }

    /// Why this request did not find room.
    pub(crate) fn refusal(&self, request: &TraceEvent) -> Refusal {
        // Where the trace does not say the pool, the ordinary one is the likely one.
        let owner = |of: StreamPool| (of.pool.unwrap_or_default(), of.stream.unwrap_or_default());
        let wanted = owner(self.rank.stream_pool(request.stream_pool));
        let mut refusal = Refusal::default();
        for (segment, gaps) in &self.free {
            let found = owner(self.rank.stream_pool(segment.stream_pool));
            let free = gaps.iter().copied().fold(0, u64::saturating_add);
            let sum = if wanted.0 != found.0 {
                &mut refusal.other_pools
            } else if wanted.1 != found.1 {
                &mut refusal.other_streams
            } else if segment.small != (request.size <= SMALL_REQUEST_BYTES_MAX) {
                &mut refusal.small_segments
            } else {
                let largest = gaps.iter().copied().max().unwrap_or(0);
                refusal.eligible_pieces += gaps.len() as u64;
                refusal.eligible_largest = refusal.eligible_largest.max(largest);
                &mut refusal.eligible
            };
            *sum = sum.saturating_add(free);
        }
        refusal
    }
}

/// The blocks that were alive after this many events, by address.
fn blocks_at(
    device: &DeviceSnapshot,
    events: &[TraceEvent],
    replay: &Replay,
    moment: usize,
) -> Vec<Block> {
    let block = |address: u64, size: u64| Block { address, size, ..Block::default() };
    let is_older = |address: u64| replay.birth(address).is_none();
    let older = device.blocks.iter().filter(|b| !b.pending && is_older(b.address));
    let mut blocks: Vec<Block> = older.map(|b| block(b.address, b.size)).collect();
    let gone = replay.older.iter().filter(|free| free.event as usize >= moment);
    blocks.extend(gone.map(|free| block(free.address, free.bytes)));
    for (event, number) in events.iter().zip(0_u32..).take(moment) {
        if event.kind == TraceKind::Alloc && replay.is_live(number, moment) {
            blocks.push(block(event.address, event.size));
        }
    }
    blocks.sort_unstable();
    blocks
}

/// These segments with what happened since undone, by address.
fn segments_before(segments: &[Segment], later: &[TraceEvent]) -> Vec<Segment> {
    let by_address = segments.iter().map(|segment| (segment.address, *segment));
    let mut segments: BTreeMap<u64, Segment> = by_address.collect();
    for event in later.iter().rev() {
        match event.kind {
            TraceKind::SegmentAlloc | TraceKind::SegmentMap => {
                take_out(&mut segments, event.address, event.size);
            }
            TraceKind::SegmentFree | TraceKind::SegmentUnmap => {
                let segment = Segment {
                    address: event.address,
                    size: event.size,
                    stream_pool: event.stream_pool,
                    expandable: event.kind == TraceKind::SegmentUnmap,
                    small: event.size == SMALL_SEGMENT_BYTES,
                    stack: 0,
                };
                segments.insert(event.address, segment);
            }
            _ => {}
        }
    }
    segments.into_values().collect()
}

/// Undoes that this memory was taken.
fn take_out(segments: &mut BTreeMap<u64, Segment>, address: u64, bytes: u64) {
    let end = address.saturating_add(bytes);
    // Memory of an expandable segment is mapped piece by piece, and shown in one.
    let overlapping: Vec<Segment> = segments
        .range(..end)
        .rev()
        .take_while(|(_, segment)| segment.address.saturating_add(segment.size) > address)
        .map(|(_, segment)| *segment)
        .collect();
    for segment in overlapping {
        segments.remove(&segment.address);
        let segment_end = segment.address.saturating_add(segment.size);
        if segment.address < address {
            let size = address - segment.address;
            segments.insert(segment.address, Segment { size, ..segment });
        }
        if segment_end > end {
            let size = segment_end - end;
            segments.insert(end, Segment { address: end, size, ..segment });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(address: u64, size: u64) -> Segment {
        Segment { address, size, ..Segment::default() }
    }

    fn event(kind: TraceKind, address: u64, size: u64) -> TraceEvent {
        TraceEvent { kind, mono_ns: 0, address, size, detail: 0, stack: 0, stream_pool: 0, step: 0 }
    }

    #[test]
    fn free_memory_is_reported_by_what_it_is_good_for() {
        let rank = RankSnapshot {
            stream_pools: [StreamPool::default(), StreamPool { stream: Some(7), pool: None }]
                .into(),
            ..RankSnapshot::default()
        };
        let block = |address: u64, size: u64| Block { address, size, ..Block::default() };
        let device = DeviceSnapshot {
            segments: [
                segment(0, 20 * MIB),
                Segment { stream_pool: 1, ..segment(100 * MIB, 10 * MIB) },
                Segment { small: true, ..segment(200 * MIB, 2 * MIB) },
                segment(300 * MIB, 4 * MIB),
            ]
            .into(),
            blocks: [
                block(2 * MIB, 3 * MIB),
                block(10 * MIB, MIB),
                block(100 * MIB, MIB),
                block(200 * MIB, 512),
            ]
            .into(),
            ..DeviceSnapshot::default()
        };
        let earlier = Earlier::of(&rank, &device, &[], &Replay::of(&[]), 0);
        assert_eq!((earlier.reserved, earlier.used), (36 * MIB, 5 * MIB + 512));
        let refusal = earlier.refusal(&event(TraceKind::Oom, 0, 12 * MIB));
        assert_eq!((refusal.eligible, refusal.eligible_pieces), (20 * MIB, 4));
        assert_eq!((refusal.eligible_largest, refusal.other_streams), (9 * MIB, 9 * MIB));
        assert_eq!((refusal.small_segments, refusal.other_pools), (2 * MIB - 512, 0));
    }

    #[test]
    fn segments_go_back_in_time() {
        let now = [segment(0, 20 * MIB), segment(40 * MIB, MIB)];
        let later = [
            event(TraceKind::SegmentFree, 60 * MIB, MIB),
            event(TraceKind::SegmentAlloc, 40 * MIB, MIB),
            event(TraceKind::SegmentMap, 18 * MIB, 2 * MIB),
        ];
        let expected = [segment(0, 18 * MIB), segment(60 * MIB, MIB)];
        assert_eq!(segments_before(&now, &later), expected);
    }
}

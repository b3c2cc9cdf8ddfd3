//! Where the memory is that the allocator holds and no tensor uses, and why a request did not
//! find room in it.
//!
//! Free memory between live blocks of a segment (*inactive splits*) can be handed out only gap by
//! gap: each request must fit into one. A segment without any block goes back to the device before
//! a request fails. A gap belongs to one stream, one memory pool, and to small or large blocks.

use alloc::vec::Vec;

use crate::snapshot::{Segment, StreamPool};

/// Blocks of at most this many bytes come from segments for small blocks (`kSmallSize`).
const SMALL_REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Memory held and not used, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of all segments; 0 where they are not known.
    pub reserved: u64,
    /// Bytes of live blocks in them.
    pub in_use: u64,
    /// Bytes of segments without any block: a cache, which goes back to the device when needed.
    pub whole_free: u64,
    /// Free bytes beside live blocks of the same segment.
    pub split_free: u64,
    /// Pieces that these are in.
    pub split_pieces: u64,
    /// The largest of them.
    pub largest_piece: u64,
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

/// A request that failed, and what it could use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Bytes, rounded.
    pub bytes: u64,
    /// Stream and pool.
    pub place: StreamPool,
}

/// Adds up a device: segments and live blocks (address, bytes), both sorted by address.
pub(crate) fn space(
    segments: &[Segment],
    places: &[StreamPool],
    blocks: &[(u64, u64)],
    request: Option<Request>,
) -> (Space, Refusal) {
    let (mut space, mut refusal) = (Space::default(), Refusal::default());
    let mut rest = blocks.iter().copied().peekable();
    for segment in segments {
        let end = segment.address.saturating_add(segment.size);
        let mut gaps = Vec::new();
        let (mut at, mut used) = (segment.address, 0_u64);
        while rest.next_if(|&(address, _)| address < segment.address).is_some() {}
        while let Some((address, bytes)) = rest.next_if(|&(address, _)| address < end) {
            gaps.push(address.saturating_sub(at));
            let until = address.saturating_add(bytes).min(end);
            used = used.saturating_add(until.saturating_sub(address.max(at)));
            at = at.max(until);
        }
        gaps.push(end - at);
        space.reserved = space.reserved.saturating_add(segment.size);
        space.in_use = space.in_use.saturating_add(used);
        let gaps = || gaps.iter().copied().filter(|&gap| gap > 0);
        if used == 0 {
            space.whole_free = space.whole_free.saturating_add(segment.size);
        } else {
            space.split_free = gaps().fold(space.split_free, u64::saturating_add);
            space.split_pieces += gaps().count() as u64;
            space.largest_piece = space.largest_piece.max(gaps().max().unwrap_or(0));
        }
        let place = places.get(usize::from(segment.stream_pool)).copied().unwrap_or_default();
        if let Some(request) = request {
            refusal.add(request, segment, place, gaps());
        }
    }
    (space, refusal)
}

impl Refusal {
    fn add(
        &mut self,
        request: Request,
        segment: &Segment,
        place: StreamPool,
        gaps: impl Iterator<Item = u64> + Clone,
    ) {
        let free = gaps.clone().fold(0, u64::saturating_add);
        let ours = |of: StreamPool| (of.pool.unwrap_or_default(), of.stream.unwrap_or_default());
        let (wanted, found) = (ours(request.place), ours(place));
        // Where the trace does not say the pool, the ordinary one is the likely one.
        let sum = if wanted.0 != found.0 {
            &mut self.other_pools
        } else if wanted.1 != found.1 {
            &mut self.other_streams
        } else if segment.small != (request.bytes <= SMALL_REQUEST_BYTES_MAX) {
            &mut self.small_segments
        } else {
            self.eligible_pieces += gaps.clone().count() as u64;
            self.eligible_largest = self.eligible_largest.max(gaps.max().unwrap_or(0));
            &mut self.eligible
        };
        *sum = sum.saturating_add(free);
    }
}

/// The segments at an earlier moment: the later ones, with what happened since undone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments(alloc::collections::BTreeMap<u64, Segment>);

impl Segments {
    pub(crate) fn new(segments: &[Segment]) -> Self {
        Self(segments.iter().map(|segment| (segment.address, *segment)).collect())
    }

    /// In the order of their addresses.
    pub(crate) fn sorted(&self) -> Vec<Segment> {
        self.0.values().copied().collect()
    }

    /// Undoes that this memory was taken.
    pub(crate) fn take_out(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        // Memory of an expandable segment is mapped piece by piece, and shown in one.
        let overlapping: Vec<Segment> = self
            .0
            .range(..end)
            .rev()
            .take_while(|(_, segment)| segment.address.saturating_add(segment.size) > address)
            .map(|(_, segment)| *segment)
            .collect();
        for segment in overlapping {
            self.0.remove(&segment.address);
            let segment_end = segment.address.saturating_add(segment.size);
            if segment.address < address {
                let size = address - segment.address;
                self.0.insert(segment.address, Segment { size, ..segment });
            }
            if segment_end > end {
                let size = segment_end - end;
                self.0.insert(end, Segment { address: end, size, ..segment });
            }
        }
    }

    /// Undoes that this memory was given back.
    pub(crate) fn put_in(&mut self, segment: Segment) {
        self.0.insert(segment.address, segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn segment(address: u64, size: u64) -> Segment {
        Segment { address, size, ..Segment::default() }
    }

    #[test]
    fn free_memory_is_reported_by_what_it_is_good_for() {
        let places = [StreamPool::default(), StreamPool { stream: Some(7), pool: None }];
        let segments = [
            segment(0, 20 * MIB),
            Segment { stream_pool: 1, ..segment(100 * MIB, 10 * MIB) },
            Segment { small: true, ..segment(200 * MIB, 2 * MIB) },
            segment(300 * MIB, 4 * MIB),
        ];
        let blocks = [(2 * MIB, 3 * MIB), (10 * MIB, MIB), (100 * MIB, MIB), (200 * MIB, 512)];
        let request = Request { bytes: 12 * MIB, place: StreamPool::default() };
        let (space, refusal) = space(&segments, &places, &blocks, Some(request));
        assert_eq!((space.reserved, space.in_use), (36 * MIB, 5 * MIB + 512));
        assert_eq!((space.whole_free, space.split_free), (4 * MIB, 27 * MIB - 512));
        assert_eq!((space.split_pieces, space.largest_piece), (5, 9 * MIB));
        assert_eq!((refusal.eligible, refusal.eligible_pieces), (20 * MIB, 4));
        assert_eq!((refusal.eligible_largest, refusal.other_streams), (9 * MIB, 9 * MIB));
        assert_eq!((refusal.small_segments, refusal.other_pools), (2 * MIB - 512, 0));
    }

    #[test]
    fn segments_go_back_in_time() {
        let mut segments = Segments::new(&[segment(0, 20 * MIB), segment(40 * MIB, MIB)]);
        segments.take_out(18 * MIB, 2 * MIB);
        segments.take_out(40 * MIB, MIB);
        segments.put_in(segment(60 * MIB, MIB));
        assert_eq!(segments.sorted(), [segment(0, 18 * MIB), segment(60 * MIB, MIB)]);
    }
}

//! The segments of one device of one rank with their blocks, as a map shows them.
//!
//! Each segment is filled exactly: by blocks, free ranges, and runs of small ones that were merged
//! because a map has a bounded number of parts. Sums are of all blocks and segments, whatever was
//! merged or left out. This module does not judge the fragmentation that a map shows.

mod merging;
mod stack_table;

use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::limits::{
    MAPPED_PARTS_MAX, MAPPED_SEGMENTS_MAX, MAPPED_STACKS_BYTES_MAX, MAPPED_STACKS_MAX,
};
use crate::pickle::layout::{LaidSegment, Piece, lay_out};
use crate::snapshot::ledger::Ledger;
use crate::snapshot::{Block, DeviceSnapshot, Held, RankSnapshot, Segment, SegmentSource};
use crate::stacks::AllocationSteps;
use strum::{EnumString, IntoStaticStr, VariantArray};

pub use stack_table::{MappedStack, StackTable};

/// How much of a device a map shows.
#[derive(Clone, Copy, Debug)]
pub struct MapBounds {
    /// The smallest of further segments are added up.
    pub segments_max: usize,
    /// Of more blocks and free ranges, the smallest are merged with their neighbours. A map has one
    /// part for each of its segments in any case.
    pub parts_max: usize,
    /// Of more stacks, those that hold least are added up.
    pub stacks_max: usize,
    /// Memory for the frames of the stacks, with their names.
    pub stacks_bytes_max: u64,
}

/// The segments of one device.
#[derive(Clone, Debug, Default)]
pub struct SegmentMap<'a> {
    /// The segments, by address. They do not overlap.
    pub segments: Vec<MappedSegment>,
    /// The segments that are not in the list.
    pub other_segments: SegmentSums,
    /// All segments together.
    pub sums: SegmentSums,
    /// Bytes of the segments that the snapshot lists; the others were made up around blocks that
    /// lie in no listed segment.
    pub listed_bytes: u64,
    /// Blocks that overlap another block or reach beyond their segment, of a damaged tape: they are
    /// in no segment.
    pub misplaced: Held,
    /// Free memory; `None` where blocks are missing, or segments may be other code's.
    pub free: Option<FreeMemory>,
    /// Bytes by which the counter of allocated bytes exceeds the blocks, or (negative) lacks them.
    pub allocated_difference: i64,
    /// The same of the reserved bytes and the listed segments; `None` where one of them is unknown.
    pub reserved_difference: Option<i64>,
    /// The stacks of the blocks.
    pub stacks: StackTable<'a>,
}

/// Bytes and blocks of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentSums {
    /// Number of segments.
    pub segments: u64,
    /// Their bytes: the sum of the other bytes here.
    pub bytes: u64,
    /// Allocated blocks.
    pub allocated: Held,
    /// Blocks that are pending free.
    pub pending: Held,
    /// Free bytes.
    pub free_bytes: u64,
}

/// Free memory of the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeMemory {
    /// Inactive splits: free bytes in segments that have blocks, which hold them. Expandable
    /// segments have none.
    pub split_bytes: u64,
    /// Free bytes that the allocator can give back: segments without blocks, and free ranges of
    /// expandable segments.
    pub cached_bytes: u64,
    /// The largest free range.
    pub largest_bytes: u64,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedSegment {
    /// Device address.
    pub address: u64,
    /// CUDA stream; `None` where it is unknown.
    pub stream: Option<u64>,
    /// The pool.
    pub pool: Pool,
    /// The id of a private pool.
    pub private_pool: Option<(u64, u64)>,
    /// Part of an expandable segment.
    pub expandable: bool,
    /// Bytes and blocks of this segment.
    pub sums: SegmentSums,
    /// The largest free range, in bytes.
    pub largest_free_bytes: u64,
    /// What the segment consists of, from its first byte to its last, without holes.
    pub parts: Vec<Part>,
}

/// The pool of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Pool {
    /// PyTorch's pool for requests of at most 1 MiB.
    Small,
    /// PyTorch's pool for larger requests.
    Large,
    /// The pool of a CUDA graph, or a `MemPool` of the program.
    Private,
    /// The snapshot does not list the segment.
    Unknown,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Bytes from the start of the segment.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: PartKind,
}

/// What a part of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// A free range.
    Free,
    /// A block.
    Block(MappedBlock),
    /// Neighbouring blocks and free ranges that are too small to be shown alone.
    Merged(MergedParts),
}

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedBlock {
    /// Bytes asked for; `None` where they are unknown.
    pub requested: Option<u64>,
    /// Taken back, but still used by other streams.
    pub pending: bool,
    /// The step in which it was allocated, as [`AllocationSteps`] numbers them.
    pub step: u64,
    /// Index into the stacks of the map; `None` where the stack is unknown or left out.
    pub stack: Option<u32>,
}

/// Merged blocks and free ranges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergedParts {
    /// Allocated blocks.
    pub allocated: Held,
    /// Blocks that are pending free.
    pub pending: Held,
    /// First and last step in which the blocks were allocated.
    pub steps: (u64, u64),
}

impl Default for MapBounds {
    fn default() -> Self {
        Self {
            segments_max: MAPPED_SEGMENTS_MAX,
            parts_max: MAPPED_PARTS_MAX,
            stacks_max: MAPPED_STACKS_MAX,
            stacks_bytes_max: MAPPED_STACKS_BYTES_MAX,
        }
    }
}

impl SegmentSums {
    fn of(pieces: &[Piece]) -> Self {
        let mut sums = Self { segments: 1, ..Self::default() };
        for piece in pieces {
            sums.bytes = sums.bytes.saturating_add(piece.size);
            match piece.live {
                None => sums.free_bytes = sums.free_bytes.saturating_add(piece.size),
                Some(block) if block.pending => sums.pending.add(piece.size),
                Some(_) => sums.allocated.add(piece.size),
            }
        }
        sums
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.allocated.count.saturating_add(self.pending.count)
    }

    #[must_use]
    fn plus(self, more: Self) -> Self {
        Self {
            segments: self.segments.saturating_add(more.segments),
            bytes: self.bytes.saturating_add(more.bytes),
            allocated: self.allocated.plus(more.allocated),
            pending: self.pending.plus(more.pending),
            free_bytes: self.free_bytes.saturating_add(more.free_bytes),
        }
    }
}

impl<'a> SegmentMap<'a> {
    /// The map of a device of a rank.
    pub fn of(snapshot: &'a RankSnapshot, device: &DeviceSnapshot, bounds: MapBounds) -> Self {
        let laid = lay_out(device);
        let sums: Vec<SegmentSums> =
            laid.segments.iter().map(|segment| SegmentSums::of(&segment.pieces)).collect();
        let all = sums.iter().copied().fold(SegmentSums::default(), SegmentSums::plus);
        let listed = laid.segments.iter().filter(|segment| segment.known.is_some());
        let listed_bytes = listed.fold(0, |sum: u64, segment| sum.saturating_add(segment.size));
        let recorded = recorded(device);
        let reserved_difference = (device.reserved > 0 && listed_bytes > 0)
            .then(|| difference(device.reserved, listed_bytes));
        let mut map = Self {
            sums: all,
            listed_bytes,
            misplaced: Held {
                bytes: recorded.bytes.saturating_sub(all.allocated.plus(all.pending).bytes),
                count: laid.blocks_left_out,
            },
            free: is_free_known(device, reserved_difference)
                .then(|| FreeMemory::of(&laid.segments)),
            allocated_difference: difference(device.allocated, allocated_bytes(device)),
            reserved_difference,
            ..Self::default()
        };
        let shown = shown(&laid.segments, bounds.segments_max);
        let pieces = shown.iter().map(|&at| laid.segments[at].pieces.as_slice());
        let small_bytes = merging::small_bytes(pieces.clone(), bounds.parts_max);
        let alone = pieces.flat_map(|pieces| merging::alone(pieces, small_bytes));
        map.stacks = StackTable::of(snapshot, alone, &bounds);
        let mut others = all;
        for at in shown {
            others = less(others, sums[at]);
            let parts = merging::parts(&laid.segments[at].pieces, small_bytes, &map.stacks);
            map.segments.push(mapped(snapshot, &laid.segments[at], sums[at], parts));
        }
        map.other_segments = others;
        map
    }

    /// The blocks that are merged.
    pub fn merged(&self) -> Held {
        let parts = self.segments.iter().flat_map(|segment| &segment.parts);
        parts.fold(Held::default(), |sum, part| match part.kind {
            PartKind::Merged(of) => sum.plus(of.allocated).plus(of.pending),
            PartKind::Free | PartKind::Block(_) => sum,
        })
    }
}

/// Blocks of a device with their bytes.
fn recorded(device: &DeviceSnapshot) -> Held {
    let blocks = device.blocks.iter();
    blocks.fold(Held::default(), |sum, block| sum.plus(Held { bytes: block.size, count: 1 }))
}

/// Bytes of the blocks that the program holds: those that are pending free are no longer its own.
fn allocated_bytes(device: &DeviceSnapshot) -> u64 {
    let live = device.blocks.iter().filter(|block| !block.pending);
    live.fold(0, |sum: u64, block| sum.saturating_add(block.size))
}

fn difference(counter: u64, sum: u64) -> i64 {
    let difference = i128::from(counter) - i128::from(sum);
    i64::try_from(difference).unwrap_or(if difference < 0 { i64::MIN } else { i64::MAX })
}

/// Is all that lies between the blocks free memory of the allocator? Segments of the runtime are
/// its own where they have exactly the reserved bytes.
fn is_free_known(device: &DeviceSnapshot, reserved_difference: Option<i64>) -> bool {
    let is_own = device.segment_source == SegmentSource::Allocator;
    Ledger::inactive_split(device).is_some() && (is_own || reserved_difference == Some(0))
}

/// The largest segments, by address.
fn shown(segments: &[LaidSegment], segments_max: usize) -> Vec<usize> {
    let mut largest: Vec<usize> = (0..segments.len()).collect();
    largest.sort_by_key(|&at| Reverse(segments[at].size));
    largest.truncate(segments_max);
    largest.sort_unstable();
    largest
}

fn less(all: SegmentSums, one: SegmentSums) -> SegmentSums {
    let held = |all: Held, one: Held| Held {
        bytes: all.bytes.saturating_sub(one.bytes),
        count: all.count.saturating_sub(one.count),
    };
    SegmentSums {
        segments: all.segments.saturating_sub(one.segments),
        bytes: all.bytes.saturating_sub(one.bytes),
        allocated: held(all.allocated, one.allocated),
        pending: held(all.pending, one.pending),
        free_bytes: all.free_bytes.saturating_sub(one.free_bytes),
    }
}

fn mapped(
    snapshot: &RankSnapshot,
    segment: &LaidSegment,
    sums: SegmentSums,
    parts: Vec<Part>,
) -> MappedSegment {
    let pair = segment.known.map(|known| snapshot.stream_pool(known.stream_pool));
    let private_pool = pair.and_then(|pair| pair.pool).filter(|pool| *pool != (0, 0));
    MappedSegment {
        address: segment.address,
        stream: pair.and_then(|pair| pair.stream),
        pool: Pool::of(segment.known.as_ref(), private_pool.is_some()),
        private_pool,
        expandable: segment.known.is_some_and(|known| known.expandable),
        sums,
        largest_free_bytes: free(segment).max().unwrap_or(0),
        parts,
    }
}

impl Pool {
    fn of(listed: Option<&Segment>, is_private: bool) -> Self {
        match listed {
            None => Self::Unknown,
            Some(_) if is_private => Self::Private,
            Some(segment) if segment.small => Self::Small,
            Some(_) => Self::Large,
        }
    }
}

impl FreeMemory {
    fn of(segments: &[LaidSegment]) -> Self {
        let mut all = Self::default();
        for segment in segments.iter().filter(|segment| segment.known.is_some()) {
            let is_used = segment.pieces.iter().any(|piece| piece.live.is_some());
            let is_held = is_used && segment.known.is_some_and(|known| !known.expandable);
            let sum = if is_held { &mut all.split_bytes } else { &mut all.cached_bytes };
            *sum = free(segment).fold(*sum, u64::saturating_add);
            all.largest_bytes = free(segment).fold(all.largest_bytes, u64::max);
        }
        all
    }
}

/// Bytes of each free range of a segment.
fn free(segment: &LaidSegment) -> impl Iterator<Item = u64> + '_ {
    segment.pieces.iter().filter(|piece| piece.live.is_none()).map(|piece| piece.size)
}

fn step_of(block: &Block) -> u64 {
    AllocationSteps::step_of(block)
}

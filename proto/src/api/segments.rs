//! The segments of a rank with their blocks: what a map of its device memory is drawn from.

use memtape_core::segment_map::{
    MappedBlock, MappedSegment, MergedParts, Part, PartKind, Pool, SegmentMap, SegmentSums,
};
use memtape_core::snapshot::{DeviceSnapshot, Frame, Held, SegmentSource};
use memtape_core::tape::layout::Clock;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::kept::FailedMemory;
use super::name::Named;

/// Which rank of a capture, and which of its devices.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SegmentsQuery {
    /// The rank.
    pub rank: u32,
    /// Device index in the process; without one the device that holds most.
    pub device: Option<u8>,
}

/// The segments of one device of one rank at the step of a capture, and the blocks in them. Blocks
/// that were freed before are not in it.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Segments {
    /// Id of the capture.
    pub capture: String,
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// Device index in the process.
    pub device: u8,
    /// All devices of the rank.
    pub devices: Vec<u8>,
    /// The step at whose end the blocks are there.
    pub step: u64,
    /// The last step in which a block here was allocated, or `step`: of a rank whose snapshot is
    /// within a step, the step after it.
    pub last_step: u64,
    /// The request of the rank that failed for good after `step`: the map shows the memory before
    /// it. Null where none did.
    pub failed: Option<FailedMemory>,
    /// What all numbers of steps here count.
    pub clock: Named<Clock>,
    /// How the segments are known. With `runtime` some may be other code's; with `none` all are
    /// made up around the blocks.
    pub segment_source: Named<SegmentSource>,
    /// False where the tape was full: blocks are missing.
    pub complete: bool,
    /// The counter of allocated bytes at the step.
    pub allocated_bytes: u64,
    /// The counter of allocated bytes less the allocated blocks: not 0 where blocks are missing, or
    /// the counter and the blocks disagree.
    pub allocated_difference_bytes: i64,
    /// The counter of reserved bytes; null where it is unknown.
    pub reserved_bytes: Option<u64>,
    /// The counter of reserved bytes less the listed segments; null where one of them is unknown.
    pub reserved_difference_bytes: Option<i64>,
    /// Blocks that overlap another one, or reach beyond their segment: they are in no segment here.
    pub misplaced: BlockSums,
    /// Inactive splits: free bytes in segments that have blocks and are not expandable; null where
    /// they are unknown: blocks are missing, or segments may be other code's.
    pub split_bytes: Option<u64>,
    /// Free bytes that the allocator can give back: segments without blocks, and free ranges of
    /// expandable ones; null likewise.
    pub cached_bytes: Option<u64>,
    /// The largest free range; null likewise.
    pub largest_free_bytes: Option<u64>,
    /// All segments together, those that are not in the list too.
    pub all: SegmentsSum,
    /// The segments by address; at most 4,096, the largest.
    pub segments: Vec<MapSegment>,
    /// The segments that are not in the list.
    pub other_segments: SegmentsSum,
    /// Blocks of the listed segments that are merged: those beyond 60,000 blocks and free ranges,
    /// the smallest first.
    pub merged: BlockSums,
    /// The frames of the stacks.
    pub frames: Vec<Frame>,
    /// The stacks that hold most first; at most 2,048.
    pub stacks: Vec<MapStack>,
    /// The stacks that are not in the list.
    pub other_stacks: OtherStacks,
}

/// A number of blocks with their bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct BlockSums {
    /// Number of blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Segments added up: `bytes` is the sum of `allocated_bytes`, `pending_bytes` and `free_bytes`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct SegmentsSum {
    /// Number of segments.
    pub segments: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of allocated blocks.
    pub allocated_blocks: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Number of blocks that are pending free.
    pub pending_blocks: u64,
    /// Bytes of blocks that are pending free.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}

/// One segment, which `blocks` and `merged` fill exactly.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MapSegment {
    /// Device address: `0x` and hexadecimal digits.
    pub address: String,
    /// Its bytes.
    pub bytes: u64,
    /// CUDA stream: `0x` and hexadecimal digits; null where it is unknown.
    pub stream: Option<String>,
    /// The pool; `unknown` where the segment is made up around blocks.
    pub pool: Named<Pool>,
    /// The id of a private pool, such as `0,1`; null for PyTorch's own pools.
    pub private_pool: Option<String>,
    /// Whether it is a part of an expandable segment.
    pub expandable: bool,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of blocks that are pending free.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// The largest free range.
    pub largest_free_bytes: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Blocks and free ranges by offset.
    pub blocks: Vec<MapBlock>,
    /// Runs of small blocks and free ranges, by offset.
    pub merged: Vec<MergedBlocks>,
}

/// A block or a free range.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MapBlock {
    /// Bytes from the start of the segment.
    pub offset_bytes: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Bytes that were asked for; null where they are unknown, and for a free range.
    pub requested_bytes: Option<u64>,
    /// What it is.
    pub state: Named<BlockState>,
    /// The step in which it was allocated; step 1 also has blocks that are older than the first
    /// step, and those whose step is unknown. Null for a free range.
    pub step: Option<u64>,
    /// Index into `stacks`; null where the stack is unknown or not listed, and for a free range.
    pub stack: Option<u32>,
}

/// What a range of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum BlockState {
    /// A block that the program holds.
    Allocated,
    /// A block that the program has freed, and that other streams still use.
    PendingFree,
    /// A free range.
    Inactive,
}

/// Neighbouring blocks and free ranges that are too small to be listed alone.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MergedBlocks {
    /// Bytes from the start of the segment.
    pub offset_bytes: u64,
    /// Bytes of the blocks and free ranges.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of allocated blocks.
    pub allocated_bytes: u64,
    /// Bytes of blocks that are pending free; the others are free.
    pub pending_bytes: u64,
    /// First step in which one of the blocks was allocated.
    pub first_step: u64,
    /// Last step in which one of the blocks was allocated.
    pub last_step: u64,
}

/// One stack.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MapStack {
    /// Indexes into `frames`, outermost first.
    pub frames: Vec<u32>,
    /// Index of the innermost frame of the user's own code, as an incident names it; null where the
    /// stack has none.
    pub line: Option<u32>,
    /// Number of its blocks, without merged ones.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Stacks that are not in the list.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct OtherStacks {
    /// How many are not in it.
    pub count: u64,
    /// Number of their blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl From<Held> for BlockSums {
    fn from(held: Held) -> Self {
        Self { blocks: held.count, bytes: held.bytes }
    }
}

impl From<SegmentSums> for SegmentsSum {
    fn from(of: SegmentSums) -> Self {
        Self {
            segments: of.segments,
            bytes: of.bytes,
            allocated_blocks: of.allocated.count,
            allocated_bytes: of.allocated.bytes,
            pending_blocks: of.pending.count,
            pending_bytes: of.pending.bytes,
            free_bytes: of.free_bytes,
        }
    }
}

impl Segments {
    /// The device and its map; the fields about the capture and the rank are empty.
    pub fn of(device: &DeviceSnapshot, map: &SegmentMap<'_>) -> Self {
        let stacks = map.stacks.stacks.iter().map(|stack| MapStack {
            frames: stack.frames.clone(),
            line: stack.line,
            blocks: stack.held.count,
            bytes: stack.held.bytes,
        });
        let (count, others) = map.stacks.others;
        Self {
            device: device.device,
            segment_source: device.segment_source.into(),
            complete: device.complete,
            allocated_bytes: device.allocated,
            allocated_difference_bytes: map.allocated_difference,
            reserved_bytes: (device.reserved > 0).then_some(device.reserved),
            reserved_difference_bytes: map.reserved_difference,
            misplaced: map.misplaced.into(),
            split_bytes: map.free.map(|free| free.split_bytes),
            cached_bytes: map.free.map(|free| free.cached_bytes),
            largest_free_bytes: map.free.map(|free| free.largest_bytes),
            all: map.sums.into(),
            segments: map.segments.iter().map(MapSegment::of).collect(),
            other_segments: map.other_segments.into(),
            merged: map.merged().into(),
            frames: map.stacks.frames.iter().map(|&frame| frame.clone()).collect(),
            stacks: stacks.collect(),
            other_stacks: OtherStacks { count, blocks: others.count, bytes: others.bytes },
            ..Self::default()
        }
    }
}

impl MapSegment {
    fn of(segment: &MappedSegment) -> Self {
        let mut made = Self {
            address: hexadecimal(segment.address),
            bytes: segment.sums.bytes,
            stream: segment.stream.map(hexadecimal),
            pool: segment.pool.into(),
            private_pool: segment.private_pool.map(|(first, second)| format!("{first},{second}")),
            expandable: segment.expandable,
            allocated_bytes: segment.sums.allocated.bytes,
            pending_bytes: segment.sums.pending.bytes,
            free_bytes: segment.sums.free_bytes,
            largest_free_bytes: segment.largest_free_bytes,
            block_count: segment.sums.blocks(),
            ..Self::default()
        };
        for part in &segment.parts {
            match part.kind {
                PartKind::Free => made.blocks.push(MapBlock::free(*part)),
                PartKind::Block(block) => made.blocks.push(MapBlock::of(*part, block)),
                PartKind::Merged(merged) => made.merged.push(MergedBlocks::of(*part, merged)),
            }
        }
        made
    }
}

impl MapBlock {
    fn free(part: Part) -> Self {
        let state = BlockState::Inactive.into();
        Self { offset_bytes: part.offset, bytes: part.bytes, state, ..Self::default() }
    }

    fn of(part: Part, block: MappedBlock) -> Self {
        let state = if block.pending { BlockState::PendingFree } else { BlockState::Allocated };
        Self {
            requested_bytes: block.requested,
            state: state.into(),
            step: Some(block.step),
            stack: block.stack,
            ..Self::free(part)
        }
    }
}

impl MergedBlocks {
    fn of(part: Part, merged: MergedParts) -> Self {
        Self {
            offset_bytes: part.offset,
            bytes: part.bytes,
            blocks: merged.allocated.plus(merged.pending).count,
            allocated_bytes: merged.allocated.bytes,
            pending_bytes: merged.pending.bytes,
            first_step: merged.steps.0,
            last_step: merged.steps.1,
        }
    }
}

/// JSON numbers are exact up to 2^53, and an address may be larger.
fn hexadecimal(number: u64) -> String {
    format!("{number:#x}")
}

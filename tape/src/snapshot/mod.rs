//! The state of one rank at one step: live blocks, segments, stacks and the last events.
//!
//! Plain data: a rewound tape yields it, a capture carries it, the diagnosis and the exporters
//! read it; `memtape-proto` has the codec. Stack, frame and stream pool 0 mean *unknown*.

pub mod failed_request;
pub mod frames;
pub mod ledger;
pub mod lines;
pub mod marks;
pub mod origin;
pub mod step_source;
pub mod workers;

use alloc::string::String;
use alloc::vec::Vec;

use self::failed_request::FailedRequest;
use self::marks::Mark;
use self::origin::Origin;
use self::step_source::StepSource;
use self::workers::WorkerSamples;
use crate::identity::Identity;
use serde::{Deserialize, Serialize};

/// State of one rank at the end of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankSnapshot {
    /// Which process this is.
    pub identity: Identity,
    /// Number of finished optimizer steps; 0 is before the first.
    pub step: u64,
    /// Unix time of that step's end, in nanoseconds.
    pub wall_ns: i64,
    /// One entry for each device the rank allocated on.
    pub devices: Vec<DeviceSnapshot>,
    /// Every frame named by a stack; entry 0 is the unknown frame.
    pub frames: Vec<Frame>,
    /// Frame indexes, innermost first; entry 0 is the empty, unknown stack.
    pub stacks: Vec<Vec<u32>>,
    /// Streams and pools; entry 0 is the unknown pair.
    pub stream_pools: Vec<StreamPool>,
    /// Memory that other code than PyTorch's caching allocator holds, by origin and device.
    pub outside: Vec<OutsideUse>,
    /// The same by the stack that took it.
    pub outside_stacks: Vec<OutsideStack>,
    /// Stacks beyond [`crate::limits::OUTSIDE_STACKS_MAX`]: their memory is added to the unknown
    /// stack.
    pub outside_stacks_left_out: u64,
    /// True when events of such memory back to this moment are overwritten: `outside` and the
    /// runtime's segments are not known then, or not all.
    pub outside_missing: bool,
    /// The earlier step that the `before` sums show; 0 when there are none.
    pub before_step: u64,
    /// How far it has come in its collectives: of the last look, not of the step.
    pub collectives: Collectives,
    /// Phases and annotations of the program up to the moment, oldest first; the newest, at most
    /// [`crate::limits::MARKS_MAX`].
    pub marks: Vec<Mark>,
    /// Where its worker processes ran while the capture was taken, not at the step; `None` where
    /// that was not asked for, or the agent has no profiler.
    pub worker_samples: Option<WorkerSamples>,
    /// The last request for memory that failed for good: of that moment, not of the step. `None`
    /// where none did, or the rank has gone on since.
    pub failed_request: Option<FailedRequest>,
    /// The allocator's settings that differ from their defaults, as PyTorch says them in its own
    /// files; empty where it does not.
    pub settings: Vec<(String, String)>,
}

/// How far a rank has come in its collectives, as PyTorch's NCCL flight recorder last said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectives {
    /// Whom it is known from, or why nothing new is known.
    pub source: CollectiveSource,
    /// Unix time since when that is so, in nanoseconds; 0 is unknown.
    pub source_since_ns: i64,
    /// Unix time of the last look; 0 when there was none, and then nothing is known of any group.
    pub look_wall_ns: i64,
    /// How long that look took.
    pub look_took_ns: u64,
    /// Unix time at which a look began that has not ended; 0 when none was under way.
    pub asked_wall_ns: i64,
    /// Process groups that have begun a collective.
    pub groups: Vec<CollectiveGroup>,
    /// Process groups that found no room or could not be read.
    pub groups_lost: u64,
}

/// Where the numbers of collectives come from, or why there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::FromRepr)]
#[repr(u64)]
pub enum CollectiveSource {
    /// Not known to this version, or the recorder does not say: an older one.
    #[default]
    Unknown = 0,
    /// PyTorch's NCCL flight recorder, which is asked again and again.
    FlightRecorder = 1,
    /// No communicator was made.
    NoCommunicator = 2,
    /// One is being made: nothing is asked meanwhile.
    Making = 3,
    /// One was made just now: the first look comes soon.
    Soon = 4,
    /// The flight recorder was switched off by the environment.
    Off = 5,
    /// It has no process group.
    Empty = 6,
    /// This PyTorch has no such function.
    NoFunction = 7,
    /// `MEMTAPE_COLLECTIVES=0`.
    NotWanted = 8,
    /// Its answer was not understood.
    NotUnderstood = 9,
    /// It threw an exception; it is not asked again.
    Threw = 10,
    /// There is no thread to ask it.
    NoThread = 11,
}

impl CollectiveSource {
    /// The source with this number on a tape or on the wire.
    pub fn from_number(number: u64) -> Self {
        Self::from_repr(number).unwrap_or(Self::Unknown)
    }

    /// Why nothing new is known; `None` where answers come.
    pub fn why_not(self) -> Option<&'static str> {
        Some(match self {
            Self::FlightRecorder => return None,
            Self::Unknown => "the recorder does not say",
            Self::NoCommunicator => "no NCCL communicator was made",
            Self::Making => "an NCCL communicator is being made",
            Self::Soon => "an NCCL communicator was made just now",
            Self::Off => "the flight recorder is off (TORCH_FR_BUFFER_SIZE)",
            Self::Empty => {
                "the flight recorder has no process group: it is off (TORCH_FR_BUFFER_SIZE), or \
                 the communicators are not those of PyTorch's NCCL process groups"
            }
            Self::NoFunction => "this PyTorch cannot be asked: that takes 2.7 or newer, with NCCL",
            Self::NotWanted => "MEMTAPE_COLLECTIVES=0",
            Self::NotUnderstood => "the flight recorder's answer was not understood",
            Self::Threw => "the flight recorder threw an exception, and is not asked again",
            Self::NoThread => "there was no thread to ask the flight recorder",
        })
    }
}

/// One process group of one rank, and how far it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CollectiveGroup {
    /// Its number in the process, counted as the groups were made.
    pub id: u64,
    /// The same on all of its ranks, and for no other group; 0 where that is unknown. As JSON 16
    /// hexadecimal digits.
    #[serde(with = "key")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub key: u64,
    /// Its name, the same on all of its ranks; empty where it is unknown.
    pub name: String,
    /// What it is for; empty where it is unknown.
    pub desc: String,
    /// Number of its ranks; 0 is unknown.
    pub size: u32,
    /// Newest collective that the program has asked for; `None` before the first.
    pub enqueued: Option<u64>,
    /// Newest one that the GPU has begun; `None` before the first, and where PyTorch takes no
    /// times.
    pub started: Option<u64>,
    /// Newest one that PyTorch has seen to be over; `None` before the first.
    pub completed: Option<u64>,
    /// Unix time of the first look that found these numbers, in nanoseconds.
    pub since_wall_ns: i64,
}

/// The key of a process group as JSON has it.
mod key {
    use alloc::format;
    use alloc::string::String;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(key: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{key:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        Ok(u64::from_str_radix(&String::deserialize(from)?, 16).unwrap_or(0))
    }
}

/// One device of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceSnapshot {
    /// Device index in the process.
    pub device: u8,
    /// UUID of the GPU; empty when unknown.
    pub uuid: String,
    /// Bytes handed out to tensors.
    pub allocated: u64,
    /// Bytes the allocator holds from the device; 0 when unknown.
    pub reserved: u64,
    /// Size of the device in bytes; 0 when unknown.
    pub device_bytes: u64,
    /// Live blocks, sorted by address.
    pub blocks: Vec<Block>,
    /// Memory the allocator took from the device, sorted by address.
    pub segments: Vec<Segment>,
    /// Who says so.
    pub segment_source: SegmentSource,
    /// Live memory per stack at the earlier step.
    pub before: Vec<StackUse>,
    /// Last events up to the step, oldest first.
    pub trace: Vec<TraceEvent>,
    /// Who says where the steps of the trace end.
    pub step_source: StepSource,
    /// False when the live table overflowed, so that blocks may be missing.
    pub complete: bool,
}

/// Who knows a device's segments. The numbers are those of the protocol.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::FromRepr,
    Serialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(i32)]
pub enum SegmentSource {
    /// No source: `segments` is empty.
    #[default]
    None = 0,
    /// Calls of `cudaMalloc`, some of which may be other code's.
    Runtime = 1,
    /// The allocator's own trace: every segment is there, and no other.
    Allocator = 2,
}

/// The step in which memory with this birth step was allocated, as a chart of steps numbers it: the
/// birth step is the number of steps that had finished by then.
pub fn allocation_step(birth_step: u64) -> u64 {
    birth_step.saturating_add(1)
}

/// A block of memory in use by a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Block {
    /// Device address.
    pub address: u64,
    /// Size in bytes, rounded as the allocator rounds.
    pub size: u64,
    /// Bytes asked for; 0 when unknown.
    pub requested: u64,
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// Steps finished when it was allocated.
    pub birth_step: u64,
    /// CLOCK_MONOTONIC when it was allocated, in nanoseconds.
    pub birth_ns: u64,
    /// Index into [`RankSnapshot::stream_pools`].
    pub stream_pool: u16,
    /// Taken back, but still used by other streams.
    pub pending: bool,
}

/// Memory taken from the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Segment {
    /// Device address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// Index into [`RankSnapshot::stream_pools`].
    pub stream_pool: u16,
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// Part of an expandable segment, in which memory is mapped and unmapped.
    pub expandable: bool,
    /// For blocks of at most 1 MiB, as PyTorch keeps them apart.
    pub small: bool,
}

/// The stream and the pool that a block belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamPool {
    /// CUDA stream (`cudaStream_t`) that the block belongs to; 0 is the default stream.
    pub stream: Option<u64>,
    /// Memory pool; (0, 0) is the ordinary one, others belong to graphs and `MemPool`s.
    pub pool: Option<(u64, u64)>,
}

/// Memory that other code than the caching allocator holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideUse {
    /// Where it came from.
    pub origin: Origin,
    /// Device index; of no meaning for memory on the host.
    pub device: u8,
    /// Bytes held.
    pub bytes: u64,
    /// Allocations held.
    pub count: u64,
}

/// What one stack holds of the memory that other code than the caching allocator took.
///
/// `cudaMalloc` and the driver give PyTorch's allocator its segments, too. Pieces that are segments
/// are left out, and those that are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideStack {
    /// Where it came from.
    pub origin: Origin,
    /// Device index; of no meaning for memory on the host.
    pub device: u8,
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// What it holds.
    pub held: Held,
    /// Of that, what it took after the earlier step.
    pub fresh: Held,
    /// What it held at the earlier step; `None` when that is not known.
    pub before: Option<Held>,
    /// In how many different steps it took what it holds.
    pub births: u64,
    /// The first of those, in steps finished by then.
    pub first_step: u64,
    /// The last of those.
    pub last_step: u64,
}

/// An amount of memory, and the number of allocations that it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Held {
    /// Its bytes.
    pub bytes: u64,
    /// Its pieces.
    pub count: u64,
}

impl Held {
    /// One piece more.
    pub fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.count = self.count.saturating_add(1);
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: Self) -> Self {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.count = self.count.saturating_add(other.count);
        self
    }
}

/// Live memory of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackUse {
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
}

/// One Python frame.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Frame {
    /// Path of the file, as the code object has it.
    pub file: String,
    /// Line number, from 1; 0 when unknown.
    pub line: u32,
    /// Qualified name of the function.
    pub function: String,
}

/// What happened. The numbers are those of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::FromRepr, strum::IntoStaticStr, Serialize)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[repr(i32)]
pub enum TraceKind {
    /// A block was handed out.
    Alloc = 1,
    /// A block was taken back and is free.
    Free = 2,
    /// A request failed for good; `size` is what was asked for, `detail` the device's free bytes.
    Oom = 3,
    /// The allocator took a segment from the device.
    SegmentAlloc = 4,
    /// A segment went back to the device.
    SegmentFree = 5,
    /// `cudaMalloc` failed; the allocator frees its cache and tries again. `detail` is how long the
    /// call took, in nanoseconds.
    MallocFailed = 6,
    /// A block was taken back, but other streams still use it.
    FreeDeferred = 7,
    /// They no longer do.
    FreeCompleted = 8,
    /// Memory was mapped into an expandable segment.
    SegmentMap = 9,
    /// A part of an expandable segment was unmapped.
    SegmentUnmap = 10,
    /// The program took a snapshot of PyTorch's own.
    Snapshot = 11,
}

/// One event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TraceEvent {
    /// What happened.
    pub kind: TraceKind,
    /// CLOCK_MONOTONIC, in nanoseconds.
    pub mono_ns: u64,
    /// Device address; 0 where there is none.
    pub address: u64,
    /// Bytes, rounded as the allocator rounds.
    pub size: u64,
    /// Blocks: bytes asked for, 0 unknown. Other kinds: see there.
    pub detail: u64,
    /// Index into [`RankSnapshot::stacks`].
    pub stack: u32,
    /// Index into [`RankSnapshot::stream_pools`].
    pub stream_pool: u16,
    /// Steps finished when it happened.
    pub step: u64,
}

impl RankSnapshot {
    /// The frames of a stack, innermost first; empty when the stack is unknown.
    pub fn frames_of(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        let indexes = self.stacks.get(stack as usize).map(Vec::as_slice).unwrap_or_default();
        indexes.iter().filter_map(|&index| self.frames.get(index as usize))
    }

    /// The stream and pool with this index; unknown when there is none.
    pub fn stream_pool(&self, index: u16) -> StreamPool {
        self.stream_pools.get(usize::from(index)).copied().unwrap_or_default()
    }
}

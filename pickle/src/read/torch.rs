//! A memory snapshot of PyTorch as it was read: typed, compact, and honest about what it lacks.
//!
//! Releases of PyTorch write different keys. What a file does not have is `None` here and is
//! counted in [`Notes::missing`]; it is never a 0. What this module does not know is skipped and
//! counted in [`Notes::skipped`]. Texts, frames and stacks are numbers, each there once.
//!
//! It holds what the file says and draws no conclusion.

use alloc::string::String;
use alloc::vec::Vec;
use core::ops::Range;

use crate::read::intern::Interner;

/// In packed records: nothing is known.
pub(crate) const NOTHING: u32 = u32::MAX;

/// In packed records: no time is known.
pub(crate) const NO_TIME: i64 = i64::MIN;

/// What the file is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// What `torch.cuda.memory._snapshot()` returns.
    #[default]
    Snapshot,
    /// What `torch.cuda.memory_snapshot()` returns: segments only.
    Segments,
}

/// A memory snapshot.
#[derive(Clone, Debug, Default)]
pub struct TorchSnapshot {
    /// What the file is.
    pub shape: Shape,
    /// Memory that the allocator took from devices, in the order of the file.
    pub segments: Vec<Segment>,
    /// The same for pinned memory of the host.
    pub host_segments: Vec<Segment>,
    /// Pieces of all segments; each segment knows which are its own.
    pub blocks: Vec<Block>,
    /// For each device index its events.
    pub traces: Vec<Range<u32>>,
    /// For each trace of pinned host memory its events.
    pub host_traces: Vec<Range<u32>>,
    /// Events of all traces, each trace oldest first.
    pub events: Vec<Event>,
    /// Beginnings and ends of what the profiler names.
    pub annotations: Vec<Annotation>,
    /// The allocator's settings; those in an inner dictionary have a dotted name.
    pub settings: Vec<Setting>,
    /// What stands under the key `memtape`, in files that Memtape exported.
    pub origin: Vec<Setting>,
    /// What the file lacks or has too much.
    pub notes: Notes,
    pub(crate) texts: Interner<u8>,
    /// Name, file and line of each frame.
    pub(crate) frames: Interner<u32>,
    pub(crate) stacks: Interner<u32>,
    pub(crate) stream_pools: Interner<u64>,
}

/// What a reader met besides the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Pickle protocol.
    pub protocol: u8,
    /// Bytes of the pickle.
    pub bytes: u64,
    /// Bytes behind its end.
    pub bytes_after_end: u64,
    /// Keys that records lack.
    pub missing: Vec<Missing>,
    /// Keys that are not known.
    pub skipped: Vec<Count>,
    /// Keys whose value is of another kind than PyTorch's; it counts as missing.
    pub mistyped: Vec<Count>,
    /// Counts that are in none of the lists above, which end at 256 different ones.
    pub counts_left_out: u64,
    /// Things in a list that do not belong there.
    pub misplaced: u64,
    /// Settings that are too many, too deep or too long.
    pub settings_left_out: u64,
    /// Texts that are not UTF-8; what is not was replaced.
    pub odd_texts: u64,
}

/// How many records lack a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Of which kind.
    pub record: Record,
    /// Which key.
    pub key: &'static str,
    /// How many lack it.
    pub count: u64,
    /// How many there are.
    pub of: u64,
}

/// How often a key was met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// In which kind of record.
    pub record: Record,
    /// Which key.
    pub key: String,
    /// How often.
    pub count: u64,
}

/// Kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// The whole.
    Snapshot,
    /// A segment.
    Segment,
    /// A block.
    Block,
    /// An event of a trace.
    Event,
    /// A frame of a stack.
    Frame,
    /// An annotation.
    Annotation,
}

/// Memory taken from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Device index.
    pub device: Option<u32>,
    /// Address on the device.
    pub address: Option<u64>,
    /// Size in bytes.
    pub total_bytes: Option<u64>,
    /// Bytes handed out.
    pub allocated_bytes: Option<u64>,
    /// Bytes handed out, or taken back and still in use by a stream.
    pub active_bytes: Option<u64>,
    /// Bytes that were asked for.
    pub requested_bytes: Option<u64>,
    /// CUDA stream.
    pub stream: Option<u64>,
    /// Memory pool.
    pub pool: Option<(u64, u64)>,
    /// For blocks of at most 1 MiB.
    pub is_small: Option<bool>,
    /// Memory in it is mapped and unmapped.
    pub is_expandable: Option<bool>,
    /// Number of the stack that took it.
    pub stack: Option<u32>,
    /// Its blocks, in the order of the file; `None` where the file says nothing of blocks.
    pub blocks: Option<(u32, u32)>,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) stack: u32,
    /// What it is used for.
    pub state: Option<BlockState>,
    pub(crate) known: u8,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// In use by a tensor.
    Allocated,
    /// Taken back, and still in use by a stream.
    PendingFree,
    /// Free.
    Inactive,
}

/// An event of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) time_us: i64,
    pub(crate) stack: u32,
    pub(crate) compile_context: u32,
    pub(crate) user_metadata: u32,
    pub(crate) stream_pool: u16,
    pub(crate) known: u8,
    /// What happened.
    pub action: Action,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block was given back.
    FreeRequested,
    /// No stream uses a block any more that was given back.
    FreeCompleted,
    /// A segment was taken from the device.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Memory was mapped into an expandable segment.
    SegmentMap,
    /// Memory was unmapped from one.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// A request failed.
    Oom,
    /// A tensor was given a name.
    Annotate,
    /// Something this version does not know; counted as mistyped.
    Unknown,
}

/// A moment that the profiler names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub(crate) time_us: i64,
    pub(crate) name: u32,
    pub(crate) device: u16,
    /// Which end it is.
    pub stage: Option<Stage>,
}

/// Which end of an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It begins.
    Start,
    /// It ends.
    End,
}

/// A setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name, with those of outer dictionaries before it and dots between.
    pub name: String,
    /// What it is.
    pub value: SettingValue,
}

/// What a setting is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingValue {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A text, by its number.
    Text(u32),
}

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Name of the function.
    pub name: Option<&'a str>,
    /// Name of the file.
    pub file: Option<&'a str>,
    /// Line number, 0 where PyTorch knows none.
    pub line: Option<u32>,
}

/// Bits of `known` in packed records.
pub(crate) mod known {
    pub(crate) const ADDRESS: u8 = 1;
    pub(crate) const BYTES: u8 = 2;
    pub(crate) const REQUESTED: u8 = 4;
    pub(crate) const DEVICE_FREE: u8 = 8;
}

fn there(known: u8, bit: u8, value: u64) -> Option<u64> {
    (known & bit != 0).then_some(value)
}

fn numbered(number: u32) -> Option<u32> {
    (number != NOTHING).then_some(number)
}

impl Block {
    /// Address on the device.
    pub fn address(&self) -> Option<u64> {
        there(self.known, known::ADDRESS, self.address)
    }

    /// Size in bytes, rounded as the allocator rounds.
    pub fn bytes(&self) -> Option<u64> {
        there(self.known, known::BYTES, self.bytes)
    }

    /// Bytes that were asked for; of a free block, by its last user.
    pub fn requested_bytes(&self) -> Option<u64> {
        there(self.known, known::REQUESTED, self.requested_bytes)
    }

    pub(crate) fn set_requested(&mut self, bytes: u64) {
        (self.requested_bytes, self.known) = (bytes, self.known | known::REQUESTED);
    }

    pub(crate) fn set_address(&mut self, address: u64) {
        (self.address, self.known) = (address, self.known | known::ADDRESS);
    }

    /// Number of the stack that asked for it; stack 0 is the empty one.
    pub fn stack(&self) -> Option<u32> {
        numbered(self.stack)
    }
}

impl Event {
    /// Address on the device.
    pub fn address(&self) -> Option<u64> {
        there(self.known, known::ADDRESS, self.address)
    }

    /// Free bytes of the device when a request failed.
    pub fn device_free_bytes(&self) -> Option<u64> {
        there(self.known, known::DEVICE_FREE, self.address)
    }

    /// Bytes that were asked for, or of the segment.
    pub fn bytes(&self) -> Option<u64> {
        there(self.known, known::BYTES, self.bytes)
    }

    /// Unix time in microseconds.
    pub fn time_us(&self) -> Option<i64> {
        (self.time_us != NO_TIME).then_some(self.time_us)
    }

    /// Number of the stack; stack 0 is the empty one.
    pub fn stack(&self) -> Option<u32> {
        numbered(self.stack)
    }
}

impl Annotation {
    /// Unix time in microseconds.
    pub fn time_us(&self) -> Option<i64> {
        (self.time_us != NO_TIME).then_some(self.time_us)
    }

    /// Device index.
    pub fn device(&self) -> Option<u32> {
        (self.device != u16::MAX).then_some(u32::from(self.device))
    }
}

impl TorchSnapshot {
    /// The text with this number.
    pub fn text(&self, number: u32) -> &str {
        core::str::from_utf8(self.texts.get(number)).unwrap_or_default()
    }

    /// Number of different frames.
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The frame with this number.
    pub fn frame(&self, number: u32) -> Frame<'_> {
        let parts = |index: usize| self.frames.get(number).get(index).copied().and_then(numbered);
        Frame {
            name: parts(0).map(|text| self.text(text)),
            file: parts(1).map(|text| self.text(text)),
            line: parts(2),
        }
    }

    /// Number of different stacks, the empty one, number 0, among them.
    pub fn stack_count(&self) -> usize {
        self.stacks.len()
    }

    /// Numbers of the frames of a stack, innermost first.
    pub fn stack(&self, number: u32) -> &[u32] {
        self.stacks.get(number)
    }

    /// Blocks of a segment.
    pub fn blocks_of(&self, segment: &Segment) -> &[Block] {
        let (start, end) = segment.blocks.unwrap_or_default();
        self.blocks.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Events of a trace.
    pub fn events_of(&self, trace: &Range<u32>) -> &[Event] {
        self.events.get(trace.start as usize..trace.end as usize).unwrap_or_default()
    }

    /// CUDA stream of an event.
    pub fn stream_of(&self, event: &Event) -> Option<u64> {
        match self.stream_pools.get(u32::from(event.stream_pool)) {
            &[1, stream, ..] => Some(stream),
            _ => None,
        }
    }

    /// Memory pool of an event.
    pub fn pool_of(&self, event: &Event) -> Option<(u64, u64)> {
        match self.stream_pools.get(u32::from(event.stream_pool)) {
            &[_, _, 1, first, second] => Some((first, second)),
            _ => None,
        }
    }

    /// What was compiled when it happened; empty or `N/A` where nothing was.
    pub fn compile_context_of(&self, event: &Event) -> Option<&str> {
        numbered(event.compile_context).map(|text| self.text(text))
    }

    /// What the program said of itself when it happened.
    pub fn user_metadata_of(&self, event: &Event) -> Option<&str> {
        numbered(event.user_metadata).map(|text| self.text(text))
    }

    /// Name of an annotation.
    pub fn name_of(&self, annotation: &Annotation) -> Option<&str> {
        numbered(annotation.name).map(|text| self.text(text))
    }
}

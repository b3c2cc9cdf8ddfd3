//! Words of the header, by name.

/// [`super::MAGIC`]; written last when a tape is made.
pub const MAGIC: usize = 0;
/// [`super::VERSION`].
pub const VERSION: usize = 1;
/// Size of the whole tape.
pub const FILE_WORDS: usize = 2;
/// One of [`super::State`].
pub const STATE: usize = 3;
/// One of [`super::Disabled`]; 0 while recording.
pub const DISABLED: usize = 4;
/// Kernel's boot id, two words.
pub const BOOT_ID: usize = 5;
/// Process id in the process's own pid namespace.
pub const PID: usize = 7;
/// Inode of that pid namespace.
pub const PID_NAMESPACE: usize = 8;
/// CLOCK_MONOTONIC when recording started …
pub const START_MONO_NS: usize = 9;
/// … and Unix time at the same moment, …
pub const START_WALL_NS: usize = 10;
/// … as exactly as this: the time between the two readings around it.
pub const CLOCK_ERROR_NS: usize = 11;
/// Number of finished steps, or of turns: `CLOCK` says which.
pub const STEP: usize = 12;
/// CLOCK_MONOTONIC at which that step ended.
pub const STEP_MONO_NS: usize = 13;
/// Id of the present phase's name; 0 is none.
pub const PHASE: usize = 14;
/// Bits of [`super::hooks`] that have fired at least once.
pub const HOOKS: usize = 15;
/// One of [`super::Stacks`].
pub const STACKS: usize = 16;
/// One of [`super::StepSource`].
pub const STEP_SOURCE: usize = 17;
/// First word and bytes of the identity text.
pub const IDENTITY_OFFSET: usize = 18;
/// Bytes of the identity text.
pub const IDENTITY_BYTES: usize = 19;
/// First word of the interned entries.
pub const INTERNED_OFFSET: usize = 20;
/// Words for interned strings, frames and stacks.
pub const INTERNED_WORDS: usize = 21;
/// Words of interned entries that are complete.
pub const INTERNED_USED: usize = 22;
/// First word of the streams and pools.
pub const STREAM_POOLS_OFFSET: usize = 23;
/// Pairs of stream and pool that are complete, the unknown one included.
pub const STREAM_POOLS_USED: usize = 24;
/// Stacks that were recorded as unknown because the region of interned entries or its index were
/// full.
pub const LOST_STACKS: usize = 25;
/// Stacks cut at the depth limit.
pub const CUT_STACKS: usize = 26;
/// Host-side events dropped because another thread was writing.
pub const LOST_HOST_EVENTS: usize = 27;
/// Events of a device that has no lane (too many devices, or no space for its lane).
pub const LOST_DEVICE_EVENTS: usize = 28;
/// Python version found, as `major << 8 | minor`; 0 while unknown.
pub const PYTHON: usize = 29;
/// Exit status of an orderly exit, plus one; 0 while there was none.
pub const EXIT_STATUS: usize = 30;
/// One of [`super::Tracker`].
pub const TRACKER: usize = 31;
/// Four words for each device: see [`super::device`].
pub const DEVICES: usize = 32;
/// Events whose stream and pool found no room.
pub const LOST_STREAM_POOLS: usize = 96;
/// Id of the newest annotation; 0 is none.
pub const ANNOTATION: usize = 97;
/// What came of `MEMTAPE_CUPTI=1`, one of [`super::Cupti`].
pub const CUPTI: usize = 98;
/// Where the numbers of collectives come from, one of `CollectiveSource`.
pub const COLLECTIVE: usize = 99;
/// CLOCK_MONOTONIC since when that is so.
pub const COLLECTIVE_SINCE_NS: usize = 100;
/// First word of the tables of collectives; 0 on a tape without them.
pub const COLLECTIVE_OFFSET: usize = 101;
/// Looks at the flight recorder that are on the tape: the newest is in table *looks mod 2*.
pub const COLLECTIVE_POLLS: usize = 102;
/// CLOCK_MONOTONIC when the look began that is under way; 0 when none is.
pub const COLLECTIVE_ASKED_NS: usize = 103;
/// What `STEP` counts, one of [`super::Clock`]; 0 until a process without steps counts turns.
pub const CLOCK: usize = 104;
/// CLOCK_MONOTONIC when `STEP` went from turns to steps: what is older was numbered in turns. 0
/// when it never did.
pub const STEPS_SINCE_NS: usize = 105;
/// Turns that ended, those before the first counted one included.
pub const TURNS: usize = 106;
/// Device whose memory ends the turns, plus one; 0 is none yet.
pub const TURN_DEVICE: usize = 107;
/// Instruction to the rank, see `mailbox.rs`; 0 is none. The only word that an agent writes.
pub const MAILBOX: usize = 108;
/// The rank's reply to the last instruction; 0 when there was none …
pub const REPLY: usize = 109;
/// … and the nanoseconds that carrying it out took.
pub const REPLY_TOOK_NS: usize = 110;
/// What the job lets be asked of the rank: 1 garbage collection, 2 `empty_cache`, 4 checkpoint,
/// 8 signals. 0 is nothing.
pub const OFFERED: usize = 111;
/// Twelve words for each lane: see [`super::descriptor`].
pub const DESCRIPTORS: usize = 128;
/// 1 where the recorder keeps the sums that follow; 0 is not known.
pub const OUTSIDE: usize = 351;
/// Bytes that other code than PyTorch's allocator holds: eight words for each device, one for
/// each origin from 1. What lies on the host stands with device 0.
pub const OUTSIDE_BYTES: usize = 352;

/// Words about one device, from `header::DEVICES + 4 * device`.
pub mod device {
    /// Words per device.
    pub const WORDS: usize = 4;
    /// UUID, two words in the order of its bytes; both 0 is unknown.
    pub const UUID: usize = 0;
    /// Size of the device in bytes; 0 is unknown.
    pub const TOTAL_BYTES: usize = 2;
    /// Failed `cudaMalloc` calls.
    pub const MALLOC_FAILURES: usize = 3;
}

/// Words that describe one lane, from `header::DESCRIPTORS + 12 * lane`.
pub mod descriptor {
    /// Words per lane.
    pub const WORDS: usize = 12;
    /// 0 absent, 1 ready, 2 no space.
    pub const STATE: usize = 0;
    /// First word of the lane's head.
    pub const HEAD: usize = 1;
    /// First word of the events.
    pub const RING: usize = 2;
    /// Number of event slots, a power of two.
    pub const RING_SLOTS: usize = 3;
    /// First word of the live table.
    pub const TABLE: usize = 4;
    /// Number of table entries, a power of two.
    pub const TABLE_ENTRIES: usize = 5;
    /// First word of the step index.
    pub const STEPS: usize = 6;
    /// Number of step records, a power of two.
    pub const STEP_RECORDS: usize = 7;
    /// First word of the segment table.
    pub const SEGMENTS: usize = 8;
    /// Number of segment entries, a power of two.
    pub const SEGMENT_ENTRIES: usize = 9;
}

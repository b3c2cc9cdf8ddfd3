//! Where everything is on a tape, in 64-bit words.
//!
//! ```text
//! header | identity | places | collectives | atoms | lane 0 … 15 | host | CPU
//! atoms = strings, frames, stacks
//! lane = head | events (ring) | live table | segment table | step index
//! ```
//!
//! The header says where each region is, so a reader needs no constant but the header's own.
//! Lanes start at page borders: the writer asks the file system for a lane's pages only when its
//! device is first used. All numbers are little-endian `u64`.

use super::collective::TABLES_WORDS;
pub use super::origin::Origin;

/// First word of every tape: the bytes `MEMTAPE` and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MEMTAPE\0");

/// Version of this layout. Readers refuse any other.
pub const VERSION: u64 = 3;

/// Words in a page: regions that are allocated on their own start at multiples of this.
pub const PAGE_WORDS: usize = 512;

/// Words of the header, descriptors included.
pub const HEADER_WORDS: usize = PAGE_WORDS;

/// Words kept for the identity text (`key=value` lines): 8 KiB.
pub const IDENTITY_WORDS: usize = 1024;

/// Devices a process can have on its tape; events of a device beyond are counted as lost.
/// No machine in the field shows more than 16 devices to one process.
pub const DEVICES_MAX: usize = 16;

/// Index of the lane for what happens outside any device mutex: memory that something else than
/// PyTorch's allocator takes, pinned memory, marks.
pub const HOST_LANE: usize = DEVICES_MAX;

/// Index of the lane for CPU tensors; it has pages only where they are recorded.
pub const CPU_LANE: usize = DEVICES_MAX + 1;

/// Number of lanes.
pub const LANES: usize = DEVICES_MAX + 2;

/// Pairs of stream and pool that a tape can name; place 0 stands for the unknown one.
pub const PLACES_MAX: usize = 1024;

/// Words of one place: stream, pool (two), and 1 where the pool is known, else 2.
pub const PLACE_WORDS: usize = 4;

/// Words of the header, by name.
pub mod header {
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
    pub const ANCHOR_ERROR_NS: usize = 11;
    /// Number of finished optimizer steps.
    pub const STEP: usize = 12;
    /// CLOCK_MONOTONIC at which that step ended.
    pub const STEP_MONO_NS: usize = 13;
    /// Atom of the present phase's name; 0 is none.
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
    /// First word of the atoms.
    pub const ATOMS_OFFSET: usize = 20;
    /// Words the atoms may take.
    pub const ATOMS_WORDS: usize = 21;
    /// Words of atoms that are complete.
    pub const ATOMS_USED: usize = 22;
    /// First word of the places.
    pub const PLACES_OFFSET: usize = 23;
    /// Places that are complete, the unknown one included.
    pub const PLACES_USED: usize = 24;
    /// Stacks that were recorded as unknown because the atoms or their index were full.
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
    /// Events whose stream and pool found no room among the places.
    pub const LOST_PLACES: usize = 96;
    /// Atom of the newest annotation; 0 is none.
    pub const ANNOTATION: usize = 97;
    /// What came of `MEMTAPE_CUPTI=1`: `tape/cupti.rs`.
    pub const CUPTI: usize = 98;
    /// Where the numbers of collectives come from, one of `CollectiveSource`: see
    /// `tape/collective.rs`.
    pub const COLLECTIVE: usize = 99;
    /// CLOCK_MONOTONIC since when that is so.
    pub const COLLECTIVE_SINCE_NS: usize = 100;
    /// First word of the tables of collectives; 0 on a tape without them.
    pub const COLLECTIVE_OFFSET: usize = 101;
    /// Looks at the flight recorder that are on the tape: the newest is in table *looks mod 2*.
    pub const COLLECTIVE_LOOKS: usize = 102;
    /// CLOCK_MONOTONIC when the look began that is under way; 0 when none is.
    pub const COLLECTIVE_ASKED_NS: usize = 103;
    /// Twelve words for each lane: see [`super::descriptor`].
    pub const DESCRIPTORS: usize = 128;
    /// 1 where the recorder keeps the sums that follow; 0 is not known.
    pub const OUTSIDE: usize = 351;
    /// Bytes that other code than PyTorch's allocator holds: eight words for each device, one for
    /// each origin from 1. What lies on the host stands with device 0.
    pub const OUTSIDE_BYTES: usize = 352;
}

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

/// Words of a lane's head. One writer; the first eight change with every event.
pub mod head {
    /// Words of a head.
    pub const WORDS: usize = 64;
    /// Events whose slot has been reserved: the cursor after the newest one.
    pub const RESERVED: usize = 0;
    /// Events whose effect on table and totals is complete.
    pub const DONE: usize = 1;
    /// Bytes handed out, as the allocator reported last.
    pub const ALLOCATED: usize = 2;
    /// Bytes held from the device, as the allocator reported last.
    pub const RESERVED_BYTES: usize = 3;
    /// Entries in the live table.
    pub const LIVE_BLOCKS: usize = 4;
    /// Sum of their sizes.
    pub const LIVE_BYTES: usize = 5;
    /// Blocks handed out since the start.
    pub const ALLOCS: usize = 6;
    /// Blocks taken back since the start.
    pub const FREES: usize = 7;
    /// Steps finished when the newest event happened.
    pub const STEP: usize = 8;
    /// Least bytes handed out since that step ended.
    pub const FLOOR_ALLOCATED: usize = 9;
    /// Most bytes handed out since that step ended.
    pub const PEAK_ALLOCATED: usize = 10;
    /// Least bytes held since that step ended.
    pub const FLOOR_RESERVED: usize = 11;
    /// Most bytes held since that step ended.
    pub const PEAK_RESERVED: usize = 12;
    /// Requests that failed for good.
    pub const OOMS: usize = 13;
    /// Step records ever written.
    pub const STEPS_WRITTEN: usize = 14;
    /// Steps finished when the lane was made: before that it was empty.
    pub const BIRTH_STEP: usize = 15;
    /// Most bytes ever handed out.
    pub const PEAK_EVER: usize = 16;
    /// Blocks that found no room in the live table.
    pub const LOST_BLOCKS: usize = 17;
    /// Frees of blocks that were not in the table.
    pub const UNKNOWN_FREES: usize = 18;
    /// Held by the one writer of a lane that no mutex of the program's guards.
    pub const LOCK: usize = 20;
    /// Blocks taken back that other streams still use …
    pub const DEFERRED_BLOCKS: usize = 21;
    /// … and their bytes.
    pub const DEFERRED_BYTES: usize = 22;
    /// Bytes asked for by the live blocks whose request is known.
    pub const REQUESTED_BYTES: usize = 23;
    /// Bytes in the segment table.
    pub const SEGMENT_BYTES: usize = 24;
    /// Segments taken and ranges mapped since the start …
    pub const SEGMENT_TAKES: usize = 25;
    /// … and given back.
    pub const SEGMENT_RETURNS: usize = 26;
    /// Segments that found no room in their table, or were given back without having been seen.
    pub const LOST_SEGMENTS: usize = 27;
    /// Position of the newest request that failed for good; 0 is none.
    pub const LAST_OOM: usize = 28;
}

/// Words of one event slot: a cache line.
pub const SLOT_WORDS: usize = 8;

/// Words of one live table entry: a cache line.
pub const ENTRY_WORDS: usize = 8;

/// Words of one segment entry.
pub const SEGMENT_WORDS: usize = 4;

/// Words of one step record.
pub const STEP_WORDS: usize = 16;

/// Most slots, entries or records of a region, and words of atoms: what a reader copies at once is
/// bounded by it, whatever a tape claims. 4 million events are 256 MiB.
pub const REGION_ITEMS_MAX: usize = 1 << 22;

/// Most step records of a lane: agents copy them once a second. 65,536 are 8 MiB.
pub const STEP_RECORDS_MAX: usize = 1 << 16;

/// No lane has seen more events, and no job more steps: a larger number on a tape is a lie, and
/// arithmetic on smaller ones cannot overflow; JSON holds them exactly. A million events a second
/// take three centuries to it.
pub const CURSOR_MAX: u64 = 1 << 53;

/// Entries looked at before the table counts as full for an address.
pub const PROBE_MAX: usize = 256;

/// Life of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// The process records (or died recording: the lock tells).
    Recording = 1,
    /// The process ended in an orderly way.
    Sealed = 2,
    /// The recorder turned itself off while the process runs on; `DISABLED` says why.
    Disabled = 3,
}

/// Why a recorder turned itself off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Disabled {
    /// Something inside failed that never should.
    InnerFailure = 1,
}

/// Hooks that can be active, as bits.
pub mod hooks {
    /// PyTorch reports each block handed out and taken back.
    pub const REPORT: u64 = 1;
    /// PyTorch reports requests that failed.
    pub const OUT_OF_MEMORY: u64 = 2;
    /// `cudaMalloc` and `cudaFree`.
    pub const SEGMENTS: u64 = 4;
    /// The CUDA driver was found and asked about the devices.
    pub const DRIVER: u64 = 8;
    /// Frames are given by the program itself, as the demo does.
    pub const GIVEN_FRAMES: u64 = 16;
    /// `cudaMallocAsync` and its relatives.
    pub const ASYNC: u64 = 32;
    /// Pinned and registered host memory.
    pub const PINNED: u64 = 64;
    /// CPU tensors.
    pub const CPU: u64 = 128;
    /// NCCL's communicators and its own memory.
    pub const NCCL: u64 = 256;
    /// Other functions that take memory.
    pub const OTHER_MEMORY: u64 = 512;
}

/// Whether PyTorch's trace tracker reports segments, streams, pools and requested sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Tracker {
    /// Nobody asked for it (`MEMTAPE_DETAIL` is not set).
    NotAsked = 0,
    /// It is attached.
    Attached = 1,
    /// No libc10_cuda.so, or none with an allocator.
    NoAllocator = 2,
    /// The library has no symbol table to confirm anything with.
    NoSymbolTable = 3,
    /// The library has no such function: torch before 2.2.
    NoFunction = 4,
    /// Another allocator than PyTorch's native one is in use.
    OtherAllocator = 5,
    /// The function is in no slot of the allocator's table.
    NoSlot = 6,
    /// The library on disk is not provably the one that is loaded.
    OtherFile = 7,
    /// The function is in several slots of the allocator's table.
    SeveralSlots = 8,
    /// The library's file cannot be read.
    Unreadable = 9,
    /// The allocator has no devices yet, or not all: asked again at the next event.
    NotReady = 10,
    /// This build does not show when the allocator has all of its devices.
    UnknownBuild = 11,
}

/// How stacks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Stacks {
    /// Not decided yet.
    Unknown = 0,
    /// Python frames, read without the GIL.
    Python = 1,
    /// No Python interpreter in the process.
    NoInterpreter = 2,
    /// A CPython whose frame layout is not known.
    UnknownPython = 3,
    /// The layout did not pass its own test in this process.
    SelfTestFailed = 4,
    /// Switched off by `MEMTAPE_STACKS=0`.
    Off = 5,
    /// A CPython without a GIL.
    FreeThreaded = 6,
}

impl Stacks {
    /// The mode of a header word.
    pub const fn from_word(word: u64) -> Self {
        match word {
            1 => Self::Python,
            2 => Self::NoInterpreter,
            3 => Self::UnknownPython,
            4 => Self::SelfTestFailed,
            5 => Self::Off,
            6 => Self::FreeThreaded,
            _ => Self::Unknown,
        }
    }
}

/// Where step boundaries come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StepSource {
    /// None seen yet.
    None = 0,
    /// PyTorch's global optimizer-step hook is registered.
    OptimizerHook = 1,
    /// The program calls `memtape.step()` itself.
    Given = 2,
    /// The hook could not be registered (torch older than 2.0, or no torch).
    Unavailable = 3,
}

/// How large the regions of a tape are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Events a device lane holds; rounded up to a power of two.
    pub events: usize,
    /// Live blocks a device lane holds at most half of; rounded up to a power of two.
    pub table_entries: usize,
    /// Step records a lane holds; rounded up to a power of two.
    pub step_records: usize,
    /// Segments, or mapped ranges of expandable ones, that a device lane holds; rounded up to a
    /// power of two.
    pub segment_entries: usize,
    /// Words for strings, frames and stacks.
    pub atom_words: usize,
}

impl Default for Sizes {
    /// 32 MiB of events, 16 MiB of table, 1 MiB of segments, 0.5 MiB of steps a device, and 8 MiB
    /// of atoms.
    ///
    /// Half a million events are about 60 steps of a 7-billion-parameter FSDP job, thousands of a
    /// small one; 131,072 live blocks (half of the table) are more than any job seen so far, and
    /// 16,384 ranges of 20 MiB more than any device has.
    fn default() -> Self {
        Self {
            events: 1 << 19,
            table_entries: 1 << 18,
            step_records: 1 << 12,
            segment_entries: 1 << 15,
            atom_words: 1 << 20,
        }
    }
}

impl Sizes {
    /// Sizes of the host lane: what it records is rare.
    fn host(self) -> Self {
        let events = self.events.min(1 << 14);
        Self { events, table_entries: 1 << 14, segment_entries: 64, ..self }
    }

    /// Sizes of the lane for CPU tensors, which have no segments.
    fn cpu(self) -> Self {
        Self { segment_entries: 64, ..self }
    }

    fn rounded(self) -> Self {
        let power = |value: usize| value.clamp(64, REGION_ITEMS_MAX).next_power_of_two();
        Self {
            events: power(self.events),
            table_entries: power(self.table_entries),
            step_records: power(self.step_records).min(STEP_RECORDS_MAX),
            segment_entries: power(self.segment_entries),
            atom_words: pages(self.atom_words.clamp(PAGE_WORDS, REGION_ITEMS_MAX)),
        }
    }
}

/// First words and sizes of all regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First word of the places.
    pub places: usize,
    /// First word of the tables of collectives.
    pub collectives: usize,
    /// First word of the atoms.
    pub atoms: usize,
    /// Words of atoms.
    pub atom_words: usize,
    /// The lanes: devices, host, CPU tensors.
    pub lanes: [LaneLayout; LANES],
    /// Size of the whole tape.
    pub file_words: usize,
}

/// First words and sizes of one lane's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLayout {
    /// First word of the head.
    pub head: usize,
    /// First word of the events.
    pub ring: usize,
    /// Event slots, a power of two.
    pub ring_slots: usize,
    /// First word of the live table.
    pub table: usize,
    /// Table entries, a power of two.
    pub table_entries: usize,
    /// First word of the segment table.
    pub segments: usize,
    /// Segment entries, a power of two.
    pub segment_entries: usize,
    /// First word of the step index.
    pub steps: usize,
    /// Step records, a power of two.
    pub step_records: usize,
    /// First word after the lane.
    pub end: usize,
}

impl Layout {
    /// Places all regions for these sizes.
    pub fn new(sizes: Sizes) -> Self {
        let sizes = sizes.rounded();
        let places = HEADER_WORDS + IDENTITY_WORDS;
        let collectives = places + pages(PLACES_MAX * PLACE_WORDS);
        let atoms = collectives + pages(TABLES_WORDS);
        let mut next = atoms + sizes.atom_words;
        let lanes = core::array::from_fn(|index| {
            let lane_sizes = match index {
                HOST_LANE => sizes.host(),
                CPU_LANE => sizes.cpu(),
                _ => sizes,
            };
            let lane = LaneLayout::new(next, lane_sizes.rounded());
            next = lane.end;
            lane
        });
        let atom_words = sizes.atom_words;
        Self { places, collectives, atoms, atom_words, lanes, file_words: next }
    }

    /// Words that must exist before anything is written: all but the lanes.
    pub fn front_words(&self) -> usize {
        self.atoms + self.atom_words
    }
}

impl LaneLayout {
    fn new(start: usize, sizes: Sizes) -> Self {
        let ring = start + pages(head::WORDS);
        let table = ring + pages(sizes.events * SLOT_WORDS);
        let segments = table + pages(sizes.table_entries * ENTRY_WORDS);
        let steps = segments + pages(sizes.segment_entries * SEGMENT_WORDS);
        Self {
            head: start,
            ring,
            ring_slots: sizes.events,
            table,
            table_entries: sizes.table_entries,
            segments,
            segment_entries: sizes.segment_entries,
            steps,
            step_records: sizes.step_records,
            end: steps + pages(sizes.step_records * STEP_WORDS),
        }
    }

    /// True when all regions lie in order inside `file_words` and all sizes are powers of two.
    pub fn is_sound(&self, file_words: usize) -> bool {
        let fits = |first: usize, count: usize, each: usize, end: usize| {
            count.is_power_of_two()
                && count <= REGION_ITEMS_MAX
                && count
                    .checked_mul(each)
                    .and_then(|words| first.checked_add(words))
                    .is_some_and(|last| last <= end)
        };
        self.head >= HEADER_WORDS
            && self.head.checked_add(head::WORDS).is_some_and(|last| last <= self.ring)
            && fits(self.ring, self.ring_slots, SLOT_WORDS, self.table)
            && fits(self.table, self.table_entries, ENTRY_WORDS, self.segments)
            && fits(self.segments, self.segment_entries, SEGMENT_WORDS, self.steps)
            && self.step_records <= STEP_RECORDS_MAX
            && fits(self.steps, self.step_records, STEP_WORDS, file_words)
    }
}

/// Rounds words up to whole pages.
const fn pages(words: usize) -> usize {
    words.div_ceil(PAGE_WORDS) * PAGE_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gives_sound_lanes() {
        for events in [0, 1, 100, 4096, 1 << 19] {
            let layout = Layout::new(Sizes { events, ..Sizes::default() });
            for lane in layout.lanes {
                assert!(lane.is_sound(layout.file_words), "{events} events: {lane:?}");
                assert_eq!(lane.head % PAGE_WORDS, 0);
            }
        }
    }

    #[test]
    fn descriptors_fit_the_header() {
        const { assert!(header::DEVICES + DEVICES_MAX * device::WORDS <= header::DESCRIPTORS) };
        const { assert!(header::DESCRIPTORS + LANES * descriptor::WORDS <= HEADER_WORDS) };
    }

    #[test]
    fn overlapping_or_overflowing_regions_are_refused() {
        let layout = Layout::new(Sizes::default());
        let good = layout.lanes[0];
        let bad = [
            LaneLayout { ring_slots: 3, ..good },
            LaneLayout { ring_slots: 1 << 60, ..good },
            LaneLayout { step_records: STEP_RECORDS_MAX * 2, ..good },
            LaneLayout { table: good.ring, ..good },
            LaneLayout { head: 0, ..good },
            LaneLayout { steps: usize::MAX, ..good },
        ];
        for lane in bad {
            assert!(!lane.is_sound(layout.file_words), "{lane:?}");
        }
    }
}

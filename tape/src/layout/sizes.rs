//! Fixed numbers of the layout: magic, version, lanes, and the words of each entry.

use crate::StepRecord;
use crate::limits::{DEVICES_MAX, PROCESS_GROUPS_MAX};

/// First word of every tape: the bytes `MEMTAPE` and a zero.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MEMTAPE\0");

/// Version of this layout. Readers refuse any other.
pub const VERSION: u64 = 3;

// A record with other fields is another layout: raise the version.
const _: () = assert!(StepRecord::NUMBERS == 14);

/// Words in a page: regions that are allocated on their own start at multiples of this.
pub const PAGE_WORDS: usize = 512;

/// Words of the header, descriptors included.
pub const HEADER_WORDS: usize = PAGE_WORDS;

/// Words kept for the identity text (`key=value` lines): 8 KiB.
pub const IDENTITY_WORDS: usize = 1024;

/// Index of the lane for what happens outside any device mutex: memory that something else than
/// PyTorch's allocator takes, pinned memory, marks.
pub const HOST_LANE: usize = DEVICES_MAX;

/// Index of the lane for CPU tensors; it has pages only where they are recorded.
pub const CPU_LANE: usize = DEVICES_MAX + 1;

/// Number of lanes.
pub const LANES: usize = DEVICES_MAX + 2;

/// Pairs of stream and pool that a tape can name; pair 0 is the unknown one.
pub const STREAM_POOLS_MAX: usize = 1024;

/// Words of one pair: stream, pool (two), and 1 where the pool is known, else 2.
pub const STREAM_POOL_WORDS: usize = 4;

/// Words of one event slot: a cache line.
pub const SLOT_WORDS: usize = 8;

/// Words of one live table entry: a cache line.
pub const ENTRY_WORDS: usize = 8;

/// Words of one segment entry.
pub const SEGMENT_WORDS: usize = 4;

/// Words of one step record: its numbers, a check, and the events before its end.
pub const STEP_WORDS: usize = StepRecord::NUMBERS + 2;

/// No lane has seen more events, and no job more steps: a larger number on a tape is a lie, and
/// arithmetic on smaller ones cannot overflow; JSON holds them exactly. A million events a second
/// take three centuries to it.
pub const CURSOR_MAX: u64 = 1 << 53;

/// Entries probed before the table counts as full for an address.
pub const PROBE_MAX: usize = 256;

/// Words of both tables.
pub const COLLECTIVE_TABLES_WORDS: usize = 2 * COLLECTIVE_TABLE_WORDS;

/// Words of one table.
pub(crate) const COLLECTIVE_TABLE_WORDS: usize =
    COLLECTIVE_HEAD_WORDS + PROCESS_GROUPS_MAX * COLLECTIVE_GROUP_WORDS;
/// Check, time of the poll, its duration, groups, groups that did not fit, three spare.
pub(crate) const COLLECTIVE_HEAD_WORDS: usize = 8;
/// Check, number, key, size, last enqueued, started and completed (each plus one, 0 is none), time
/// since when these are so, name, description.
pub(crate) const COLLECTIVE_GROUP_WORDS: usize = 16;

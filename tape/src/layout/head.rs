//! Words of a lane's head. One writer; the first eight change with every event.

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
/// Bytes still to be freed before the turn may end.
pub const TURN_LEFT_BYTES: usize = 19;
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
/// Bytes handed out when the turn was last looked at …
pub const TURN_START_BYTES: usize = 29;
/// … and the most since the last step or turn ended.
pub const TURN_PEAK_BYTES: usize = 30;
/// Bytes that the process takes and gives back in one piece of work.
pub const TURN_WORK_BYTES: usize = 31;
/// CLOCK_MONOTONIC at the end of the last turn that this lane ended.
pub const TURN_START_NS: usize = 32;

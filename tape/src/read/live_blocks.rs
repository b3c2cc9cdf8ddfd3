//! The live blocks of a device as its table has them now, read in pieces.

use core::convert::Infallible;

use crate::layout::header;
use crate::read::source::Source;
use crate::read::tape::{Tape, believable};
use crate::write::table::Entry;

/// A live block, as a census counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedBlock {
    /// Size of the block in bytes, rounded as the allocator rounds.
    pub bytes: u64,
    /// Interned id of its stack; 0 when unknown.
    pub stack: u32,
    /// Steps finished when the block was allocated.
    pub birth_step: u64,
    /// True if the program has freed the block, and other streams still use it.
    pub is_pending: bool,
}

impl<S: Source> Tape<S> {
    /// Calls `each` for every live block of a device; `None` when the device has no lane or its
    /// table cannot be read. A block that is allocated or freed meanwhile is seen at most once.
    pub fn for_each_live_block(
        &self,
        device: u8,
        mut each: impl FnMut(CountedBlock),
    ) -> Option<()> {
        let lane = self.lane(usize::from(device))?;
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let read = self.for_each_entry(lane.table, lane.table_entries, |words| {
            let Some(entry) = Entry::decode(words) else { return Ok::<(), Infallible>(()) };
            let entry = entry.in_steps(steps_since_ns);
            each(CountedBlock {
                bytes: believable(entry.size),
                stack: entry.stack,
                birth_step: u64::from(entry.birth_step),
                is_pending: entry.pending,
            });
            Ok(())
        });
        let Ok(is_read) = read;
        is_read.then_some(())
    }
}

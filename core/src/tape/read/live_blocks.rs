//! The live blocks of a device as its table has them now, read in pieces.

use alloc::vec;

use crate::tape::layout::header;
use crate::tape::layout::sizes::ENTRY_WORDS;
use crate::tape::read::source::Source;
use crate::tape::read::tape::{Tape, believable};
use crate::tape::write::table::Entry;

/// Entries read at once: 512 KiB.
const ENTRIES_PER_READ: usize = 8_192;

/// A live block, as a census counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedBlock {
    /// Its size, rounded as the allocator rounds.
    pub bytes: u64,
    /// Interned id of its stack; 0 when unknown.
    pub stack: u32,
    /// Steps finished when it was allocated.
    pub birth_step: u64,
    /// The program has freed it, and other streams still use it.
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
        let mut words = vec![0; ENTRIES_PER_READ.min(lane.table_entries) * ENTRY_WORDS];
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let mut first = 0;
        while first < lane.table_entries {
            let count = ENTRIES_PER_READ.min(lane.table_entries - first);
            let words = words.get_mut(..count * ENTRY_WORDS)?;
            if !self.source.read(lane.table + first * ENTRY_WORDS, words) {
                return None;
            }
            for entry in words.as_chunks::<ENTRY_WORDS>().0.iter().filter_map(Entry::decode) {
                let entry = entry.in_steps(steps_since_ns);
                each(CountedBlock {
                    bytes: believable(entry.size),
                    stack: entry.stack,
                    birth_step: u64::from(entry.birth_step),
                    is_pending: entry.pending,
                });
            }
            first += count;
        }
        Some(())
    }
}

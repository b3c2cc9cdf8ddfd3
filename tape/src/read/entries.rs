//! The entries of a table of a tape, read in pieces.
//!
//! Unwritten parts of a file are not read: a tape can claim tables of gigabytes that occupy
//! nothing, and reading their zeros would delay the tapes of others. This file does not decode
//! entries.

use alloc::vec;

use crate::read::source::Source;
use crate::read::tape::Tape;

/// Entries that are read at once: at most 512 KiB.
const ENTRIES_PER_READ: usize = 8_192;

impl<S: Source> Tape<S> {
    /// Calls `each` for the entries of `N` words of a table, in their order, without unwritten
    /// entries. `Ok(false)` when the table cannot be read.
    ///
    /// # Errors
    /// Those of `each`, which end it.
    pub(crate) fn for_each_entry<const N: usize, Error>(
        &self,
        table: usize,
        entries: usize,
        mut each: impl FnMut(&[u64; N]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut words = vec![0; ENTRIES_PER_READ.min(entries) * N];
        let mut first = 0;
        while first < entries {
            let written = self.source.written(table + first * N..table + entries * N);
            if written.is_empty() {
                break;
            }
            // Whole entries: those that the part begins and ends in are read, too.
            first = first.max(written.start.saturating_sub(table) / N);
            let end = written.end.saturating_sub(table).div_ceil(N).min(entries);
            while first < end {
                let count = ENTRIES_PER_READ.min(end - first);
                let words = words.get_mut(..count * N).unwrap_or_default();
                if !self.source.read(table + first * N, words) {
                    return Ok(false);
                }
                words.as_chunks::<N>().0.iter().try_for_each(&mut each)?;
                first += count;
            }
        }
        Ok(true)
    }
}

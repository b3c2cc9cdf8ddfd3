//! Where a reader gets a tape's words from: a file, or memory.
//!
//! Readers copy. A tape belongs to a less trusted process that can change or truncate it at any
//! moment; a copy taken with `pread` can be short, which is an answer, where a mapping would be
//! a signal that kills the reader.

use core::ops::Range;

use crate::atomic::{AtomicU64, Ordering, fence};

/// Something that holds a tape.
pub trait Source {
    /// Present size of the tape, in bytes.
    fn len_bytes(&self) -> u64;

    /// Copies the words from `first_word` on; false when they are not all there.
    /// Words must be copied in rising order or whole, each word at once, after everything that an
    /// earlier call copied.
    fn read(&self, first_word: usize, out: &mut [u64]) -> bool;

    /// The first part of these words that may be other than zero; empty when there is none. A file
    /// knows where nothing was written; the answer may be more than that part.
    fn written(&self, words: Range<usize>) -> Range<usize> {
        words
    }
}

impl Source for &[AtomicU64] {
    fn len_bytes(&self) -> u64 {
        (self.len() as u64).saturating_mul(8)
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let Some(end) = first_word.checked_add(out.len()) else { return false };
        let Some(words) = self.get(first_word..end) else { return false };
        fence(Ordering::Acquire);
        for (to, from) in out.iter_mut().zip(words) {
            *to = from.load(Ordering::Acquire);
        }
        fence(Ordering::Acquire);
        true
    }
}

//! The live table: every block that is in use now, by address.
//!
//! Open addressing with a bounded search. Entries never move, so a reader that copies the table
//! while it changes sees each block at most once; a removed entry leaves a mark for searches to
//! step over. The address is stored last and marks the entry as there.

use crate::atomic::{AtomicU64, Ordering};
use crate::event::{DEVICE_SHIFT, KIND_SHIFT, OWNER_SHIFT};
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{ENTRY_WORDS, PROBE_MAX};
use crate::shared_words::Words;

/// Address word of an entry that was never used: a search ends here.
pub(crate) const EMPTY: u64 = 0;
/// Address word of an entry that was removed: a search goes on.
pub(crate) const REMOVED: u64 = 1;

/// Bit of word 3: other streams still use the block, which was taken back. A slot has its kind
/// there.
pub(crate) const PENDING: u64 = 1 << KIND_SHIFT;

/// Words of an entry that are in use; the others are spare and stay zero.
const USED_WORDS: usize = 6;

/// A live block in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) stack: u32,
    pub(crate) birth_step: u32,
    pub(crate) birth_ns: u64,
    pub(crate) owner: u16,
    pub(crate) device: u8,
    /// Taken back, but in use by other streams.
    pub(crate) pending: bool,
}

impl Entry {
    /// The entry in these words; `None` when there is none.
    pub(crate) fn decode(words: &[u64; ENTRY_WORDS]) -> Option<Self> {
        let &[address, size, requested, what, birth, birth_ns, _, _] = words;
        (address != EMPTY && address != REMOVED).then_some(Self {
            address,
            size,
            requested,
            stack: what as u32,
            birth_step: (birth >> 32) as u32,
            birth_ns,
            owner: (what >> OWNER_SHIFT) as u16,
            device: (what >> DEVICE_SHIFT) as u8,
            pending: what & PENDING != 0,
        })
    }

    /// The entry with its birth in steps, which began at `steps_since_ns`: before that the process
    /// counted turns, and no step.
    pub(crate) fn in_steps(self, steps_since_ns: u64) -> Self {
        let birth_step = if self.birth_ns < steps_since_ns { 0 } else { self.birth_step };
        Self { birth_step, ..self }
    }
}

/// The live table of one lane, for its writer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table<'a> {
    entries: &'a [[AtomicU64; ENTRY_WORDS]],
}

impl<'a> Table<'a> {
    pub(crate) fn new(words: Words<'a>, lane: &LaneLayout) -> Self {
        Self { entries: words.chunks(lane.table, lane.table_entries) }
    }

    /// Puts a block into the table, the words of its entry in their order; false when all slots
    /// near its own are used.
    #[inline(always)]
    pub(crate) fn insert(&self, block: &[u64; USED_WORDS]) -> bool {
        let mut index = first_probe(block[0]);
        for _ in 0..PROBE_MAX {
            let Some([address, rest @ ..]) = self.at(index) else { return false };
            if matches!(address.load(Ordering::Relaxed), EMPTY | REMOVED) {
                for (word, value) in rest.iter().zip(block.iter().skip(1)) {
                    word.store(*value, Ordering::Relaxed);
                }
                address.store(block[0], Ordering::Release);
                return true;
            }
            index = index.wrapping_add(1);
        }
        false
    }

    /// The block at an address: its index and its words.
    #[inline(always)]
    pub(crate) fn find(&self, address: u64) -> Option<(usize, &'a [AtomicU64; ENTRY_WORDS])> {
        let mut index = first_probe(address);
        for _ in 0..PROBE_MAX {
            let entry = self.at(index)?;
            match entry[0].load(Ordering::Relaxed) {
                EMPTY => return None,
                there if there == address => return Some((index, entry)),
                _ => index = index.wrapping_add(1),
            }
        }
        None
    }

    /// Takes an entry out. Entries never move, so it leaves a mark for searches to step over,
    /// unless nothing lies behind it; then the marks before it go as well.
    #[inline(always)]
    pub(crate) fn remove(&self, index: usize) {
        if self.address(index.wrapping_add(1)) != EMPTY {
            self.set_address(index, REMOVED);
            return;
        }
        self.set_address(index, EMPTY);
        if self.address(index.wrapping_sub(1)) == REMOVED {
            self.remove_marks(index.wrapping_sub(1));
        }
    }

    #[cold]
    fn remove_marks(&self, mut index: usize) {
        for _ in 0..PROBE_MAX {
            if self.address(index) != REMOVED {
                break;
            }
            self.set_address(index, EMPTY);
            index = index.wrapping_sub(1);
        }
    }

    #[inline(always)]
    fn address(&self, index: usize) -> u64 {
        self.at(index).map_or(EMPTY, |entry| entry[0].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn set_address(&self, index: usize, value: u64) {
        if let Some(entry) = self.at(index) {
            entry[0].store(value, Ordering::Relaxed);
        }
    }

    /// The entry at an index, which goes round at the end.
    #[inline(always)]
    fn at(&self, index: usize) -> Option<&'a [AtomicU64; ENTRY_WORDS]> {
        self.entries.get(index & self.entries.len().wrapping_sub(1))
    }
}

/// First slot of an address. Blocks are multiples of 512 bytes apart; the golden ratio spreads
/// neighbours over the table.
#[inline(always)]
fn first_probe(address: u64) -> usize {
    ((address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

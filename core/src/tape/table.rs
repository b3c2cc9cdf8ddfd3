//! The live table: every block that is in use now, by address.
//!
//! Open addressing with a bounded search. Entries never move, so a reader that copies the table
//! while it changes sees each block at most once; a removed entry leaves a mark for searches to
//! step over. The address is stored last and marks the entry as there.

use super::atomic::Ordering;
use super::layout::{ENTRY_WORDS, LaneLayout, PROBE_MAX};
use super::words::Words;

/// Address word of an entry that was never used: a search ends here.
pub(super) const EMPTY: u64 = 0;
/// Address word of an entry that was removed: a search goes on.
pub(super) const REMOVED: u64 = 1;

/// Bit of the last word that says other streams still use the block, which was taken back.
const PENDING: u64 = 1 << 32;

/// A live block as the table has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) stack: u32,
    pub(super) birth_step: u32,
    pub(super) birth_ns: u64,
    pub(super) place: u16,
    pub(super) device: u8,
    /// Taken back, but in use by other streams.
    pub(super) pending: bool,
}

impl Entry {
    fn encode(&self) -> [u64; ENTRY_WORDS] {
        let pending = if self.pending { PENDING } else { 0 };
        [
            self.address,
            self.size,
            self.requested,
            u64::from(self.stack) | u64::from(self.birth_step) << 32,
            self.birth_ns,
            u64::from(self.place) | u64::from(self.device) << 16 | pending,
            0,
            0,
        ]
    }

    /// The entry in these words; `None` when there is none.
    pub(super) fn decode(words: &[u64; ENTRY_WORDS]) -> Option<Self> {
        let &[address, size, requested, packed, birth_ns, last, _, _] = words;
        (address != EMPTY && address != REMOVED).then_some(Self {
            address,
            size,
            requested,
            stack: packed as u32,
            birth_step: (packed >> 32) as u32,
            birth_ns,
            place: last as u16,
            device: (last >> 16) as u8,
            pending: last & PENDING != 0,
        })
    }
}

/// The live table of one lane, for its writer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table<'a> {
    words: Words<'a>,
    first: usize,
    mask: usize,
}

impl<'a> Table<'a> {
    pub(super) fn new(words: Words<'a>, lane: &LaneLayout) -> Self {
        Self { words, first: lane.table, mask: lane.table_entries.wrapping_sub(1) }
    }

    /// Puts a block into the table; false when there is no room near its place.
    #[inline]
    pub(super) fn insert(&self, entry: &Entry) -> bool {
        let mut index = self.home(entry.address);
        for _ in 0..PROBE_MAX {
            let place = self.words.array::<ENTRY_WORDS>(self.at(index));
            // The last two words are spare and stay zero.
            let Some([address, size, requested, packed, birth_ns, last, _, _]) = place else {
                return false;
            };
            if matches!(address.load(Ordering::Relaxed), EMPTY | REMOVED) {
                let words = entry.encode();
                size.store(words[1], Ordering::Relaxed);
                requested.store(words[2], Ordering::Relaxed);
                packed.store(words[3], Ordering::Relaxed);
                birth_ns.store(words[4], Ordering::Relaxed);
                last.store(words[5], Ordering::Relaxed);
                address.store(entry.address, Ordering::Release);
                return true;
            }
            index = (index + 1) & self.mask;
        }
        false
    }

    #[inline]
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let mut index = self.home(address);
        for _ in 0..PROBE_MAX {
            let there = self.words.get(self.at(index));
            if there == address {
                return Some(index);
            }
            if there == EMPTY {
                return None;
            }
            index = (index + 1) & self.mask;
        }
        None
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> Entry {
        let Some(place) = self.words.array::<ENTRY_WORDS>(self.at(index)) else {
            return Entry::default();
        };
        Entry::decode(&place.each_ref().map(|word| word.load(Ordering::Relaxed)))
            .unwrap_or_default()
    }

    pub(super) fn set_pending(&self, index: usize) {
        let at = self.at(index) + 5;
        self.words.set(at, self.words.get(at) | PENDING);
    }

    /// Takes an entry out. Entries never move, so it leaves a mark for searches to step over,
    /// unless nothing lies behind it; then the marks before it go as well.
    #[inline]
    pub(super) fn remove(&self, index: usize) {
        if self.words.get(self.at((index + 1) & self.mask)) != EMPTY {
            self.words.set(self.at(index), REMOVED);
            return;
        }
        self.words.set(self.at(index), EMPTY);
        let mut before = index.wrapping_sub(1) & self.mask;
        for _ in 0..PROBE_MAX {
            if self.words.get(self.at(before)) != REMOVED {
                break;
            }
            self.words.set(self.at(before), EMPTY);
            before = before.wrapping_sub(1) & self.mask;
        }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> usize {
        self.first + index * ENTRY_WORDS
    }

    /// Where the search for an address starts. Blocks are multiples of 512 bytes apart; the golden
    /// ratio spreads neighbours over the table.
    #[inline(always)]
    fn home(&self, address: u64) -> usize {
        let spread = (address >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & self.mask
    }
}

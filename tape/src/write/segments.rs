//! The segment table: memory that the allocator holds from the device, where its tracker tells.
//!
//! An ordinary segment is one entry at its address. An expandable segment grows and shrinks by
//! granules of 2 MiB or 20 MiB; each range that was mapped is kept as entries of one granule, so
//! that any part can be unmapped. Segments come and go rarely: nothing here is on the hot path.

use crate::atomic::Ordering;
use crate::event::Kind;
use crate::layout::head;
use crate::layout::regions::LaneLayout;
use crate::layout::sizes::{PROBE_MAX, SEGMENT_WORDS};
use crate::shared_words::Words;
use crate::write::grant::Grant;
use crate::write::table::{EMPTY, REMOVED};

/// Bytes that PyTorch maps at once into a segment for small blocks; all ranges are multiples of it.
pub const GRANULE_SMALL: u64 = 2 << 20;

/// Bytes that PyTorch maps at once into a segment for large blocks.
pub const GRANULE_LARGE: u64 = 20 << 20;

const EXPANDABLE: u64 = 1 << 48;

/// A segment, or a granule of an expandable one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stack: u32,
    pub(crate) stream_pool: u16,
    pub(crate) expandable: bool,
}

impl SegmentEntry {
    fn encode(&self) -> [u64; SEGMENT_WORDS] {
        let expandable = if self.expandable { EXPANDABLE } else { 0 };
        let packed = u64::from(self.stack) | u64::from(self.stream_pool) << 32 | expandable;
        [self.address, self.size, packed, 0]
    }

    /// The entry in these words; `None` when there is none.
    pub(crate) fn decode(words: &[u64; SEGMENT_WORDS]) -> Option<Self> {
        let &[address, size, packed, _] = words;
        (address != EMPTY && address != REMOVED).then_some(Self {
            address,
            size,
            stack: packed as u32,
            stream_pool: (packed >> 32) as u16,
            expandable: packed & EXPANDABLE != 0,
        })
    }
}

/// The granule that a mapped range consists of.
pub(crate) fn granule(size: u64) -> u64 {
    if size.is_multiple_of(GRANULE_LARGE) { GRANULE_LARGE } else { GRANULE_SMALL }
}

/// The segment table of one lane, for its writer.
pub(crate) struct SegmentTable<'a> {
    words: Words<'a>,
    head: usize,
    first: usize,
    mask: usize,
}

impl<'a> SegmentTable<'a> {
    pub(crate) fn new(words: Words<'a>, lane: &LaneLayout) -> Self {
        let mask = lane.segment_entries.wrapping_sub(1);
        Self { words, head: lane.head, first: lane.segments, mask }
    }

    /// Applies an event of a segment to the table.
    pub(crate) fn apply(&self, kind: Kind, grant: &Grant) {
        match kind {
            Kind::SegmentAlloc => {
                self.take(grant.address, grant.size, grant, false);
                self.bump(head::SEGMENT_TAKES, 1);
            }
            Kind::SegmentMap => {
                let each = granule(grant.size);
                // What the table cannot hold anyway must not keep the allocator waiting.
                let count = (grant.size / each).min(self.entries());
                for index in 0..count {
                    self.take(grant.address.wrapping_add(index * each), each, grant, true);
                }
                self.bump(head::LOST_SEGMENTS, grant.size / each - count);
                self.bump(head::SEGMENT_TAKES, 1);
            }
            Kind::SegmentFree => {
                if self.give(grant.address).is_none() {
                    self.bump(head::LOST_SEGMENTS, 1);
                }
                self.bump(head::SEGMENT_RETURNS, 1);
            }
            Kind::SegmentUnmap => {
                self.unmap(grant);
                self.bump(head::SEGMENT_RETURNS, 1);
            }
            _ => {}
        }
    }

    /// The stack that took the memory given back here, a segment or a range of granules; 0 when
    /// that is unknown, or several did.
    pub(crate) fn taker(&self, kind: Kind, grant: &Grant) -> u32 {
        let first = self.find(grant.address).map(|(_, entry)| entry);
        if kind == Kind::SegmentFree {
            return first.map_or(0, |entry| entry.stack);
        }
        let end = grant.address.saturating_add(grant.size);
        let stack = first.map_or(0, |entry| entry.stack);
        let mut next = grant.address;
        for _ in 0..self.entries() {
            if next >= end {
                return stack;
            }
            match self.find(next) {
                Some((_, entry)) if entry.stack == stack => {
                    next = next.saturating_add(entry.size.max(GRANULE_SMALL));
                }
                _ => return 0,
            }
        }
        0
    }

    fn unmap(&self, grant: &Grant) {
        let end = grant.address.saturating_add(grant.size);
        let mut next = grant.address;
        for _ in 0..self.entries() {
            if next >= end {
                return;
            }
            let Some(entry) = self.give(next) else {
                self.bump(head::LOST_SEGMENTS, 1);
                next = next.saturating_add(GRANULE_SMALL);
                continue;
            };
            // A granule is unmapped whole; if not, what is left of it stays.
            let rest = next.saturating_add(entry.size).saturating_sub(end);
            if rest > 0 {
                let kept = Grant { owner: entry.stream_pool, stack: entry.stack, ..*grant };
                self.take(end, rest, &kept, true);
            }
            next = next.saturating_add(entry.size.max(GRANULE_SMALL));
        }
    }

    fn take(&self, address: u64, size: u64, grant: &Grant, expandable: bool) {
        let Grant { stack, owner: stream_pool, .. } = *grant;
        let entry = SegmentEntry { address, size, stack, stream_pool, expandable };
        let mut index = self.first_probe(address);
        for _ in 0..PROBE_MAX {
            let at = self.first + index * SEGMENT_WORDS;
            if matches!(self.words.get(at), EMPTY | REMOVED) {
                for (offset, word) in entry.encode().iter().enumerate().skip(1) {
                    self.words.set(at + offset, *word);
                }
                self.words.at(at).store(address, Ordering::Release);
                self.bump(head::SEGMENT_BYTES, size);
                return;
            }
            index = (index + 1) & self.mask;
        }
        self.bump(head::LOST_SEGMENTS, 1);
    }

    fn give(&self, address: u64) -> Option<SegmentEntry> {
        let (at, entry) = self.find(address)?;
        // Marks are left behind for good: segments are few and their entries many.
        self.words.set(at, REMOVED);
        self.bump(head::SEGMENT_BYTES, entry.size.wrapping_neg());
        Some(entry)
    }

    /// The entry at an address, and its first word.
    fn find(&self, address: u64) -> Option<(usize, SegmentEntry)> {
        let mut index = self.first_probe(address);
        for _ in 0..PROBE_MAX {
            let at = self.first + index * SEGMENT_WORDS;
            let there = self.words.get(at);
            if there == EMPTY {
                return None;
            }
            if there == address {
                let words = core::array::from_fn(|offset| self.words.get(at + offset));
                return Some((at, SegmentEntry::decode(&words)?));
            }
            index = (index + 1) & self.mask;
        }
        None
    }

    fn entries(&self) -> u64 {
        self.mask as u64 + 1
    }

    fn bump(&self, index: usize, more: u64) {
        self.words.add(self.head + index, more);
    }

    fn first_probe(&self, address: u64) -> usize {
        let spread = (address >> 21).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (spread >> 32) as usize & self.mask
    }
}

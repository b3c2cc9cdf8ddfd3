//! Blocks and segments of one lane while they are taken back and forth in time.
//!
//! Undoing or redoing an event gives the same result whether or not the state has seen the event,
//! which is what makes a copy of a changing table good enough (`point_in_time.rs`).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::event::{Event, Kind};
use crate::layout::header;
use crate::layout::regions::LaneLayout;
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::rewind::allowance::{Allowance, BLOCK_BYTES};
use crate::rewind::error::RewindError;
use crate::write::lane::BIRTH_UNKNOWN;
use crate::write::segments::{GRANULE_SMALL, SegmentEntry, granule};
use crate::write::table::Entry;

/// The live blocks, by address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live(BTreeMap<u64, Entry>);

impl Live {
    pub(crate) fn undo(&mut self, event: &Event) {
        match event.kind {
            Kind::Alloc => drop(self.0.remove(&event.address)),
            Kind::Free | Kind::FreeDeferred => self.put(event, false),
            Kind::FreeCompleted => self.put(event, true),
            _ => {}
        }
    }

    pub(crate) fn redo(&mut self, event: &Event) {
        match event.kind {
            Kind::Alloc => self.put(event, false),
            Kind::Free | Kind::FreeCompleted => drop(self.0.remove(&event.address)),
            Kind::FreeDeferred => self.put(event, true),
            _ => {}
        }
    }

    fn put(&mut self, event: &Event, pending: bool) {
        let entry = Entry {
            address: event.address,
            size: event.size,
            requested: event.detail,
            stack: event.stack,
            birth_step: event.birth_step,
            birth_ns: event.birth_ns,
            owner: event.owner,
            device: event.device,
            pending,
        };
        self.0.insert(event.address, entry);
    }

    /// Number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Blocks by address, including blocks that only other streams still use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }

    /// Does a block begin in this range?
    pub(crate) fn has_block(&self, address: u64, size: u64) -> bool {
        self.0.range(address..address.saturating_add(size)).next().is_some()
    }

    /// The block at an address.
    pub(crate) fn get(&self, address: u64) -> Option<&Entry> {
        self.0.get(&address)
    }

    /// Bytes handed out.
    pub(crate) fn bytes(&self) -> u64 {
        let in_use = self.iter().filter(|entry| !entry.pending);
        in_use.fold(0, |sum: u64, entry| sum.saturating_add(entry.size))
    }
}

impl Entry {
    /// Birth step for a snapshot: 0 where it is not known.
    pub(crate) fn birth(&self) -> u64 {
        if self.birth_step == BIRTH_UNKNOWN { 0 } else { u64::from(self.birth_step) }
    }
}

/// State of a lane at an earlier point in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// Bytes and blocks in use for each stack id.
    pub(crate) sums: BTreeMap<u32, (u64, u64)>,
    /// Addresses of whole segments.
    pub(crate) segments: BTreeSet<u64>,
    /// Pieces of the lane. Empty for a device's lane.
    pub(crate) pieces: Live,
    /// Addresses at which blocks began, at the earlier time and since, in order; empty for
    /// host-side lanes.
    touched: Vec<u64>,
}

impl Before {
    /// Makes the earlier state from the state at that time, and the events since.
    pub(crate) fn of(live: Live, segments: &Segments, events: &[Event], in_pieces: bool) -> Self {
        let mut sums = BTreeMap::new();
        for block in live.iter().filter(|block| !block.pending) {
            let (bytes, blocks): &mut (u64, u64) = sums.entry(block.stack).or_default();
            *bytes = bytes.saturating_add(block.size);
            *blocks += 1;
        }
        let segments = segments.whole.keys().copied().collect();
        if in_pieces {
            return Self { sums, segments, pieces: live, touched: Vec::new() };
        }
        let is_block = |event: &&Event| matches!(event.kind, Kind::Alloc | Kind::Free);
        let since = events.iter().filter(is_block).map(|event| event.address);
        let mut touched: Vec<u64> = live.iter().map(|block| block.address).chain(since).collect();
        touched.sort_unstable();
        touched.dedup();
        Self { sums, segments, pieces: Live::default(), touched }
    }

    /// Did a block begin in this range, at the earlier time or at any time since?
    pub(crate) fn had_block(&self, address: u64, size: u64) -> bool {
        let index = self.touched.partition_point(|&at| at < address);
        self.touched.get(index).is_some_and(|&at| at - address < size)
    }
}

/// The segments: whole ones by address, expandable ones as the ranges that are mapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments {
    whole: BTreeMap<u64, SegmentEntry>,
    mapped: Mapped,
}

/// Mapped ranges by their first address: end and facts of each. Ranges do not overlap, and an event
/// adds two at most, so a tape that lies about sizes cannot keep a reader busy.
#[derive(Clone, Debug, Default)]
struct Mapped(BTreeMap<u64, (u64, Range)>);

/// Facts of a mapped range of an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    stack: u32,
    stream_pool: u16,
    small: bool,
}

impl Mapped {
    fn map(&mut self, address: u64, size: u64, range: Range) {
        self.unmap(address, size);
        let end = address.saturating_add(size);
        if address < end {
            self.0.insert(address, (end, range));
        }
    }

    /// Removes all ranges between these addresses; parts of ranges beyond them stay.
    fn unmap(&mut self, address: u64, size: u64) {
        let end = address.saturating_add(size);
        if address >= end {
            return;
        }
        while let Some((&first, &(last, range))) = self.0.range(..end).next_back() {
            if last <= address {
                return;
            }
            self.0.remove(&first);
            if end < last {
                self.0.insert(end, (last, range));
            }
            if first < address {
                self.0.insert(first, (address, range));
                return;
            }
        }
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(first, (end, _))| end - first).sum()
    }
}

impl Segments {
    pub(crate) fn undo(&mut self, event: &Event) {
        match event.kind {
            Kind::SegmentAlloc => drop(self.whole.remove(&event.address)),
            Kind::SegmentFree => self.put(event),
            Kind::SegmentMap => self.mapped.unmap(event.address, event.size),
            Kind::SegmentUnmap => self.map(event.address, event.size, event.stack, event.owner),
            _ => {}
        }
    }

    pub(crate) fn redo(&mut self, event: &Event) {
        match event.kind {
            Kind::SegmentAlloc => self.put(event),
            Kind::SegmentFree => drop(self.whole.remove(&event.address)),
            Kind::SegmentMap => self.map(event.address, event.size, event.stack, event.owner),
            Kind::SegmentUnmap => self.mapped.unmap(event.address, event.size),
            _ => {}
        }
    }

    fn add(&mut self, entry: SegmentEntry) {
        if entry.expandable {
            self.map(entry.address, entry.size, entry.stack, entry.stream_pool);
        } else {
            self.whole.insert(entry.address, entry);
        }
    }

    fn put(&mut self, event: &Event) {
        self.add(SegmentEntry {
            address: event.address,
            size: event.size,
            stack: event.stack,
            stream_pool: event.owner,
            expandable: false,
        });
    }

    fn map(&mut self, address: u64, size: u64, stack: u32, stream_pool: u16) {
        let small = granule(size) == GRANULE_SMALL;
        self.mapped.map(address, size, Range { stack, stream_pool, small });
    }

    /// Number of segments and of mapped ranges.
    pub(crate) fn len(&self) -> usize {
        self.whole.len() + self.mapped.0.len()
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        let whole = self.whole.values().fold(0, |sum: u64, entry| sum.saturating_add(entry.size));
        whole.saturating_add(self.mapped.bytes())
    }

    /// Does a whole segment begin at this address?
    pub(crate) fn has_whole(&self, address: u64) -> bool {
        self.whole.contains_key(&address)
    }

    /// Is there any expandable segment?
    pub(crate) fn has_mapped(&self) -> bool {
        !self.mapped.0.is_empty()
    }

    /// Segments as PyTorch reports them, by address: ranges mapped without a gap are one segment.
    /// The bool tells whether the segment is for small blocks.
    pub(crate) fn list(&self) -> Vec<(SegmentEntry, bool)> {
        let mut list: Vec<(SegmentEntry, bool)> = Vec::new();
        for (&address, &(end, Range { stack, stream_pool, small })) in &self.mapped.0 {
            let size = end - address;
            match list.last_mut() {
                Some((before, of_small))
                    if before.address + before.size == address
                        && (before.stream_pool, *of_small) == (stream_pool, small) =>
                {
                    before.size += size;
                }
                _ => {
                    let entry =
                        SegmentEntry { address, size, stack, stream_pool, expandable: true };
                    list.push((entry, small));
                }
            }
        }
        list.extend(self.whole.values().map(|&entry| (entry, entry.size == GRANULE_SMALL)));
        list.sort_by_key(|(entry, _)| entry.address);
        list
    }
}

impl<S: Source> Tape<S> {
    pub(crate) fn copy_table(
        &self,
        lane: &LaneLayout,
        allowance: &mut Allowance,
    ) -> Result<Live, RewindError> {
        let steps_since_ns = self.word(header::STEPS_SINCE_NS);
        let mut entries = Vec::new();
        let is_read = self.for_each_entry(lane.table, lane.table_entries, |words| {
            let Some(entry) = Entry::decode(words) else { return Ok(()) };
            allowance.take(1, BLOCK_BYTES)?;
            entries.push((entry.address, entry.in_steps(steps_since_ns)));
            Ok(())
        })?;
        if !is_read {
            return Err(RewindError::Damaged);
        }
        Ok(Live(entries.into_iter().collect()))
    }

    pub(crate) fn copy_segments(
        &self,
        lane: &LaneLayout,
        allowance: &mut Allowance,
    ) -> Result<Segments, RewindError> {
        let mut segments = Segments::default();
        let is_read = self.for_each_entry(lane.segments, lane.segment_entries, |words| {
            let Some(entry) = SegmentEntry::decode(words) else { return Ok(()) };
            // A mapped range divides at most one other.
            allowance.take(2, BLOCK_BYTES)?;
            segments.add(entry);
            Ok(())
        })?;
        if is_read { Ok(segments) } else { Err(RewindError::Damaged) }
    }
}

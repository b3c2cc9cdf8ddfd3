//! Blocks and segments of one lane while they are taken back and forth in time.
//!
//! Undoing or redoing an event gives the same result whether or not the state has seen the event,
//! which is what makes a copy of a changing table good enough (`rewind.rs`).

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::event::{Event, Kind};
use super::lane::BIRTH_UNKNOWN;
use super::layout::{ENTRY_WORDS, LaneLayout, SEGMENT_WORDS};
use super::reader::Tape;
use super::segments::{GRANULE_SMALL, SegmentEntry, granule};
use super::source::Source;
use super::table::Entry;

/// The live blocks, by address.
#[derive(Clone, Debug, Default)]
pub(super) struct Live(BTreeMap<u64, Entry>);

impl Live {
    pub(super) fn undo(&mut self, event: &Event) {
        match event.kind {
            Kind::Alloc => drop(self.0.remove(&event.address)),
            Kind::Free | Kind::FreeDeferred => self.put(event, false),
            Kind::FreeCompleted => self.put(event, true),
            _ => {}
        }
    }

    pub(super) fn redo(&mut self, event: &Event) {
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
            place: event.place,
            device: event.device,
            pending,
        };
        self.0.insert(event.address, entry);
    }

    /// Blocks by address, those included that only other streams still use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }

    /// Bytes handed out.
    pub(super) fn bytes(&self) -> u64 {
        let in_use = self.iter().filter(|entry| !entry.pending);
        in_use.fold(0, |sum: u64, entry| sum.saturating_add(entry.size))
    }
}

impl Entry {
    /// The birth step as a snapshot has it: 0 where it is not known.
    pub(super) fn birth(&self) -> u64 {
        if self.birth_step == BIRTH_UNKNOWN { 0 } else { u64::from(self.birth_step) }
    }
}

/// Bytes and blocks in use for each stack atom.
pub(super) fn sums(live: &Live) -> BTreeMap<u32, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for block in live.iter().filter(|block| !block.pending) {
        let (bytes, blocks): &mut (u64, u64) = sums.entry(block.stack).or_default();
        *bytes = bytes.saturating_add(block.size);
        *blocks += 1;
    }
    sums
}

/// The segments: whole ones by address, expandable ones as pages of the smallest granule.
#[derive(Clone, Debug, Default)]
pub(super) struct Segments {
    whole: BTreeMap<u64, SegmentEntry>,
    pages: BTreeMap<u64, Page>,
    /// Pages mapped and unmapped so far: a tape that lies cannot keep a reader busy for ever.
    pages_touched: u64,
}

/// Pages that one state maps and unmaps at most: real jobs need thousands.
const PAGES_TOUCHED_MAX: u64 = 1 << 24;

/// Mapped memory of [`GRANULE_SMALL`] bytes in an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    stack: u32,
    place: u16,
    small: bool,
}

impl Segments {
    pub(super) fn undo(&mut self, event: &Event) {
        match event.kind {
            Kind::SegmentAlloc => drop(self.whole.remove(&event.address)),
            Kind::SegmentFree => self.put(event),
            Kind::SegmentMap => self.unmap(event.address, event.size),
            Kind::SegmentUnmap => self.map(event.address, event.size, event.stack, event.place),
            _ => {}
        }
    }

    pub(super) fn redo(&mut self, event: &Event) {
        match event.kind {
            Kind::SegmentAlloc => self.put(event),
            Kind::SegmentFree => drop(self.whole.remove(&event.address)),
            Kind::SegmentMap => self.map(event.address, event.size, event.stack, event.place),
            Kind::SegmentUnmap => self.unmap(event.address, event.size),
            _ => {}
        }
    }

    fn add(&mut self, entry: SegmentEntry) {
        if entry.expandable {
            self.map(entry.address, entry.size, entry.stack, entry.place);
        } else {
            self.whole.insert(entry.address, entry);
        }
    }

    fn put(&mut self, event: &Event) {
        self.add(SegmentEntry {
            address: event.address,
            size: event.size,
            stack: event.stack,
            place: event.place,
            expandable: false,
        });
    }

    fn map(&mut self, address: u64, size: u64, stack: u32, place: u16) {
        let page = Page { stack, place, small: granule(size) == GRANULE_SMALL };
        for at in self.touch(address, size) {
            self.pages.insert(at, page);
        }
    }

    fn unmap(&mut self, address: u64, size: u64) {
        for at in self.touch(address, size) {
            self.pages.remove(&at);
        }
    }

    /// Addresses of the pages of a range; none when a tape claims too many.
    fn touch(&mut self, address: u64, size: u64) -> impl Iterator<Item = u64> + use<> {
        let count = size / GRANULE_SMALL;
        let touched = self.pages_touched.saturating_add(count);
        let count = if touched > PAGES_TOUCHED_MAX { 0 } else { count };
        self.pages_touched += count;
        (0..count).filter_map(move |index| address.checked_add(index * GRANULE_SMALL))
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> u64 {
        let whole = self.whole.values().fold(0, |sum: u64, entry| sum.saturating_add(entry.size));
        whole.saturating_add(self.pages.len() as u64 * GRANULE_SMALL)
    }

    /// Segments as PyTorch reports them, by address: a run of mapped pages is one. The last of the
    /// tuple says whether it is for small blocks.
    pub(super) fn list(&self) -> Vec<(SegmentEntry, bool)> {
        let mut list: Vec<(SegmentEntry, bool)> =
            self.whole.values().map(|&entry| (entry, entry.size == GRANULE_SMALL)).collect();
        let mut run: Option<(SegmentEntry, Page)> = None;
        for (&address, &page) in &self.pages {
            match &mut run {
                Some((entry, kind))
                    if entry.address.saturating_add(entry.size) == address
                        && (kind.place, kind.small) == (page.place, page.small) =>
                {
                    entry.size += GRANULE_SMALL;
                }
                _ => {
                    list.extend(run.take().map(|(entry, kind)| (entry, kind.small)));
                    let Page { stack, place, .. } = page;
                    let size = GRANULE_SMALL;
                    let entry = SegmentEntry { address, size, stack, place, expandable: true };
                    run = Some((entry, page));
                }
            }
        }
        list.extend(run.map(|(entry, kind)| (entry, kind.small)));
        list.sort_by_key(|(entry, _)| entry.address);
        list
    }
}

impl<S: Source> Tape<S> {
    pub(super) fn copy_table(&self, lane: &LaneLayout) -> Option<Live> {
        let mut words = vec![0; lane.table_entries * ENTRY_WORDS];
        if !self.source.read(lane.table, &mut words) {
            return None;
        }
        let entries = words.as_chunks::<ENTRY_WORDS>().0.iter().filter_map(Entry::decode);
        Some(Live(entries.map(|entry| (entry.address, entry)).collect()))
    }

    pub(super) fn copy_segments(&self, lane: &LaneLayout) -> Option<Segments> {
        let mut words = vec![0; lane.segment_entries * SEGMENT_WORDS];
        if !self.source.read(lane.segments, &mut words) {
            return None;
        }
        let mut segments = Segments::default();
        for entry in words.as_chunks::<SEGMENT_WORDS>().0.iter().filter_map(SegmentEntry::decode) {
            segments.add(entry);
        }
        Some(segments)
    }
}

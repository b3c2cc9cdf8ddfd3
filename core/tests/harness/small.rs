//! The smallest layout that a reader takes.

use memtape_core::tape::layout::COLLECTIVE_TABLES_WORDS;
use memtape_core::tape::layout::{
    ENTRY_WORDS, HEADER_WORDS, IDENTITY_WORDS, LaneLayout, Layout, PLACE_WORDS, PLACES_MAX,
    SEGMENT_WORDS, SLOT_WORDS, STEP_WORDS, head,
};

/// Words that the atoms of a small tape may take.
pub(crate) const ATOM_WORDS: usize = 128;

/// A layout without the pages and least sizes of real tapes.
pub(crate) fn small_layout(slots: usize, entries: usize, records: usize) -> Layout {
    let places = HEADER_WORDS + IDENTITY_WORDS;
    let collectives = places + PLACES_MAX * PLACE_WORDS;
    let atoms = collectives + COLLECTIVE_TABLES_WORDS;
    let mut next = atoms + ATOM_WORDS;
    let lanes = std::array::from_fn(|_| {
        let head = next;
        let ring = head + head::WORDS;
        let table = ring + slots * SLOT_WORDS;
        let segments = table + entries * ENTRY_WORDS;
        let steps = segments + entries * SEGMENT_WORDS;
        next = steps + records * STEP_WORDS;
        LaneLayout {
            head,
            ring,
            ring_slots: slots,
            table,
            table_entries: entries,
            segments,
            segment_entries: entries,
            steps,
            step_records: records,
            end: next,
        }
    });
    Layout { places, collectives, atoms, atom_words: ATOM_WORDS, lanes, file_words: next }
}

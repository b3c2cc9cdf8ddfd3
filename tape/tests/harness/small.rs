//! The smallest layout that a reader takes.

use memtape_tape::layout::COLLECTIVE_TABLES_WORDS;
use memtape_tape::layout::{
    ENTRY_WORDS, HEADER_WORDS, IDENTITY_WORDS, LaneLayout, Layout, SEGMENT_WORDS, SLOT_WORDS,
    STEP_WORDS, STREAM_POOL_WORDS, STREAM_POOLS_MAX, head,
};

/// Words for interned entries on a small tape.
pub(crate) const INTERNED_WORDS: usize = 128;

/// A layout without the pages and least sizes of real tapes.
pub(crate) fn small_layout(slots: usize, entries: usize, records: usize) -> Layout {
    let stream_pools = HEADER_WORDS + IDENTITY_WORDS;
    let collectives = stream_pools + STREAM_POOLS_MAX * STREAM_POOL_WORDS;
    let interned = collectives + COLLECTIVE_TABLES_WORDS;
    let mut next = interned + INTERNED_WORDS;
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
    Layout {
        stream_pools,
        collectives,
        interned,
        interned_words: INTERNED_WORDS,
        lanes,
        file_words: next,
    }
}

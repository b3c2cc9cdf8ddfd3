//! First words and sizes of all regions of a tape.

use crate::layout::head;
use crate::layout::sizes::{
    COLLECTIVE_TABLES_WORDS, CPU_LANE, ENTRY_WORDS, HEADER_WORDS, HOST_LANE, IDENTITY_WORDS, LANES,
    PAGE_WORDS, SEGMENT_WORDS, SLOT_WORDS, STEP_WORDS, STREAM_POOL_WORDS, STREAM_POOLS_MAX,
};
use crate::limits::{STEP_RECORDS_MAX, TAPE_ITEMS_MAX};

/// Sizes of the regions of a tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Events a device lane holds; rounded up to a power of two.
    pub events: usize,
    /// Live blocks a device lane holds at most half of; rounded up to a power of two.
    pub table_entries: usize,
    /// Step records a lane holds; rounded up to a power of two.
    pub step_records: usize,
    /// Segments, or mapped ranges of expandable ones, that a device lane holds; rounded up to a
    /// power of two.
    pub segment_entries: usize,
    /// Words for strings, frames and stacks.
    pub interned_words: usize,
}

impl Default for Sizes {
    /// 32 MiB of events, 16 MiB of table, 1 MiB of segments, 0.5 MiB of steps a device, and 8 MiB
    /// of interned entries.
    ///
    /// Half a million events are about 60 steps of a 7-billion-parameter FSDP job, thousands of a
    /// small one; 131,072 live blocks (half of the table) are more than any job seen so far, and
    /// 16,384 ranges of 20 MiB more than any device has.
    fn default() -> Self {
        Self {
            events: 1 << 19,
            table_entries: 1 << 18,
            step_records: 1 << 12,
            segment_entries: 1 << 15,
            interned_words: 1 << 20,
        }
    }
}

impl Sizes {
    /// Sizes of the host lane, whose events are rare.
    fn host(self) -> Self {
        let events = self.events.min(1 << 14);
        Self { events, table_entries: 1 << 14, segment_entries: 64, ..self }
    }

    /// Sizes of the lane for CPU tensors, which have no segments.
    fn cpu(self) -> Self {
        Self { segment_entries: 64, ..self }
    }

    fn rounded(self) -> Self {
        let power = |value: usize| value.clamp(64, TAPE_ITEMS_MAX).next_power_of_two();
        Self {
            events: power(self.events),
            table_entries: power(self.table_entries),
            step_records: power(self.step_records).min(STEP_RECORDS_MAX),
            segment_entries: power(self.segment_entries),
            interned_words: pages(self.interned_words.clamp(PAGE_WORDS, TAPE_ITEMS_MAX)),
        }
    }
}

/// First words and sizes of all regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First word of the streams and pools.
    pub stream_pools: usize,
    /// First word of the tables of collectives.
    pub collectives: usize,
    /// First word of the interned entries.
    pub interned: usize,
    /// Words of interned entries.
    pub interned_words: usize,
    /// The lanes: devices, host, CPU tensors.
    pub lanes: [LaneLayout; LANES],
    /// Size of the whole tape.
    pub file_words: usize,
}

/// First words and sizes of one lane's regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLayout {
    /// First word of the head.
    pub head: usize,
    /// First word of the events.
    pub ring: usize,
    /// Event slots, a power of two.
    pub ring_slots: usize,
    /// First word of the live table.
    pub table: usize,
    /// Table entries, a power of two.
    pub table_entries: usize,
    /// First word of the segment table.
    pub segments: usize,
    /// Segment entries, a power of two.
    pub segment_entries: usize,
    /// First word of the step index.
    pub steps: usize,
    /// Step records, a power of two.
    pub step_records: usize,
    /// First word after the lane.
    pub end: usize,
}

impl Layout {
    /// Places all regions for these sizes.
    pub fn new(sizes: Sizes) -> Self {
        let sizes = sizes.rounded();
        let stream_pools = HEADER_WORDS + IDENTITY_WORDS;
        let collectives = stream_pools + pages(STREAM_POOLS_MAX * STREAM_POOL_WORDS);
        let interned = collectives + pages(COLLECTIVE_TABLES_WORDS);
        let mut next = interned + sizes.interned_words;
        let lanes = core::array::from_fn(|index| {
            let lane_sizes = match index {
                HOST_LANE => sizes.host(),
                CPU_LANE => sizes.cpu(),
                _ => sizes,
            };
            let lane = LaneLayout::new(next, lane_sizes.rounded());
            next = lane.end;
            lane
        });
        let interned_words = sizes.interned_words;
        Self { stream_pools, collectives, interned, interned_words, lanes, file_words: next }
    }

    /// Words that must exist before anything is written: all but the lanes.
    pub fn front_words(&self) -> usize {
        self.interned + self.interned_words
    }
}

impl LaneLayout {
    fn new(start: usize, sizes: Sizes) -> Self {
        let ring = start + pages(head::WORDS);
        let table = ring + pages(sizes.events * SLOT_WORDS);
        let segments = table + pages(sizes.table_entries * ENTRY_WORDS);
        let steps = segments + pages(sizes.segment_entries * SEGMENT_WORDS);
        Self {
            head: start,
            ring,
            ring_slots: sizes.events,
            table,
            table_entries: sizes.table_entries,
            segments,
            segment_entries: sizes.segment_entries,
            steps,
            step_records: sizes.step_records,
            end: steps + pages(sizes.step_records * STEP_WORDS),
        }
    }

    /// True when all regions lie in order inside `file_words` and all sizes are powers of two.
    pub fn is_sound(&self, file_words: usize) -> bool {
        let fits = |first: usize, count: usize, each: usize, end: usize| {
            count.is_power_of_two()
                && count <= TAPE_ITEMS_MAX
                && count
                    .checked_mul(each)
                    .and_then(|words| first.checked_add(words))
                    .is_some_and(|last| last <= end)
        };
        self.head >= HEADER_WORDS
            && self.head.checked_add(head::WORDS).is_some_and(|last| last <= self.ring)
            && fits(self.ring, self.ring_slots, SLOT_WORDS, self.table)
            && fits(self.table, self.table_entries, ENTRY_WORDS, self.segments)
            && fits(self.segments, self.segment_entries, SEGMENT_WORDS, self.steps)
            && self.step_records <= STEP_RECORDS_MAX
            && fits(self.steps, self.step_records, STEP_WORDS, file_words)
    }
}

/// Rounds words up to whole pages.
const fn pages(words: usize) -> usize {
    words.div_ceil(PAGE_WORDS) * PAGE_WORDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::header::{self, descriptor, device};
    use crate::limits::DEVICES_MAX;

    #[test]
    fn every_size_gives_sound_lanes() {
        for events in [0, 1, 100, 4096, 1 << 19] {
            let layout = Layout::new(Sizes { events, ..Sizes::default() });
            for lane in layout.lanes {
                assert!(lane.is_sound(layout.file_words), "{events} events: {lane:?}");
                assert_eq!(lane.head % PAGE_WORDS, 0);
            }
        }
    }

    #[test]
    fn descriptors_fit_the_header() {
        const { assert!(header::DEVICES + DEVICES_MAX * device::WORDS <= header::DESCRIPTORS) };
        const { assert!(header::DESCRIPTORS + LANES * descriptor::WORDS <= HEADER_WORDS) };
    }

    #[test]
    fn overlapping_or_overflowing_regions_are_refused() {
        let layout = Layout::new(Sizes::default());
        let good = layout.lanes[0];
        let bad = [
            LaneLayout { ring_slots: 3, ..good },
            LaneLayout { ring_slots: 1 << 60, ..good },
            LaneLayout { step_records: STEP_RECORDS_MAX * 2, ..good },
            LaneLayout { table: good.ring, ..good },
            LaneLayout { head: 0, ..good },
            LaneLayout { steps: usize::MAX, ..good },
        ];
        for lane in bad {
            assert!(!lane.is_sound(layout.file_words), "{lane:?}");
        }
    }
}

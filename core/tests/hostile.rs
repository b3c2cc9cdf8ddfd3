//! A tape belongs to a less trusted process: whatever lies on it, reading it ends in an answer or
//! a refusal, never in a panic.

use std::sync::atomic::{AtomicU64, Ordering};

use memtape_core::tape::layout::{Layout, Sizes};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};
use proptest::prelude::*;

/// A sound tape with a few hundred events in a ring of 64.
fn sound() -> (Layout, Vec<AtomicU64>) {
    let sizes = Sizes {
        events: 64,
        table_entries: 256,
        step_records: 64,
        segment_entries: 64,
        interned_words: 512,
    };
    let layout = Layout::new(sizes);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    let words = Words(&memory);
    words.format(&layout, &Birth::default());
    words.open_lane(0, &layout);
    let lane = Lane::new(words, layout.lanes[0], 0);
    for event in 0..300u64 {
        let (address, totals) = (512 * (1 + event % 40), Totals { allocated: 1, reserved: 2 });
        match event / 40 % 2 {
            0 => lane.alloc(
                event,
                Grant { address, size: 512, stack: 1, ..Grant::default() },
                totals,
            ),
            _ => lane.free(event, address, 512, totals),
        }
        if event % 20 == 19 {
            words.mark_step(event, event / 20 + 1);
        }
    }
    (layout, memory)
}

/// Where to write: mostly where numbers steer the reader, sometimes anywhere.
fn word(layout: &Layout, kind: u8, offset: usize) -> usize {
    let lane = &layout.lanes[0];
    match kind % 5 {
        0 => offset % 512,
        1 => lane.head + offset % 64,
        2 => lane.steps + offset % 1024,
        3 => layout.interned + offset % 512,
        _ => offset % layout.file_words,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_tape_full_of_lies_is_answered_or_refused(
        lies in prop::collection::vec(
            (any::<u8>(), any::<usize>(), prop_oneof![any::<u64>(), 0u64..300, Just(u64::MAX)]),
            0..12,
        ),
        step in prop_oneof![0u64..20, any::<u64>()],
    ) {
        let (layout, memory) = sound();
        for (kind, offset, lie) in lies {
            memory[word(&layout, kind, offset)].store(lie, Ordering::Relaxed);
        }
        let Ok(tape) = Tape::open(memory.as_slice()) else { return Ok(()) };
        let _ = (tape.status(), tape.totals(), tape.device_uuids(), tape.oldest_step());
        for device in tape.devices() {
            let _ = (tape.steps_after(device, step), tape.tail(device, 10), tape.tail_end(device));
        }
        for moment in [PointInTime::Present, PointInTime::EndOf(step), PointInTime::EndOf(7)] {
            if let Ok(snapshot) = tape.snapshot(moment, Some(step / 2), 16) {
                for block in snapshot.devices.iter().flat_map(|device| &device.blocks) {
                    prop_assert!(snapshot.frames_of(block.stack).count() <= 64);
                }
            }
        }
    }

    #[test]
    fn any_words_are_refused_or_read(words in prop::collection::vec(any::<u64>(), 0..2000)) {
        let memory: Vec<AtomicU64> = words.into_iter().map(AtomicU64::new).collect();
        if let Some(first) = memory.first() {
            first.store(u64::from_le_bytes(*b"MEMTAPE\0"), Ordering::Relaxed);
        }
        prop_assert!(Tape::open(memory.as_slice()).is_err());
    }
}

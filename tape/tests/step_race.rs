//! Step records read while the lane's writer goes on: between any two reads of the reader, steps
//! end and are closed. Each step is read once, or counted as missed where its record is gone.

use std::cell::Cell;
use std::sync::atomic::AtomicU64;

use memtape_tape::layout::{Layout, Sizes};
use memtape_tape::read::{Source, Tape};
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};

/// Records that a lane keeps.
const STEP_RECORDS: usize = 64;

/// Times that the reader reads: more than it needs.
const READINGS: usize = 8;

/// Steps that are closed before the reader comes.
const STEPS_BEFORE: u64 = 5;

/// What the writer does between two reads.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// A step ends.
    End,
    /// An event, which closes what has ended.
    Event,
}

/// One lane and its writer.
struct Writer {
    memory: Vec<AtomicU64>,
    layout: Layout,
    step: Cell<u64>,
}

impl Writer {
    fn new() -> Self {
        let layout = Layout::new(Sizes {
            events: 1 << 10,
            table_entries: 512,
            step_records: STEP_RECORDS,
            segment_entries: 128,
            interned_words: 512,
        });
        let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        Words(&memory).format(&layout, &Birth::default());
        Words(&memory).open_lane(0, &layout);
        let writer = Self { memory, layout, step: Cell::new(0) };
        (0..STEPS_BEFORE).for_each(|_| writer.act(&[Act::Event, Act::End]));
        writer
    }

    fn act(&self, acts: &[Act]) {
        let words = Words(&self.memory);
        for act in acts {
            let at_ns = 1_000 * (self.step.get() + 1);
            match act {
                Act::End => {
                    self.step.set(self.step.get() + 1);
                    words.mark_step(at_ns, self.step.get());
                }
                Act::Event => {
                    let lane = Lane::new(words, self.layout.lanes[0], 0);
                    let totals = |allocated| Totals { allocated, reserved: 1 << 21 };
                    let grant = Grant { address: 1 << 40, size: 512, ..Grant::default() };
                    lane.alloc(at_ns, grant, totals(512));
                    lane.free(at_ns, 1 << 40, 512, totals(0));
                }
            }
        }
    }
}

/// A source whose writer does this before the read with this number.
struct Between<'a> {
    writer: &'a Writer,
    acts: &'a [Act],
    reads_left: &'a Cell<Option<usize>>,
}

impl Source for Between<'_> {
    fn len_bytes(&self) -> u64 {
        self.writer.memory.as_slice().len_bytes()
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        let left = self.reads_left.get();
        if left == Some(0) {
            self.writer.act(self.acts);
        }
        self.reads_left.set(left.and_then(|left| left.checked_sub(1)));
        self.writer.memory.as_slice().read(first_word, out)
    }
}

#[test]
fn a_step_that_is_closed_under_the_reader_is_read_or_counted() {
    use Act::{End, Event};
    let lap = [Event, End].repeat(STEP_RECORDS - 2);
    let all: [&[Act]; 7] = [
        &[Event],
        &[Event, End],
        &[Event, End, Event],
        &[Event, End, Event, End],
        &[End, Event, End],
        &[End, End, Event, End, Event],
        &lap,
    ];
    for acts in all {
        let (mut raced, mut missed) = (0, 0);
        'reads: for reads in 0.. {
            let writer = Writer::new();
            let reads_left = &Cell::new(Some(reads));
            let tape = Tape::open(Between { writer: &writer, acts, reads_left }).expect("a tape");
            let mut known = 0;
            for reading in 1..=READINGS {
                if reading == READINGS && reads_left.get().is_some() {
                    break 'reads;
                }
                let steps = tape.next_steps(0, known, usize::MAX);
                let Some(first) = steps.records.first() else { continue };
                known += steps.missed;
                assert_eq!(first.first_step, known + 1, "before read {reads}: {acts:?}");
                for record in &steps.records {
                    assert_eq!(record.first_step, known + 1, "before read {reads}: {acts:?}");
                    known = record.last_step;
                }
                missed += steps.missed;
            }
            assert_eq!(known, writer.step.get(), "before read {reads}: {acts:?}");
            raced += 1;
        }
        assert!(raced > 10, "the writer went on before {raced} reads only");
        assert_eq!(missed > 0, acts.len() > STEP_RECORDS, "{missed} missed: {acts:?}");
    }
}

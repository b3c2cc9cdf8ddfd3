//! The census of a tape: which lines hold memory, since when, and what changed between two.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use memtape_core::census::changes::Changes;
use memtape_core::census::comparison::{Counted, Line, Lines};
use memtape_core::census::reader::CensusReader;
use memtape_core::census::{Census, LineCensus, LineId, cohort};
use memtape_core::limits::CENSUS_LINES_MAX;
use memtape_core::snapshot::{Held, RankSnapshot};
use memtape_core::tape::interned::InternedWriter;
use memtape_core::tape::layout::{Layout, Sizes};
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use memtape_core::tape::write::{Grant, Lane, Totals};
use memtape_core::tape::{Birth, Words};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const TOTALS: Totals = Totals { allocated: 0, reserved: 0 };

/// A tape in memory whose blocks are written by a test.
pub(crate) struct Rank {
    memory: Vec<AtomicU64>,
    layout: Layout,
    next_address: u64,
}

impl Rank {
    pub(crate) fn new() -> Self {
        let sizes = Sizes {
            events: 1 << 10,
            table_entries: 1 << 14,
            step_records: 128,
            segment_entries: 64,
            interned_words: 1 << 16,
        };
        let layout = Layout::new(sizes);
        let memory = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
        let rank = Self { memory, layout, next_address: 1 << 40 };
        rank.words().format(&layout, &Birth::default());
        rank.words().open_lane(0, &layout);
        rank
    }

    fn words(&self) -> Words<'_> {
        Words(&self.memory)
    }

    fn lane(&self) -> Lane<'_> {
        Lane::new(self.words(), self.layout.lanes[0], 0)
    }

    /// The stack with these frames, `file:line` each, innermost first.
    pub(crate) fn stack(&self, frames: &[(&str, u32)]) -> u32 {
        let interned = InternedWriter(self.words());
        let name = |text: &str| interned.string(text.as_bytes()).expect("there is room");
        let frame = |&(file, line): &(&str, u32)| interned.frame(name(file), name("f"), line);
        let frames: Option<Vec<u32>> = frames.iter().map(frame).collect();
        interned.stack(&frames.expect("there is room")).expect("there is room")
    }

    pub(crate) fn alloc(&mut self, stack: u32, size: u64) -> u64 {
        self.next_address += 1 << 30;
        let address = self.next_address;
        let grant = Grant { address, size, stack, ..Grant::default() };
        self.lane().alloc(1, grant, TOTALS);
        address
    }

    pub(crate) fn free(&self, address: u64, size: u64) {
        self.lane().free(1, address, size, TOTALS);
    }

    pub(crate) fn end_step(&self, step: u64) {
        self.words().mark_step(step, step);
    }

    fn count(&self, reader: &mut CensusReader) -> Census {
        let tape = Tape::open(self.memory.as_slice()).expect("a tape that was just made");
        reader.count(&tape, 0).expect("device 0 has a lane")
    }

    /// The same of the state now.
    fn censuses(&self) -> Vec<Census> {
        Census::of_state(&self.state(PointInTime::Present, None))
    }

    /// The state at a point in time that the tape covers.
    pub(crate) fn state(&self, at: PointInTime, before: Option<u64>) -> RankSnapshot {
        let tape = Tape::open(self.memory.as_slice()).expect("a tape that was just made");
        tape.snapshot(at, before, 0).expect("the tape covers it")
    }

    /// The same with all events.
    pub(crate) fn traced(&self, at: PointInTime) -> RankSnapshot {
        let tape = Tape::open(self.memory.as_slice()).expect("a tape that was just made");
        tape.snapshot(at, None, usize::MAX).expect("the tape covers it")
    }
}

fn line<'a>(census: &'a Census, file: &str, number: u32) -> &'a LineCensus {
    let is_it = |line: &&LineCensus| {
        line.frames.first().is_some_and(|frame| (frame.file.as_str(), frame.line) == (file, number))
    };
    census.lines.values().find(is_it).expect("the line is in the census")
}

#[test]
fn a_leak_shows_as_cohorts_and_a_healthy_line_does_not() {
    let mut rank = Rank::new();
    let weights = rank.stack(&[("/app/model.py", 10), ("/app/train.py", 3)]);
    let activations = rank.stack(&[("/app/model.py", 20), ("/app/train.py", 40)]);
    let kept = rank.stack(&[("/app/utils.py", 7), ("/app/train.py", 50)]);
    let moved = rank.stack(&[("/app/utils.py", 7), ("/app/train.py", 60)]);
    for _ in 0..10 {
        rank.alloc(weights, 100 * MIB);
    }
    let mut reader = CensusReader::default();
    let mut transient = Vec::new();
    for step in 1..=300 {
        for address in transient.drain(..) {
            rank.free(address, MIB);
        }
        transient.push(rank.alloc(activations, MIB));
        transient.push(rank.alloc(moved, MIB));
        if step > 100 {
            rank.alloc(kept, 2 * MIB);
        }
        rank.end_step(step);
    }

    let census = rank.count(&mut reader);
    assert_eq!(
        rank.censuses(),
        std::slice::from_ref(&census),
        "the state says what its table says"
    );
    assert_eq!((census.step, census.lines.len()), (300, 4));
    assert_eq!(census.other_lines, Held::default());
    let weights = line(&census, "/app/model.py", 10);
    assert_eq!(weights.held(), Held { bytes: 1_000 * MIB, count: 10 });
    assert_eq!(weights.survivors(300), Held::default(), "one cohort is no survivor");
    assert_eq!(line(&census, "/app/model.py", 20).survivors(300), Held::default());

    let leaks: Vec<&LineCensus> =
        census.lines.values().filter(|line| line.survivors(300).bytes > 0).collect();
    let [leak] = leaks.as_slice() else { panic!("{} lines have survivors", leaks.len()) };
    assert_eq!(leak.frames[1].line, 50, "the caller that keeps what the helper allocates");
    assert_eq!(leak.held(), Held { bytes: 400 * MIB, count: 200 });
    let (first, _) = leak.cohorts.first_key_value().expect("there are cohorts");
    // Step 101 begins when 100 steps have finished.
    assert_eq!(*first, 100, "the oldest block's own step, whatever its cohort");
    for (start, held) in &leak.cohorts {
        let steps = cohort::end(300, *start).min(300) - (*start).max(100);
        assert_eq!(*held, Held { bytes: steps * 2 * MIB, count: steps }, "cohort {start}");
    }
}

#[test]
fn a_list_that_replaces_its_oldest_entries_keeps_nothing() {
    let mut rank = Rank::new();
    let [window, kept] = [7, 8].map(|line| rank.stack(&[("/app/utils.py", line)]));
    let mut entries = std::collections::VecDeque::new();
    for step in 1..=300 {
        entries.push_back(rank.alloc(window, MIB));
        rank.alloc(kept, MIB);
        if entries.len() > 128 {
            rank.free(entries.pop_front().expect("there are entries"), MIB);
        }
        rank.end_step(step);
    }
    let tape = Tape::open(rank.memory.as_slice()).expect("a tape that was just made");
    let lines = |before: Option<u64>| {
        let state = tape.snapshot(PointInTime::Present, before, 0).expect("the present");
        let shown = Lines::new(&Counted::of_state(&state).collect::<Vec<_>>(), None);
        let of = |line: &Line| (line.frames[0].line, line.holders[0].growth_bytes_per_step);
        let mut rates: Vec<_> = shown.lines.iter().map(of).collect();
        rates.sort_unstable();
        rates
    };
    assert_eq!(lines(Some(228)), [(7, 0), (8, MIB)]);
    assert_eq!(lines(None), [(7, MIB), (8, MIB)], "births alone do not tell");
}

#[test]
fn lines_beyond_the_first_are_added_up() {
    let mut rank = Rank::new();
    let lines = u32::try_from(CENSUS_LINES_MAX).unwrap() + 20;
    let stacks: Vec<u32> = (1..=lines).map(|line| rank.stack(&[("/app/a.py", line)])).collect();
    for step in 1..=100 {
        for (stack, size) in stacks.iter().zip(1..) {
            rank.alloc(*stack, size * 512);
        }
        rank.end_step(step);
    }
    let census = rank.count(&mut CensusReader::default());
    assert_eq!(census.lines.len(), CENSUS_LINES_MAX);
    assert_eq!(census.other_lines.count, 20 * 100);
    let all = census.lines.values().fold(census.other_lines, |sum, line| sum.plus(line.held()));
    let expected = (1..=u64::from(lines)).sum::<u64>() * 512 * 100;
    assert_eq!(all, Held { bytes: expected, count: u64::from(lines) * 100 });
    line(&census, "/app/a.py", lines);
}

#[test]
fn pending_frees_and_blocks_without_a_stack() {
    let mut rank = Rank::new();
    let stack = rank.stack(&[("/app/a.py", 1)]);
    let pending = rank.alloc(stack, MIB);
    rank.lane().free_deferred(2, pending, MIB, TOTALS);
    rank.alloc(0, MIB);
    let census = rank.count(&mut CensusReader::default());
    assert_eq!(rank.censuses(), std::slice::from_ref(&census));
    let ids: Vec<LineId> = census.lines.keys().copied().collect();
    assert_eq!(ids, [LineId::default()], "a pending free is no line's; unknown stacks are line 0");
}

fn censuses() -> impl Strategy<Value = Vec<Census>> {
    let held = (1..5u64, 1..5u64).prop_map(|(bytes, count)| Held { bytes, count });
    let cohorts = prop::collection::btree_map(0..4u64, held, 1..4);
    let lines = prop::collection::btree_map(0..6u64, cohorts, 0..6);
    let census = (lines, 0..9u64).prop_map(|(lines, step)| {
        let frame = |id| memtape_core::snapshot::Frame {
            file: format!("/app/{id}.py"),
            line: 1,
            function: "f".into(),
        };
        let lines: BTreeMap<LineId, LineCensus> = lines
            .into_iter()
            .map(|(id, cohorts)| (LineId(id), LineCensus { frames: vec![frame(id)], cohorts }))
            .collect();
        Census { device: 0, step, lines, other_lines: Held { bytes: step, count: 1 } }
    });
    prop::collection::vec(census, 1..8)
}

proptest! {
    #[test]
    fn a_receiver_of_changes_has_what_the_sender_has(censuses in censuses()) {
        let (mut sent, mut received): (Option<Census>, Option<Census>) = (None, None);
        for census in censuses {
            let changes = Changes::between(sent.as_ref(), &census);
            received = changes.apply(received);
            prop_assert_eq!(received.as_ref(), Some(&census));
            sent = Some(census);
        }
        let last = sent.expect("there is one");
        let none = Changes::between(Some(&last), &last);
        prop_assert!(none.lines.is_empty());
        prop_assert_eq!(none.apply(None), None, "changes without their beginning are refused");
    }
}

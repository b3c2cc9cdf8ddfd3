//! Marks on the host lane, read back.

use std::sync::atomic::AtomicU64;

use memtape_tape::event::Kind;
use memtape_tape::interned::InternedWriter;
use memtape_tape::layout::{HOST_LANE, Layout, Sizes, header};
use memtape_tape::read::Tape;
use memtape_tape::write::Lane;
use memtape_tape::{Birth, Words};

#[test]
fn marks_are_read_back() {
    let sizes = Sizes {
        events: 64,
        table_entries: 64,
        step_records: 64,
        segment_entries: 64,
        interned_words: 512,
    };
    let layout = Layout::new(sizes);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    let words = Words(&memory);
    words.format(&layout, &Birth::default());
    let open = || Tape::open(memory.as_slice()).expect("a tape that was just made");
    assert_eq!((open().phase(), open().marks(9)), (String::new(), vec![]), "no lane, no marks");

    words.open_lane(HOST_LANE, &layout);
    let lane = Lane::new(words, layout.lanes[HOST_LANE], HOST_LANE as u8);
    let atom = |text: &str| InternedWriter(words).string(text.as_bytes()).expect("there is room");
    let (eval, note) = (atom("eval"), atom("lr=0.1"));
    words.set(header::PHASE, u64::from(eval));
    lane.mark(100, Kind::Mark, 0, u64::from(eval));
    words.mark_step(150, 7);
    lane.mark(200, Kind::Snapshot, 0, 0);
    lane.mark(300, Kind::Mark, 0, u64::from(note));
    lane.mark(400, Kind::Mark, 0, 0);
    lane.mark(500, Kind::Mark, 0, u64::MAX);

    let tape = open();
    assert_eq!(tape.phase(), "eval");
    let found: Vec<_> =
        tape.marks(9).into_iter().map(|mark| (mark.mono_ns, mark.step, mark.text)).collect();
    let expected = [(100, 0, "eval"), (300, 7, "lr=0.1"), (400, 7, ""), (500, 7, "")];
    assert_eq!(found, expected.map(|(at, step, text)| (at, step, text.to_string())));
    assert_eq!(tape.marks(1).len(), 1);
    assert_eq!(tape.marks(1)[0].mono_ns, 500, "the newest one");
    for ns in 1000..1100 {
        lane.mark(ns, Kind::Mark, 0, u64::from(note));
    }
    assert_eq!(open().marks(1000).len(), 64, "as many as the ring holds");
}

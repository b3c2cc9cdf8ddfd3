//! What a rank's tape says of its collectives: what was written, whole or not at all, at whatever
//! moment it is read or its writer died.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memtape_tape::collective::CollectiveWriter;
use memtape_tape::collective::dump::{Configured, Dump, Status};
use memtape_tape::layout::{Layout, header};
use memtape_tape::limits::PROCESS_GROUPS_MAX;
use memtape_tape::read::Tape;
use memtape_tape::snapshot::{CollectiveSource, Collectives};
use memtape_tape::{Birth, Words};
use proptest::prelude::*;

use crate::harness::small::small_layout;

const WALL_NS: i64 = 1_700_000_000_000_000_000;

fn blank() -> (Layout, Vec<AtomicU64>) {
    let layout = small_layout(64, 16, 8);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    Words(&memory).format(&layout, &Birth { wall_ns: WALL_NS as u64, ..Birth::default() });
    (layout, memory)
}

fn copy(memory: &[AtomicU64]) -> Vec<AtomicU64> {
    memory.iter().map(|word| AtomicU64::new(word.load(Ordering::Relaxed))).collect()
}

fn read(memory: &[AtomicU64]) -> Collectives {
    Tape::open(memory).expect("a tape").collectives()
}

/// Groups `0…`, each with these three numbers; -1 is none.
fn dump(groups: &[(i64, i64, i64)]) -> Dump {
    let mut dump = Dump::default();
    for (id, (enqueued, started, completed)) in groups.iter().enumerate() {
        let desc = if id == 0 { "default_pg" } else { "undefined" };
        dump.configured.push(Configured::new(&id.to_string(), desc, &format!("[0, {id}]")));
        let number = |number: &i64| u64::try_from(*number).ok();
        dump.statuses.push(Status {
            id: id as u64,
            enqueued: number(enqueued),
            started: number(started),
            completed: number(completed),
        });
    }
    dump
}

fn numbers(found: &Collectives) -> Vec<(i64, i64, i64)> {
    let number = |number: Option<u64>| number.map_or(-1, |number| number as i64);
    let each = |group: &memtape_tape::snapshot::CollectiveGroup| {
        (number(group.enqueued), number(group.started), number(group.completed))
    };
    found.groups.iter().map(each).collect()
}

#[test]
fn a_tape_without_a_poll_reports_the_reason() {
    let (_, memory) = blank();
    assert_eq!(read(&memory), Collectives::default(), "not zero: unknown");
    CollectiveWriter::source(Words(&memory), 70, CollectiveSource::Off);
    CollectiveWriter::source(Words(&memory), 80, CollectiveSource::Off);
    let found = read(&memory);
    assert_eq!((found.source, found.source_since_ns), (CollectiveSource::Off, WALL_NS + 70));
    assert!(found.source.why_not().is_some_and(|why| why.contains("TORCH_FR_BUFFER_SIZE")));
    assert_eq!((found.look_wall_ns, found.groups.len()), (0, 0));
    memory[header::COLLECTIVE_OFFSET].store(0, Ordering::Relaxed);
    assert_eq!(read(&memory).source, CollectiveSource::Off, "a tape without the tables");
    memory[header::COLLECTIVE].store(77, Ordering::Relaxed);
    assert_eq!(read(&memory).source, CollectiveSource::Unknown, "a newer recorder's reason");
}

#[test]
fn every_source_but_one_has_a_reason() {
    for number in 0..20 {
        let source = CollectiveSource::from_number(number);
        assert!(source as u64 == number || source == CollectiveSource::Unknown);
        assert_eq!(source.why_not().is_none(), source == CollectiveSource::FlightRecorder);
    }
}

#[test]
fn a_poll_is_read_as_it_was_written() {
    let (layout, memory) = blank();
    let words = Words(&memory);
    let mut writer = CollectiveWriter::new(words, layout.collectives);
    CollectiveWriter::source(words, 100, CollectiveSource::FlightRecorder);
    CollectiveWriter::asks(words, 100);
    assert_eq!(read(&memory).asked_wall_ns, WALL_NS + 100, "under way");
    writer.look(100, 7, dump(&[(812, -1, 811), (0, 0, -1)]));
    CollectiveWriter::answered(words);
    writer.look(200, 8, dump(&[(812, -1, 811), (1, 0, -1)]));
    let found = read(&memory);
    assert_eq!((found.look_wall_ns, found.look_took_ns), (WALL_NS + 200, 8));
    assert_eq!((found.asked_wall_ns, found.groups_lost), (0, 0));
    assert_eq!(numbers(&found), [(812, -1, 811), (1, 0, -1)]);
    let [world, other] = found.groups.as_slice() else { panic!("two groups: {found:?}") };
    assert_eq!((world.id, world.name.as_str(), world.desc.as_str()), (0, "0", "default_pg"));
    assert_eq!((other.id, other.name.as_str(), other.size), (1, "1", 2));
    assert!(world.key != 0 && world.key != other.key);
    assert_eq!(world.since_wall_ns, WALL_NS + 100, "unchanged since the first look");
    assert_eq!(other.since_wall_ns, WALL_NS + 200, "changed");
}

#[test]
fn groups_beyond_the_table_are_counted() {
    let (layout, memory) = blank();
    let mut writer = CollectiveWriter::new(Words(&memory), layout.collectives);
    let groups: Vec<_> = (0..PROCESS_GROUPS_MAX as i64 + 5).map(|n| (n, -1, n)).collect();
    writer.look(10, 1, dump(&groups));
    let found = read(&memory);
    assert_eq!((found.groups.len(), found.groups_lost), (PROCESS_GROUPS_MAX, 5));
    assert_eq!(numbers(&found), groups[..PROCESS_GROUPS_MAX]);
}

/// A writer and a reader at full speed: every answer is one look's, whole.
#[test]
fn a_reader_never_sees_two_answers_at_once() {
    let (layout, memory) = blank();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writer = CollectiveWriter::new(Words(&memory), layout.collectives);
            for look in 1..20_000 {
                writer.look(look as u64, 0, dump(&[(look, -1, look - 1); 9]));
            }
            done.store(true, Ordering::Release);
        });
        let mut newest = 0;
        while !done.load(Ordering::Acquire) {
            let found = read(&memory);
            // A reader that is overtaken again and again has no answer, and not a wrong one.
            let Some(&(look, ..)) = numbers(&found).first() else { continue };
            assert_eq!(numbers(&found), [(look, -1, look - 1); 9], "{found:?}");
            assert_eq!((found.look_wall_ns, found.groups_lost), (WALL_NS + look, 0));
            assert!(look >= newest, "{look} after {newest}");
            newest = look;
        }
    });
}

proptest! {
    /// A writer that dies in the middle of a look has touched any of the words it would have.
    #[test]
    fn a_writer_may_die_at_any_instant(
        before in prop::collection::vec((-1i64..9, -1i64..9, -1i64..9), 0..9),
        after in prop::collection::vec((-1i64..9, -1i64..9, -1i64..9), 0..9),
        looks in 1u64..4,
        touched in prop::collection::vec(any::<bool>(), 1..40),
    ) {
        let (layout, memory) = blank();
        let mut writer = CollectiveWriter::new(Words(&memory), layout.collectives);
        for look in 1..=looks {
            writer.look(look, 0, dump(&before));
        }
        let expected = read(&memory);
        prop_assert_eq!(numbers(&expected), before);
        let died = copy(&memory);
        writer.look(looks + 1, 0, dump(&after));
        let changed = (0..memory.len()).filter(|&at| {
            memory[at].load(Ordering::Relaxed) != died[at].load(Ordering::Relaxed)
        });
        for (at, _) in changed.zip(touched.iter().cycle()).filter(|&(_, &is)| is) {
            if at != header::COLLECTIVE_POLLS {
                died[at].store(memory[at].load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
        prop_assert_eq!(read(&died), expected);
    }

    /// What is torn or made up is left out and counted; nothing is ever shown that was not written.
    #[test]
    fn a_damaged_table_shows_no_invented_numbers(
        groups in prop::collection::vec((-1i64..9, -1i64..9, -1i64..9), 1..9),
        lies in prop::collection::vec((0usize..1200, any::<u64>()), 1..6),
    ) {
        let (layout, memory) = blank();
        let mut writer = CollectiveWriter::new(Words(&memory), layout.collectives);
        writer.look(5, 0, dump(&groups));
        let whole = read(&memory);
        for (offset, lie) in lies {
            // The newest table, its head and its neighbour.
            memory[layout.collectives + 1000 + offset].store(lie, Ordering::Relaxed);
        }
        let found = read(&memory);
        prop_assert!(found.groups.iter().all(|group| whole.groups.contains(group)));
        let shown = found.groups.len() as u64 + found.groups_lost;
        prop_assert!(found.look_wall_ns == 0 || shown == groups.len() as u64);
    }

    #[test]
    fn a_tape_full_of_lies_is_answered(
        lies in prop::collection::vec(
            (header::COLLECTIVE..header::COLLECTIVE_ASKED_NS + 1,
             prop_oneof![any::<u64>(), 0u64..4000]), 1..8,
        ),
    ) {
        let (layout, memory) = blank();
        let mut writer = CollectiveWriter::new(Words(&memory), layout.collectives);
        writer.look(5, 0, dump(&[(1, 2, 3); 3]));
        let whole = read(&memory);
        for (at, lie) in lies {
            memory[at].store(lie, Ordering::Relaxed);
        }
        let found = read(&memory);
        prop_assert!(found.groups.iter().all(|group| whole.groups.contains(group)));
        // And a writer goes on, whatever lies there.
        writer.look(6, 0, dump(&[(9, -1, 8)]));
    }
}

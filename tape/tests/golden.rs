//! A tape of the present version, and what it must read as.
//!
//! `golden/vN.words` is a tape, one line for each word that is not zero; `golden/vN.reads` is what
//! a reader makes of it. Files of the present version are made again, after a change that is meant,
//! by `MEMTAPE_GOLDEN=make cargo test -p memtape-tape --test tape golden`.
//! docs/tape-format.md has the rules, and its tables are checked here too.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memtape_tape::collective::CollectiveWriter;
use memtape_tape::collective::dump::{Configured, Dump, Status};
use memtape_tape::event::Kind;
use memtape_tape::interned::InternedWriter;
use memtape_tape::interned::StreamPoolWriter;
use memtape_tape::layout::{HOST_LANE, LANES, Tracker, VERSION, descriptor, header};
use memtape_tape::read::{Tape, TapeError};
use memtape_tape::rewind::PointInTime;
use memtape_tape::snapshot::origin::Origin;
use memtape_tape::snapshot::{CollectiveSource, Collectives, RankSnapshot, SegmentSource};
use memtape_tape::write::GRANULE_SMALL;
use memtape_tape::write::{Grant, Lane, Totals};
use memtape_tape::{Birth, Words};

use crate::golden_files;
use crate::harness::small::small_layout;

/// A block's address on the golden tape.
const BLOCK: u64 = 0x7f00_0000_0000;

/// What a flight recorder says of two groups, one of which it cannot name.
fn two_groups() -> Dump {
    Dump {
        configured: vec![
            Configured::new("0", "default_pg", "[0, 3]"),
            Configured::new("7", "", "[3, 5]"),
            Configured::new("9", "", ""),
        ],
        statuses: vec![
            Status { id: 0, enqueued: Some(12), completed: Some(11), ..Status::default() },
            Status { id: 2, ..Status::default() },
        ],
        lost: 0,
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// The words of a tape in a file of lines `index value`, both in hexadecimal.
fn tape_in(name: &str) -> Vec<AtomicU64> {
    let text = std::fs::read_to_string(path(name)).expect("the tape is in the repository");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a hexadecimal number");
    let words: Vec<(usize, u64)> = text
        .lines()
        .map(|line| line.split_once(' ').expect("an index and a value"))
        .map(|(index, value)| (number(index) as usize, number(value)))
        .collect();
    let size = words.iter().find(|word| word.0 == header::FILE_WORDS).expect("a size").1;
    let memory: Vec<AtomicU64> = (0..size).map(|_| AtomicU64::new(0)).collect();
    for (index, value) in words {
        memory[index].store(value, Ordering::Relaxed);
    }
    memory
}

#[test]
fn the_golden_tape_reads_as_it_must() {
    if golden_files::is_remade() {
        let memory = made();
        let text = memory.iter().enumerate().fold(String::new(), |mut text, (index, word)| {
            match word.load(Ordering::Relaxed) {
                0 => {}
                value => writeln!(text, "{index:x} {value:x}").expect("a string takes text"),
            }
            text
        });
        let reads = reads(&memory);
        std::fs::write(path(&format!("v{VERSION}.words")), text).expect("a file can be written");
        std::fs::write(path(&format!("v{VERSION}.reads")), reads).expect("a file can be written");
    }
    let memory = tape_in(&format!("v{VERSION}.words"));
    let expected = std::fs::read_to_string(path(&format!("v{VERSION}.reads")));
    assert_eq!(reads(&memory), expected.expect("what it reads as is in the repository"));
}

/// Any other version is refused.
#[test]
fn another_version_is_refused_with_both_numbers() {
    let memory = tape_in(&format!("v{VERSION}.words"));
    memory[header::VERSION].store(VERSION + 1, Ordering::Relaxed);
    let error = Tape::open(memory.as_slice()).expect_err("it cannot be read");
    assert_eq!(error, TapeError::Version(VERSION + 1));
    let line = error.to_string();
    assert!(line.contains(&(VERSION + 1).to_string()) && line.contains(&VERSION.to_string()));
    assert!(!line.contains('\n'), "{line}");
}

/// A writer of today writes what it wrote: a change of the layout is a change of the version.
#[test]
fn the_writer_still_writes_this_version() {
    let golden = tape_in(&format!("v{VERSION}.words"));
    for (index, (now, then)) in made().iter().zip(&golden).enumerate() {
        let (now, then) = (now.load(Ordering::Relaxed), then.load(Ordering::Relaxed));
        assert_eq!(now, then, "word {index:#x}: raise VERSION, or make the golden tape again");
    }
}

/// A short life with one of everything.
fn made() -> Vec<AtomicU64> {
    let layout = small_layout(64, 16, 8);
    let memory: Vec<AtomicU64> = (0..layout.file_words).map(|_| AtomicU64::new(0)).collect();
    let words = Words(&memory);
    let identity = "job=golden\nattempt=1\nrank=3\nworld_size=8\nlocal_rank=3\nhost=node\n";
    words.format(
        &layout,
        &Birth {
            boot_id: [1, 2],
            pid: 77,
            pid_namespace: 5,
            mono_ns: 1_000,
            wall_ns: 1_700_000_000_000_000_000,
            clock_error_ns: 9,
            identity: identity.into(),
        },
    );
    words.set(header::TRACKER, Tracker::Attached as u64);
    for lane in [0, HOST_LANE] {
        words.open_lane(lane, &layout);
    }
    let interned = InternedWriter(words);
    let (file, function) = (interned.string(b"train.py"), interned.string(b"forward"));
    let frame = interned.frame(file.expect("room"), function.expect("room"), 42).expect("room");
    let stack = interned.stack(&[frame]).expect("room");
    let owner = StreamPoolWriter(words).index(7, Some((0, 1)));
    let lane = Lane::new(words, layout.lanes[0], 0);
    let host = Lane::new(words, layout.lanes[HOST_LANE], 0);
    let grant = |offset: u64, size, requested| Grant {
        address: BLOCK + offset,
        size,
        requested,
        owner,
        stack,
    };
    let totals = |allocated| Totals { allocated, reserved: 3 * GRANULE_SMALL };
    lane.segment(10, Kind::SegmentAlloc, grant(0, GRANULE_SMALL, 0));
    lane.segment(20, Kind::SegmentMap, grant(1 << 30, 2 * GRANULE_SMALL, 0));
    lane.alloc(30, grant(0, 1024, 1000), totals(1024));
    lane.alloc(40, grant(1024, 512, 1), totals(1536));
    words.mark_step(50, 1);
    lane.free_deferred(60, BLOCK, 1024, totals(512));
    host.alloc(70, Grant { owner: Origin::Nccl as u16, ..grant(1 << 40, 4096, 0) }, totals(4096));
    host.failure(80, Kind::MallocFailed, grant(0, 1 << 40, 300), totals(4096));
    lane.failure(90, Kind::Oom, grant(0, 1 << 41, 0), totals(512));
    words.mark_step(100, 2);
    lane.free_completed(110, BLOCK);
    lane.free(120, BLOCK + 1024, 512, totals(0));
    lane.segment(130, Kind::SegmentUnmap, grant(1 << 30, GRANULE_SMALL, 0));
    lane.segment(140, Kind::SegmentFree, grant(0, GRANULE_SMALL, 0));
    lane.mark(150, Kind::Snapshot, 0, 0);
    host.mark(160, Kind::Mark, 0, u64::from(file.expect("room")));
    let mut collectives = CollectiveWriter::new(words, layout.collectives);
    CollectiveWriter::source(words, 170, CollectiveSource::FlightRecorder);
    CollectiveWriter::asks(words, 180);
    collectives.look(180, 5, two_groups());
    CollectiveWriter::answered(words);
    memory
}

/// What a reader makes of a tape, line by line.
fn reads(memory: &[AtomicU64]) -> String {
    let tape = match Tape::open(memory) {
        Ok(tape) => tape,
        Err(error) => return format!("refused: {error}\n"),
    };
    let mut out = String::new();
    let identity = tape.identity();
    let status = tape.status();
    let mut line = |text: String| out.extend([text.as_str(), "\n"]);
    line(format!("{} of {:?}, rank {}", identity.tape_id, identity.job, identity.rank));
    line(format!("{} steps, lost {}", status.step, status.lost));
    for total in tape.totals() {
        line(format!("{total:?}"));
    }
    for record in tape.steps_after(0, 0).records {
        line(format!("{record:?}"));
    }
    for event in tape.tail(0, 100) {
        line(format!("{event:?}"));
    }
    let collectives = tape.collectives();
    for group in &collectives.groups {
        line(format!("{group:?}"));
    }
    line(format!("{:?}", Collectives { groups: Vec::new(), ..collectives }));
    for mark in tape.marks(10) {
        line(format!("{mark:?}"));
    }
    let moments =
        [PointInTime::EndOf(1), PointInTime::EndOf(2), PointInTime::LastOom, PointInTime::Present];
    for moment in moments {
        match tape.snapshot(moment, Some(1), 4) {
            Ok(snapshot) => line(format!("{moment:?}\n{}", state(&snapshot))),
            Err(error) => line(format!("{moment:?}: {error}")),
        }
    }
    out
}

fn state(snapshot: &RankSnapshot) -> String {
    let mut out = String::new();
    for device in &snapshot.devices {
        let (allocated, reserved) = (device.allocated, device.reserved);
        out += &format!("  device {}: {allocated} of {reserved}\n", device.device);
        for block in &device.blocks {
            let frames: Vec<String> = snapshot
                .frames_of(block.stack)
                .map(|frame| format!("{}:{} {}", frame.file, frame.line, frame.function))
                .collect();
            let pair = snapshot.stream_pool(block.stream_pool);
            out += &format!("    {block:?} {frames:?} {pair:?}\n");
        }
        assert!(matches!(device.segment_source, SegmentSource::Allocator), "the tracker was there");
        for segment in &device.segments {
            out += &format!("    {segment:?}\n");
        }
        for use_of in &device.before {
            out += &format!("    before: {use_of:?}\n");
        }
        for event in &device.trace {
            out += &format!("    {event:?}\n");
        }
    }
    for outside in &snapshot.outside {
        out += &format!("  {outside:?}\n");
    }
    out
}

/// The tables of docs/tape-format.md are the constants of `src/layout/`, with their comments.
#[test]
fn the_document_says_what_the_constants_say() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/tape-format.md");
    let text = std::fs::read_to_string(&document).expect("the document is there");
    let header = include_str!("../src/layout/header.rs");
    let head = include_str!("../src/layout/head.rs");
    let source = format!("pub mod header {{\n{header}pub mod head {{\n{head}\n}}\n");
    let mut expected = text.clone();
    for module in ["header", "device", "descriptor", "head"] {
        let (start, end) = (format!("<!-- {module} -->\n"), format!("<!-- end of {module} -->"));
        let (before, rest) = expected.split_once(&start).expect("a table begins");
        let (_, after) = rest.split_once(&end).expect("a table ends");
        expected = format!("{before}{start}{}{end}{after}", table(&source, module));
    }
    let command = "MEMTAPE_GOLDEN=make cargo test -p memtape-tape --test tape golden";
    golden_files::check(&document, &expected, command);
    assert!(expected.contains(&format!("Version {VERSION} ")), "the present version is named");
    assert!(expected.contains(&format!("{LANES} lanes")), "the number of lanes");
    const { assert!(descriptor::WORDS * LANES + header::DESCRIPTORS <= 512) };
}

/// The constants of a module, as rows of a table.
fn table(source: &str, module: &str) -> String {
    let (_, body) = source.split_once(&format!("pub mod {module} {{\n")).expect("a module");
    let body = body.split("\n}\n").next().unwrap_or_default();
    let body = body.split("\npub mod ").next().unwrap_or_default();
    let (mut rows, mut comment) = (String::from("| word | name | what |\n|--:|---|---|\n"), vec![]);
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            comment.push(text.replace("[`super::", "`").replace("`]", "`"));
        } else if let Some((name, value)) =
            line.strip_prefix("pub const ").and_then(|line| line.split_once(": usize = "))
        {
            let value = value.trim_end_matches(';');
            if name != "WORDS" {
                rows += &format!("| {value} | `{name}` | {} |\n", comment.join(" "));
            }
            comment.clear();
        }
    }
    rows
}

//! Memory snapshots of PyTorch, of every shape that people have: what is read is what CPython
//! reads, what is not there is said to be missing, and no damage gets past.

use crate::pickles::{data, lines, python, read_snapshot, snapshot, unpacked};
use memtape_core::pickle::fault::Fault;
use memtape_core::pickle::torch::{Missing, Record, Shape, TorchSnapshot};
use memtape_core::pickle::torch_snapshot;
use memtape_core::pickle::value::Limits;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, TraceEvent, TraceKind,
};
use proptest::prelude::*;

/// Snapshots of jobs on four H200 with PyTorch 2.11.
const RECORDED: [&str; 2] = ["ddp_leak_rank2.pickle.gz", "fsdp_leak_rank1.pickle.gz"];

fn recorded(name: &str) -> Vec<u8> {
    unpacked(&data(&format!("snapshots/{name}")))
}

/// More snapshots to try, `.pickle` and `.pickle.gz`, are looked for in this folder and below.
const MORE: &str = "MEMTAPE_TEST_SNAPSHOTS";

#[test]
fn recorded_snapshots_say_what_cpython_says() {
    let mut files: Vec<(String, Vec<u8>)> =
        RECORDED.iter().map(|name| (name.to_string(), recorded(name))).collect();
    let mut folders: Vec<_> = std::env::var_os(MORE).into_iter().map(Into::into).collect();
    while let Some(folder) = folders.pop() {
        let folder: std::path::PathBuf = folder;
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("an entry").path();
            let name = path.display().to_string();
            match name.rsplit_once('.') {
                _ if path.is_dir() => folders.push(path),
                Some((_, "gz")) => files.push((name, unpacked(&std::fs::read(&path).expect("it")))),
                Some((_, "pickle")) => files.push((name, std::fs::read(&path).expect("it"))),
                _ => {}
            }
        }
    }
    println!("{} files", files.len());
    for (name, bytes) in files {
        let pieces = [1 << 16, 77, 1 << 18];
        let read = read_snapshot(&bytes, &pieces, Limits::default());
        let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read.notes.bytes, bytes.len() as u64);
        assert_eq!((read.notes.misplaced, read.notes.skipped.as_slice()), (0, &[][..]), "{name}");
        let found = lines(&read);
        assert!(found.lines().count() > 20_000, "{name}");
        let Some(expected) = python("snapshot_lines.py", &bytes) else { return };
        for (found, expected) in found.lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(found.lines().count(), expected.lines().count(), "{name}");
    }
}

#[test]
fn a_recorded_snapshot_is_kept_small() {
    let read = snapshot(&recorded(RECORDED[1])).expect("it is sound");
    assert_eq!(
        (read.shape, read.segments.len(), read.events.len()),
        (Shape::Snapshot, 125, 20_000)
    );
    assert!(read.stack_count() < 100, "equal stacks are one: {}", read.stack_count());
    assert!(read.frame_count() < 100, "equal frames are one: {}", read.frame_count());
    let only = Missing { record: Record::Event, key: "pool_id", count: 20_000, of: 20_000 };
    assert_eq!(read.notes.missing, [only], "PyTorch 2.11 writes no pool of an event");
}

// --- our own writer ------------------------------------------------------------------------------

fn exported() -> RankSnapshot {
    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x7f00_0000_0000;
    let frame = |line| Frame { file: "/app/train.py".into(), line, function: "step".into() };
    let event = |kind, address, mono_ns| TraceEvent {
        kind,
        mono_ns,
        address,
        size: MIB,
        detail: 0,
        stack: 1,
        stream_pool: 0,
        step: 3,
    };
    let device = DeviceSnapshot {
        device: 1,
        device_bytes: 100 * MIB,
        blocks: vec![Block { address: BASE, size: MIB, stack: 1, ..Block::default() }],
        segments: vec![Segment { address: BASE, size: 20 * MIB, ..Segment::default() }],
        trace: vec![event(TraceKind::Oom, 0, 4_000_000), event(TraceKind::Alloc, BASE, 5_000_000)],
        complete: true,
        ..DeviceSnapshot::default()
    };
    RankSnapshot {
        step: 3,
        wall_ns: 1_000_000_000,
        devices: vec![device],
        frames: vec![Frame::default(), frame(36), frame(80)],
        stacks: vec![vec![], vec![1, 2]],
        ..RankSnapshot::default()
    }
}

#[test]
fn what_memtape_exports_is_read_again() {
    let pickle = torch_snapshot(&exported());
    let read = snapshot(&pickle).expect("our own");
    let expected = "\
segment 1 139637976727552 20971520 1048576 1048576 1048576 0 large (0,0) False []
block 139637976727552 1048576 1048576 active_allocated [step@/app/train.py:36 step@/app/train.py:80]
block 139637977776128 19922944 0 inactive []
trace 0
trace 1
event oom - 104857600 1048576 0 999000 - - [step@/app/train.py:36 step@/app/train.py:80]
event alloc 139637976727552 - 1048576 0 1000000 - - [step@/app/train.py:36 step@/app/train.py:80]
";
    assert_eq!(lines(&read), expected);
    assert!(read.origin.iter().any(|setting| setting.name == "unknown.0"));
    let step = read.origin.iter().find(|setting| setting.name == "step");
    assert_eq!(format!("{:?}", step.expect("the step").value), "Int(3)");
    if let Some(theirs) = python("snapshot_lines.py", &pickle) {
        assert_eq!(theirs, expected);
    }
}

// --- made by hand --------------------------------------------------------------------------------

/// Puts a pickle together: texts in quotes, small numbers in words, other opcodes as they are.
fn made(parts: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0x80, 2];
    for part in parts.iter().flat_map(|part| part.split_whitespace()) {
        if let Some(text) = part.strip_prefix('\'') {
            bytes.push(b'X');
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        } else if let Ok(number) = part.parse::<i32>() {
            bytes.push(b'J');
            bytes.extend(number.to_le_bytes());
        } else if let Some(number) = part.strip_prefix("put") {
            bytes.extend([b'q', number.parse().expect("a memo number")]);
        } else if let Some(number) = part.strip_prefix("get") {
            bytes.extend([b'h', number.parse().expect("a memo number")]);
        } else {
            bytes.push(match part {
                "T2" => 0x86,
                "pop" => b'0',
                other => other.as_bytes()[0],
            });
        }
    }
    bytes.push(b'.');
    bytes
}

const FRAME: &str = "} ( 'name 'f 'filename 'a.py 'line 7 u";

fn read(parts: &[&str]) -> TorchSnapshot {
    let bytes = made(parts);
    let whole = snapshot(&bytes).unwrap_or_else(|error| panic!("{error}"));
    let cut = read_snapshot(&bytes, &[1], Limits::default()).expect("cut");
    assert_eq!(lines(&whole), lines(&cut));
    whole
}

#[test]
fn a_bare_list_of_segments_is_a_snapshot() {
    let read = read(&[
        "] ( } ( 'address 4096 'total_size 512 'blocks ] ( } ( 'size 512 'state ",
        "'inactive u e u e",
    ]);
    assert_eq!(read.shape, Shape::Segments);
    let expected = "segment - 4096 512 - - - - - - - -\nblock - 512 - inactive -\n";
    assert_eq!(lines(&read), expected);
    let missing: Vec<_> = read.notes.missing.iter().map(|each| (each.record, each.key)).collect();
    assert!(missing.contains(&(Record::Segment, "stream")));
    assert!(missing.contains(&(Record::Block, "requested_size")));
    assert!(!missing.contains(&(Record::Segment, "address")));
    assert_eq!(snapshot(&made(&["]"])).expect("no segments").shape, Shape::Segments);
}

#[test]
fn blocks_of_old_releases_have_a_history() {
    let read = read(&[
        "} 'segments ] } ( 'total_size 9 'blocks ] } ( 'size 512 'state ",
        "'active_allocated 'history ] } ( 'addr 77 'real_size 500 'frames ] ",
        FRAME,
        "a u a u a u a s",
    ]);
    let expected = "segment - - 9 - - - - - - - -\n\
                    block 77 512 500 active_allocated [f@a.py:7]\n";
    assert_eq!(lines(&read), expected);
}

#[test]
fn events_lack_what_their_release_did_not_write() {
    let read = read(&[
        "} 'device_traces ] ] ( ",
        "} ( 'action 'alloc 'addr 1 'size 2 'stream 3 u ",
        "} ( 'action 'oom 'device_free 9 'size 2 'stream 3 'pool_id 0 5 T2 u ",
        "} ( 'action 'reshape 'addr 'x 'later 1 'size -4 'frames N u e a s",
    ]);
    let expected = "trace 0\nevent alloc 1 - 2 3 - - - -\nevent oom - 9 2 3 - - - -\n\
                    event - - - - - - - - -\n";
    assert_eq!(lines(&read), expected);
    assert_eq!(read.pool_of(&read.events[1]), Some((0, 5)));
    assert_eq!(read.pool_of(&read.events[0]), None);
    let counted = |counts: &[memtape_core::pickle::torch::Count]| {
        counts.iter().map(|each| each.key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(counted(&read.notes.skipped), ["later"]);
    let mut mistyped = counted(&read.notes.mistyped);
    mistyped.sort();
    assert_eq!(mistyped, ["action", "addr", "frames", "size"]);
    let lacking = |key| read.notes.missing.iter().find(|each| each.key == key).map(|m| m.count);
    assert_eq!(lacking("time_us"), Some(3));
    assert_eq!(lacking("addr"), Some(1), "an OOM has none");
    assert_eq!(lacking("segments"), Some(1));
}

#[test]
fn what_grows_after_it_was_used_grows_everywhere() {
    // The list of frames is filled in four batches: before, between and after its two events.
    let read = read(&[
        "} 'device_traces ] ] ( ",
        "] put1 pop ",
        FRAME,
        " put2 pop ",
        "} put3 ( 'action 'alloc 'frames get1 u get1 get2 a pop ",
        "} ( 'action 'oom 'frames get1 u get1 get2 a pop get1 ( get2 get2 e pop ",
        // The first event gets a key later, the frame too, and one of its keys again.
        "get3 'size 5 s pop get2 'line 8 s pop get1 get2 a pop ",
        "e a s",
    ]);
    let stack = "[f@a.py:8 f@a.py:8 f@a.py:8 f@a.py:8 f@a.py:8]";
    let expected =
        format!("trace 0\nevent alloc - - 5 - - - - {stack}\nevent oom - - - - - - - {stack}\n");
    assert_eq!(lines(&read), expected);
    assert_eq!((read.frame_count(), read.notes.misplaced), (1, 0));
}

#[test]
fn a_record_is_one_before_its_kind_is_known() {
    let read = read(&["} 'device_traces ] ] } 'addr 4 s 'size 5 s 'action 'alloc s a a s"]);
    assert_eq!(lines(&read), "trace 0\nevent alloc 4 - 5 - - - - -\n");
}

#[test]
fn records_out_of_order_are_put_in_order() {
    let events = "} ( 'action 'alloc 'addr 1 u put1 pop } ( 'action 'alloc 'addr 2 u put2 pop ";
    let read = read(&[events, "} 'device_traces ] ( ] get2 a ] get1 a e s"]);
    let expected = "trace 0\nevent alloc 2 - - - - - - -\ntrace 1\nevent alloc 1 - - - - - - -\n";
    assert_eq!(lines(&read), expected);
    // Left out of all lists: dropped. In two lists: refused, a few bytes could ask for gigabytes.
    let left = [events, "} 'device_traces ] ] get2 a a s"].concat();
    assert_eq!(snapshot(&made(&[&left])).expect("sound").events.len(), 1);
    let twice = [events, "} 'device_traces ] ( ] get2 a ] get2 a e s"].concat();
    let error = snapshot(&made(&[&twice])).expect_err("twice");
    assert_eq!(error.fault, Fault::Twice("trace entry"));
}

#[test]
fn other_pickles_are_no_snapshots() {
    let check = |parts: &str, what: &str| {
        let error = snapshot(&made(&[parts])).expect_err(parts);
        let line = error.to_string();
        assert!(line.contains(&format!("not a memory snapshot but {what}")), "{line}");
    };
    check("5", "a single number or text");
    check("}", "an empty dictionary");
    check("} 'entries ] s", "a dictionary without the keys segments, device_traces");
    check("] ( 1 2 e", "a list of other things than segments");
    check("} ( 'action 'alloc u", "one piece of a snapshot");
    check("1 2 T2", "a tuple, a set or a list of frames");
}

#[test]
fn a_list_that_grows_by_one_at_a_time_costs_its_length() {
    // 100,000 appends to a stack that events could use between them: 5·10⁹ frames, if each state
    // of the list were kept. The limit on items is what such a reader would run into.
    let mut bytes = made(&[FRAME, " put1 pop ] put2 "]);
    bytes.pop();
    bytes.extend(b"h\x01a".repeat(100_000));
    bytes.extend(b"0}(X\x08\x00\x00\x00segments]u.");
    let limits = Limits { items_max: 250_000, ..Limits::default() };
    read_snapshot(&bytes, &[], limits).expect("a fair amount of work");
}

#[test]
fn a_shared_list_is_gone_through_once() {
    // 20,000 numbers, and 20,000 segments or traces that share the list of them: 4·10⁸ items.
    let numbers = ["] put0 ( ", &"1 ".repeat(20_000), "e pop "].concat();
    let segments = "} ( 'total_size 1 'blocks get0 u ".repeat(20_000);
    let of_segments = [&numbers, "} 'segments ] ( ", &segments, "e s"].concat();
    let of_traces = [&numbers, "} 'device_traces ] ( ", &"get0 ".repeat(20_000), "e s"].concat();
    for parts in [of_segments, of_traces] {
        let error = snapshot(&made(&[&parts])).expect_err("shared");
        assert_eq!(error.fault, Fault::Twice("list"));
    }
    // Nothing in it: PyTorch's own may be one list.
    let empty = read(&["] put0 pop } 'device_traces ] ( get0 get0 ] e s"]);
    assert_eq!(empty.traces.len(), 3);
    assert_eq!(read(&["} 'device_traces ] ( N ] } 5 e s"]).notes.misplaced, 3);
}

#[test]
fn settings_cannot_be_made_endless() {
    // Each dictionary holds the one before eight times.
    let mut parts = "} 'segments ] s 'allocator_settings } 'a 1 s ".to_string();
    for level in 0..12 {
        parts += &format!("put{level} pop }} ( ");
        (0..8).for_each(|key| parts += &format!("'k{key} get{level} "));
        parts += "u ";
    }
    let read = snapshot(&made(&[&parts, "s"])).expect("sound");
    assert!(read.settings.len() <= 4096 && read.notes.settings_left_out > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_damaged_snapshot_ends_in_records_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        length in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = recorded(RECORDED[0]);
        if cuts {
            let length = length.index(bytes.len());
            bytes.truncate(length);
        }
        for (at, byte) in changes {
            let at = at.index(bytes.len().max(1));
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        match read_snapshot(&bytes, &[4096], Limits::default()) {
            Ok(read) => prop_assert!(read.events.len() <= 20_000),
            Err(error) => {
                prop_assert!(error.offset <= bytes.len() as u64);
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
    }

    #[test]
    fn any_bytes_end_in_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let after_start = [&[0x80, 4][..], &bytes].concat();
        for bytes in [&bytes, &after_start] {
            let _ = read_snapshot(bytes, &[7], Limits::default());
        }
    }
}

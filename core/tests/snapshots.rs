//! Memory snapshots of PyTorch, of every shape that people have: what is read is what CPython
//! reads, what is not there is said to be missing, and no damage gets past.

use crate::pickles::{data, lines, python, read_snapshot, snapshot, unpacked};
use memtape_core::pickle::fault::Fault;
use memtape_core::pickle::torch::{Missing, Setting, Shape, TorchFile};
use memtape_core::pickle::value::Limits;
use memtape_core::pickle::{Record, annotated_snapshot, torch_snapshot};
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
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
fn recorded_snapshots_read_as_in_cpython() {
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
        assert_eq!(read.notes.unusable, 0, "{name}");
        let found = lines(&read);
        assert!(found.lines().count() > 10_000, "{name}");
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
    let device = &read.rank.devices[0];
    assert_eq!((read.notes.shape, device.segments.len()), (Shape::Snapshot, 125));
    assert!((10_000..20_000).contains(&device.trace.len()), "a free is one event, not two");
    assert!(read.rank.stacks.len() < 100, "equal stacks are one: {}", read.rank.stacks.len());
    assert!(read.rank.frames.len() < 100, "equal frames are one: {}", read.rank.frames.len());
    let only = Missing { record: Record::Event, key: "pool_id", count: 20_000, of: 20_000 };
    assert_eq!(read.notes.missing, [only], "PyTorch 2.11 writes no pool of an event");
}

// --- our own writer ------------------------------------------------------------------------------

fn exported() -> RankSnapshot {
    const MIB: u64 = 1 << 20;
    const BASE: u64 = 0x7f00_0000_0000;
    let frame = |line| Frame { file: "/a/train.py".into(), line, function: "step".into() };
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
        segment_source: SegmentSource::Allocator,
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
fn an_export_of_memtape_is_read_back() {
    let pickle = torch_snapshot(&exported());
    let read = snapshot(&pickle).expect("our own");
    let expected = "\
device 1 1048576 20971520
segment 139637976727552 20971520 0 (0,0) 0 0 []
block 139637976727552 1048576 1048576 0 0 (0,0) [step@/a/train.py:36 step@/a/train.py:80]
event Oom 999000 0 1048576 104857600 0 - [step@/a/train.py:36 step@/a/train.py:80]
event Alloc 1000000 139637976727552 1048576 1048576 0 - [step@/a/train.py:36 step@/a/train.py:80]
";
    assert_eq!(lines(&read), expected);
    assert!(read.notes.is_exported);
    assert_eq!(read.rank.step, 3);
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

fn read(parts: &[&str]) -> TorchFile {
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
    assert_eq!(read.notes.shape, Shape::Segments);
    assert_eq!(lines(&read), "device 0 0 512\nsegment 4096 512 - - 0 0 []\n");
    let missing: Vec<_> = read.notes.missing.iter().map(|each| (each.record, each.key)).collect();
    assert!(missing.contains(&(Record::Segment, "stream")));
    assert!(missing.contains(&(Record::Block, "requested_size")));
    assert!(!missing.contains(&(Record::Segment, "address")));
    assert_eq!(snapshot(&made(&["]"])).expect("no segments").notes.shape, Shape::Segments);
}

#[test]
fn blocks_of_old_releases_have_a_history() {
    let read = read(&[
        "} 'segments ] } ( 'address 77 'total_size 512 'blocks ] } ( 'size 512 'state ",
        "'active_allocated 'history ] } ( 'addr 77 'real_size 500 'frames ] ",
        FRAME,
        "a u a u a u a s",
    ]);
    let expected = "device 0 512 512\nsegment 77 512 - - 0 0 []\n\
                    block 77 512 500 0 - - [f@a.py:7]\n";
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
    let expected = "device 0 0 0\nevent Alloc 0 1 512 2 3 - []\nevent Oom 0 0 2 9 3 (0,5) []\n";
    assert_eq!(lines(&read), expected);
    let lacking = |key| read.notes.missing.iter().find(|each| each.key == key).map(|m| m.count);
    assert_eq!(lacking("time_us"), Some(3));
    assert_eq!(lacking("addr"), Some(1), "an OOM has none");
    assert_eq!(lacking("segments"), Some(1));
}

/// A record of another kind is left out, wherever it stands, also in front.
#[test]
fn a_stray_record_costs_itself_only() {
    let event = "} ( 'action 'alloc 'addr 1 'size 2 u ";
    let mark = "} ( 'name 'x 'stage 'START 'time_us 1 u ";
    let block = "} ( 'size 512 'state 'inactive u ";
    let line = "event Alloc 0 1 512 2 - - []\n";
    for stray in [FRAME, mark, block, "N "] {
        for [first, second] in [[stray, event], [event, stray]] {
            let parts = ["} 'device_traces ] ] (", first, second, event, "e a s"].join(" ");
            let read = read(&[&parts]);
            assert_eq!(lines(&read), ["device 0 0 0\n", line, line].concat(), "{stray}");
            assert_eq!(read.notes.unusable, 1, "{stray}");
        }
    }
    let segment = "} ( 'address 4096 'total_size 512 u ";
    let read = read(&["} 'segments ] ( ", event, segment, segment, "e s"]);
    assert_eq!((read.rank.devices[0].segments.len(), read.notes.unusable), (2, 1));
    // In a list of frames it costs no stack, whatever it is.
    for stray in [mark, block, segment, "N ", "} ", "} 'x 1 s ", "] "] {
        for [first, second, third] in
            [[stray, FRAME, FRAME], [FRAME, stray, FRAME], [FRAME, FRAME, stray]]
        {
            let frames = ["] (", first, second, third, "e"].join(" ");
            let event = ["} ( 'action 'alloc 'addr 1 'size 1 'frames ", &frames, " u "].concat();
            let read = self::read(&["} 'device_traces ] ] ( ", &event, "e a s"]);
            let line = "event Alloc 0 1 512 1 - - [f@a.py:7 f@a.py:7]\n";
            assert_eq!(lines(&read), ["device 0 0 0\n", line].concat(), "{stray}");
            assert_eq!(read.notes.unusable, 1, "{stray}");
        }
    }
}

/// Every pickler writes what a dictionary holds before it fills the dictionary.
#[test]
fn a_list_that_grows_after_its_use_is_refused() {
    let check = |then: &str, opcode: &'static str| {
        let event = ["] put1 ", FRAME, " put2 a pop } put3 ( 'action 'alloc 'frames get1 u pop "];
        let error = snapshot(&made(&[&event.concat(), then])).expect_err(then);
        assert_eq!(error.fault, Fault::WrongKind(opcode), "{then}");
    };
    check("get1 get2 a", "APPEND");
    check("get1 ( get2 get2 e", "APPENDS");
    check("get2 'line 8 s", "SETITEM");
    check("get3 'size 5 s", "SETITEM");
}

#[test]
fn lists_of_the_same_frames_are_one_stack() {
    let frames = [FRAME, " put1 pop } ( 'name 'g 'filename 'a.py 'line 9 u put2 pop "].concat();
    let event = "} ( 'action 'alloc 'addr 1 'size 1 'frames ] ( get1 get2 e u ";
    let other = "get2 put1 pop ";
    let events = ["} 'device_traces ] ] ( ", event, event, other, event, "e a s"].concat();
    let read = read(&[&frames, &events]);
    let line = |stack: &str| ["event Alloc 0 1 512 1 - - [", stack, " g@a.py:9]\n"].concat();
    let (same, other) = (line("f@a.py:7"), line("g@a.py:9"));
    // The third event has the bytes of the others, and another value under memo number 1.
    assert_eq!(lines(&read), ["device 0 0 0\n", &same, &same, &other].concat());
    assert_eq!((read.rank.stacks.len(), read.notes.unusable), (3, 0));
    // A list that is filled at once is whole, however the bytes are cut.
    let grown = made(&[&frames, "] put3 ( get1 get2 e pop ] ( get1 get2 e get1 a"]);
    for pieces in [&[][..], &[1]] {
        let error = read_snapshot(&grown, pieces, Limits::default()).expect_err("it grows");
        assert_eq!(error.fault, Fault::WrongKind("APPEND"));
    }
}

#[test]
fn each_record_stands_once_and_in_order() {
    let events = "} ( 'action 'alloc 'addr 1 'size 1 u put1 pop \
                  } ( 'action 'alloc 'addr 2 'size 1 u put2 pop ";
    for twice in ["] get2 a ] get1 a", "] get2 a ] get2 a"] {
        let parts = [events, "} 'device_traces ] ( ", twice, " e s"].concat();
        let error = snapshot(&made(&[&parts])).expect_err(twice);
        assert_eq!(error.fault, Fault::Twice("trace entry"));
    }
    // Left out of all lists: dropped.
    let left = read(&[events, "} 'device_traces ] ] get2 a a s"]);
    assert_eq!(lines(&left), "device 0 0 0\nevent Alloc 0 2 512 1 - - []\n");
}

#[test]
fn other_pickles_are_refused() {
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
    check("1 'a T2", "a tuple or a list that was used");
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
    assert_eq!(empty.notes.unusable, 0);
    assert_eq!(read(&["} 'device_traces ] ( N ] } 5 e s"]).notes.unusable, 3);
}

#[test]
fn lists_of_settings_stay_lists() {
    let settings = "'allocator_settings } ( 'a ] ( 1 'x ] } 'b 1 s e 'c 4 5 T2 u s";
    let read = read(&["} 'segments ] s ", settings]);
    let dict = Setting::Dict(vec![("b".to_string(), Setting::Int(1))]);
    let a = [Setting::Int(1), Setting::Text("x".to_string()), Setting::List(Vec::new()), dict];
    let c = Setting::List(vec![Setting::Int(4), Setting::Int(5)]);
    let expected = [("a".to_string(), Setting::List(a.into())), ("c".to_string(), c)];
    assert_eq!(read.settings, expected);
    let exported = annotated_snapshot(&read.rank, &[], &read.settings);
    assert_eq!(snapshot(&exported).expect("sound").settings, expected);
    let texts = read.rank.settings.iter().map(|(name, value)| format!("{name}={value}"));
    assert_eq!(texts.collect::<Vec<_>>(), ["a.0=1", "a.1=x", "a.3.b=1", "c.0=4", "c.1=5"]);
}

#[test]
fn settings_cannot_be_made_endless() {
    // Each dictionary holds the one before eight times.
    let mut parts = "} 'segments ] s 'allocator_settings } 'a 1 s ".to_string();
    for level in 0..6 {
        parts += &format!("put{level} pop }} ( ");
        (0..8).for_each(|key| parts += &format!("'k{key} get{level} "));
        parts += "u ";
    }
    let read = snapshot(&made(&[&parts, "s"])).expect("sound");
    assert!((1..=4096).contains(&read.rank.settings.len()));
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
            Ok(read) => prop_assert!(read.rank.devices.iter().all(|of| of.trace.len() <= 20_000)),
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

//! Pickles are read back twice: by a small reader of this very opcode subset, and by CPython.

extern crate std;

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use alloc::{format, vec};
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;

use crate::write::export::{UNKNOWN_WITHOUT_TRACE, torch_snapshot, torch_snapshot_in_parts};
use crate::write::layout::{self, Piece};
use crate::write::writer::{BATCH_ITEMS, PART_BYTES, Writer, opcode};
use memtape_tape::identity::Identity;
use memtape_tape::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, StreamPool, TraceEvent,
    TraceKind,
};

/// Values of a pickle.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Truth(bool),
    Number(i128),
    Text(String),
    Pair(Box<(Value, Value)>),
    List(Vec<Value>),
    Dict(BTreeMap<String, Value>),
    Mark,
}

impl Value {
    fn at(&self, key: &str) -> &Value {
        match self {
            Value::Dict(items) => &items[key],
            other => panic!("{other:?} has no key {key}"),
        }
    }

    fn items(&self) -> &[Value] {
        match self {
            Value::List(items) => items,
            other => panic!("{other:?} is no list"),
        }
    }

    fn number(&self) -> i128 {
        match self {
            Value::Number(number) => *number,
            other => panic!("{other:?} is no number"),
        }
    }

    fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }
}

/// Reads the subset that [`Writer`] writes, as memory_viz does, and nothing else.
fn read(bytes: &[u8]) -> Value {
    let mut at = 0;
    let mut take = |count: usize| {
        at += count;
        &bytes[at - count..at]
    };
    let mut stack: Vec<Value> = Vec::new();
    let mut memo: BTreeMap<u32, Value> = BTreeMap::new();
    let long = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    loop {
        match take(1)[0] {
            opcode::PROTO => assert_eq!(take(1), [2]),
            opcode::STOP => break,
            opcode::MARK => stack.push(Value::Mark),
            opcode::EMPTY_LIST => stack.push(Value::List(Vec::new())),
            opcode::EMPTY_DICT => stack.push(Value::Dict(BTreeMap::new())),
            opcode::APPENDS => {
                let batch = since_mark(&mut stack);
                let Some(Value::List(items)) = stack.last_mut() else { panic!("no list") };
                items.extend(batch);
            }
            opcode::SETITEMS => {
                let batch = since_mark(&mut stack);
                let Some(Value::Dict(items)) = stack.last_mut() else { panic!("no dict") };
                for pair in batch.chunks_exact(2) {
                    items.insert(pair[0].text().to_string(), pair[1].clone());
                }
            }
            opcode::TUPLE2 => {
                let second = stack.pop().expect("second");
                let first = stack.pop().expect("first");
                stack.push(Value::Pair(Box::new((first, second))));
            }
            opcode::NEWTRUE => stack.push(Value::Truth(true)),
            opcode::NEWFALSE => stack.push(Value::Truth(false)),
            opcode::BININT1 => stack.push(Value::Number(i128::from(take(1)[0]))),
            opcode::BININT => {
                stack.push(Value::Number(i128::from(long(take(4)).cast_signed())));
            }
            opcode::LONG1 => {
                let length = usize::from(take(1)[0]);
                let digits = take(length);
                let sign = if digits.last().is_some_and(|&byte| byte >= 128) { 255 } else { 0 };
                let mut wide = [sign; 16];
                wide[..length].copy_from_slice(digits);
                stack.push(Value::Number(i128::from_le_bytes(wide)));
            }
            opcode::BINUNICODE => {
                let length = long(take(4)) as usize;
                let text = core::str::from_utf8(take(length)).expect("UTF-8");
                stack.push(Value::Text(text.to_string()));
            }
            opcode::BINPUT => {
                memo.insert(u32::from(take(1)[0]), stack.last().expect("a value").clone());
            }
            opcode::LONG_BINPUT => {
                memo.insert(long(take(4)), stack.last().expect("a value").clone());
            }
            opcode::BINGET => stack.push(memo[&u32::from(take(1)[0])].clone()),
            opcode::LONG_BINGET => stack.push(memo[&long(take(4))].clone()),
            other => panic!("unknown opcode {other:#x}"),
        }
    }
    assert_eq!(at, bytes.len(), "bytes after the end");
    assert_eq!(stack.len(), 1, "one value must remain");
    stack.remove(0)
}

fn since_mark(stack: &mut Vec<Value>) -> Vec<Value> {
    let mark = stack.iter().rposition(|value| *value == Value::Mark).expect("a mark");
    let batch = stack.split_off(mark + 1);
    stack.pop();
    batch
}

/// Runs a Python program with the pickle on its standard input; none where there is no Python.
fn python(program: &str, pickle: &[u8]) -> Option<String> {
    let child = Command::new("python3")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        std::eprintln!("SKIPPED: no python3 on this machine, so CPython's reader was not tried");
        return None;
    };
    child.stdin.take().expect("piped").write_all(pickle).expect("python reads");
    let output = child.wait_with_output().expect("python ends");
    assert!(output.status.success(), "python failed on the pickle");
    Some(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The pickle that `write` makes.
fn written(write: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
    let mut pickle = Vec::new();
    let mut parts = |part: Vec<u8>| {
        pickle.extend(part);
        true
    };
    let mut writer = Writer::new(&mut parts);
    write(&mut writer);
    assert!(writer.finish());
    pickle
}

/// A snapshot whose pickle has many parts.
fn large() -> RankSnapshot {
    let mut snapshot = sample();
    let device = &mut snapshot.devices[0];
    let block = |index: u64| Block { address: BASE + index * 512, size: 512, ..Block::default() };
    device.blocks = (0..20_000).map(block).collect();
    device.segments.clear();
    snapshot
}

#[test]
fn the_parts_of_a_pickle_are_small_and_make_the_whole() {
    let snapshot = large();
    let mut parts = Vec::new();
    let all = torch_snapshot_in_parts(&snapshot, &mut |part| {
        parts.push(part);
        true
    });
    assert!(all && parts.len() > 5, "{} parts", parts.len());
    let largest = parts.iter().map(Vec::len).max();
    assert!(largest < Some(PART_BYTES + 4096), "{largest:?}");
    assert_eq!(parts.concat(), torch_snapshot(&snapshot));
}

#[test]
fn a_pickle_that_is_not_wanted_is_not_written_on() {
    let mut parts = 0;
    let all = torch_snapshot_in_parts(&large(), &mut |_| {
        parts += 1;
        parts < 3
    });
    assert_eq!((all, parts), (false, 3));
}

#[test]
fn integers_take_their_shortest_form() {
    let check = |value: i64, bytes: &[u8]| {
        let pickle = written(|writer| writer.signed(value));
        assert_eq!(&pickle[2..pickle.len() - 1], bytes, "{value}");
        assert_eq!(read(&pickle), Value::Number(i128::from(value)));
    };
    check(0, &[b'K', 0]);
    check(255, &[b'K', 255]);
    check(256, &[b'J', 0, 1, 0, 0]);
    check(-1, &[b'J', 255, 255, 255, 255]);
    check(i64::from(i32::MAX), &[b'J', 255, 255, 255, 127]);
    check(i64::from(i32::MAX) + 1, &[0x8a, 5, 0, 0, 0, 128, 0]);
    check(i64::from(i32::MIN) - 1, &[0x8a, 5, 255, 255, 255, 127, 255]);
    check(0x7f1a_0000_0000, &[0x8a, 6, 0, 0, 0, 0, 0x1a, 0x7f]);
    check(i64::MIN, &[0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 128]);
}

#[test]
fn python_reads_the_written_pickle() {
    let pickle = written(|writer| {
        writer.list_start();
        let numbers = [0, 255, 256, u64::from(u32::MAX), 1 << 47, 1 << 63, u64::MAX];
        for number in numbers {
            writer.item();
            writer.unsigned(number);
        }
        for text in ["", "naïve ‹λ›", "again", "again"] {
            writer.item();
            writer.text(text);
        }
        // More texts than one byte can number, and more items than one batch holds.
        for index in 0..u64::from(BATCH_ITEMS) + 5 {
            writer.item();
            writer.text(&format!("text {}", index % 400));
        }
        writer.list_end();
    });
    let items = read(&pickle);
    assert_eq!(items.items().len(), 11 + BATCH_ITEMS as usize + 5);
    assert_eq!(items.items()[6].number(), i128::from(u64::MAX));
    let program = "import pickle, sys\nv = pickle.load(sys.stdin.buffer)\n\
                   print(v[:11], len(v), v[-1])";
    if let Some(answer) = python(program, &pickle) {
        let expected = "[0, 255, 256, 4294967295, 140737488355328, 9223372036854775808, \
                        18446744073709551615, '', 'naïve ‹λ›', 'again', 'again'] 1016 text 204\n";
        assert_eq!(answer, expected);
    }
}

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn block(address: u64, size: u64, stack: u32) -> Block {
    Block { address, size, stack, birth_step: 7, birth_ns: 70, ..Block::default() }
}

fn segment(address: u64, size: u64) -> Segment {
    let small = size == 2 * MIB;
    Segment { address, size, small, ..Segment::default() }
}

fn event(kind: TraceKind, address: u64, size: u64) -> TraceEvent {
    let (detail, place) = (0, 0);
    TraceEvent {
        kind,
        mono_ns: 5_000_000,
        address,
        size,
        detail,
        stack: 1,
        stream_pool: place,
        step: 7,
    }
}

/// A rank with a known segment, a leaking stack and a block in no segment.
fn sample() -> RankSnapshot {
    let frame = |file: &str, line, function: &str| Frame {
        file: file.to_string(),
        line,
        function: function.to_string(),
    };
    let device = DeviceSnapshot {
        device: 1,
        allocated: 5 * MIB,
        reserved: 22 * MIB,
        device_bytes: 100 * MIB,
        blocks: vec![
            block(BASE, MIB, 1),
            block(BASE + 3 * MIB, 2 * MIB, 2),
            block(BASE + 64 * MIB, 512, 1),
        ],
        segments: vec![segment(BASE, 20 * MIB)],
        trace: vec![
            event(TraceKind::Free, BASE + 64 * MIB + 4096, 1024),
            event(TraceKind::MallocFailed, 0, 64 * MIB),
            event(TraceKind::Oom, 0, 64 * MIB),
            TraceEvent { mono_ns: 6_000_000, ..event(TraceKind::Alloc, BASE, MIB) },
        ],
        complete: true,
        ..DeviceSnapshot::default()
    };
    RankSnapshot {
        identity: Identity { job: "j".to_string(), rank: 3, ..Identity::default() },
        step: 7,
        wall_ns: 1_000_000_000,
        devices: vec![device],
        frames: vec![
            Frame::default(),
            frame("/app/train.py", 36, "remember"),
            frame("/app/train.py", 80, "main"),
        ],
        stacks: vec![vec![], vec![1, 2], vec![2]],
        ..RankSnapshot::default()
    }
}

#[test]
fn a_snapshot_has_pytorchs_shape() {
    let pickle = torch_snapshot(&sample());
    let value = read(&pickle);
    let segments = value.at("segments").items();
    assert_eq!(segments.len(), 2);
    let large = &segments[0];
    assert_eq!(large.at("address").number(), i128::from(BASE));
    assert_eq!(large.at("allocated_size").number(), i128::from(3 * MIB));
    assert_eq!(large.at("segment_type").text(), "large");
    let states: Vec<&str> =
        large.at("blocks").items().iter().map(|block| block.at("state").text()).collect();
    assert_eq!(states, ["active_allocated", "inactive", "active_allocated", "inactive"]);
    let frames = large.at("blocks").items()[0].at("frames").items();
    assert_eq!(frames[0].at("name").text(), "remember");
    assert_eq!(frames[0].at("line").number(), 36);
    assert_eq!(segments[1].at("segment_type").text(), "small");
    assert_eq!(segments[1].at("total_size").number(), i128::from(2 * MIB));

    let traces = value.at("device_traces").items();
    assert_eq!(traces.len(), 2, "one for each device index");
    assert_eq!(traces[0].items(), []);
    let actions: Vec<&str> =
        traces[1].items().iter().map(|event| event.at("action").text()).collect();
    assert_eq!(actions, ["free_requested", "free_completed", "oom", "alloc"]);
    assert_eq!(traces[1].items()[2].at("device_free").number(), i128::from(78 * MIB));
    assert_eq!(traces[1].items()[0].at("time_us").number(), 999_000);
    assert_eq!(traces[1].items()[3].at("time_us").number(), 1_000_000);
    assert_eq!(value.at("memtape").at("rank").number(), 3);
}

#[test]
fn fields_that_the_tape_does_not_know_are_named() {
    let check = |snapshot: &RankSnapshot, expected: &[&str]| {
        let value = read(&torch_snapshot(snapshot));
        let unknown = value.at("memtape").at("unknown").items();
        let unknown: Vec<&str> = unknown.iter().map(|field| field.text()).collect();
        assert_eq!(unknown, expected);
    };
    let mut snapshot = sample();
    check(&snapshot, &UNKNOWN_WITHOUT_TRACE);
    snapshot.devices[0].segment_source = SegmentSource::Allocator;
    snapshot.stream_pools = vec![StreamPool { stream: Some(0), pool: None }];
    check(&snapshot, &["segment_pool_id"]);
    snapshot.stream_pools[0].pool = Some((0, 0));
    check(&snapshot, &[]);
}

#[test]
fn python_agrees_on_a_snapshot() {
    let program = "import pickle, sys\n\
        s = pickle.load(sys.stdin.buffer)\n\
        for g in s['segments']:\n    \
            assert sum(b['size'] for b in g['blocks']) == g['total_size']\n\
        b = s['segments'][0]['blocks']\n\
        assert b[0]['frames'] is s['segments'][1]['blocks'][0]['frames'], 'stacks are shared'\n\
        assert s['segments'][0]['segment_pool_id'] == (0, 0)\n\
        print(sorted(s), b[0]['frames'], [len(t) for t in s['device_traces']])";
    if let Some(answer) = python(program, &torch_snapshot(&sample())) {
        let expected = "['allocator_settings', 'device_traces', 'external_annotations', \
            'memtape', 'segments'] [{'name': 'remember', 'filename': '/app/train.py', 'line': 36}, \
            {'name': 'main', 'filename': '/app/train.py', 'line': 80}] [0, 4]\n";
        assert_eq!(answer, expected);
    }
}

#[test]
fn an_empty_rank_is_a_snapshot_too() {
    let value = read(&torch_snapshot(&RankSnapshot::default()));
    assert_eq!(value.at("segments").items(), []);
    assert_eq!(value.at("device_traces").items(), [Value::List(vec![])]);
}

/// Segments in MiB from BASE as (start, size), blocks likewise, then the expected segments.
fn check_layout(
    known: &[(u64, u64)],
    blocks: &[(u64, u64)],
    expected: &[(u64, u64)],
    left_out: u64,
) {
    let device = DeviceSnapshot {
        segments: known.iter().map(|s| segment(BASE + s.0 * MIB, s.1 * MIB)).collect(),
        blocks: blocks.iter().map(|b| block(BASE + b.0 * MIB, b.1 * MIB, 0)).collect(),
        ..DeviceSnapshot::default()
    };
    let laid = layout::lay_out(&device);
    let found: Vec<(u64, u64)> =
        laid.segments.iter().map(|s| ((s.address - BASE) / MIB, s.size / MIB)).collect();
    assert_eq!((found.as_slice(), laid.blocks_left_out), (expected, left_out));
}

#[test]
fn blocks_find_or_make_their_segments() {
    check_layout(&[], &[], &[], 0);
    check_layout(&[(0, 20)], &[(0, 1), (5, 3)], &[(0, 20)], 0);
    // Runs are rounded out to 2 MiB, and neighbours share one.
    check_layout(&[], &[(1, 1), (2, 1), (3, 2), (9, 1)], &[(0, 6), (8, 2)], 0);
    // An invented segment never reaches into a known one.
    check_layout(&[(4, 2), (7, 3)], &[(6, 1)], &[(4, 2), (6, 1), (7, 3)], 0);
    // Damage: overlapping blocks, and blocks across an edge.
    check_layout(&[(0, 4)], &[(0, 2), (1, 2), (3, 2)], &[(0, 4)], 2);
    check_layout(&[(0, 4), (2, 4)], &[(0, 1)], &[(0, 4)], 0);
}

#[test]
fn events_must_fit_the_segments() {
    let check = |events: &[(TraceKind, u64)], kept: usize, segments: usize| {
        let device = DeviceSnapshot {
            segments: vec![segment(BASE, 2 * MIB)],
            trace: events
                .iter()
                .map(|&(kind, mib)| event(kind, BASE + mib * MIB, 2 * MIB))
                .collect(),
            ..DeviceSnapshot::default()
        };
        let laid = layout::lay_out(&device);
        assert_eq!((laid.trace.len(), laid.segments.len()), (kept, segments), "{events:?}");
    };
    check(&[(TraceKind::SegmentAlloc, 0)], 1, 1);
    check(&[(TraceKind::SegmentAlloc, 8)], 0, 1);
    check(&[(TraceKind::SegmentAlloc, 8), (TraceKind::SegmentFree, 8)], 2, 1);
    // Already there: it cannot have been freed last.
    check(&[(TraceKind::SegmentFree, 0)], 0, 1);
    // Memory freed in a segment that is gone needs none; without that event it needs one.
    check(&[(TraceKind::Free, 8), (TraceKind::SegmentFree, 8)], 2, 1);
    check(&[(TraceKind::Free, 8)], 1, 2);
}

proptest! {
    #[test]
    fn integers_survive(value in any::<i64>(), unsigned in any::<u64>()) {
        let pickle = written(|writer| {
            writer.list_start();
            writer.item();
            writer.signed(value);
            writer.item();
            writer.unsigned(unsigned);
            writer.list_end();
        });
        let found = read(&pickle);
        prop_assert_eq!(found.items()[0].number(), i128::from(value));
        prop_assert_eq!(found.items()[1].number(), i128::from(unsigned));
    }

    /// For any tape, segments are disjoint, filled exactly, and every event's memory is inside a
    /// segment that a viewer knows at that time.
    #[test]
    fn any_tape_makes_a_consistent_layout(
        segments in prop::collection::vec((0u64..64, 0u64..9), 0..12),
        blocks in prop::collection::vec((0u64..64, 0u64..5, 0u32..9), 0..24),
        events in prop::collection::vec((0u8..6, 0u64..64, 0u64..6), 0..24),
        base in prop::sample::select(vec![BASE, BASE + 4096, 0, u64::MAX - 70 * MIB]),
    ) {
        let kinds = [TraceKind::Alloc, TraceKind::Free, TraceKind::Oom, TraceKind::SegmentAlloc,
            TraceKind::SegmentFree, TraceKind::MallocFailed];
        let device = DeviceSnapshot {
            segments: segments.iter()
                .map(|s| segment(base + s.0 * MIB, s.1 * MIB)).collect(),
            blocks: blocks.iter().map(|b| block(base + b.0 * MIB, b.1 * MIB, b.2)).collect(),
            trace: events.iter()
                .map(|e| event(kinds[usize::from(e.0)], base + e.1 * MIB, e.2 * MIB)).collect(),
            ..DeviceSnapshot::default()
        };
        let laid = layout::lay_out(&device);
        let mut end_before = 0;
        let mut live = 0;
        for segment in &laid.segments {
            prop_assert!(segment.address >= end_before);
            let mut at = segment.address;
            for Piece { address, size, live: block } in &segment.pieces {
                prop_assert_eq!(*address, at);
                prop_assert!(*size > 0);
                at += size;
                live += u64::from(block.is_some());
            }
            prop_assert_eq!(at, segment.address + segment.size);
            end_before = at;
        }
        let wanted = device.blocks.iter().filter(|b| b.size > 0).count() as u64;
        prop_assert_eq!(live + laid.blocks_left_out, wanted);
        let snapshot = RankSnapshot { devices: vec![device], ..sample() };
        let value = read(&torch_snapshot(&snapshot));
        prop_assert_eq!(value.at("segments").items().len(), laid.segments.len());
    }
}

//! A tape that says everything is believed; one that says anything else is not.

use memtape_core::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, Segment, StreamPool};
use memtape_core::tape::read::Status;

use super::*;

const STREAM: u64 = 7;

fn request(what: What, address: u64, size: u64, line: u32) -> Request {
    let stream = if address >> 24 == 3 { STREAM } else { 0 };
    Request { what, address, size, line, stream }
}

/// What tests/compat/drive.py does, with addresses that are easy to read.
fn requests() -> Vec<Request> {
    vec![
        request(What::Alloc, 1 << 24, 1000, 11),
        request(What::Alloc, 2 << 24, 3_000_100, 12),
        request(What::Alloc, 3 << 24, 5000, 13),
        request(What::Alloc, (1 << 24) + 1024, 700, 14),
        request(What::Defer, 3 << 24, 5000, 15),
        request(What::Free, 1 << 24, 1000, 16),
        request(What::Oom, 0, 1 << 40, 17),
        request(What::Free, 2 << 24, 3_000_100, 18),
    ]
}

/// A run whose tape is right.
fn run(with_detail: bool) -> Run {
    let requests = requests();
    let line_of = |address: u64, what: What| {
        let is_it = |r: &&Request| r.what == what && (r.address == address || what == What::Oom);
        requests.iter().find(is_it).map_or(0, |r| r.line)
    };
    let mut trace = Vec::new();
    for (kind, address, size, detail, stream) in traced(&requests) {
        let what = if kind == TraceKind::Oom { What::Oom } else { What::Alloc };
        let kind = match kind {
            TraceKind::FreeDeferred if !with_detail => TraceKind::Free,
            TraceKind::FreeCompleted if !with_detail => continue,
            kind => kind,
        };
        let stack = line_of(address, what);
        let place = if stream.is_none() { 0 } else { 1 + u16::from(stream == Some(STREAM)) };
        let (mono_ns, step) = (trace.len() as u64, 0);
        trace.push(TraceEvent {
            kind,
            mono_ns,
            address,
            size,
            detail,
            stack,
            stream_pool: place,
            step,
        });
    }
    let failed = TraceEvent { kind: TraceKind::MallocFailed, ..trace[0] };
    trace.push(failed);
    let place = |stream| StreamPool { stream: Some(stream), pool: Some((0, 0)) };
    let frame = |line| Frame { file: "/x/drive.py".into(), line, function: "main".into() };
    let kept = Block { address: (1 << 24) + 1024, size: 1024, requested: 700, ..Block::default() };
    let segment = Segment { address: 1 << 24, size: SMALL_SEGMENT, ..Segment::default() };
    let source = if with_detail { SegmentSource::Allocator } else { SegmentSource::Runtime };
    let device = DeviceSnapshot {
        allocated: 1024,
        reserved: SMALL_SEGMENT + LARGE_SEGMENT,
        blocks: vec![kept],
        segments: vec![segment],
        segment_source: source,
        trace,
        ..DeviceSnapshot::default()
    };
    let snapshot = RankSnapshot {
        devices: vec![device],
        frames: (0..100).map(frame).collect(),
        stacks: (0..100).map(|line| vec![line]).collect(),
        stream_pools: vec![StreamPool::default(), place(0), place(STREAM)],
        ..RankSnapshot::default()
    };
    let tracker = if with_detail { Tracker::Attached } else { Tracker::NotAsked };
    Run { requests, snapshot, status: Status::default(), tracker: tracker as u64 }
}

/// The findings about a tape that is right but for one thing.
fn findings(spoil: impl Fn(&mut Run)) -> [bool; 4] {
    let (mut plain, mut detailed) = (run(false), run(true));
    spoil(&mut plain);
    spoil(&mut detailed);
    let found = Findings::of(11, &plain, &detailed);
    let all = [&found.hook_1, &found.hook_2, &found.stacks, &found.segments];
    assert_eq!(found.are_good(), all.iter().all(|finding| finding.is_ok()), "{all:?}");
    all.map(|finding| finding.is_ok())
}

fn event(run: &mut Run, kind: TraceKind) -> &mut TraceEvent {
    let is_it = |event: &&mut TraceEvent| event.kind == kind;
    run.snapshot.devices[0].trace.iter_mut().find(is_it).expect("there is one")
}

#[test]
fn what_is_right_is_believed() {
    assert_eq!(findings(|_| {}), [true; 4]);
    assert!(Findings::of(11, &run(false), &run(true)).has_pools);
}

#[test]
fn what_is_wrong_is_not() {
    let check = |expected: [bool; 4], spoil: &dyn Fn(&mut Run)| {
        assert_eq!(findings(spoil), expected);
    };
    // Of hook 1, hook 2, stacks and segments.
    check([false, false, true, true], &|run| event(run, TraceKind::Alloc).size += 512);
    check([false, false, true, true], &|run| event(run, TraceKind::Free).address += 512);
    check([false, false, true, true], &|run| event(run, TraceKind::Oom).size = 0);
    check([false, true, true, true], &|run| run.snapshot.devices[0].allocated = 0);
    check([false, false, true, true], &|run| run.snapshot.devices[0].reserved = 0);
    check([false, true, true, true], &|run| run.status.lost = 1);
    check([true, false, true, true], &|run| event(run, TraceKind::Alloc).detail += 1);
    check([true, false, true, true], &|run| event(run, TraceKind::Alloc).stream_pool = 2);
    check([true, false, true, true], &|run| run.snapshot.stream_pools[1].pool = Some((0, 1)));
    check([true, false, true, true], &|run| run.snapshot.devices[0].blocks[0].requested = 0);
    check([true, true, false, true], &|run| event(run, TraceKind::Alloc).stack = 50);
    check([true, true, false, true], &|run| event(run, TraceKind::Oom).stack = 0);
    check([true, false, true, false], &|run| event(run, TraceKind::SegmentFree).size += 512);
    check([true, false, true, false], &|run| run.snapshot.devices[0].segments.clear());
    check([true, true, true, false], &|run| {
        run.snapshot.devices[0].trace.retain(|event| event.kind != TraceKind::MallocFailed);
    });
    check([false; 4], &|run| run.snapshot.devices.clear());
}

#[test]
fn what_is_not_there_must_say_so_on_the_tape() {
    let check = |minor: u32, says: &[&str], is_good: bool, expected: &str| {
        let mut detailed = run(false);
        detailed.tracker = Tracker::NoFunction as u64;
        detailed.status.limitations = says.iter().map(|line| line.to_string()).collect();
        let found = Findings::of(minor, &run(false), &detailed);
        let why = found.hook_2.as_ref().expect_err("it is not there").to_string();
        assert_eq!((why.as_str(), found.has_pools), (expected, false));
        assert_eq!(found.are_good(), is_good, "torch 2.{minor}, {says:?}");
    };
    let old = ["no steps: why", "no detail: torch before 2.2 has no trace tracker"];
    let said = "unavailable: torch before 2.2 has no trace tracker";
    check(0, &old, true, said);
    check(2, &old, false, said);
    check(0, &old[..1], false, "not attached, and the tape does not say why");
}

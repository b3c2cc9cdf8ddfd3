//! The codec of snapshots: what is written is read, and what contradicts itself is refused.

use memtape_core::identity::Identity;
use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::limits::SNAPSHOT_BYTES_MAX;
use memtape_core::snapshot::failed_request::FailedRequest;
use memtape_core::snapshot::marks::Mark;
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::workers::{WorkerSamples, WorkerStack};
use memtape_core::snapshot::{
    Block, CollectiveGroup, CollectiveSource, Collectives, DeviceSnapshot, Frame, Held,
    OutsideStack, OutsideUse, RankSnapshot, Segment, SegmentSource, StackUse, StreamPool,
    TraceEvent, TraceKind,
};
use memtape_proto::snapshot::{Bounds, DecodeError, EncodeError, collectives, decode, encode};
use memtape_proto::v1;
use proptest::prelude::*;
use prost::Message as _;

/// One event of each kind.
fn sample_trace() -> Vec<TraceEvent> {
    let event = |(index, kind): (usize, TraceKind)| TraceEvent {
        kind,
        mono_ns: 2_000_000 + index as u64,
        address: 0x7f00_0000_0000,
        size: 1 << index,
        detail: index as u64,
        stack: 1,
        stream_pool: 1,
        step: 9,
    };
    let kinds = [
        TraceKind::Alloc,
        TraceKind::Free,
        TraceKind::Oom,
        TraceKind::SegmentAlloc,
        TraceKind::SegmentFree,
        TraceKind::MallocFailed,
        TraceKind::FreeDeferred,
        TraceKind::FreeCompleted,
        TraceKind::SegmentMap,
        TraceKind::SegmentUnmap,
        TraceKind::Snapshot,
    ];
    kinds.into_iter().enumerate().map(event).collect()
}

fn sample_device() -> DeviceSnapshot {
    let block = |index: u64| Block {
        address: 0x7f00_0000_0000 + index * 4096,
        size: 512 * (index + 1),
        requested: 500 * (index + 1),
        stack: (index % 3) as u32,
        birth_step: index,
        birth_ns: 1_000_000 + index * 1000,
        stream_pool: (index % 2) as u16,
        pending: index == 3,
    };
    let segment = |index: u64| Segment {
        address: 0x7f00_0000_0000 + (index << 21),
        size: 2 << 20,
        stream_pool: 1,
        stack: 2,
        expandable: index == 1,
        small: index == 0,
    };
    DeviceSnapshot {
        device: 1,
        uuid: "GPU-1".to_string(),
        allocated: 5120,
        reserved: 4 << 20,
        device_bytes: 80 << 30,
        blocks: (0..4).map(block).collect(),
        segments: (0..2).map(segment).collect(),
        segment_source: SegmentSource::Allocator,
        before: vec![StackUse { stack: 2, bytes: 512, blocks: 1 }],
        trace: sample_trace(),
        complete: true,
        ..DeviceSnapshot::default()
    }
}

fn sample_workers() -> WorkerSamples {
    WorkerSamples {
        processes: 3,
        processes_failed: 1,
        processes_left_out: 4,
        duration_ns: 5_000_000_000,
        stacks: vec![WorkerStack { stack: 2, samples: 40 }],
        samples_left_out: 2,
        failure: "no permission".to_string(),
    }
}

fn sample_request() -> FailedRequest {
    FailedRequest {
        device: 0,
        step: 8,
        wall_ns: 1_700_000_000_000_000_001,
        bytes: 96 << 20,
        stack: 1,
        allocated: 7 << 30,
        reserved: 8 << 30,
        device_free: Some(50 << 20),
        uses: vec![StackUse { stack: 2, bytes: 6 << 30, blocks: 12 }],
    }
}

/// A snapshot in which every field says something.
fn sample() -> RankSnapshot {
    let frame = |file: &str, line, function: &str| Frame {
        file: file.to_string(),
        line,
        function: function.to_string(),
    };
    RankSnapshot {
        identity: Identity {
            tape_id: "tape-1".to_string(),
            job: "job".to_string(),
            role: String::new(),
            attempt: 2,
            rank: 3,
            world_size: 8,
            local_rank: 1,
            host: String::new(),
            planned_end: PlannedEnd::default(),
            pid: 4711,
            command: "python train.py".to_string(),
            allocator: None,
            hints: String::new(),
        },
        step: 9,
        wall_ns: 1_700_000_000_000_000_000,
        devices: vec![sample_device()],
        frames: vec![
            Frame::default(),
            frame("/app/train.py", 36, "step"),
            frame("/app/naïve.py", 7, "Model.forward"),
        ],
        stacks: vec![vec![], vec![1], vec![2, 1]],
        stream_pools: vec![
            StreamPool::default(),
            StreamPool { stream: Some(0), pool: Some((0, 1)) },
        ],
        outside: vec![OutsideUse { origin: Origin::Nccl, device: 1, bytes: 64, count: 2 }],
        outside_stacks: vec![OutsideStack {
            origin: Origin::HostPinned,
            device: 0,
            stack: 2,
            held: Held { bytes: 70, count: 7 },
            fresh: Held { bytes: 20, count: 2 },
            before: Some(Held { bytes: 50, count: 5 }),
            births: 3,
            first_step: 1,
            last_step: 9,
        }],
        outside_stacks_left_out: 6,
        outside_missing: false,
        marks: vec![sample_mark()],
        failed_request: Some(sample_request()),
        worker_samples: Some(sample_workers()),
        before_step: 5,
        collectives: Collectives {
            source: CollectiveSource::FlightRecorder,
            source_since_ns: 11,
            look_wall_ns: 12,
            look_took_ns: 13,
            asked_wall_ns: 14,
            groups: vec![sample_group()],
            groups_lost: 2,
        },
        ..RankSnapshot::default()
    }
}

fn sample_group() -> CollectiveGroup {
    CollectiveGroup {
        id: 1,
        key: u64::MAX,
        name: "default_pg".to_string(),
        desc: "mesh_dp".to_string(),
        size: 8,
        enqueued: Some(812),
        started: None,
        completed: Some(0),
        since_wall_ns: 17,
    }
}

fn sample_mark() -> Mark {
    Mark { mono_ns: 18, step: 8, text: "eval".to_string() }
}

/// The sample as a message, changed and compressed.
fn changed(change: impl FnOnce(&mut v1::RankSnapshot)) -> Vec<u8> {
    let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    let message = zstd::stream::decode_all(encoded.as_slice()).expect("own compression");
    let mut raw = v1::RankSnapshot::decode(message.as_slice()).expect("own encoding");
    change(&mut raw);
    compressed(&raw.encode_to_vec())
}

fn compressed(message: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(message, 3).expect("zstd")
}

fn columns(raw: &mut v1::RankSnapshot) -> &mut v1::Blocks {
    raw.devices[0].blocks.as_mut().expect("blocks")
}

fn segments(raw: &mut v1::RankSnapshot) -> &mut v1::Segments {
    raw.devices[0].segments.as_mut().expect("segments")
}

fn workers(raw: &mut v1::RankSnapshot) -> &mut v1::WorkerSamples {
    raw.worker_samples.as_mut().expect("the sample has some")
}

#[test]
fn a_snapshot_written_by_b715533_is_read() {
    let stored = include_bytes!("data/snapshot-b715533.zst");
    let before =
        RankSnapshot { worker_samples: None, marks: vec![], failed_request: None, ..sample() };
    assert_eq!(decode(stored, Bounds::default()).expect("readable"), before);
    let found = collectives(stored).expect("readable").expect("they are in front");
    assert_eq!(found, sample().collectives);
}

#[test]
fn every_field_survives() {
    let mut snapshot = sample();
    snapshot.identity.role = "pp0".to_string();
    snapshot.identity.allocator = Some("max_split_size_mb:64".to_string());
    snapshot.identity.hints = "expandable_segments:True".to_string();
    snapshot.outside_missing = true;
    let encoded = encode(snapshot.clone(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    assert_eq!(decode(&encoded, Bounds::default()).expect("own encoding"), snapshot);
    snapshot.devices[0].trace.clear();
    assert_eq!(
        decode(&encoded, Bounds::default().without_trace()).expect("own encoding"),
        snapshot
    );
}

#[test]
fn the_newest_events_are_kept() {
    let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    let bounds = Bounds { trace_events_max: 2, ..Bounds::default() };
    let found = decode(&encoded, bounds).expect("own encoding");
    let kinds: Vec<TraceKind> = found.devices[0].trace.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [TraceKind::SegmentUnmap, TraceKind::Snapshot]);
}

#[test]
fn a_snapshot_over_the_limit_is_refused_on_both_sides() {
    let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    let error = encode(sample(), 100).expect_err("the sample is larger");
    assert!(matches!(error, EncodeError::TooLarge { bytes: 101.., bytes_max: 100 }), "{error}");
    let bounds = Bounds { bytes_max: 100, ..Bounds::default() };
    let error = decode(&encoded, bounds).expect_err("the sample is larger");
    assert!(matches!(error, DecodeError::TooLarge { bytes: 101.., bytes_max: 100 }), "{error}");
}

#[test]
fn a_contradictory_snapshot_is_refused() {
    let check = |change: fn(&mut v1::RankSnapshot), part: &str| {
        let error = decode(&changed(change), Bounds::default()).expect_err(part);
        assert!(error.to_string().contains(part), "{error} does not contain {part:?}");
    };
    let uneven = "blocks differ in length";
    check(|raw| columns(raw).sizes.truncate(3), uneven);
    check(|raw| columns(raw).requested.push(7), uneven);
    check(|raw| columns(raw).places.truncate(1), uneven);
    check(|raw| columns(raw).birth_steps.truncate(3), uneven);
    check(|raw| columns(raw).birth_mono_ns.push(7), uneven);
    check(|raw| segments(raw).flags.push(7), "segments differ in length");
    check(|raw| segments(raw).addresses.clear(), "segments differ in length");

    check(|raw| raw.frames.clear(), "names frame 1 of 0");
    check(|raw| columns(raw).stacks[0] = 9, "names stack 9 of 3");
    check(|raw| columns(raw).places[0] = 2, "names stream and pool 2 of 2");
    check(|raw| columns(raw).pending.push(4), "names pending block 4 of 4");
    check(|raw| segments(raw).stacks[1] = u32::MAX, "names stack 4294967295 of 3");
    check(|raw| raw.devices[0].trace[0].stack = 3, "names stack 3 of 3");
    check(|raw| raw.devices[0].trace[0].place = 1 << 20, "names stream and pool");
    check(|raw| raw.devices[0].before[0].stack = 3, "names stack 3 of 3");
    check(|raw| raw.outside_stacks[0].stack = 3, "names stack 3 of 3");
    check(|raw| workers(raw).stacks[0].stack = 3, "names stack 3 of 3");
    check(|raw| workers(raw).stacks = vec![v1::WorkerStack::default(); 257], "stacks of workers");

    check(|raw| columns(raw).address_deltas[0] = u64::MAX, "block addresses add up");
    check(|raw| columns(raw).sizes[0] = u64::MAX, "block sizes add up");
    check(|raw| segments(raw).sizes[0] = u64::MAX, "segment sizes add up");
    check(
        |raw| raw.devices[0].before.push(v1::StackUse { bytes: u64::MAX, stack: 0, blocks: 1 }),
        "earlier bytes add up",
    );

    check(|raw| raw.devices[0].device = 300, "device is out of range: 300");
    check(|raw| raw.outside[0].origin = 1 << 20, "origin is out of range");
    check(|raw| raw.outside_stacks[0].device = 300, "device is out of range: 300");
    let groups = |raw: &mut v1::RankSnapshot| {
        let found = raw.collectives.as_mut().expect("collectives");
        found.groups = vec![v1::CollectiveGroup::default(); 65];
    };
    check(groups, "65 process groups, more than 64");
    check(|raw| raw.devices = vec![v1::DeviceState::default(); 17], "17 devices, more than 16");
    check(
        |raw| raw.outside_stacks = vec![raw.outside_stacks[0]; 1 << 16],
        "stacks outside the allocator, more than",
    );
}

#[test]
fn unknown_kinds_are_left_out() {
    let bare = changed(|raw| {
        raw.devices[0].trace[0].kind = 99;
        raw.outside[0].origin = 60_000;
        raw.collectives = None;
        columns(raw).requested.clear();
        columns(raw).places.clear();
    });
    let found = decode(&bare, Bounds::default()).expect("a newer agent's");
    assert_eq!(found.devices[0].trace.len(), sample().devices[0].trace.len() - 1);
    assert_eq!(found.outside[0].origin, Origin::Unknown);
    assert_eq!(found.collectives, Collectives::default());
    let details = found.devices[0].blocks.iter().map(|block| (block.requested, block.stream_pool));
    assert!(details.eq([(0, 0); 4]));
    let empty = decode(&compressed(&[]), Bounds::default()).expect("an empty message");
    assert_eq!(empty.stacks, [Vec::<u32>::new()], "index 0 is the unknown stack");
}

#[test]
fn collectives_are_read_from_the_front_only() {
    let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    assert_eq!(collectives(&encoded).expect("in front"), Some(sample().collectives));
    let message = zstd::stream::decode_all(encoded.as_slice()).expect("own compression");
    let raw = v1::RankSnapshot::decode(message.as_slice()).expect("own encoding");
    let behind = compressed(&raw.encode_to_vec());
    assert_eq!(collectives(&behind).expect("readable"), None);
    assert_eq!(decode(&behind, Bounds::default()).expect("readable"), sample());
    let control = changed(|raw| {
        let found = raw.collectives.as_mut().expect("collectives");
        found.groups[0].name = "a\nb".repeat(30);
    });
    let found = decode(&control, Bounds::default()).expect("readable").collectives;
    assert_eq!(found.groups[0].name.len(), 32);
    assert!(found.groups[0].name.starts_with("a ba b"));
    for wrong in [&[0x52, 0xff, 0xff][..], &[0x52, 0x05, 0xff], &[0x52]] {
        assert!(collectives(&compressed(wrong)).is_err(), "{wrong:?}");
    }
    assert!(collectives(b"not zstd").is_err());
}

#[test]
fn garbage_and_bombs_are_refused() {
    let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
    let whole = |bytes: &[u8]| decode(bytes, Bounds::default()).map(drop);
    for length in 0..encoded.len() {
        assert!(whole(&encoded[..length]).is_err(), "the first {length} bytes");
    }
    assert!(matches!(whole(b"not zstd at all"), Err(DecodeError::NotCompressed)));
    assert!(matches!(whole(&compressed(&[0xff; 100])), Err(DecodeError::NotDecoded(_))));
    // A stream that does not say its size.
    let silent = zstd::stream::encode_all(&[0; 100][..], 3).expect("zstd");
    assert!(matches!(whole(&silent), Err(DecodeError::NotCompressed)));
    // A small frame that holds more than the limit, and says so.
    let bomb = compressed(&vec![0; SNAPSHOT_BYTES_MAX + 1]);
    assert!(bomb.len() < 1 << 20);
    assert!(matches!(whole(&bomb), Err(DecodeError::TooLarge { .. })));
    // One that understates its size: the header's four bytes of size are made smaller.
    let mut liar = compressed(&vec![0; 1 << 20]);
    let at = liar.windows(4).position(|four| four == (1_u32 << 20).to_le_bytes());
    liar[at.expect("the size stands in the header") + 2] = 1;
    assert!(matches!(whole(&liar), Err(DecodeError::Decompress(_))));
    // A second frame behind the first.
    let twice = [encoded.clone(), encoded].concat();
    assert!(matches!(whole(&twice), Err(DecodeError::Decompress(_))));
}

fn a_block(stacks: u32, places: u16) -> impl Strategy<Value = Block> {
    let numbers = (1_u64..1 << 40, 0_u64..1 << 40, 0..stacks, 0..places);
    let births = (any::<u64>(), any::<u64>(), any::<bool>());
    (numbers, births).prop_map(|((size, requested, stack, place), (step, ns, pending))| Block {
        address: 0,
        size,
        requested,
        stack,
        birth_step: step,
        birth_ns: ns,
        stream_pool: place,
        pending,
    })
}

fn a_device(stacks: u32, places: u16) -> impl Strategy<Value = DeviceSnapshot> {
    let blocks = prop::collection::btree_map(any::<u64>(), a_block(stacks, places), 0..40);
    let segment = (any::<u64>(), 0_u64..1 << 40, any::<bool>())
        .prop_map(|(address, size, small)| Segment { address, size, small, ..Segment::default() });
    let segments = prop::collection::vec(segment, 0..9);
    let event = (any::<u64>(), any::<u64>(), 0..stacks, 0..places).prop_map(
        |(mono_ns, size, stack, place)| TraceEvent {
            kind: TraceKind::Alloc,
            mono_ns,
            address: size,
            size,
            detail: mono_ns,
            stack,
            stream_pool: place,
            step: size,
        },
    );
    let trace = prop::collection::vec(event, 0..20);
    (any::<u8>(), ".{0,60}", blocks, segments, trace, any::<bool>()).prop_map(
        |(device, uuid, blocks, segments, trace, complete)| DeviceSnapshot {
            device,
            uuid,
            blocks: blocks.into_iter().map(|(address, block)| Block { address, ..block }).collect(),
            segments,
            segment_source: SegmentSource::Allocator,
            trace,
            complete,
            ..DeviceSnapshot::default()
        },
    )
}

prop_compose! {
    fn a_snapshot()(
        stacks in prop::collection::vec(prop::collection::vec(0_u32..5, 0..6), 1..9),
        places in 1_u16..5,
    )(
        devices in prop::collection::vec(a_device(stacks.len() as u32, places), 0..3),
        stacks in Just(stacks),
        places in Just(places),
        texts in (".{0,60}", ".{0,60}", ".{0,60}"),
        step in any::<u64>(),
        wall_ns in any::<i64>(),
    ) -> RankSnapshot {
        let frame = Frame { file: texts.0.clone(), line: 7, function: texts.1.clone() };
        RankSnapshot {
            identity: Identity { job: texts.2, rank: 3, ..Identity::default() },
            step,
            wall_ns,
            devices,
            frames: vec![frame; 5],
            stacks,
            stream_pools: (0..places).map(|place| StreamPool {
                stream: Some(u64::from(place)),
                pool: None,
            }).collect(),
            ..RankSnapshot::default()
        }
    }
}

proptest! {
    #[test]
    fn an_encoded_snapshot_decodes_to_itself(snapshot in a_snapshot()) {
        let encoded = encode(snapshot.clone(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
        prop_assert_eq!(decode(&encoded, Bounds::default()).expect("own encoding"), snapshot);
    }

    #[test]
    fn damage_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let encoded = encode(sample(), SNAPSHOT_BYTES_MAX).expect("a small snapshot");
        let mut message = zstd::stream::decode_all(encoded.as_slice()).expect("own compression");
        let at = at.index(message.len());
        message[at] = byte;
        let _ = decode(&compressed(&message), Bounds::default());
        let _ = collectives(&compressed(&message));
    }
}

/// Kinds go over the wire as their numbers, so both lists must agree.
#[test]
fn kinds_have_the_numbers_of_the_protocol() {
    let named = |number: i32| {
        let core = TraceKind::from_repr(number).map(|kind| format!("{kind:?}"));
        let wire = v1::TraceKind::try_from(number).ok().map(|kind| format!("{kind:?}"));
        (core.unwrap_or("Unspecified".into()), wire)
    };
    let known = (0..).map(named).take_while(|(_, wire)| wire.is_some());
    let kinds = known.inspect(|(core, wire)| assert_eq!(Some(core), wire.as_ref())).count() as i32;
    assert_eq!(TraceKind::from_repr(kinds), None);
    let sources = [SegmentSource::None, SegmentSource::Runtime, SegmentSource::Allocator];
    let wire =
        [v1::SegmentSource::Unspecified, v1::SegmentSource::Runtime, v1::SegmentSource::Allocator];
    assert_eq!(sources.map(|source| source as i32), wire.map(i32::from));
}

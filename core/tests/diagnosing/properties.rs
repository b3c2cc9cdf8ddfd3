//! What holds for whatever may come in.

use memtape_core::detector::{Growth, Layer, Scope};
use memtape_core::diagnosis::{
    BUCKETS_MAX, Class, Context, Diagnosis, Inquiry, Readings, SUSPECTS_MAX, Standing,
};
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, Held, OutsideStack, RankSnapshot, Segment, SegmentSource,
    StackUse, StreamPool, TraceEvent, TraceKind,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// Small numbers, large ones, and the ends of their range.
fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![0..600_u64, any::<u64>(), Just(u64::MAX), Just(1 << 20)]
}

fn frame() -> impl Strategy<Value = Frame> {
    let files = prop_oneof![
        Just("/app/train.py"),
        Just("/app/model.py"),
        Just("/x/site-packages/torch/nn/modules/module.py"),
        Just("/x/site-packages/lib/a.py"),
        Just(""),
    ];
    let functions = prop_oneof![Just("f"), Just("forward"), Just("MmBackward0"), Just("")];
    (files, 0..3_u32, functions).prop_map(|(file, line, function)| Frame {
        file: file.to_string(),
        line,
        function: function.to_string(),
    })
}

fn block() -> impl Strategy<Value = Block> {
    (any_u64(), any_u64(), 0..8_u32, any_u64(), 0..4_u16, any::<bool>()).prop_map(
        |(address, size, stack, birth_step, place, pending)| Block {
            address,
            size,
            stack,
            birth_step,
            stream_pool: place,
            pending,
            ..Block::default()
        },
    )
}

fn event() -> impl Strategy<Value = TraceEvent> {
    use TraceKind::{Alloc, Free, FreeDeferred, MallocFailed, Oom, SegmentAlloc, SegmentFree};
    let kinds = proptest::sample::select(vec![
        Alloc,
        Free,
        FreeDeferred,
        MallocFailed,
        Oom,
        SegmentAlloc,
        SegmentFree,
    ]);
    (kinds, any_u64(), any_u64(), 0..8_u32, any_u64()).prop_map(
        |(kind, address, size, stack, step)| TraceEvent {
            kind,
            mono_ns: 0,
            address,
            size,
            detail: 0,
            stack,
            stream_pool: 0,
            step,
        },
    )
}

fn device() -> impl Strategy<Value = DeviceSnapshot> {
    let uses = (0..9_u32, any_u64(), any_u64());
    let segments = (any_u64(), any_u64(), 0..4_u16, any::<bool>());
    (
        (0..3_u8, any_u64(), any::<bool>(), any::<bool>()),
        vec(block(), 0..40),
        vec(segments, 0..6),
        vec(uses, 0..6),
        vec(event(), 0..30),
    )
        .prop_map(|((device, allocated, complete, knows), blocks, segments, before, trace)| {
            let segment = |(address, size, place, expandable)| Segment {
                address,
                size,
                stream_pool: place,
                expandable,
                ..Segment::default()
            };
            let held = |(stack, bytes, blocks)| StackUse { stack, bytes, blocks };
            DeviceSnapshot {
                device,
                allocated,
                complete,
                blocks,
                trace,
                segments: segments.into_iter().map(segment).collect(),
                before: before.into_iter().map(held).collect(),
                segment_source: if knows { SegmentSource::Allocator } else { SegmentSource::None },
                ..DeviceSnapshot::default()
            }
        })
}

fn outside() -> impl Strategy<Value = OutsideStack> {
    let origins = proptest::sample::select(Origin::ALL.to_vec());
    let held = || (any_u64(), any_u64()).prop_map(|(bytes, count)| Held { bytes, count });
    let before = proptest::option::of(held());
    (origins, 0..2_u8, 0..9_u32, held(), held(), before, any_u64()).prop_map(
        |(origin, device, stack, held, fresh, before, births)| OutsideStack {
            origin,
            device,
            stack,
            held,
            fresh,
            before,
            births,
            first_step: fresh.count,
            last_step: births,
        },
    )
}

fn rank() -> impl Strategy<Value = RankSnapshot> {
    let stacks = vec(vec(0..7_u32, 0..5), 0..8);
    let outside = vec(outside(), 0..8);
    (vec(frame(), 0..6), stacks, vec(device(), 0..3), outside, any_u64(), any_u64()).prop_map(
        |(frames, stacks, devices, outside_stacks, step, before_step)| RankSnapshot {
            outside_stacks,
            frames,
            stacks,
            devices,
            step,
            before_step,
            stream_pools: vec![
                StreamPool::default(),
                StreamPool { stream: Some(1), pool: Some((0, 3)) },
            ],
            ..RankSnapshot::default()
        },
    )
}

fn growth() -> impl Strategy<Value = Growth> {
    use Layer::*;
    let layers = proptest::sample::select(vec![
        Allocated, Reserved, Blocks, Peak, Deferred, NonTorch, Other, Host, Pinned, Shared,
        Workers, Spread, Retries, Churn, Progress,
    ]);
    let scopes = proptest::sample::select(vec![Scope::OneRank, Scope::Role, Scope::AllRanks]);
    let numbers = (any_u64(), any_u64(), any_u64(), any_u64());
    let oom = proptest::option::of(any_u64());
    (layers, scopes, numbers, oom, 0..5_u32).prop_map(
        |(
            layer,
            scope,
            (onset_step, last_step, bytes_per_step, grown_bytes),
            steps_to_oom,
            peers,
        )| {
            Growth {
                scope,
                onset_step,
                detected_step: last_step,
                last_step,
                bytes_per_step,
                grown_bytes,
                layer,
                steps_to_oom,
                peers,
                ..Growth::default()
            }
        },
    )
}

fn context() -> impl Strategy<Value = Context> {
    let number = || proptest::option::of(any_u64());
    let readings = || {
        (number(), number(), number(), number()).prop_map(|(a, b, c, d)| Readings {
            rss_anon: a,
            pinned: b,
            non_torch: c,
            other: d,
            contexts: a.map(|a| a as u32),
            worker_count: b.map(|b| b as u32),
            ..Readings::default()
        })
    };
    let counts = (number(), number(), number(), number());
    (readings(), readings(), counts, proptest::option::of(any::<bool>())).prop_map(
        |(before, now, (retries, ooms, step_time_ns, steps_missing), in_peaks)| Context {
            before,
            now,
            retries,
            ooms,
            step_time_ns,
            steps_missing,
            in_peaks,
            ..Context::default()
        },
    )
}

fn check(said: &Diagnosis) {
    assert!(said.explained_ppm <= 1_000_000 && said.confidence_ppm <= 1_000_000);
    assert!(said.suspects.len() <= SUSPECTS_MAX && said.histogram.buckets.len() <= BUCKETS_MAX);
    assert!(!said.sentence.is_empty() && !said.advice.is_empty());
    let first = said.alternatives.first().expect("the answer is one of them");
    assert_eq!((first.class, first.standing), (said.class, Standing::Holds));
    let mut classes: Vec<Class> = said.alternatives.iter().map(|each| each.class).collect();
    classes.sort_unstable();
    classes.dedup();
    assert_eq!(classes.len(), said.alternatives.len(), "each class is heard once");
    if said.class == Class::Unknown {
        assert_eq!((said.confidence_ppm, said.culprit.as_ref()), (0, None));
    }
    if let Some(culprit) = &said.culprit {
        assert!(said.stack.contains(culprit));
        let first = said.suspects.first().map(|suspect| &suspect.frame);
        // Who empties the cache keeps nothing.
        assert!(first == Some(culprit) || said.class == Class::CacheThrash);
    }
    if said.pages() && !said.ends_soon {
        assert!(said.class.is_fault());
    }
}

proptest! {
    #[test]
    fn no_input_makes_the_diagnosis_panic(
        growth in growth(),
        suspect in rank(),
        peers in vec(rank(), 0..3),
        context in context(),
        same in any::<bool>(),
    ) {
        let mut peers = peers;
        if same {
            peers.iter_mut().for_each(|peer| {
                (peer.step, peer.before_step) = (suspect.step, suspect.before_step);
                peer.frames.clone_from(&suspect.frames);
                peer.stacks.clone_from(&suspect.stacks);
            });
        }
        let peers: Vec<&RankSnapshot> = peers.iter().collect();
        let (growth, suspect, context) = (&growth, &suspect, &context);
        let inquiry = Inquiry { growth, suspect, peers: &peers, context, past: None };
        let said = inquiry.diagnose();
        check(&said);
        prop_assert_eq!(said, inquiry.diagnose(), "the same in, the same out");
    }
}

//! What is suggested, and what never is.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn step(step: u64, min_bytes: u64, peak_bytes: u64) -> Memory {
    Memory { step, min_bytes, peak_bytes, ..Memory::default() }
}

/// A rank of a 7 B model in data parallelism on a device of 80 GiB, which is nearly full.
fn full() -> Facts {
    Facts {
        step: Some(step(400, 50 * GIB, 69 * GIB)),
        peak_bytes: 69 * GIB,
        reserved_bytes: 79 * GIB,
        device_bytes: Some(80 * GIB),
        beside_bytes: Some(GIB / 2),
        peers: 8,
        config: Some(Config::default()),
        capture: Some(captured()),
        ..Facts::default()
    }
}

fn captured() -> Captured {
    Captured {
        capture: "cap-1".to_string(),
        step: 390,
        split_bytes: Some(8 * GIB),
        split_by_size: BTreeMap::from([(2 * MIB, GIB), (300 * MIB, 7 * GIB)]),
        is_expandable: Some(false),
        large_sizes: Some(12),
        composition: Composition {
            parameters: 10 * GIB,
            optimizer_state: 20 * GIB,
            gradients: 10 * GIB,
            other: GIB,
        },
        is_sharded: false,
        is_checkpointed: Some(false),
    }
}

/// The hints as pairs of the change and the GiB that it saves.
fn of(facts: &Facts) -> Vec<(Change, u64)> {
    let hints = suggest(facts).hints.into_iter();
    hints.map(|hint| (hint.change, hint.saves_bytes / GIB)).collect()
}

fn settings(facts: &Facts) -> Vec<Setting> {
    suggest(facts).hints.iter().filter_map(|hint| hint.change.setting()).collect()
}

#[test]
fn a_full_device_gets_hints_in_the_order_of_their_bytes() {
    let expected = [
        (Change::ShardParameters { ranks: 8 }, 35),
        (Change::Checkpointing, 19),
        (Change::ShardOptimizer { ranks: 8 }, 17),
        (Change::SmallerMicroBatch, 9),
        (Change::Allocator(Setting::ExpandableSegments), 8),
    ];
    assert_eq!(of(&full()), expected);
    assert_eq!(suggest(&full()).missing, []);
    let texts: Vec<String> =
        suggest(&full()).hints.iter().map(|hint| hint.computed.clone()).collect();
    assert_eq!(
        texts[4],
        "8 GiB inactive split; no more than 79 GiB reserved less 69 GiB in tensors"
    );
    assert_eq!(texts[3], "half of the peak of the step, 69 GiB, less its minimum, 50 GiB");
    let bounds: Vec<Bound> = suggest(&full()).hints.iter().map(|hint| hint.bound).collect();
    assert_eq!(bounds[..2], [Bound::About, Bound::AtMost]);
    // Memory that the allocator holds and tensors do not need is no pressure.
    let idle = Facts { peak_bytes: 60 * GIB, ..full() };
    assert_eq!(of(&idle), [(Change::Allocator(Setting::ExpandableSegments), 8)]);
}

#[test]
fn settings_follow_the_evidence_and_what_the_job_has_set() {
    let mut facts = full();
    assert_eq!(settings(&facts), [Setting::ExpandableSegments]);
    // The user does not want it: the blocks above 256 MiB hold most of what is split.
    facts.config = Some(Config::parse("expandable_segments:False"));
    assert_eq!(settings(&facts), [Setting::MaxSplitSizeMb(256)]);
    facts.config = Some(Config::parse("expandable_segments:False,max_split_size_mb:512"));
    assert_eq!(settings(&facts), []);
    // It was tried.
    (facts.config, facts.tried) = (Some(Config::default()), vec![Setting::ExpandableSegments]);
    assert_eq!(settings(&facts), [Setting::MaxSplitSizeMb(256)]);
    // There are many sizes.
    if let Some(capture) = &mut facts.capture {
        capture.large_sizes = Some(64);
    }
    assert_eq!(settings(&facts), [Setting::RoundupPower2Divisions(8)]);
    // It is on.
    facts.tried.clear();
    facts.config = Some(Config::parse("expandable_segments:True"));
    if let Some(capture) = &mut facts.capture {
        (capture.is_expandable, capture.large_sizes) = (Some(true), Some(3));
    }
    assert_eq!(settings(&facts), []);
    facts.config = Some(Config::parse("backend:cudaMallocAsync"));
    assert_eq!(suggest(&facts).missing, [Missing::Allocator]);
}

#[test]
fn free_memory_that_the_peak_needs_is_no_fragmentation() {
    // At the end of a step much is split, and the next step needs it.
    let facts = Facts { peak_bytes: 76 * GIB, ..full() };
    assert_eq!(settings(&facts), []);
    // It is free, but in whole segments, which the allocator gives back by itself.
    let mut facts = full();
    if let Some(capture) = &mut facts.capture {
        capture.split_bytes = Some(GIB);
    }
    assert_eq!(settings(&facts), []);
}

#[test]
fn without_a_capture_only_retries_show_fragmentation() {
    let facts = Facts { capture: None, ..full() };
    assert_eq!(of(&facts), [(Change::SmallerMicroBatch, 9)]);
    assert_eq!(suggest(&facts).missing, [Missing::Capture]);
    let unreadable = Facts { is_capture_unreadable: true, ..facts.clone() };
    assert_eq!(suggest(&unreadable).missing, [], "its reader says so");
    let retried = Facts { retries: 3, ..facts.clone() };
    assert_eq!(settings(&retried), [Setting::ExpandableSegments]);
    let unknown = Facts { config: None, ..retried };
    assert_eq!(settings(&unknown), []);
    assert_eq!(suggest(&unknown).missing, [Missing::Settings, Missing::Capture]);
}

#[test]
fn a_job_with_room_may_have_a_larger_batch() {
    let step = step(400, 10 * GIB, 20 * GIB);
    let mut facts =
        Facts { step: Some(step), peak_bytes: 20 * GIB, reserved_bytes: 21 * GIB, ..full() };
    assert_eq!(of(&facts), [(Change::LargerMicroBatch { times: 6 }, 0)]);
    facts.beside_bytes = None;
    assert_eq!(of(&facts), [], "what else is on the device is not known");
    assert_eq!(suggest(&facts).missing, [Missing::OutsideAllocator]);
    facts.device_bytes = None;
    assert_eq!(suggest(&facts).missing, [Missing::DeviceSize]);
    facts.step = None;
    assert_eq!(suggest(&facts).missing, [Missing::Steps]);
}

#[test]
fn what_is_done_already_is_not_suggested() {
    let mut facts = full();
    if let Some(capture) = &mut facts.capture {
        (capture.is_sharded, capture.is_checkpointed) = (true, Some(true));
    }
    let subjects: Vec<Subject> =
        suggest(&facts).hints.iter().map(|hint| hint.change.subject()).collect();
    assert_eq!(subjects, [Subject::MicroBatch, Subject::Allocator]);
    // A state smaller than the parameters may be a part of one.
    let mut facts = full();
    if let Some(capture) = &mut facts.capture {
        (capture.composition.optimizer_state, capture.is_checkpointed) = (5 * GIB, None);
    }
    let found = suggest(&facts);
    assert!(found.hints.iter().all(|hint| hint.change.subject() != Subject::Sharding));
    assert_eq!(found.missing, [Missing::Events]);
    assert!(of(&Facts { peers: 1, ..full() }).iter().all(|(_, gib)| *gib < 21));
}

#[test]
fn a_setting_that_helped_is_kept_and_one_that_did_not_is_not() {
    let expand = Setting::ExpandableSegments;
    let hints = suggest(&full()).hints;
    assert_eq!(to_apply(&[], &[], &hints), [expand]);
    assert_eq!(to_apply(&[expand], &[], &[]), [expand], "it is on, so it is not suggested");
    assert_eq!(to_apply(&[expand], &[expand], &[]), []);
    let split = Setting::MaxSplitSizeMb(64);
    assert_eq!(to_apply(&[split, Setting::MaxSplitSizeMb(128)], &[], &hints), [split, expand]);
}

/// A rank whose segment of 100 MiB is held by a parameter of 1 MiB, with a state of 2 MiB.
fn snapshot(source: SegmentSource) -> RankSnapshot {
    let frame = |file: &str, function: &str| Frame {
        file: file.to_string(),
        line: 1,
        function: function.to_string(),
    };
    let torch = "/x/site-packages/torch";
    let frames = vec![
        Frame::default(),
        frame("/app/train.py", "main"),
        frame(&alloc::format!("{torch}/nn/modules/module.py"), "_apply"),
        frame(&alloc::format!("{torch}/optim/adam.py"), "Adam._init_group"),
        frame(&alloc::format!("{torch}/utils/checkpoint.py"), "checkpoint"),
    ];
    let block = |address, size, stack| Block { address, size, stack, ..Block::default() };
    let segment = |address, size| Segment { address, size, ..Segment::default() };
    let event = TraceEvent {
        kind: TraceKind::Alloc,
        mono_ns: 0,
        address: 0,
        size: 3 * MIB,
        detail: 0,
        stack: 3,
        stream_pool: 0,
        step: 1,
    };
    RankSnapshot {
        step: 7,
        frames,
        stacks: vec![vec![], vec![2, 1], vec![3, 1], vec![4, 1]],
        devices: vec![DeviceSnapshot {
            device: 0,
            allocated: 3 * MIB,
            reserved: 120 * MIB,
            blocks: vec![block(0, MIB, 1), block(200 * MIB, 2 * MIB, 2)],
            segments: vec![segment(0, 100 * MIB), segment(200 * MIB, 20 * MIB)],
            segment_source: source,
            trace: vec![event],
            complete: true,
            ..DeviceSnapshot::default()
        }],
        ..RankSnapshot::default()
    }
}

#[test]
fn a_capture_shows_what_memory_is_for_and_where_it_is_free() {
    let found = Captured::of("cap-1", &snapshot(SegmentSource::Allocator), 0).unwrap();
    let expected = Captured {
        capture: "cap-1".to_string(),
        step: 7,
        split_bytes: Some(117 * MIB),
        split_by_size: BTreeMap::from([(20 * MIB, 18 * MIB), (100 * MIB, 99 * MIB)]),
        is_expandable: Some(false),
        large_sizes: Some(1),
        composition: Composition {
            parameters: MIB,
            optimizer_state: 2 * MIB,
            ..Composition::default()
        },
        is_sharded: false,
        is_checkpointed: Some(true),
    };
    assert_eq!(found, expected);
    assert_eq!(Captured::of("cap-1", &snapshot(SegmentSource::Allocator), 1), None);
    let unknown = Captured::of("cap-1", &snapshot(SegmentSource::None), 0).unwrap();
    assert_eq!((unknown.split_bytes, unknown.is_expandable), (None, None));
    let mut sharded = snapshot(SegmentSource::Allocator);
    sharded.frames[4].file = "/x/torch/distributed/fsdp/_flat_param.py".to_string();
    sharded.devices[0].trace.clear();
    let found = Captured::of("cap-1", &sharded, 0).unwrap();
    assert_eq!((found.is_sharded, found.is_checkpointed), (true, None));
}

fn arbitrary() -> impl Strategy<Value = Facts> {
    let bytes = || 0..200 * GIB;
    let capture = (
        proptest::option::of(bytes()),
        proptest::option::of(any::<bool>()),
        proptest::option::of(0_u64..200),
        [bytes(), bytes(), bytes(), bytes()],
        (any::<bool>(), proptest::option::of(any::<bool>())),
    );
    let capture = capture.prop_map(|(split, is_expandable, large_sizes, held, known)| Captured {
        split_bytes: split,
        split_by_size: split.map(|split| (2 * GIB, split)).into_iter().collect(),
        is_expandable,
        large_sizes,
        composition: Composition {
            parameters: held[0],
            optimizer_state: held[1],
            gradients: held[2],
            other: held[3],
        },
        is_sharded: known.0,
        is_checkpointed: known.1,
        ..captured()
    });
    let steps = proptest::option::of((bytes(), bytes()));
    let counts = (0_u64..4, 0_u64..3, 0_u32..2000);
    let known = (proptest::option::of(bytes()), proptest::option::of(bytes()));
    let config = proptest::option::of(prop_oneof![
        Just(""),
        Just("expandable_segments:True"),
        Just("expandable_segments:False"),
        Just("backend:cudaMallocAsync"),
    ]);
    (proptest::option::of(capture), steps, bytes(), bytes(), counts, known, config).prop_map(
        |(capture, known_step, peak_bytes, reserved_bytes, counts, known, config)| Facts {
            step: known_step.map(|(min_bytes, peak_bytes)| step(9, min_bytes, peak_bytes)),
            peak_bytes,
            reserved_bytes,
            retries: counts.0,
            ooms: counts.1,
            device_bytes: known.0,
            beside_bytes: known.1,
            peers: counts.2,
            config: config.map(Config::parse),
            capture,
            is_capture_unreadable: false,
            tried: Vec::new(),
        },
    )
}

/// All that a hint can be about.
fn held(facts: &Facts, change: Change) -> u64 {
    let composition = facts.capture.as_ref().map(|of| of.composition).unwrap_or_default();
    let step = facts.step.unwrap_or_default();
    match change {
        Change::Allocator(_) => facts.reserved_bytes,
        Change::SmallerMicroBatch | Change::Checkpointing => step.peak_bytes,
        Change::LargerMicroBatch { .. } => 0,
        Change::ShardOptimizer { .. } => composition.optimizer_state,
        Change::ShardParameters { .. } => {
            composition.parameters + composition.gradients + composition.optimizer_state
        }
    }
}

proptest! {
    /// No hint saves more than there is, each rests on evidence that is there, the one that saves
    /// most is first, and at most one setting is suggested.
    #[test]
    fn a_hint_is_never_more_than_what_it_rests_on(facts in arbitrary()) {
        let Suggestions { hints, missing } = suggest(&facts);
        prop_assert!(hints.is_sorted_by_key(|hint| Reverse(hint.saves_bytes)));
        prop_assert!(hints.iter().filter(|hint| hint.change.setting().is_some()).count() <= 1);
        for hint in &hints {
            prop_assert!(hint.saves_bytes <= held(&facts, hint.change), "{:?}", hint);
            prop_assert!(!hint.evidence.is_empty(), "{:?}", hint);
            for evidence in &hint.evidence {
                prop_assert!(match evidence {
                    Evidence::Capture { .. } | Evidence::Sizes { .. } => facts.capture.is_some(),
                    Evidence::Step { .. } => facts.step.is_some(),
                    Evidence::Retries { count } => *count == facts.retries && *count > 0,
                    Evidence::OutOfMemory { count } => *count == facts.ooms && *count > 0,
                    Evidence::Full { .. } => facts.device_bytes.is_some(),
                }, "{:?}", hint);
            }
        }
        prop_assert_eq!(missing.contains(&Missing::Capture), facts.capture.is_none());
    }

    /// Nothing is suggested of a job of which nothing is known.
    #[test]
    fn no_evidence_no_hint(peers in 0_u32..2000, device in 0_u64..200) {
        let facts = Facts { peers, device_bytes: Some(device * GIB), ..Facts::default() };
        prop_assert_eq!(suggest(&facts).hints, []);
        let expected = [Missing::Settings, Missing::Steps, Missing::Capture];
        prop_assert_eq!(suggest(&facts).missing, expected);
    }

    /// More that is idle, more that comes and goes, and more ranks never save less.
    #[test]
    fn more_to_save_never_saves_less(
        idle in 0_u64..20, transient in 0_u64..20, ranks in 2_u32..64,
    ) {
        let saved = |idle: u64, transient: u64, peers: u32| {
            let mut facts = full();
            facts.reserved_bytes = facts.peak_bytes + (20 + idle) * GIB;
            facts.step = facts.step.map(|step| Memory {
                peak_bytes: step.min_bytes + (1 + transient) * GIB,
                ..step
            });
            facts.peers = peers;
            if let Some(capture) = &mut facts.capture {
                capture.split_bytes = Some((10 + idle) * GIB);
            }
            let hints = suggest(&facts).hints;
            let of = |subject| {
                let of = hints.iter().filter(move |hint| hint.change.subject() == subject);
                of.map(|hint| hint.saves_bytes).max()
            };
            [Subject::Allocator, Subject::MicroBatch, Subject::Checkpointing, Subject::Sharding]
                .map(of)
        };
        let less = saved(idle, transient, ranks);
        let more = saved(idle + 1, transient + 1, ranks + 1);
        for (less, more) in less.into_iter().zip(more) {
            prop_assert!(less.is_some() && less <= more, "{:?} {:?}", less, more);
        }
    }
}

//! Suggested hints, and cases without a hint.

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

const EXPAND: Setting = Setting::ExpandableSegments;

fn step(step: u64, min_bytes: u64, peak_bytes: u64) -> Memory {
    Memory { step, min_bytes, peak_bytes, ..Memory::default() }
}

/// A rank of a 7 B model on a device of 80 GiB, which is nearly full.
fn full() -> Facts {
    Facts {
        step: Some(step(400, 50 * GIB, 69 * GIB)),
        peak_bytes: 69 * GIB,
        reserved_bytes: 79 * GIB,
        device_bytes: Some(80 * GIB),
        beside_bytes: Some(GIB / 2),
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
    }
}

/// The hints as pairs of the change and the GiB that it saves.
fn of(facts: &Facts) -> Vec<(String, u64)> {
    let hints = suggest(facts).hints.into_iter();
    hints.map(|hint| (hint.change, hint.saves_bytes / GIB)).collect()
}

fn settings(facts: &Facts) -> Vec<Setting> {
    suggest(facts).hints.iter().flat_map(|hint| Setting::listed(&hint.setting)).collect()
}

fn missing(facts: &Facts) -> Vec<String> {
    suggest(facts).missing
}

const HALVE: &str = "halve the micro-batch, and double the accumulation";

#[test]
fn a_full_device_gets_hints_in_the_order_of_their_bytes() {
    let expand = (format!("set {EXPAND}"), 8);
    assert_eq!(of(&full()), [(HALVE.to_string(), 9), expand.clone()]);
    let Suggestions { hints, missing } = suggest(&full());
    assert_eq!(missing, [""; 0]);
    assert_eq!(
        hints[1].computed,
        "8 GiB inactive split; no more than 79 GiB reserved less 69 GiB in tensors"
    );
    assert_eq!(hints[1].evidence, ["cap-1 at step 390"]);
    assert_eq!(hints[0].computed, "half of the peak of the step, 69 GiB, less its minimum, 50 GiB");
    let expected = ["86 % of the device was in tensors at the peak", "the record of step 400"];
    assert_eq!(hints[0].evidence, expected);
    assert_eq!((hints[0].bound, hints[1].bound), (Bound::AtMost, Bound::About));
    // Memory that the allocator holds and tensors do not need is no pressure.
    let idle = Facts { peak_bytes: 60 * GIB, ..full() };
    assert_eq!(of(&idle), [expand]);
}

#[test]
fn settings_follow_the_evidence_and_what_the_job_has_set() {
    let mut facts = full();
    assert_eq!(settings(&facts), [EXPAND]);
    // The user does not want it: the blocks above 256 MiB hold most of what is split.
    facts.config = Some(Config::parse("expandable_segments:False"));
    assert_eq!(settings(&facts), [Setting::MaxSplitSizeMb(256)]);
    facts.config = Some(Config::parse("expandable_segments:False,max_split_size_mb:512"));
    assert_eq!(settings(&facts), []);
    // It was tried.
    (facts.config, facts.tried) = (Some(Config::default()), vec![EXPAND]);
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
    assert_eq!(missing(&facts), [FOREIGN_ALLOCATOR]);
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
    assert_eq!(of(&facts), [(HALVE.to_string(), 9)]);
    assert_eq!(missing(&facts), [NO_CAPTURE]);
    let unreadable = Facts { unreadable: Some("cap-1 is damaged".into()), ..facts.clone() };
    let expected = "cap-1 is damaged: nothing is known of inactive split memory";
    assert_eq!(missing(&unreadable), [expected]);
    let retried = Facts { retries: 3, ..facts.clone() };
    assert_eq!(settings(&retried), [EXPAND]);
    let unknown = Facts { config: None, ..retried };
    assert_eq!(settings(&unknown), []);
    assert_eq!(missing(&unknown), [NO_SETTINGS, NO_CAPTURE]);
}

#[test]
fn a_job_with_room_may_have_a_larger_batch() {
    let step = step(400, 10 * GIB, 20 * GIB);
    let mut facts =
        Facts { step: Some(step), peak_bytes: 20 * GIB, reserved_bytes: 21 * GIB, ..full() };
    let larger = "a micro-batch up to about 6 times as large has room".to_string();
    assert_eq!(of(&facts), [(larger, 0)]);
    facts.beside_bytes = None;
    assert_eq!(of(&facts), [], "what else is on the device is not known");
    assert_eq!(missing(&facts), [NO_OUTSIDE]);
    facts.device_bytes = None;
    assert_eq!(missing(&facts), [NO_DEVICE_SIZE]);
    facts.step = None;
    assert_eq!(missing(&facts), [NO_STEPS]);
}

#[test]
fn a_setting_that_helped_is_kept_and_one_that_did_not_is_not() {
    let hints = suggest(&full()).hints;
    assert_eq!(to_apply(&[], &[], &hints), [EXPAND]);
    assert_eq!(to_apply(&[EXPAND], &[], &[]), [EXPAND], "it is on, so it is not suggested");
    assert_eq!(to_apply(&[EXPAND], &[EXPAND], &[]), []);
    let split = Setting::MaxSplitSizeMb(64);
    assert_eq!(to_apply(&[split, Setting::MaxSplitSizeMb(128)], &[], &hints), [split, EXPAND]);
}

/// A rank whose segment of 100 MiB is held by a block of 1 MiB.
fn snapshot(source: SegmentSource) -> RankSnapshot {
    let block = |address, size| Block { address, size, ..Block::default() };
    let segment = |address, size| Segment { address, size, ..Segment::default() };
    let event = TraceEvent {
        kind: TraceKind::Alloc,
        mono_ns: 0,
        address: 0,
        size: 3 * MIB,
        detail: 0,
        stack: 0,
        stream_pool: 0,
        step: 1,
    };
    RankSnapshot {
        step: 7,
        frames: vec![Frame::default()],
        stacks: vec![vec![]],
        devices: vec![DeviceSnapshot {
            device: 0,
            allocated: 3 * MIB,
            reserved: 120 * MIB,
            blocks: vec![block(0, MIB), block(200 * MIB, 2 * MIB)],
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
fn a_capture_shows_where_memory_is_free() {
    let found = Captured::of("cap-1", &snapshot(SegmentSource::Allocator), 0).unwrap();
    let expected = Captured {
        capture: "cap-1".to_string(),
        step: 7,
        split_bytes: Some(117 * MIB),
        split_by_size: BTreeMap::from([(20 * MIB, 18 * MIB), (100 * MIB, 99 * MIB)]),
        is_expandable: Some(false),
        large_sizes: Some(1),
    };
    assert_eq!(found, expected);
    assert_eq!(Captured::of("cap-1", &snapshot(SegmentSource::Allocator), 1), None);
    let unknown = Captured::of("cap-1", &snapshot(SegmentSource::None), 0).unwrap();
    assert_eq!((unknown.split_bytes, unknown.is_expandable), (None, None));
}

fn arbitrary() -> impl Strategy<Value = Facts> {
    let bytes = || 0..200 * GIB;
    let capture = (
        proptest::option::of(bytes()),
        proptest::option::of(any::<bool>()),
        proptest::option::of(0_u64..200),
    );
    let capture = capture.prop_map(|(split, is_expandable, large_sizes)| Captured {
        split_bytes: split,
        split_by_size: split.map(|split| (2 * GIB, split)).into_iter().collect(),
        is_expandable,
        large_sizes,
        ..captured()
    });
    let steps = proptest::option::of((bytes(), bytes()));
    let counts = (0_u64..4, 0_u64..3);
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
            config: config.map(Config::parse),
            capture,
            ..Facts::default()
        },
    )
}

proptest! {
    /// No hint saves more than is held, each has existing evidence, the largest saving is first,
    /// and at most one setting is suggested.
    #[test]
    fn a_hint_is_never_more_than_what_it_rests_on(facts in arbitrary()) {
        let Suggestions { hints, missing } = suggest(&facts);
        prop_assert!(hints.is_sorted_by_key(|hint| Reverse(hint.saves_bytes)));
        prop_assert!(hints.iter().filter(|hint| !hint.setting.is_empty()).count() <= 1);
        for hint in &hints {
            let held = match hint.subject {
                Subject::Allocator => facts.reserved_bytes,
                Subject::MicroBatch => facts.step.unwrap_or_default().peak_bytes,
            };
            prop_assert!(hint.saves_bytes <= held, "{:?}", hint);
            prop_assert!(!hint.evidence.is_empty(), "{:?}", hint);
            let is_of = |text: &str| hint.evidence.iter().any(|of| of.contains(text));
            prop_assert!(facts.capture.is_some() || !is_of("cap-1") && !is_of("different size"));
            prop_assert!(facts.step.is_some() || !is_of("record of step"));
            prop_assert!(facts.retries > 0 || !is_of("cudaMalloc failed"));
            prop_assert!(facts.ooms > 0 || !is_of("failed for good"));
            prop_assert!(facts.device_bytes.is_some() || !is_of("% of the device"));
        }
        let is_missing = missing.iter().any(|of| of == NO_CAPTURE);
        prop_assert_eq!(is_missing, facts.capture.is_none());
    }

    /// A job without any facts gets no hint.
    #[test]
    fn no_evidence_no_hint(device in 0_u64..200) {
        let facts = Facts { device_bytes: Some(device * GIB), ..Facts::default() };
        prop_assert_eq!(suggest(&facts).hints, []);
        prop_assert_eq!(missing(&facts), [NO_SETTINGS, NO_STEPS, NO_CAPTURE]);
    }

    /// More that is idle, and more that comes and goes, never save less.
    #[test]
    fn a_larger_possible_saving_never_saves_less(idle in 0_u64..20, transient in 0_u64..20) {
        let saved = |idle: u64, transient: u64| {
            let mut facts = full();
            facts.reserved_bytes = facts.peak_bytes + (20 + idle) * GIB;
            facts.step = facts.step.map(|step| Memory {
                peak_bytes: step.min_bytes + (1 + transient) * GIB,
                ..step
            });
            if let Some(capture) = &mut facts.capture {
                capture.split_bytes = Some((10 + idle) * GIB);
            }
            let hints = suggest(&facts).hints;
            [Subject::Allocator, Subject::MicroBatch].map(|subject| {
                let of = hints.iter().filter(move |hint| hint.subject == subject);
                of.map(|hint| hint.saves_bytes).max()
            })
        };
        let (less, more) = (saved(idle, transient), saved(idle + 1, transient + 1));
        for (less, more) in less.into_iter().zip(more) {
            prop_assert!(less.is_some() && less <= more, "{:?} {:?}", less, more);
        }
    }
}

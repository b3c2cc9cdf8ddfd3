//! An exported file keeps what the recorder knew: its steps, its phases, and the state of its rank.

use crate::pickles::{data, unpacked};
use memtape_core::detector::Growth;
use memtape_core::diagnosis::files::{History, Rank, analyze, why_refused};
use memtape_core::diagnosis::{Class, diagnose};
use memtape_core::identity::Identity;
use memtape_core::pickle::reader::Reader;
use memtape_core::pickle::torch::{Setting, TorchFile};
use memtape_core::pickle::{annotated_snapshot, torch_snapshot};
use memtape_core::snapshot::marks::Mark;
use memtape_core::snapshot::step_source::StepSource;
use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

/// Steps that had ended before the trace begins.
const BEFORE: u64 = 40;

/// A loop whose every step makes three blocks and keeps one of them. All events of the end of a
/// step and of the beginning of the next have one microsecond. No stack names an optimizer.
fn leaking(steps: u64) -> RankSnapshot {
    let frame =
        |line: u32| Frame { file: "/app/train.py".to_string(), line, function: "step".to_string() };
    let (mut trace, mut blocks) = (Vec::new(), Vec::new());
    let mut event = |kind, address: u64, mono_ns: u64, stack: u32, step: u64| {
        trace.push(TraceEvent {
            kind,
            mono_ns,
            address,
            size: MIB,
            detail: MIB,
            stack,
            stream_pool: 0,
            step,
        });
    };
    for step in BEFORE..BEFORE + steps {
        let at = |number: u64| BASE + (step * 3 + number) * MIB;
        let begin_ns = step * 1_000_000;
        // Every step has another number of events, so that no period can be found.
        for _ in 0..=step % 3 {
            event(TraceKind::Alloc, at(1), begin_ns, 1, step);
            event(TraceKind::Free, at(1), begin_ns + 500_000, 1, step);
        }
        event(TraceKind::Alloc, at(0), begin_ns + 500_000, 2, step);
        event(TraceKind::Alloc, at(2), begin_ns + 600_000, 1, step);
        event(TraceKind::Free, at(2), begin_ns + 1_000_000, 1, step);
        blocks.push(Block {
            address: at(0),
            size: MIB,
            requested: MIB,
            stack: 2,
            birth_step: step,
            birth_ns: begin_ns + 500_000,
            ..Block::default()
        });
    }
    let end_ns = (BEFORE + steps) * 1_000_000;
    let device = DeviceSnapshot {
        allocated: steps * MIB,
        reserved: 4 << 30,
        segments: vec![Segment { address: BASE, size: 4 << 30, ..Segment::default() }],
        segment_source: SegmentSource::Allocator,
        blocks,
        trace,
        complete: true,
        ..DeviceSnapshot::default()
    };
    let mark = |mono_ns: u64, text: &str| Mark { mono_ns, step: BEFORE, text: text.to_string() };
    RankSnapshot {
        identity: Identity {
            tape_id: "tape-1".to_string(),
            job: "j".to_string(),
            attempt: 1,
            rank: 3,
            ..Identity::default()
        },
        step: BEFORE + steps,
        wall_ns: i64::try_from(end_ns).expect("small"),
        devices: vec![device],
        frames: vec![Frame::default(), frame(10), frame(36)],
        stacks: vec![vec![], vec![1], vec![2]],
        marks: vec![mark(end_ns - 900_000, "eval"), mark(end_ns - 100_000, "")],
        ..RankSnapshot::default()
    }
}

fn read(snapshot: &RankSnapshot) -> TorchFile {
    let mut reader = Reader::new();
    reader.feed(&torch_snapshot(snapshot)).expect("our own pickle");
    reader.finish().expect("our own pickle")
}

/// The state that the exported file of a state holds.
fn reread(snapshot: &RankSnapshot) -> RankSnapshot {
    read(snapshot).rank
}

#[test]
fn steps_match_the_recorder() {
    for steps in [2, 12, 90] {
        let found = History::of(reread(&leaking(steps)));
        let device = &found.devices[0];
        assert_eq!(device.past.source, StepSource::Recorded, "{steps} steps");
        assert_eq!((device.past.ends, device.past.last_step), (steps - 1, BEFORE + steps - 1));
        assert_eq!(device.past.births, (1..=steps).collect::<Vec<_>>(), "each is of its own step");
        let births: Vec<u64> = device.state.blocks.iter().map(|block| block.birth_step).collect();
        assert_eq!(births, (BEFORE..BEFORE + steps).collect::<Vec<_>>());
        assert_eq!(found.rank.step, BEFORE + steps);
        assert!(found.is_recorded());
        assert_eq!(found.rank.identity.attempt, 1);
    }
}

#[test]
fn recorded_steps_are_believed() {
    let of =
        |rank: RankSnapshot| analyze(&[Rank { rank: 3, states: vec![History::of(rank)] }]).found;
    let found = of(reread(&leaking(40))).expect("a leak");
    assert_eq!(found.diagnosis.class, Class::Leak);
    assert_eq!(found.growth.bytes_per_step, MIB);
    assert!(found.diagnosis.confidence_ppm > 750_000, "{found:?}");
    let doubts = &found.diagnosis.against;
    assert!(doubts.iter().all(|doubt| !doubt.contains("guessed")), "{found:?}");
}

/// Steps that were guessed stay so: an exported file does not claim that a recorder counted them.
#[test]
fn guessed_steps_are_not_exported_as_recorded() {
    let mut snapshot = leaking(20);
    snapshot.devices[0].step_source = StepSource::Guessed;
    let found = reread(&snapshot);
    assert_ne!(found.devices[0].step_source, StepSource::Recorded);
}

/// One history as a tape holds it and as the file that is exported from it.
#[test]
fn a_tape_and_its_exported_file_get_the_same_answer() {
    let analyzed =
        |rank: RankSnapshot| analyze(&[Rank { rank: 3, states: vec![History::of(rank)] }]);
    for steps in [9, 30, 100] {
        let tape = leaking(steps);
        let (of_tape, of_file) = (analyzed(tape.clone()), analyzed(reread(&tape)));
        assert_eq!(of_tape.found, of_file.found, "{steps} steps");
        assert_eq!(of_tape.lines, of_file.lines, "{steps} steps");
        assert_eq!(of_tape.peak, of_file.peak, "{steps} steps");
    }
}

/// The same history in a running job, where the detector found the growth, and in its file: on the
/// only device, and on the second of two.
#[test]
fn a_running_job_and_its_file_get_the_same_answer() {
    let steps = 100;
    let only = leaking(steps);
    let mut second = only.clone();
    second.devices[0].device = 1;
    let held = 8 << 30;
    let block = Block { address: BASE, size: held, requested: held, stack: 1, ..Block::default() };
    let first = DeviceSnapshot {
        allocated: held,
        reserved: held,
        blocks: vec![block],
        segments: vec![Segment { address: BASE, size: held, ..Segment::default() }],
        segment_source: SegmentSource::Allocator,
        complete: true,
        ..DeviceSnapshot::default()
    };
    second.devices.insert(0, first);
    for (state, device) in [(only, 0), (second, 1)] {
        let growth = Growth {
            rank: 3,
            device,
            onset_step: BEFORE,
            detected_step: BEFORE + 60,
            last_step: BEFORE + steps,
            bytes_per_step: MIB,
            grown_bytes: steps * MIB,
            ..Growth::default()
        };
        let live = diagnose(&growth, &state, &[]);
        let file = analyze(&[Rank { rank: 3, states: vec![History::of(reread(&state))] }]);
        let file = file.found.expect("a leak");
        assert_eq!(file.growth.device, device);
        let file = file.diagnosis;
        assert_eq!((file.class, &file.culprit), (live.class, &live.culprit));
        assert_eq!((file.scope, file.layer), (live.scope, live.layer));
        assert_eq!(file.remedy.cause, live.remedy.cause);
        assert_eq!((&file.advice, file.restart.answer), (&live.advice, live.restart.answer));
        assert_eq!(file.explained_ppm, live.explained_ppm);
    }
}

/// A fault of each of two devices is reported, the one of the device that holds most first.
#[test]
fn faults_of_all_devices_are_reported() {
    let mut state = leaking(40);
    let mut second = state.devices[0].clone();
    second.device = 1;
    second.blocks.truncate(30);
    second.trace.retain(|event| event.step < BEFORE + 30);
    second.allocated = 30 * MIB;
    state.devices.push(second);
    let of_file = analyze(&[Rank { rank: 3, states: vec![History::of(reread(&state))] }]);
    let found: Vec<(u8, Class)> = of_file
        .found
        .iter()
        .chain(&of_file.also)
        .map(|found| (found.growth.device, found.diagnosis.class))
        .collect();
    assert_eq!(found, [(0, Class::Leak), (1, Class::Leak)]);
}

/// PyTorch's settings of the allocator are in the export of its file, with their types.
#[test]
fn settings_of_the_allocator_are_exported() {
    let read = |bytes: &[u8]| {
        let mut reader = Reader::new();
        reader.feed(bytes).expect("sound");
        reader.finish().expect("a snapshot")
    };
    let file = read(&unpacked(&data("snapshots/model_freed.pickle.gz")));
    let names: Vec<&str> = file.settings.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"PYTORCH_CUDA_ALLOC_CONF"), "{names:?}");
    let power = file.settings.iter().find(|(name, _)| name == "roundup_power2_divisions");
    assert!(matches!(power, Some((_, Setting::Dict(inner))) if inner.len() == 16), "{power:?}");
    let exported = read(&annotated_snapshot(&file.rank, &file.annotations, &file.settings));
    assert_eq!(exported.settings, file.settings);
    // What a recorder knows is the environment.
    let mut recorded = leaking(2);
    recorded.identity.allocator = Some("expandable_segments:True".to_string());
    let text = Setting::Text("expandable_segments:True".to_string());
    let of_environment = read(&torch_snapshot(&recorded)).settings;
    assert_eq!(of_environment, [("PYTORCH_CUDA_ALLOC_CONF".to_string(), text)]);
}

#[test]
fn the_state_of_a_rank_survives() {
    let snapshot = leaking(30);
    let found = reread(&snapshot);
    assert_eq!(found.identity, snapshot.identity);
    assert_eq!((found.step, found.wall_ns), (snapshot.step, snapshot.wall_ns));
    let (ours, theirs) = (&snapshot.devices[0], &found.devices[0]);
    let of = |state: &RankSnapshot, event: &TraceEvent| {
        let frames: Vec<Frame> = state.frames_of(event.stack).cloned().collect();
        (event.kind, event.mono_ns, event.address, event.size, event.detail, event.step, frames)
    };
    let ours_in_full: Vec<_> = ours.trace.iter().map(|event| of(&snapshot, event)).collect();
    let theirs_in_full: Vec<_> = theirs.trace.iter().map(|event| of(&found, event)).collect();
    assert_eq!(theirs_in_full, ours_in_full);
    let born = |device: &DeviceSnapshot| -> Vec<_> {
        device.blocks.iter().map(|b| (b.address, b.size, b.birth_step, b.birth_ns)).collect()
    };
    assert_eq!(born(theirs), born(ours));
    assert_eq!((theirs.allocated, theirs.reserved), (ours.allocated, ours.reserved));
    assert_eq!(theirs.segments[0].size, ours.segments[0].size);
}

#[test]
fn other_tools_see_steps_and_phases() {
    let torch = read(&leaking(4));
    let seen: Vec<_> =
        torch.annotations.iter().map(|of| (of.name.as_str(), of.is_start, of.at_us)).collect();
    let expected = [
        ("memtape.step#41", false, 41_000),
        ("memtape.step#42", true, 41_000),
        ("memtape.step#42", false, 42_000),
        ("memtape.step#43", true, 42_000),
        ("memtape.step#43", false, 43_000),
        ("memtape.step#44", true, 43_000),
        ("eval", true, 43_100),
        ("eval", false, 43_900),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn made_up_segments_are_not_believed() {
    let mut snapshot = leaking(20);
    let device = &mut snapshot.devices[0];
    (device.segments, device.segment_source) = (Vec::new(), SegmentSource::None);
    device.reserved = 77 * MIB;
    let last = *device.trace.last().expect("events");
    device.trace.push(TraceEvent { kind: TraceKind::Oom, size: 900 * MIB, detail: MIB, ..last });
    let found = reread(&snapshot);
    assert_eq!(found.devices[0].segment_source, SegmentSource::None);
    let found = History::of(found);
    let device = &found.devices[0];
    assert!(device.shape.is_none() && device.state.segments.is_empty());
    assert_eq!((device.state.reserved, device.inactive_split()), (77 * MIB, None));
    let refused = &device.past.refused[0];
    assert_eq!((refused.request.reserved, refused.request.allocated), (0, 20 * MIB));
    let said = why_refused(refused);
    assert!(said.len() == 1 && said[0].contains("is not known"), "{said:?}");
}

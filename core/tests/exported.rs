//! An exported file keeps what the recorder knew: its steps, its phases, and the state of its rank.

use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::evidence::torch::look::{Look, look};
use memtape_core::diagnosis::evidence::torch::rank_state::rank_state;
use memtape_core::diagnosis::evidence::torch::steps::StepSource;
use memtape_core::diagnosis::files::{Rank, analyze};
use memtape_core::identity::Identity;
use memtape_core::pickle::assemble::TorchReader;
use memtape_core::pickle::torch::{Stage, TorchSnapshot};
use memtape_core::pickle::torch_snapshot;
use memtape_core::snapshot::marks::Mark;
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

fn read(snapshot: &RankSnapshot) -> TorchSnapshot {
    let mut reader = TorchReader::new();
    reader.feed(&torch_snapshot(snapshot)).expect("our own pickle");
    reader.finish().expect("our own pickle")
}

#[test]
fn steps_are_those_of_the_recorder() {
    for steps in [2, 12, 90] {
        let snapshot = leaking(steps);
        let look = look(&read(&snapshot));
        let device = &look.devices[0];
        assert_eq!(device.trace.source, StepSource::Recorded, "{steps} steps");
        assert_eq!(device.trace.ends, steps - 1);
        assert_eq!(device.trace.last_number, Some(BEFORE + steps - 1));
        let births: Vec<u64> = device.blocks.iter().map(|block| block.birth_step).collect();
        assert_eq!(births, (1..=steps).collect::<Vec<_>>(), "each is of its own step");
        assert_eq!(look.origin.step, Some(BEFORE + steps));
        assert_eq!(look.origin.attempt, Some(1));
        assert_eq!(look.origin.tape_id.as_deref(), Some("tape-1"));
    }
}

#[test]
fn recorded_steps_are_believed() {
    let of = |look: Look| analyze(&[Rank { rank: 3, looks: vec![look] }]).verdict;
    let verdict = of(look(&read(&leaking(20)))).expect("a leak");
    assert_eq!(verdict.class, Class::Leak);
    assert_eq!(verdict.bytes_per_step, Some(MIB));
    assert!(verdict.confidence_ppm > 900_000, "{verdict:?}");
    assert!(verdict.against.iter().all(|doubt| !doubt.contains("guessed")), "{verdict:?}");
}

#[test]
fn the_state_of_a_rank_survives() {
    let snapshot = leaking(30);
    let found = rank_state(&read(&snapshot));
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
    let seen: Vec<_> = torch
        .annotations
        .iter()
        .map(|of| (torch.name_of(of).unwrap_or_default(), of.stage, of.time_us()))
        .collect();
    let expected = [
        ("memtape.step#41", Stage::End, 41_000),
        ("memtape.step#42", Stage::Start, 41_000),
        ("memtape.step#42", Stage::End, 42_000),
        ("memtape.step#43", Stage::Start, 42_000),
        ("memtape.step#43", Stage::End, 43_000),
        ("memtape.step#44", Stage::Start, 43_000),
        ("eval", Stage::Start, 43_100),
        ("eval", Stage::End, 43_900),
    ];
    assert_eq!(seen, expected.map(|(name, stage, at)| (name, Some(stage), Some(at))));
}

#[test]
fn made_up_segments_are_not_believed() {
    let mut snapshot = leaking(20);
    let device = &mut snapshot.devices[0];
    (device.segments, device.segment_source) = (Vec::new(), SegmentSource::None);
    device.reserved = 77 * MIB;
    let last = *device.trace.last().expect("events");
    device.trace.push(TraceEvent { kind: TraceKind::Oom, size: 900 * MIB, detail: MIB, ..last });
    let torch = read(&snapshot);
    assert!(!torch.segments.is_empty(), "viewers need some");
    let look = look(&torch);
    let device = &look.devices[0];
    assert!(device.lacks_segments && device.segments.is_empty());
    assert_eq!((device.space.reserved, device.space.split_free), (77 * MIB, 0));
    let oom = &device.trace.ooms[0];
    assert_eq!((oom.space.reserved, oom.space.in_use), (0, 20 * MIB));
    let said = memtape_core::diagnosis::files::why_refused(oom);
    assert!(said.len() == 1 && said[0].contains("is not known"), "{said:?}");
    assert_eq!(rank_state(&torch).devices[0].segment_source, SegmentSource::None);
}

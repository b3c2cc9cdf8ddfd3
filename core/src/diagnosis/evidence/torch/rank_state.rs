//! A file of PyTorch as the state of a rank, in the form that tapes and captures have.
//!
//! What a file lacks stays unknown: sizes of devices, names of jobs, births of blocks that are
//! older than the trace. Steps are found, or counted by the recorder ([`steps`](super::steps)); of
//! a trace with more than [`STEPS_MAX`](super::steps::STEPS_MAX) of them the older ones count as
//! one. C++ frames are left out. It judges nothing.

use alloc::vec::Vec;

use super::look::{DeviceLook, Shared};
use super::replay::rounded;
use super::steps;
use crate::identity::Identity;
use crate::pickle::torch::{Action, Event, TorchSnapshot};
use crate::snapshot::{Block, DeviceSnapshot, RankSnapshot, SegmentSource, TraceEvent, TraceKind};

/// The state of the rank that wrote this file.
pub fn rank_state(snapshot: &TorchSnapshot) -> RankSnapshot {
    let mut shared = Shared::new(snapshot);
    let found = shared.devices();
    let traces: Vec<Vec<TraceEvent>> =
        found.iter().map(|device| trace(&mut shared, snapshot, device)).collect();
    let look = shared.into_look(found);
    let origin = look.origin;
    let last_step = look.devices.iter().map(steps_finished).max().unwrap_or(0);
    let devices = look.devices.into_iter().zip(traces).map(|(of, trace)| device(of, trace));
    RankSnapshot {
        identity: Identity {
            tape_id: origin.tape_id.unwrap_or_default(),
            job: origin.job.unwrap_or_default(),
            attempt: origin.attempt.unwrap_or_default(),
            rank: origin.rank.unwrap_or_default(),
            ..Identity::default()
        },
        step: origin.step.unwrap_or(last_step),
        wall_ns: look.newest_us.unwrap_or_default().saturating_mul(1000),
        devices: devices.collect(),
        frames: look.frames,
        stacks: look.stacks,
        stream_pools: look.stream_pools,
        ..RankSnapshot::default()
    }
}

fn device(look: DeviceLook, trace: Vec<TraceEvent>) -> DeviceSnapshot {
    let (finished, ends) = (steps_finished(&look), look.trace.ends);
    // In a file, births count from 1, the first step of the trace; 0 is older.
    let birth = |block: &Block| match look.birth_step(block).checked_sub(1) {
        Some(passed) => finished.saturating_sub(ends.saturating_sub(passed)),
        None => 0,
    };
    let dated = |block: &Block| Block { birth_step: birth(block), ..*block };
    let blocks = look.blocks.iter().map(dated).collect();
    DeviceSnapshot {
        device: u8::try_from(look.device).unwrap_or(u8::MAX),
        allocated: look.allocated,
        reserved: look.space.reserved,
        blocks,
        segments: look.segments,
        segment_source: match look.lacks_segments {
            true => SegmentSource::None,
            false => SegmentSource::Allocator,
        },
        trace,
        complete: true,
        ..DeviceSnapshot::default()
    }
}

/// Steps that had ended by the last event.
fn steps_finished(look: &DeviceLook) -> u64 {
    look.trace.last_number.unwrap_or(look.trace.ends)
}

/// The events of a device, oldest first.
fn trace(shared: &mut Shared<'_>, snapshot: &TorchSnapshot, look: &DeviceLook) -> Vec<TraceEvent> {
    let range = snapshot.traces.get(look.device as usize).cloned().unwrap_or_default();
    let events = snapshot.events_of(&range);
    let steps = steps::find(snapshot, look.device, events);
    let (finished, ends) = (steps_finished(look), steps.starts.len() as u64);
    let mut starts = steps.starts.iter().peekable();
    let mut passed = 0;
    let mut trace = Vec::with_capacity(events.len());
    let mut rest = events.iter().zip(0_u32..).peekable();
    while let Some((event, index)) = rest.next() {
        while starts.next_if(|&&start| start <= index).is_some() {
            passed += 1;
        }
        let is_end = |next: &(&Event, u32)| {
            next.0.action == Action::FreeCompleted && next.0.address() == event.address()
        };
        let kind = match event.action {
            // A free that no stream holds up is two entries in a row.
            Action::FreeRequested if rest.next_if(is_end).is_some() => TraceKind::Free,
            Action::FreeRequested => TraceKind::FreeDeferred,
            Action::FreeCompleted => TraceKind::FreeCompleted,
            Action::Alloc => TraceKind::Alloc,
            Action::SegmentAlloc => TraceKind::SegmentAlloc,
            Action::SegmentFree => TraceKind::SegmentFree,
            Action::SegmentMap => TraceKind::SegmentMap,
            Action::SegmentUnmap => TraceKind::SegmentUnmap,
            Action::Snapshot => TraceKind::Snapshot,
            Action::Oom => TraceKind::Oom,
            Action::Annotate | Action::Unknown => continue,
        };
        let step = finished.saturating_sub(ends.saturating_sub(passed));
        trace.push(line(shared, snapshot, event, kind, step));
    }
    trace
}

fn line(
    shared: &mut Shared<'_>,
    snapshot: &TorchSnapshot,
    event: &Event,
    kind: TraceKind,
    step: u64,
) -> TraceEvent {
    let bytes = event.bytes().unwrap_or_default();
    let is_of_block = matches!(
        kind,
        TraceKind::Alloc | TraceKind::Free | TraceKind::FreeDeferred | TraceKind::FreeCompleted
    );
    let (size, detail) = match kind {
        TraceKind::Oom => (bytes, event.device_free_bytes().unwrap_or_default()),
        _ if is_of_block => (rounded(bytes), bytes),
        _ => (bytes, 0),
    };
    let time_us = u64::try_from(event.time_us().unwrap_or_default()).unwrap_or(0);
    let stream_pool = (snapshot.stream_of(event), snapshot.pool_of(event));
    TraceEvent {
        kind,
        mono_ns: time_us.saturating_mul(1000),
        address: event.address().unwrap_or_default(),
        size,
        detail,
        stack: event.stack().map_or(0, |stack| shared.stacks.number(stack)),
        stream_pool: shared.stream_pool(stream_pool),
        step,
    }
}

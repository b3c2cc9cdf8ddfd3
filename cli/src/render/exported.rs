//! A snapshot as JSON.

use memtape_core::snapshot::{
    Block, DeviceSnapshot, Frame, RankSnapshot, Segment, StackUse, TraceEvent, TraceKind,
};
use serde_json::{Value, json};

/// The whole snapshot. Stacks are indexes into `stacks`, whose entries are indexes into `frames`;
/// entry 0 of both is the unknown.
pub(crate) fn to_json(snapshot: &RankSnapshot) -> Value {
    let identity = &snapshot.identity;
    let frame = |f: &Frame| json!({ "file": f.file, "line": f.line, "function": f.function });
    json!({
        "tape_id": identity.tape_id,
        "job": identity.job,
        "attempt": identity.attempt,
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "command": identity.command,
        "step": snapshot.step,
        "wall_ns": snapshot.wall_ns,
        "before_step": snapshot.before_step,
        "frames": list(&snapshot.frames, frame),
        "stacks": snapshot.stacks,
        "devices": list(&snapshot.devices, device_json),
    })
}

fn device_json(device: &DeviceSnapshot) -> Value {
    let segment = |s: &Segment| json!({ "address": s.address, "size": s.size });
    let block = |b: &Block| {
        json!({ "address": b.address, "size": b.size, "stack": b.stack,
            "birth_step": b.birth_step, "birth_ns": b.birth_ns })
    };
    let before = |b: &StackUse| json!({ "stack": b.stack, "bytes": b.bytes, "blocks": b.blocks });
    let event = |e: &TraceEvent| {
        json!({ "kind": kind_name(e.kind), "mono_ns": e.mono_ns, "address": e.address,
            "size": e.size, "stack": e.stack, "step": e.step })
    };
    json!({
        "device": device.device,
        "uuid": device.uuid,
        "allocated": device.allocated,
        "reserved": device.reserved,
        "device_bytes": device.device_bytes,
        "complete": device.complete,
        "segments": list(&device.segments, segment),
        "blocks": list(&device.blocks, block),
        "before": list(&device.before, before),
        "trace": list(&device.trace, event),
    })
}

fn list<T>(of: &[T], one: impl Fn(&T) -> Value) -> Value {
    of.iter().map(one).collect()
}

/// The name of a kind of event, as a user meets it.
pub(crate) fn kind_name(kind: TraceKind) -> &'static str {
    match kind {
        TraceKind::Alloc => "alloc",
        TraceKind::Free => "free",
        TraceKind::Oom => "oom",
        TraceKind::SegmentAlloc => "segment_alloc",
        TraceKind::SegmentFree => "segment_free",
        TraceKind::MallocFailed => "malloc_failed",
        TraceKind::FreeDeferred => "free_deferred",
        TraceKind::FreeCompleted => "free_completed",
        TraceKind::SegmentMap => "segment_map",
        TraceKind::SegmentUnmap => "segment_unmap",
        TraceKind::Snapshot => "snapshot",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_there() {
        let block = Block { address: 4096, size: 512, stack: 1, birth_step: 4, ..Block::default() };
        let snapshot = RankSnapshot {
            step: 5,
            devices: vec![DeviceSnapshot { blocks: vec![block], ..DeviceSnapshot::default() }],
            frames: vec![Frame::default()],
            stacks: vec![vec![], vec![0]],
            ..RankSnapshot::default()
        };
        let value = to_json(&snapshot);
        assert_eq!(value["devices"][0]["blocks"][0]["birth_step"], 4);
        assert_eq!(value["step"], 5);
    }
}

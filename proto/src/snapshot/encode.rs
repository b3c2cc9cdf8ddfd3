//! The writer of snapshots: from `core`'s types to compressed bytes.
//!
//! It does not check the snapshot except for its size and the numbers of streams and pools, which a
//! damaged tape can get wrong without harm to the rest.

use memtape_core::identity::Identity;
use memtape_core::limits::SNAPSHOT_DECODED_BYTES_MAX;
use memtape_core::snapshot::failed_request::FailedRequest;
use memtape_core::snapshot::marks::Mark;
use memtape_core::snapshot::workers::{WorkerSamples, WorkerStack};
use memtape_core::snapshot::{
    Block, CollectiveGroup, Collectives, DeviceSnapshot, OutsideStack, OutsideUse, RankSnapshot,
    Segment, SegmentSource, StackUse, StreamPool,
};
use prost::Message as _;

use super::error::EncodeError;
use crate::decoding::{Shaped, measure};
use crate::v1;

/// zstd's own default level; higher ones cost more time than they save on the network.
const ZSTD_LEVEL: i32 = 3;

/// The snapshot as it travels and is stored.
///
/// # Errors
/// The snapshot has more than `bytes_max` bytes before compression, would take too much memory to
/// decode, or zstd fails.
pub fn encode(snapshot: RankSnapshot, bytes_max: usize) -> Result<Vec<u8>, EncodeError> {
    let pools = snapshot.stream_pools.len();
    let rest = v1::RankSnapshot {
        rank: Some(rank(snapshot.identity)),
        step: snapshot.step,
        wall_ns: snapshot.wall_ns,
        devices: snapshot.devices.into_iter().map(|each| device(each, pools)).collect(),
        frames: snapshot
            .frames
            .into_iter()
            .map(|frame| v1::Frame { file: frame.file, line: frame.line, function: frame.function })
            .collect(),
        stacks: snapshot.stacks.into_iter().map(|frames| v1::StackFrames { frames }).collect(),
        before_step: snapshot.before_step,
        places: snapshot.stream_pools.iter().map(stream_pool).collect(),
        outside: snapshot.outside.iter().map(v1::OutsideUse::from).collect(),
        collectives: None,
        outside_stacks: snapshot.outside_stacks.iter().map(outside_stack).collect(),
        outside_stacks_left_out: snapshot.outside_stacks_left_out,
        outside_missing: snapshot.outside_missing,
        worker_samples: snapshot.worker_samples.map(worker_samples),
        failed_request: snapshot.failed_request.as_ref().map(failed_request),
        marks: snapshot.marks.into_iter().map(mark).collect(),
    };
    // The collectives come first, so that `collectives` unpacks nothing else. Messages written
    // one after the other are one message.
    let front = v1::RankSnapshot {
        collectives: Some(collectives(snapshot.collectives)),
        ..v1::RankSnapshot::default()
    };
    let bytes = front.encoded_len().saturating_add(rest.encoded_len());
    if bytes > bytes_max {
        return Err(EncodeError::TooLarge { bytes, bytes_max });
    }
    let mut encoded = Vec::with_capacity(bytes);
    front.encode(&mut encoded)?;
    rest.encode(&mut encoded)?;
    drop(rest);
    measure::bytes(&encoded, v1::RankSnapshot::SHAPE, SNAPSHOT_DECODED_BYTES_MAX)?;
    zstd::bulk::compress(&encoded, ZSTD_LEVEL).map_err(EncodeError::Compress)
}

fn mark(of: Mark) -> v1::Mark {
    v1::Mark { mono_ns: of.mono_ns, step: of.step, text: of.text }
}

fn worker_samples(of: WorkerSamples) -> v1::WorkerSamples {
    let stack = |of: &WorkerStack| v1::WorkerStack { stack: of.stack, samples: of.samples };
    v1::WorkerSamples {
        processes: of.processes,
        processes_failed: of.processes_failed,
        processes_left_out: of.processes_left_out,
        duration_ns: of.duration_ns,
        stacks: of.stacks.iter().map(stack).collect(),
        samples_left_out: of.samples_left_out,
        failure: of.failure,
    }
}

fn failed_request(of: &FailedRequest) -> v1::FailedRequest {
    v1::FailedRequest {
        device: u32::from(of.device),
        step: of.step,
        wall_ns: of.wall_ns,
        bytes: of.bytes,
        stack: of.stack,
        allocated: of.allocated,
        reserved: of.reserved,
        device_free: of.device_free.unwrap_or(0),
        uses: of.uses.iter().map(stack_use).collect(),
    }
}

fn stack_use(of: &StackUse) -> v1::StackUse {
    v1::StackUse { stack: of.stack, bytes: of.bytes, blocks: of.blocks }
}

fn rank(identity: Identity) -> v1::RankUp {
    v1::RankUp {
        tape_id: identity.tape_id,
        job: identity.job,
        attempt: identity.attempt,
        rank: identity.rank,
        world_size: identity.world_size,
        local_rank: identity.local_rank,
        pid: identity.pid,
        command: identity.command,
        role: identity.role,
        allocator_settings: identity.allocator,
        applied_hints: identity.hints,
        ..v1::RankUp::default()
    }
}

fn stream_pool(of: &StreamPool) -> v1::Place {
    v1::Place {
        stream: of.stream,
        pool_first: of.pool.map(|pool| pool.0),
        pool_second: of.pool.map(|pool| pool.1),
    }
}

fn collectives(of: Collectives) -> v1::Collectives {
    let group = |group: CollectiveGroup| v1::CollectiveGroup {
        id: group.id,
        key: group.key,
        name: group.name,
        desc: group.desc,
        size: group.size,
        enqueued: group.enqueued,
        started: group.started,
        completed: group.completed,
        since_wall_ns: group.since_wall_ns,
    };
    v1::Collectives {
        source: of.source as u32,
        source_since_ns: of.source_since_ns,
        look_wall_ns: of.look_wall_ns,
        look_took_ns: of.look_took_ns,
        asked_wall_ns: of.asked_wall_ns,
        groups: of.groups.into_iter().map(group).collect(),
        groups_lost: of.groups_lost,
    }
}

impl From<&OutsideUse> for v1::OutsideUse {
    fn from(each: &OutsideUse) -> Self {
        Self {
            origin: each.origin as u32,
            device: u32::from(each.device),
            bytes: each.bytes,
            count: each.count,
        }
    }
}

fn outside_stack(each: &OutsideStack) -> v1::OutsideStack {
    v1::OutsideStack {
        origin: each.origin as u32,
        device: u32::from(each.device),
        stack: each.stack,
        bytes: each.held.bytes,
        count: each.held.count,
        fresh_bytes: each.fresh.bytes,
        fresh_count: each.fresh.count,
        before_bytes: each.before.map(|before| before.bytes),
        before_count: each.before.map(|before| before.count),
        births: each.births,
        first_step: each.first_step,
        last_step: each.last_step,
    }
}

fn device(device: DeviceSnapshot, pools: usize) -> v1::DeviceState {
    let known = |index: u16| if usize::from(index) < pools { u32::from(index) } else { 0 };
    let trace = device.trace.iter().map(|event| v1::TraceEvent {
        kind: event.kind as i32,
        mono_ns: event.mono_ns,
        address: event.address,
        size: event.size,
        stack: event.stack,
        step: event.step,
        detail: event.detail,
        place: known(event.stream_pool),
    });
    let before = device.before.iter().map(stack_use);
    v1::DeviceState {
        device: u32::from(device.device),
        allocated: device.allocated,
        reserved: device.reserved,
        device_bytes: device.device_bytes,
        blocks: Some(blocks(&device.blocks, known)),
        segments: Some(segments(&device, known)),
        segment_source: device.segment_source as i32,
        before: before.collect(),
        trace: trace.collect(),
        complete: device.complete,
        uuid: device.uuid,
    }
}

/// Segments as columns. Only the allocator knows details, so other sources have no such columns.
fn segments(device: &DeviceSnapshot, known: impl Fn(u16) -> u32) -> v1::Segments {
    let all = || device.segments.iter();
    let detailed = || all().filter(|_| device.segment_source == SegmentSource::Allocator);
    let flags = |segment: &Segment| u32::from(segment.expandable) | u32::from(segment.small) << 1;
    v1::Segments {
        addresses: all().map(|segment| segment.address).collect(),
        sizes: all().map(|segment| segment.size).collect(),
        places: detailed().map(|segment| known(segment.stream_pool)).collect(),
        stacks: detailed().map(|segment| segment.stack).collect(),
        flags: detailed().map(flags).collect(),
    }
}

/// Blocks as columns. Addresses are written as differences, which are smaller numbers.
fn blocks(blocks: &[Block], known: impl Fn(u16) -> u32) -> v1::Blocks {
    let before = std::iter::once(0).chain(blocks.iter().map(|block| block.address));
    let deltas = blocks.iter().zip(before).map(|(block, last)| block.address.wrapping_sub(last));
    let is_detailed = blocks.iter().any(|block| block.requested != 0 || block.stream_pool != 0);
    let detailed = || blocks.iter().filter(|_| is_detailed);
    let pending = blocks.iter().enumerate().filter(|(_, block)| block.pending);
    v1::Blocks {
        address_deltas: deltas.collect(),
        sizes: blocks.iter().map(|block| block.size).collect(),
        stacks: blocks.iter().map(|block| block.stack).collect(),
        birth_steps: blocks.iter().map(|block| block.birth_step).collect(),
        birth_mono_ns: blocks.iter().map(|block| block.birth_ns).collect(),
        requested: detailed().map(|block| block.requested).collect(),
        places: detailed().map(|block| known(block.stream_pool)).collect(),
        pending: pending.map(|(index, _)| index as u32).collect(),
    }
}

//! From the stored body of a capture to the snapshot that the exporters read.
//!
//! The only file of this package that knows protobuf. The coordinator stores what agents send, and
//! agents copy what training processes wrote: indexes and sums are checked, and a body that does
//! not decompress to a bounded size is refused.

use std::io::Read;

use anyhow::{Context, bail};
use memtape_core::identity::Identity;
use memtape_core::origin::Origin;
use memtape_core::snapshot::{
    Block, CollectiveGroup, CollectiveSource, Collectives, DeviceSnapshot, Frame, Held,
    OutsideStack, OutsideUse, RankSnapshot, Segment, SegmentSource, StackUse, StreamPool,
    TraceEvent, TraceKind,
};
use memtape_proto::v1;
use prost::Message;

/// Largest body that is decompressed, in bytes. A million blocks with a long trace are 100 MiB.
const BODY_BYTES_MAX: u64 = 4 << 30;

/// Decodes a stored body.
///
/// # Errors
/// When it is not the zstd of a `RankBody`, or too large.
pub(crate) fn decode(stored: &[u8]) -> anyhow::Result<RankSnapshot> {
    let reader = zstd::Decoder::new(stored).context("the body is not zstd")?;
    let mut bytes = Vec::new();
    let mut bounded = reader.take(BODY_BYTES_MAX + 1);
    bounded.read_to_end(&mut bytes).context("the body is damaged")?;
    if bytes.len() as u64 > BODY_BYTES_MAX {
        bail!("the body is larger than {} GiB", BODY_BYTES_MAX >> 30);
    }
    let body = v1::RankBody::decode(bytes.as_slice()).context("the body is damaged")?;
    Ok(snapshot(body))
}

fn snapshot(body: v1::RankBody) -> RankSnapshot {
    let rank = body.rank.unwrap_or_default();
    let frame =
        |frame: v1::Frame| Frame { file: frame.file, line: frame.line, function: frame.function };
    RankSnapshot {
        identity: Identity {
            tape_id: rank.tape_id,
            job: rank.job,
            role: rank.role,
            attempt: rank.attempt,
            rank: rank.rank,
            world_size: rank.world_size,
            local_rank: rank.local_rank,
            // The wire names the node in the manifest, not in the body.
            host: String::new(),
            pid: rank.pid,
            command: rank.command,
        },
        step: body.step,
        wall_ns: body.wall_ns,
        devices: body.devices.into_iter().map(device).collect(),
        frames: body.frames.into_iter().map(frame).collect(),
        stacks: body.stacks.into_iter().map(|stack| stack.frames).collect(),
        before_step: body.before_step,
        stream_pools: body.places.iter().map(place).collect(),
        outside: body.outside.iter().map(outside).collect(),
        outside_stacks: body.outside_stacks.iter().filter_map(outside_stack).collect(),
        outside_stacks_left_out: body.outside_stacks_left_out,
        collectives: body.collectives.map(collectives).unwrap_or_default(),
        ..RankSnapshot::default()
    }
}

fn place(place: &v1::Place) -> StreamPool {
    StreamPool { stream: place.stream, pool: place.pool_first.zip(place.pool_second) }
}

fn collectives(of: v1::Collectives) -> Collectives {
    let group = |group: v1::CollectiveGroup| CollectiveGroup {
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
    Collectives {
        source: CollectiveSource::from_number(u64::from(of.source)),
        source_since_ns: of.source_since_ns,
        look_wall_ns: of.look_wall_ns,
        look_took_ns: of.look_took_ns,
        asked_wall_ns: of.asked_wall_ns,
        groups: of.groups.into_iter().map(group).collect(),
        groups_lost: of.groups_lost,
    }
}

fn outside(each: &v1::OutsideUse) -> OutsideUse {
    OutsideUse {
        origin: Origin::from_number(u16::try_from(each.origin).unwrap_or(0)),
        device: u8::try_from(each.device).unwrap_or(u8::MAX),
        bytes: each.bytes,
        count: each.count,
    }
}

fn outside_stack(each: &v1::OutsideStack) -> Option<OutsideStack> {
    let before = each.before_bytes.zip(each.before_count);
    Some(OutsideStack {
        origin: Origin::from_number(u16::try_from(each.origin).ok()?),
        device: u8::try_from(each.device).ok()?,
        stack: each.stack,
        held: Held { bytes: each.bytes, count: each.count },
        fresh: Held { bytes: each.fresh_bytes, count: each.fresh_count },
        before: before.map(|(bytes, count)| Held { bytes, count }),
        births: each.births,
        first_step: each.first_step,
        last_step: each.last_step,
    })
}

fn device(state: v1::DeviceState) -> DeviceSnapshot {
    let used =
        |used: v1::StackUse| StackUse { stack: used.stack, bytes: used.bytes, blocks: used.blocks };
    let segment_source = match state.segment_source() {
        v1::SegmentSource::Unspecified => SegmentSource::None,
        v1::SegmentSource::Runtime => SegmentSource::Runtime,
        v1::SegmentSource::Allocator => SegmentSource::Allocator,
    };
    DeviceSnapshot {
        device: u8::try_from(state.device).unwrap_or(u8::MAX),
        uuid: state.uuid,
        allocated: state.allocated,
        reserved: state.reserved,
        device_bytes: state.device_bytes,
        blocks: blocks(&state.blocks.unwrap_or_default()),
        segment_source,
        segments: segments(&state.segments.unwrap_or_default()),
        before: state.before.into_iter().map(used).collect(),
        trace: state.trace.iter().filter_map(event).collect(),
        complete: state.complete,
    }
}

/// Columns back to blocks; a column that is too short cuts the others.
fn blocks(columns: &v1::Blocks) -> Vec<Block> {
    let mut address = 0_u64;
    let sizes = columns.address_deltas.iter().zip(&columns.sizes);
    let births = columns.birth_steps.iter().zip(&columns.birth_mono_ns);
    let mut blocks: Vec<Block> = sizes
        .zip(&columns.stacks)
        .zip(births)
        .map(|(((delta, &size), &stack), (&birth_step, &birth_ns))| {
            address = address.wrapping_add(*delta);
            Block { address, size, stack, birth_step, birth_ns, ..Block::default() }
        })
        .collect();
    let details = columns.requested.iter().zip(&columns.places);
    for (block, (&requested, &place)) in blocks.iter_mut().zip(details) {
        (block.requested, block.stream_pool) = (requested, u16::try_from(place).unwrap_or(0));
    }
    for &index in &columns.pending {
        if let Some(block) = blocks.get_mut(index as usize) {
            block.pending = true;
        }
    }
    blocks
}

fn segments(columns: &v1::Segments) -> Vec<Segment> {
    let each = |(&address, &size)| Segment { address, size, ..Segment::default() };
    let mut segments: Vec<Segment> =
        columns.addresses.iter().zip(&columns.sizes).map(each).collect();
    let details = columns.places.iter().zip(&columns.stacks).zip(&columns.flags);
    for (segment, ((&place, &stack), &flags)) in segments.iter_mut().zip(details) {
        segment.stream_pool = u16::try_from(place).unwrap_or(0);
        segment.stack = stack;
        (segment.expandable, segment.small) = (flags & 1 != 0, flags & 2 != 0);
    }
    segments
}

fn event(event: &v1::TraceEvent) -> Option<TraceEvent> {
    let kind = match event.kind() {
        v1::TraceKind::Unspecified => return None,
        v1::TraceKind::Alloc => TraceKind::Alloc,
        v1::TraceKind::Free => TraceKind::Free,
        v1::TraceKind::Oom => TraceKind::Oom,
        v1::TraceKind::SegmentAlloc => TraceKind::SegmentAlloc,
        v1::TraceKind::SegmentFree => TraceKind::SegmentFree,
        v1::TraceKind::MallocFailed => TraceKind::MallocFailed,
        v1::TraceKind::FreeDeferred => TraceKind::FreeDeferred,
        v1::TraceKind::FreeCompleted => TraceKind::FreeCompleted,
        v1::TraceKind::SegmentMap => TraceKind::SegmentMap,
        v1::TraceKind::SegmentUnmap => TraceKind::SegmentUnmap,
        v1::TraceKind::Snapshot => TraceKind::Snapshot,
    };
    Some(TraceEvent {
        kind,
        mono_ns: event.mono_ns,
        address: event.address,
        size: event.size,
        stack: event.stack,
        step: event.step,
        detail: event.detail,
        stream_pool: u16::try_from(event.place).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> v1::RankBody {
        v1::RankBody {
            rank: Some(v1::RankUp { job: "j".into(), rank: 3, ..Default::default() }),
            step: 70,
            devices: vec![v1::DeviceState {
                device: 1,
                allocated: 30,
                blocks: Some(v1::Blocks {
                    address_deltas: vec![1000, 24, 1 << 40],
                    sizes: vec![8, 16, 6],
                    stacks: vec![0, 1, 1],
                    birth_steps: vec![1, 2, 3],
                    birth_mono_ns: vec![10, 20, 30],
                    requested: vec![7, 15, 5],
                    places: vec![0, 1, 0],
                    pending: vec![2],
                }),
                trace: vec![
                    v1::TraceEvent { kind: 1, address: 1000, ..Default::default() },
                    v1::TraceEvent { kind: 99, ..Default::default() },
                ],
                ..Default::default()
            }],
            frames: vec![v1::Frame::default(), v1::Frame { line: 9, ..Default::default() }],
            stacks: vec![v1::StackFrames::default(), v1::StackFrames { frames: vec![1] }],
            outside_stacks: vec![
                v1::OutsideStack { origin: 4, stack: 1, bytes: 64, count: 2, ..Default::default() },
                v1::OutsideStack { origin: 1 << 20, ..Default::default() },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_body_becomes_a_snapshot() {
        let stored = zstd::encode_all(body().encode_to_vec().as_slice(), 3).expect("zstd");
        let snapshot = decode(&stored).expect("own encoding");
        assert_eq!((snapshot.identity.rank, snapshot.step), (3, 70));
        let device = &snapshot.devices[0];
        let addresses: Vec<u64> = device.blocks.iter().map(|block| block.address).collect();
        assert_eq!(addresses, [1000, 1024, 1024 + (1 << 40)]);
        assert_eq!(device.blocks[2].birth_ns, 30);
        assert_eq!((device.blocks[1].requested, device.blocks[1].stream_pool), (15, 1));
        assert!(device.blocks[2].pending && !device.blocks[0].pending);
        assert_eq!(device.trace.len(), 1, "an unknown kind of event is left out");
        assert_eq!(snapshot.frames_of(1).count(), 1);
        let [row] = snapshot.outside_stacks.as_slice() else { panic!("one: {snapshot:?}") };
        assert_eq!((row.origin, row.stack, row.held.bytes), (Origin::HostPinned, 1, 64));
        assert_eq!(row.before, None, "an older agent does not say");
    }

    #[test]
    fn damage_is_an_error() {
        let encoded = body().encode_to_vec();
        let stored = zstd::encode_all(encoded.as_slice(), 3).expect("zstd");
        let garbage = zstd::encode_all([0xff; 40].as_slice(), 3).expect("zstd");
        for bytes in [&b""[..], b"no zstd", &stored[..stored.len() / 2], &encoded, &garbage] {
            assert!(decode(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn uneven_columns_are_cut() {
        let columns =
            v1::Blocks { address_deltas: vec![1, 2, 3], sizes: vec![1], ..Default::default() };
        assert_eq!(blocks(&columns), []);
    }
}

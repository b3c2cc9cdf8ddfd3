//! Bodies of captures: checked when they come, decoded when they are diagnosed.
//!
//! A body is zstd of `RankBody`. It came over the network from a process that nobody vouches for:
//! it is unpacked only up to a bound, and every index in it is checked.

use std::io::Read;

use memtape_core::identity::{Identity, NAME_BYTES_MAX, cut};
use memtape_core::origin::Origin;
use memtape_core::snapshot::{
    Block, CollectiveGroup, CollectiveSource, Collectives, DeviceSnapshot, Frame, Held,
    OUTSIDE_STACKS_MAX, OutsideStack, OutsideUse, RankSnapshot, Segment, SegmentSource, StackUse,
    StreamPool, TraceEvent, TraceKind,
};
use memtape_core::tape::dump::TEXT_BYTES_MAX;
use memtape_core::tape::layout::DEVICES_MAX;
use memtape_core::tape::layout::GROUPS_MAX;
use memtape_proto::v1;
use prost::Message as _;

/// Largest body as it is sent and stored.
pub(crate) const BODY_BYTES_MAX: u64 = 256 << 20;

/// Largest body after unpacking; agents keep to the same bound.
pub(crate) const UNPACKED_BYTES_MAX: u64 = 1 << 30;

/// Largest unpacked body that is decoded. Decoding can take thirty times as much memory as a body
/// made for that purpose; an honest one of this size has several million blocks.
pub(crate) const DECODED_BYTES_MAX: u64 = 128 << 20;

/// Furthest that unpacking looks back, as a power of two; what was packed to need more is refused.
/// zstd's levels up to 19 need no more.
const WINDOW_BYTES_LOG_MAX: u32 = 23;

/// Memory that unpacking takes: the window, and zstd's own buffers.
pub(crate) const CHECK_BYTES: u64 = (1 << WINDOW_BYTES_LOG_MAX) + (1 << 20);

/// Events of a device that are kept, the newest; agents send as many by default.
const TRACE_EVENTS_MAX: usize = 65_536;

/// Stacks of memory outside the allocator that are kept: as many as an honest body has at most.
const OUTSIDE_ROWS_MAX: usize = DEVICES_MAX * Origin::ALL.len() * OUTSIDE_STACKS_MAX;

/// Number of the collectives' field in a body.
const COLLECTIVES_FIELD: u64 = 10;

/// Largest such field: 64 groups take 8 KiB.
const COLLECTIVES_BYTES_MAX: u64 = 1 << 20;

/// Unpacks a body to nowhere, to see that it can be.
///
/// # Errors
/// One line.
pub(crate) fn check(body: &[u8]) -> Result<(), String> {
    let reader = reader(body)?;
    let copied = std::io::copy(&mut reader.take(UNPACKED_BYTES_MAX + 1), &mut std::io::sink());
    let bytes = copied.map_err(|error| format!("the body cannot be unpacked: {error}"))?;
    bounded(bytes, UNPACKED_BYTES_MAX)
}

/// The state that a body shows, with the newest [`TRACE_EVENTS_MAX`] events of each device.
///
/// # Errors
/// One line.
pub(crate) fn decode(body: &[u8]) -> Result<RankSnapshot, String> {
    let mut unpacked = Vec::new();
    let read = reader(body)?.take(DECODED_BYTES_MAX + 1).read_to_end(&mut unpacked);
    let bytes = read.map_err(|error| format!("the body cannot be unpacked: {error}"))?;
    bounded(bytes as u64, DECODED_BYTES_MAX)?;
    let body = v1::RankBody::decode(unpacked.as_slice())
        .map_err(|error| format!("the body makes no sense: {error}"))?;
    snapshot(body)
}

/// How far the rank of a body has come in its collectives; `None` where the body does not say.
/// Unpacks no further than to there, which is the beginning.
///
/// # Errors
/// One line.
pub(crate) fn collectives_of(body: &[u8]) -> Result<Option<Collectives>, String> {
    let mut reader = reader(body)?.take(UNPACKED_BYTES_MAX);
    let broken = |error: std::io::Error| format!("the body makes no sense: {error}");
    while let Some(field) = varint(&mut reader).map_err(broken)? {
        let bytes = match field & 7 {
            0 => varint(&mut reader).map(|_| 0),
            1 => Ok(8),
            2 => varint(&mut reader).map(Option::unwrap_or_default),
            5 => Ok(4),
            _ => return Err("the body makes no sense: a field of no kind".to_string()),
        };
        let bytes = bytes.map_err(broken)?;
        let mut value = reader.by_ref().take(bytes);
        if field == COLLECTIVES_FIELD << 3 | 2 {
            let mut encoded = Vec::new();
            let mut bounded = value.take(COLLECTIVES_BYTES_MAX);
            bounded.read_to_end(&mut encoded).map_err(broken)?;
            let decoded = v1::Collectives::decode(encoded.as_slice());
            let decoded = decoded.map_err(|error| format!("the body makes no sense: {error}"))?;
            return Ok(Some(collectives(decoded)));
        }
        let skipped = std::io::copy(&mut value, &mut std::io::sink()).map_err(broken)?;
        if skipped < bytes {
            return Err("the body is cut short".to_string());
        }
    }
    Ok(None)
}

/// A number as protobuf packs it; `None` at the end.
fn varint(reader: &mut impl Read) -> std::io::Result<Option<u64>> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        if reader.read(&mut byte)? == 0 {
            return Ok(None);
        }
        number |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(Some(number));
        }
    }
    Err(std::io::Error::other("a number is too long"))
}

fn collectives(of: v1::Collectives) -> Collectives {
    let group = |group: v1::CollectiveGroup| CollectiveGroup {
        id: group.id,
        key: group.key,
        name: one_line(&group.name),
        desc: one_line(&group.desc),
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
        groups: of.groups.into_iter().take(GROUPS_MAX).map(group).collect(),
        groups_lost: of.groups_lost,
    }
}

fn one_line(text: &str) -> String {
    cut(text, TEXT_BYTES_MAX).replace(char::is_control, " ")
}

fn reader(body: &[u8]) -> Result<impl Read + '_, String> {
    let failed = |error: std::io::Error| format!("the body cannot be unpacked: {error}");
    let mut reader = zstd::stream::read::Decoder::with_buffer(body).map_err(failed)?;
    reader.window_log_max(WINDOW_BYTES_LOG_MAX).map_err(failed)?;
    Ok(reader)
}

fn bounded(bytes: u64, bytes_max: u64) -> Result<(), String> {
    if bytes > bytes_max {
        return Err(format!("the body unpacks to more than {bytes_max} bytes"));
    }
    Ok(())
}

fn snapshot(body: v1::RankBody) -> Result<RankSnapshot, String> {
    let frames: Vec<Frame> = body
        .frames
        .into_iter()
        .map(|frame| Frame {
            file: cut(&frame.file, 4 * NAME_BYTES_MAX).to_string(),
            line: frame.line,
            function: cut(&frame.function, NAME_BYTES_MAX).to_string(),
        })
        .collect();
    let mut stacks: Vec<Vec<u32>> = body.stacks.into_iter().map(|stack| stack.frames).collect();
    if stacks.iter().flatten().any(|&frame| frame as usize >= frames.len()) {
        return Err("the body names frames that it does not have".to_string());
    }
    // Entry 0 is the unknown stack, also of a rank without any.
    if stacks.is_empty() {
        stacks.push(Vec::new());
    }
    let devices = body.devices.into_iter().map(|device| device_of(device, stacks.len()));
    let outside = body.outside.iter().filter_map(|each| {
        Some(OutsideUse {
            origin: Origin::from_number(u16::try_from(each.origin).ok()?),
            device: u8::try_from(each.device).ok()?,
            bytes: each.bytes,
            count: each.count,
        })
    });
    let count = stacks.len();
    let known = |stack: u32| if (stack as usize) < count { stack } else { 0 };
    let rows = body.outside_stacks.iter().take(OUTSIDE_ROWS_MAX);
    let outside_stacks = rows.filter_map(|each| outside_stack(each, known)).collect();
    Ok(RankSnapshot {
        identity: identity(body.rank.unwrap_or_default()),
        step: body.step,
        wall_ns: body.wall_ns,
        devices: devices.collect::<Result<_, _>>()?,
        frames,
        stacks,
        stream_pools: body.places.iter().map(place).collect(),
        outside: outside.collect(),
        outside_stacks,
        outside_stacks_left_out: body.outside_stacks_left_out,
        before_step: body.before_step,
        collectives: body.collectives.map(collectives).unwrap_or_default(),
        ..RankSnapshot::default()
    })
}

fn outside_stack(each: &v1::OutsideStack, known: impl Fn(u32) -> u32) -> Option<OutsideStack> {
    let before = each.before_bytes.zip(each.before_count);
    Some(OutsideStack {
        origin: Origin::from_number(u16::try_from(each.origin).ok()?),
        device: u8::try_from(each.device).ok()?,
        stack: known(each.stack),
        held: Held { bytes: each.bytes, count: each.count },
        fresh: Held { bytes: each.fresh_bytes, count: each.fresh_count },
        before: before.map(|(bytes, count)| Held { bytes, count }),
        births: each.births,
        first_step: each.first_step,
        last_step: each.last_step,
    })
}

fn identity(rank: v1::RankUp) -> Identity {
    Identity {
        tape_id: rank.tape_id,
        job: rank.job,
        role: String::new(),
        attempt: rank.attempt,
        rank: rank.rank,
        world_size: rank.world_size,
        local_rank: rank.local_rank,
        host: String::new(),
        pid: rank.pid,
        command: rank.command,
    }
}

fn place(place: &v1::Place) -> StreamPool {
    StreamPool { stream: place.stream, pool: place.pool_first.zip(place.pool_second) }
}

/// Segments from their columns, of which the details are there only where the allocator tells.
fn segments(columns: &v1::Segments, known: impl Fn(u32) -> u32) -> Result<Vec<Segment>, String> {
    let count = columns.addresses.len();
    let details = [columns.places.len(), columns.stacks.len(), columns.flags.len()];
    let is_uneven = |&length: &usize| length != 0 && length != count;
    if columns.sizes.len() != count || details.iter().any(is_uneven) {
        return Err("the body's columns differ in length".to_string());
    }
    let detail = |column: &[u32], index: usize| column.get(index).copied().unwrap_or(0);
    let segment = |(index, (&address, &size)): (usize, (&u64, &u64))| {
        let flags = detail(&columns.flags, index);
        Segment {
            address,
            size,
            stream_pool: u16::try_from(detail(&columns.places, index)).unwrap_or(0),
            stack: known(detail(&columns.stacks, index)),
            expandable: flags & 1 != 0,
            small: flags & 2 != 0,
        }
    };
    let all = columns.addresses.iter().zip(&columns.sizes).enumerate();
    Ok(all.map(segment).collect())
}

/// An event; none of a kind that this version does not know.
fn event(event: &v1::TraceEvent, known: impl Fn(u32) -> u32) -> Option<TraceEvent> {
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
        detail: event.detail,
        stack: known(event.stack),
        stream_pool: u16::try_from(event.place).unwrap_or(0),
        step: event.step,
    })
}

fn device_of(device: v1::DeviceState, stacks: usize) -> Result<DeviceSnapshot, String> {
    let known = |stack: u32| if (stack as usize) < stacks { stack } else { 0 };
    let source = device.segment_source();
    let columns = device.blocks.unwrap_or_default();
    let count = columns.address_deltas.len();
    let lengths = [
        columns.sizes.len(),
        columns.stacks.len(),
        columns.birth_steps.len(),
        columns.birth_mono_ns.len(),
    ];
    // Columns of details are as long as the others, or empty where the tape has none.
    let details = [columns.requested.len(), columns.places.len()];
    if lengths.iter().any(|&length| length != count)
        || details.iter().any(|&length| length != 0 && length != count)
    {
        return Err("the body's columns differ in length".to_string());
    }
    let mut address = 0_u64;
    let mut blocks: Vec<Block> = Vec::with_capacity(count);
    for index in 0..count {
        address = address.wrapping_add(columns.address_deltas[index]);
        let place = columns.places.get(index).copied().unwrap_or(0);
        blocks.push(Block {
            address,
            size: columns.sizes[index],
            stack: known(columns.stacks[index]),
            birth_step: columns.birth_steps[index],
            birth_ns: columns.birth_mono_ns[index],
            requested: columns.requested.get(index).copied().unwrap_or(0),
            stream_pool: u16::try_from(place).unwrap_or(0),
            pending: false,
        });
    }
    for &index in &columns.pending {
        let block = blocks.get_mut(index as usize);
        block.ok_or("the body's pending blocks are not there")?.pending = true;
    }
    let before = device.before.iter().map(|each| StackUse {
        stack: known(each.stack),
        bytes: each.bytes,
        blocks: each.blocks,
    });
    let segments = segments(&device.segments.unwrap_or_default(), known)?;
    let newest = device.trace.len().saturating_sub(TRACE_EVENTS_MAX);
    let trace = device.trace.iter().skip(newest).filter_map(|each| event(each, known));
    Ok(DeviceSnapshot {
        device: u8::try_from(device.device).map_err(|_| "the body's device is out of range")?,
        uuid: cut(&device.uuid, NAME_BYTES_MAX).to_string(),
        allocated: device.allocated,
        reserved: device.reserved,
        device_bytes: device.device_bytes,
        blocks,
        segments,
        segment_source: match source {
            v1::SegmentSource::Unspecified => SegmentSource::None,
            v1::SegmentSource::Runtime => SegmentSource::Runtime,
            v1::SegmentSource::Allocator => SegmentSource::Allocator,
        },
        before: before.collect(),
        trace: trace.collect(),
        complete: device.complete,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body() -> v1::RankBody {
        let columns = v1::Blocks {
            address_deltas: vec![512, 512],
            sizes: vec![512, 256],
            stacks: vec![1, 9],
            birth_steps: vec![3, 4],
            birth_mono_ns: vec![30, 40],
            ..Default::default()
        };
        let device = v1::DeviceState { device: 1, blocks: Some(columns), ..Default::default() };
        let frame = v1::Frame { file: "train.py".to_string(), line: 7, function: "f".to_string() };
        v1::RankBody {
            step: 5,
            devices: vec![device],
            frames: vec![v1::Frame::default(), frame],
            stacks: vec![v1::StackFrames::default(), v1::StackFrames { frames: vec![1] }],
            ..Default::default()
        }
    }

    fn check_body(change: fn(&mut v1::RankBody), expected: Result<u64, &str>) {
        let mut body = body();
        change(&mut body);
        let packed = zstd::bulk::compress(&body.encode_to_vec(), 3).unwrap();
        assert_eq!(check(&packed), Ok(()));
        match (decode(&packed), expected) {
            (Ok(found), Ok(step)) => assert_eq!(found.step, step),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why:?} has no {part:?}"),
            (found, _) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn bodies_are_checked() {
        check_body(|_| {}, Ok(5));
        check_body(|body| body.stacks.clear(), Ok(5));
        check_body(|body| body.frames.clear(), Err("frames that it does not have"));
        check_body(|body| body.devices[0].device = 300, Err("out of range"));
        let uneven = |body: &mut v1::RankBody| {
            body.devices[0].blocks.as_mut().unwrap().sizes.pop();
        };
        check_body(uneven, Err("differ in length"));
        let requested = |body: &mut v1::RankBody| {
            body.devices[0].blocks.as_mut().unwrap().requested.push(7);
        };
        check_body(requested, Err("differ in length"));
        let flags = |body: &mut v1::RankBody| {
            let (addresses, sizes) = (vec![512, 1024], vec![512, 512]);
            let segments = v1::Segments { addresses, sizes, flags: vec![1], ..Default::default() };
            body.devices[0].segments = Some(segments);
        };
        check_body(flags, Err("differ in length"));
        let beyond = |body: &mut v1::RankBody| {
            body.devices[0].blocks.as_mut().unwrap().pending.push(2);
        };
        check_body(beyond, Err("pending blocks are not there"));
    }

    #[test]
    fn what_the_allocator_says_comes_along() {
        let mut body = body();
        body.places = vec![
            v1::Place::default(),
            v1::Place { stream: Some(7), pool_first: Some(0), pool_second: Some(3) },
        ];
        body.outside = vec![
            v1::OutsideUse { origin: 7, device: 1, bytes: 9, count: 2 },
            v1::OutsideUse { origin: 1 << 20, ..Default::default() },
        ];
        let event = |kind: v1::TraceKind, stack: u32| v1::TraceEvent {
            kind: kind.into(),
            size: 512,
            stack,
            step: 4,
            ..Default::default()
        };
        let device = &mut body.devices[0];
        device.trace = vec![event(v1::TraceKind::Unspecified, 0), event(v1::TraceKind::Free, 9)];
        device.segment_source = v1::SegmentSource::Allocator.into();
        device.segments = Some(v1::Segments {
            addresses: vec![512],
            sizes: vec![2 << 20],
            places: vec![1],
            stacks: vec![1],
            flags: vec![1],
        });
        let packed = zstd::bulk::compress(&body.encode_to_vec(), 3).unwrap();
        let found = decode(&packed).unwrap();
        let device = &found.devices[0];
        let segment = device.segments[0];
        assert_eq!((segment.stack, segment.expandable, segment.small), (1, true, false));
        assert_eq!(found.stream_pool(segment.stream_pool).pool, Some((0, 3)));
        assert_eq!(device.segment_source, SegmentSource::Allocator);
        let events: Vec<_> = device.trace.iter().map(|e| (e.kind, e.size, e.stack)).collect();
        assert_eq!(events, [(TraceKind::Free, 512, 0)], "a stack that is not there is unknown");
        let outside: Vec<_> = found.outside.iter().map(|of| (of.origin, of.bytes)).collect();
        assert_eq!(outside, [(Origin::Nccl, 9)]);
    }

    #[test]
    fn stacks_of_other_memory_come_along() {
        let mut body = body();
        let row = v1::OutsideStack {
            origin: 7,
            device: 1,
            stack: 1,
            bytes: 9,
            count: 3,
            fresh_bytes: 6,
            fresh_count: 2,
            before_bytes: Some(3),
            before_count: Some(1),
            births: 2,
            first_step: 4,
            last_step: 5,
        };
        body.outside_stacks = vec![
            row,
            v1::OutsideStack { stack: 9, before_count: None, ..row },
            v1::OutsideStack { origin: 1 << 20, ..row },
            v1::OutsideStack { device: 300, ..row },
        ];
        body.outside_stacks_left_out = 8;
        let pack = |body: &v1::RankBody| zstd::bulk::compress(&body.encode_to_vec(), 3).unwrap();
        let found = decode(&pack(&body)).unwrap();
        let held = |bytes, count| Held { bytes, count };
        let known = OutsideStack {
            origin: Origin::Nccl,
            device: 1,
            stack: 1,
            held: held(9, 3),
            fresh: held(6, 2),
            before: Some(held(3, 1)),
            births: 2,
            first_step: 4,
            last_step: 5,
        };
        let strange = OutsideStack { stack: 0, before: None, ..known };
        assert_eq!(found.outside_stacks, [known, strange], "what makes no sense is unknown");
        assert_eq!(found.outside_stacks_left_out, 8);

        // Of an agent of before it there is none, and nothing else is lost.
        body.outside_stacks.clear();
        body.outside_stacks_left_out = 0;
        assert_eq!(decode(&pack(&body)).unwrap().outside_stacks, []);
        body.outside_stacks = vec![row; OUTSIDE_ROWS_MAX + 1];
        assert_eq!(decode(&pack(&body)).unwrap().outside_stacks.len(), OUTSIDE_ROWS_MAX);
    }

    #[test]
    fn details_of_blocks_come_along() {
        let mut body = body();
        let columns = body.devices[0].blocks.as_mut().unwrap();
        (columns.requested, columns.places) = (vec![500, 0], vec![1, 1 << 20]);
        columns.pending = vec![1];
        let packed = zstd::bulk::compress(&body.encode_to_vec(), 3).unwrap();
        let found = decode(&packed).unwrap();
        let blocks = found.devices[0].blocks.iter();
        let details: Vec<_> = blocks.map(|b| (b.requested, b.stream_pool, b.pending)).collect();
        assert_eq!(details, [(500, 1, false), (0, 0, true)]);
    }

    #[test]
    fn addresses_add_up_and_strange_stacks_are_unknown() {
        let packed = zstd::bulk::compress(&body().encode_to_vec(), 3).unwrap();
        let found = decode(&packed).unwrap();
        let blocks = &found.devices[0].blocks;
        assert_eq!((blocks[0].address, blocks[1].address), (512, 1024));
        assert_eq!((blocks[0].stack, blocks[1].stack), (1, 0));
    }

    #[test]
    fn collectives_are_found_wherever_they_stand() {
        let group = v1::CollectiveGroup {
            key: u64::MAX,
            name: "a\nb".into(),
            enqueued: Some(812),
            ..Default::default()
        };
        let collectives = v1::Collectives {
            source: 1,
            look_wall_ns: -5,
            groups: vec![group; 99],
            ..Default::default()
        };
        let front = v1::RankBody { collectives: Some(collectives), ..Default::default() };
        let (front, rest) = (front.encode_to_vec(), body().encode_to_vec());
        let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).unwrap();
        for bytes in [[front.clone(), rest.clone()].concat(), [rest.clone(), front].concat()] {
            let found = collectives_of(&pack(&bytes)).unwrap().expect("they are there");
            assert_eq!((found.source, found.look_wall_ns), (CollectiveSource::FlightRecorder, -5));
            assert_eq!(found.groups.len(), GROUPS_MAX, "no more than a tape has");
            assert_eq!((found.groups[0].key, found.groups[0].name.as_str()), (u64::MAX, "a b"));
            assert_eq!((found.groups[0].enqueued, found.groups[0].completed), (Some(812), None));
            assert_eq!(decode(&pack(&bytes)).unwrap().collectives, found);
        }
        assert_eq!(collectives_of(&pack(&rest)), Ok(None), "an older agent's");
        for length in 1..rest.len() {
            let _ = collectives_of(&pack(&rest[..length]));
        }
        for wrong in [&[0x53, 0xff, 0xff][..], &[0xff; 11], &[0x52, 0x05, 0xff], &[0x0a, 0x09]] {
            assert!(collectives_of(&pack(wrong)).is_err(), "{wrong:?}");
        }
        assert!(collectives_of(b"not zstd").is_err());
    }

    #[test]
    fn garbage_and_bombs_are_refused() {
        assert!(check(b"not zstd at all").is_err());
        assert!(decode(&zstd::bulk::compress(&[0xff; 100], 3).unwrap()).is_err());
        let packed = zstd::bulk::compress(&body().encode_to_vec(), 3).unwrap();
        assert!(check(&packed[..packed.len() - 3]).is_err());
        // A body that unpacks to a little more than the bound, made without that much memory.
        let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        let megabyte = vec![0; 1 << 20];
        for _ in 0..=(UNPACKED_BYTES_MAX >> 20) {
            std::io::Write::write_all(&mut bomb, &megabyte).unwrap();
        }
        let bomb = bomb.finish().unwrap();
        assert!(bomb.len() < 1 << 20);
        assert!(check(&bomb).unwrap_err().contains("more than"));
    }
}

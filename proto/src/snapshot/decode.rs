//! The reader of snapshots: from compressed bytes to `core`'s types, or a [`DecodeError`].
//!
//! A zstd frame of ours begins with the size of its content, so the size is checked before anything
//! is unpacked, and the memory of the decoded message is known before it is decoded
//! (`../decoding/`). Lengths, indexes and sums are checked while the message is translated. Kinds
//! of events that this version does not know are left out: a newer agent may send them.

use std::io::Read;

use memtape_core::identity::planned_end::PlannedEnd;
use memtape_core::identity::{Identity, cut};
use memtape_core::limits::{
    ALLOCATOR_SETTINGS_BYTES_MAX, COMMAND_BYTES_MAX, DEVICES_MAX, FAILED_USES_MAX, MARKS_MAX,
    NAME_BYTES_MAX, OUTSIDE_STACKS_MAX, PROCESS_GROUPS_MAX, ROLE_BYTES_MAX, SNAPSHOT_BYTES_MAX,
    SNAPSHOT_DECODED_BYTES_MAX, TRACE_EVENTS_MAX, WORKER_STACKS_MAX,
};
use memtape_core::redaction::Redaction;
use memtape_core::snapshot::failed_request::FailedRequest;
use memtape_core::snapshot::marks::Mark;
use memtape_core::snapshot::origin::Origin;
use memtape_core::snapshot::step_source::StepSource;
use memtape_core::snapshot::workers::{WorkerSamples, WorkerStack};
use memtape_core::snapshot::{
    Block, CollectiveGroup, CollectiveSource, Collectives, DeviceSnapshot, Frame, Held,
    OutsideStack, OutsideUse, RankSnapshot, Segment, SegmentSource, StackUse, StreamPool,
    TraceEvent, TraceKind,
};
use memtape_core::tape::collective::dump::TEXT_BYTES_MAX;
use memtape_core::tape::interned::STRING_BYTES_MAX;
use prost::decode_length_delimiter;
use zstd::zstd_safe::get_frame_content_size;

use super::error::DecodeError;
use crate::decoding::{Encoded, NotDecoded};
use crate::v1;

/// Rows of memory outside the allocator: as many as a tape can make.
const OUTSIDE_ROWS_MAX: usize = DEVICES_MAX * Origin::ALL.len() * OUTSIDE_STACKS_MAX;

/// Key of the field `collectives` in a `RankSnapshot`: field 10, with a length.
const COLLECTIVES_KEY: u8 = 10 << 3 | 2;

/// Bytes that [`collectives`] unpacks at most: 64 groups take 8 KiB.
const COLLECTIVES_BYTES_MAX: u64 = 64 << 10;

/// Memory that they may take decoded: eight times what 64 groups take.
const COLLECTIVES_DECODED_BYTES_MAX: u64 = 256 << 10;

/// Maximum window of a frame that [`collectives`] accepts, as a power of two of bytes. It bounds
/// the memory; zstd's levels up to 19 need no more.
const WINDOW_BYTES_LOG_MAX: u32 = 23;

/// Limits of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Largest snapshot, before and after compression.
    pub bytes_max: usize,
    /// Most memory that decoding it may take, in bytes.
    pub decoded_bytes_max: u64,
    /// Events of each device that are kept, the newest; 0 leaves the traces out.
    pub trace_events_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            bytes_max: SNAPSHOT_BYTES_MAX,
            decoded_bytes_max: SNAPSHOT_DECODED_BYTES_MAX,
            trace_events_max: TRACE_EVENTS_MAX,
        }
    }
}

impl Bounds {
    /// The bounds, with traces left out.
    pub fn without_trace(self) -> Self {
        Self { trace_events_max: 0, ..self }
    }
}

/// Size of a snapshot after decompression, without decompressing it.
///
/// # Errors
/// It is not zstd, does not say its size, or is larger than `bytes_max`.
pub fn unpacked_bytes(encoded: &[u8], bytes_max: usize) -> Result<usize, DecodeError> {
    let bytes = get_frame_content_size(encoded).ok().flatten().ok_or(DecodeError::NotCompressed)?;
    let fits = usize::try_from(bytes).ok().filter(|&bytes| bytes <= bytes_max);
    fits.ok_or(DecodeError::TooLarge { bytes, bytes_max })
}

/// The snapshot that [`super::encode`] was given.
///
/// # Errors
/// The snapshot is larger than the bounds, damaged, or contradicts itself.
pub fn decode(encoded: &[u8], bounds: Bounds) -> Result<RankSnapshot, DecodeError> {
    decode_counted(encoded, bounds).map(|(snapshot, _)| snapshot)
}

/// The same, with the most bytes of memory that the snapshot takes.
///
/// # Errors
/// As [`decode`].
pub fn decode_counted(encoded: &[u8], bounds: Bounds) -> Result<(RankSnapshot, u64), DecodeError> {
    let bytes = unpacked_bytes(encoded, bounds.bytes_max)?;
    let message = zstd::bulk::decompress(encoded, bytes).map_err(DecodeError::Decompress)?;
    let message = Encoded::<v1::RankSnapshot>::new(message.into());
    let message = message.measured(bounds.decoded_bytes_max)?;
    let cost_bytes = message.cost_bytes();
    Ok((snapshot(message.decode()?, bounds.trace_events_max)?, cost_bytes))
}

/// The collectives of a snapshot, unpacking only its beginning; `None` when the agent did not
/// write them there.
///
/// # Errors
/// The beginning is not zstd, or damaged.
pub fn collectives(encoded: &[u8]) -> Result<Option<Collectives>, DecodeError> {
    let mut reader = zstd::Decoder::with_buffer(encoded).map_err(DecodeError::Decompress)?;
    reader.window_log_max(WINDOW_BYTES_LOG_MAX).map_err(DecodeError::Decompress)?;
    let mut front = Vec::new();
    let read = reader.take(COLLECTIVES_BYTES_MAX).read_to_end(&mut front);
    read.map_err(DecodeError::Decompress)?;
    match front.split_first() {
        Some((&COLLECTIVES_KEY, rest)) => {
            let mut found = rest;
            let length = decode_length_delimiter(&mut found).map_err(NotDecoded::from)?;
            let found = found.get(..length).ok_or(NotDecoded::Malformed)?;
            let found = Encoded::<v1::Collectives>::new(found.to_vec().into());
            let found = found.measured(COLLECTIVES_DECODED_BYTES_MAX)?;
            collectives_of(found.decode()?).map(Some)
        }
        _ => Ok(None),
    }
}

/// Lengths of the tables that indexes point into.
#[derive(Clone, Copy)]
struct Tables {
    stacks: usize,
    stream_pools: usize,
}

impl Tables {
    fn stack(self, index: u32) -> Result<u32, DecodeError> {
        in_table("stack", index, self.stacks)
    }

    fn stream_pool(self, index: u32) -> Result<u16, DecodeError> {
        in_table("stream and pool", index, self.stream_pools)?;
        narrow("stream and pool", index)
    }
}

fn in_table(what: &'static str, index: u32, count: usize) -> Result<u32, DecodeError> {
    let is_there = (index as usize) < count;
    is_there.then_some(index).ok_or(DecodeError::BadIndex { what, index, count })
}

/// A number in fewer bits.
fn narrow<T: TryFrom<u32>>(what: &'static str, number: u32) -> Result<T, DecodeError> {
    T::try_from(number).map_err(|_| DecodeError::OutOfRange { what, number })
}

fn bounded(what: &'static str, count: usize, count_max: usize) -> Result<(), DecodeError> {
    (count <= count_max).then_some(()).ok_or(DecodeError::TooMany { what, count, count_max })
}

/// Refuses numbers whose sum does not fit 64 bits.
fn summed(what: &'static str, numbers: impl Iterator<Item = u64>) -> Result<(), DecodeError> {
    let sum = numbers.into_iter().try_fold(0_u64, u64::checked_add);
    sum.map(|_| ()).ok_or(DecodeError::Overflow(what))
}

/// The beginning of a text that is too long: texts are only shown.
fn text(mut text: String, bytes_max: usize) -> String {
    text.truncate(cut(&text, bytes_max).len());
    text
}

fn snapshot(raw: v1::RankSnapshot, trace_events_max: usize) -> Result<RankSnapshot, DecodeError> {
    bounded("devices", raw.devices.len(), DEVICES_MAX)?;
    bounded("rows outside the allocator", raw.outside.len(), OUTSIDE_ROWS_MAX)?;
    bounded("marks", raw.marks.len(), MARKS_MAX)?;
    bounded("stacks outside the allocator", raw.outside_stacks.len(), OUTSIDE_ROWS_MAX)?;
    let frame = |frame: v1::Frame| Frame {
        file: text(frame.file, STRING_BYTES_MAX),
        line: frame.line,
        function: text(frame.function, STRING_BYTES_MAX),
    };
    let frames: Vec<Frame> = raw.frames.into_iter().map(frame).collect();
    let mut stacks: Vec<Vec<u32>> = raw.stacks.into_iter().map(|stack| stack.frames).collect();
    for &index in stacks.iter().flatten() {
        in_table("frame", index, frames.len())?;
    }
    // Index 0 means unknown, also where the table is empty.
    if stacks.is_empty() {
        stacks.push(Vec::new());
    }
    let tables = Tables { stacks: stacks.len(), stream_pools: raw.places.len().max(1) };
    let devices = raw.devices.into_iter().map(|each| device(each, tables, trace_events_max));
    let outside_stacks = raw.outside_stacks.iter().map(|each| outside_stack(each, tables));
    let worker_samples = raw.worker_samples.map(|samples| worker_samples(samples, tables));
    let failed_request = raw.failed_request.map(|failed| failed_request_of(&failed, tables));
    Ok(RankSnapshot {
        identity: identity(raw.rank.unwrap_or_default()),
        step: raw.step,
        wall_ns: raw.wall_ns,
        devices: devices.collect::<Result<_, _>>()?,
        frames,
        stacks,
        stream_pools: raw.places.iter().map(stream_pool).collect(),
        outside: raw.outside.iter().map(outside).collect::<Result<_, _>>()?,
        outside_stacks: outside_stacks.collect::<Result<_, _>>()?,
        outside_stacks_left_out: raw.outside_stacks_left_out,
        outside_missing: raw.outside_missing,
        before_step: raw.before_step,
        collectives: raw.collectives.map(collectives_of).transpose()?.unwrap_or_default(),
        marks: raw.marks.into_iter().map(mark).collect(),
        worker_samples: worker_samples.transpose()?,
        failed_request: failed_request.transpose()?,
        settings: Vec::new(),
    })
}

fn mark(raw: v1::Mark) -> Mark {
    Mark { mono_ns: raw.mono_ns, step: raw.step, text: text(raw.text, STRING_BYTES_MAX) }
}

fn worker_samples(raw: v1::WorkerSamples, tables: Tables) -> Result<WorkerSamples, DecodeError> {
    bounded("stacks of workers", raw.stacks.len(), WORKER_STACKS_MAX)?;
    let stack = |of: &v1::WorkerStack| -> Result<WorkerStack, DecodeError> {
        Ok(WorkerStack { stack: tables.stack(of.stack)?, samples: of.samples })
    };
    Ok(WorkerSamples {
        processes: raw.processes,
        processes_failed: raw.processes_failed,
        processes_left_out: raw.processes_left_out,
        duration_ns: raw.duration_ns,
        stacks: raw.stacks.iter().map(stack).collect::<Result<_, _>>()?,
        samples_left_out: raw.samples_left_out,
        failure: text(raw.failure, NAME_BYTES_MAX),
    })
}

fn failed_request_of(
    raw: &v1::FailedRequest,
    tables: Tables,
) -> Result<FailedRequest, DecodeError> {
    bounded("stacks of a failed request", raw.uses.len(), FAILED_USES_MAX)?;
    let of_stack = |each: &v1::StackUse| stack_use(each, tables);
    Ok(FailedRequest {
        device: narrow("device", raw.device)?,
        step: raw.step,
        wall_ns: raw.wall_ns,
        bytes: raw.bytes,
        stack: tables.stack(raw.stack)?,
        allocated: raw.allocated,
        reserved: raw.reserved,
        device_free: (raw.device_free > 0).then_some(raw.device_free),
        uses: raw.uses.iter().map(of_stack).collect::<Result<_, _>>()?,
    })
}

fn stack_use(of: &v1::StackUse, tables: Tables) -> Result<StackUse, DecodeError> {
    Ok(StackUse { stack: tables.stack(of.stack)?, bytes: of.bytes, blocks: of.blocks })
}

/// The host stays empty: the manifest of a capture names the node. A snapshot has no planned end.
fn identity(rank: v1::RankUp) -> Identity {
    Identity {
        tape_id: text(rank.tape_id, NAME_BYTES_MAX),
        job: text(rank.job, NAME_BYTES_MAX),
        role: text(rank.role, ROLE_BYTES_MAX),
        attempt: rank.attempt,
        rank: rank.rank,
        world_size: rank.world_size,
        local_rank: rank.local_rank,
        host: String::new(),
        pid: rank.pid,
        command: text(Redaction::default().line(&rank.command), COMMAND_BYTES_MAX),
        allocator: rank.allocator_settings.map(|of| text(of, ALLOCATOR_SETTINGS_BYTES_MAX)),
        hints: text(rank.applied_hints, ALLOCATOR_SETTINGS_BYTES_MAX),
        planned_end: PlannedEnd::default(),
    }
}

fn stream_pool(of: &v1::Place) -> StreamPool {
    StreamPool { stream: of.stream, pool: of.pool_first.zip(of.pool_second) }
}

fn collectives_of(of: v1::Collectives) -> Result<Collectives, DecodeError> {
    bounded("process groups", of.groups.len(), PROCESS_GROUPS_MAX)?;
    let one_line = |line: String| text(line, TEXT_BYTES_MAX).replace(char::is_control, " ");
    let group = |group: v1::CollectiveGroup| CollectiveGroup {
        id: group.id,
        key: group.key,
        name: one_line(group.name),
        desc: one_line(group.desc),
        size: group.size,
        enqueued: group.enqueued,
        started: group.started,
        completed: group.completed,
        since_wall_ns: group.since_wall_ns,
    };
    Ok(Collectives {
        source: CollectiveSource::from_number(u64::from(of.source)),
        source_since_ns: of.source_since_ns,
        look_wall_ns: of.look_wall_ns,
        look_took_ns: of.look_took_ns,
        asked_wall_ns: of.asked_wall_ns,
        groups: of.groups.into_iter().map(group).collect(),
        groups_lost: of.groups_lost,
    })
}

fn outside(each: &v1::OutsideUse) -> Result<OutsideUse, DecodeError> {
    Ok(OutsideUse {
        origin: Origin::from_number(narrow("origin", each.origin)?),
        device: narrow("device", each.device)?,
        bytes: each.bytes,
        count: each.count,
    })
}

fn outside_stack(each: &v1::OutsideStack, tables: Tables) -> Result<OutsideStack, DecodeError> {
    let before = each.before_bytes.zip(each.before_count);
    Ok(OutsideStack {
        origin: Origin::from_number(narrow("origin", each.origin)?),
        device: narrow("device", each.device)?,
        stack: tables.stack(each.stack)?,
        held: Held { bytes: each.bytes, count: each.count },
        fresh: Held { bytes: each.fresh_bytes, count: each.fresh_count },
        before: before.map(|(bytes, count)| Held { bytes, count }),
        births: each.births,
        first_step: each.first_step,
        last_step: each.last_step,
    })
}

fn device(
    state: v1::DeviceState,
    tables: Tables,
    trace_events_max: usize,
) -> Result<DeviceSnapshot, DecodeError> {
    let used = |each: &v1::StackUse| stack_use(each, tables);
    summed("earlier bytes", state.before.iter().map(|used| used.bytes))?;
    let newest = state.trace.len().saturating_sub(trace_events_max);
    let trace = state.trace.iter().skip(newest).filter_map(|each| event(each, tables).transpose());
    Ok(DeviceSnapshot {
        device: narrow("device", state.device)?,
        allocated: state.allocated,
        reserved: state.reserved,
        device_bytes: state.device_bytes,
        blocks: blocks(&state.blocks.unwrap_or_default(), tables)?,
        segments: segments(&state.segments.unwrap_or_default(), tables)?,
        segment_source: SegmentSource::from_repr(state.segment_source).unwrap_or_default(),
        before: state.before.iter().map(used).collect::<Result<_, DecodeError>>()?,
        trace: trace.collect::<Result<_, _>>()?,
        step_source: StepSource::Recorded,
        complete: state.complete,
        uuid: text(state.uuid, NAME_BYTES_MAX),
    })
}

/// Refuses columns of different lengths; a column of details is empty where nothing is known.
fn even(
    what: &'static str,
    count: usize,
    columns: &[usize],
    details: &[usize],
) -> Result<(), DecodeError> {
    let is_even = columns.iter().all(|&length| length == count)
        && details.iter().all(|&length| length == count || length == 0);
    is_even.then_some(()).ok_or(DecodeError::UnevenColumns(what))
}

fn blocks(columns: &v1::Blocks, tables: Tables) -> Result<Vec<Block>, DecodeError> {
    let count = columns.address_deltas.len();
    let lengths = [
        columns.sizes.len(),
        columns.stacks.len(),
        columns.birth_steps.len(),
        columns.birth_mono_ns.len(),
    ];
    even("blocks", count, &lengths, &[columns.requested.len(), columns.places.len()])?;
    summed("block sizes", columns.sizes.iter().copied())?;
    let mut address = 0_u64;
    let mut blocks = Vec::with_capacity(count);
    for (index, delta) in columns.address_deltas.iter().enumerate() {
        address = address.checked_add(*delta).ok_or(DecodeError::Overflow("block addresses"))?;
        blocks.push(Block {
            address,
            size: columns.sizes[index],
            stack: tables.stack(columns.stacks[index])?,
            birth_step: columns.birth_steps[index],
            birth_ns: columns.birth_mono_ns[index],
            requested: columns.requested.get(index).copied().unwrap_or(0),
            stream_pool: tables.stream_pool(columns.places.get(index).copied().unwrap_or(0))?,
            pending: false,
        });
    }
    for &index in &columns.pending {
        let bad = DecodeError::BadIndex { what: "pending block", index, count };
        blocks.get_mut(index as usize).ok_or(bad)?.pending = true;
    }
    Ok(blocks)
}

fn segments(columns: &v1::Segments, tables: Tables) -> Result<Vec<Segment>, DecodeError> {
    let details = [columns.places.len(), columns.stacks.len(), columns.flags.len()];
    even("segments", columns.addresses.len(), &[columns.sizes.len()], &details)?;
    summed("segment sizes", columns.sizes.iter().copied())?;
    let detail = |column: &[u32], index: usize| column.get(index).copied().unwrap_or(0);
    let segment = |(index, (&address, &size)): (usize, (&u64, &u64))| {
        let flags = detail(&columns.flags, index);
        Ok(Segment {
            address,
            size,
            stream_pool: tables.stream_pool(detail(&columns.places, index))?,
            stack: tables.stack(detail(&columns.stacks, index))?,
            expandable: flags & 1 != 0,
            small: flags & 2 != 0,
        })
    };
    columns.addresses.iter().zip(&columns.sizes).enumerate().map(segment).collect()
}

/// An event; `None` for a kind that this version does not know.
fn event(event: &v1::TraceEvent, tables: Tables) -> Result<Option<TraceEvent>, DecodeError> {
    let Some(kind) = TraceKind::from_repr(event.kind) else { return Ok(None) };
    Ok(Some(TraceEvent {
        kind,
        mono_ns: event.mono_ns,
        address: event.address,
        size: event.size,
        detail: event.detail,
        stack: tables.stack(event.stack)?,
        stream_pool: tables.stream_pool(event.place)?,
        step: event.step,
    }))
}

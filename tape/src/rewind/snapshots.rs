//! From the states of all lanes to a rank's snapshot: blocks, segments, traces and their stacks.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::event::{Event, Kind};
use crate::layout::sizes::{CPU_LANE, HOST_LANE, LANES};
use crate::layout::states::Tracker;
use crate::layout::{head, header};
use crate::limits::MARKS_MAX;
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::rewind::allowance::Allowance;
use crate::rewind::error::RewindError;
use crate::rewind::lane_state::LaneState;
use crate::rewind::outside_stacks::{self, KnownSegments};
use crate::rewind::stack_index::StackIndex;
use crate::rewind::undo::Live;
use crate::snapshot::origin::Origin;
use crate::snapshot::step_source::StepSource;
use crate::snapshot::{
    Block, DeviceSnapshot, OutsideUse, RankSnapshot, Segment, SegmentSource, StackUse, TraceEvent,
    TraceKind,
};
use crate::write::segments::{GRANULE_SMALL, SegmentEntry};

impl<S: Source> Tape<S> {
    /// Assembles the states of the lanes, which come with the lanes' indexes. Open host-side lanes
    /// without a state are reported as missing outside.
    pub(crate) fn assemble(
        &self,
        step: u64,
        wall_ns: i64,
        before: Option<u64>,
        states: Vec<(usize, LaneState)>,
        mut allowance: Allowance,
    ) -> Result<RankSnapshot, RewindError> {
        let interned = self.interned();
        allowance.take(interned.words(), size_of::<u64>() as u64)?;
        let failed = self.failed(allowance);
        let mut stacks = StackIndex::new(interned, allowance);
        let (of_devices, of_host): (Vec<_>, Vec<_>) =
            states.into_iter().partition(|(index, _)| *index < HOST_LANE);
        let find = |lane: usize| of_host.iter().find(|(index, _)| *index == lane);
        let host = find(HOST_LANE).map(|(_, state)| state);
        let mut outside = host.map(|host| outside_uses(&host.live)).unwrap_or_default();
        outside.extend(find(CPU_LANE).map(|(_, cpu)| outside_uses(&cpu.live)).unwrap_or_default());
        let lanes: Vec<&LaneState> = of_host.iter().map(|(_, state)| state).collect();
        let segments_of = |device: u8| self.segments_of(device, &of_devices);
        let (outside_stacks, outside_stacks_left_out) =
            outside_stacks::by_stack(&lanes, before, segments_of, &mut stacks);
        let end = host.map_or(0, |host| host.end);
        let marks = self.marks_until(end, &stacks.interned, MARKS_MAX);
        let outside_missing =
            (HOST_LANE..LANES).any(|index| self.lane(index).is_some() && find(index).is_none());
        let devices = of_devices
            .into_iter()
            .map(|(index, state)| self.device(index, state, host, &mut stacks))
            .collect();
        let failed_request = failed.map(|failed| self.failed_request(failed, &mut stacks));
        stacks.check()?;
        Ok(RankSnapshot {
            identity: self.identity().clone(),
            step,
            wall_ns,
            devices,
            before_step: before.unwrap_or(0),
            outside,
            outside_stacks,
            outside_stacks_left_out,
            outside_missing,
            stream_pools: self.stream_pools(),
            collectives: self.collectives(),
            frames: stacks.frames,
            stacks: stacks.stacks,
            marks,
            worker_samples: None,
            failed_request,
            settings: Vec::new(),
        })
    }

    /// Does the trace tracker report a device's segments?
    fn is_traced(&self, index: usize, state: &LaneState) -> bool {
        // A writer that died in its first segment did not count it any more.
        let takes = self.lane(index).map_or(0, |lane| self.word(lane.head + head::SEGMENT_TAKES));
        let seen = takes > 0 || state.segments.bytes() > 0;
        seen && self.word(header::TRACKER) == Tracker::Attached as u64
    }

    /// Knowledge about the allocator's segments on a device.
    fn segments_of<'a>(&self, device: u8, states: &'a [(usize, LaneState)]) -> KnownSegments<'a> {
        let index = usize::from(device);
        match states.iter().find(|(of, _)| *of == index) {
            Some((_, state)) if self.is_traced(index, state) => KnownSegments::ByAllocator(state),
            Some((_, state)) if state.reserved > 0 || state.allocated > 0 => {
                let lost =
                    self.lane(index).map_or(0, |lane| self.word(lane.head + head::LOST_BLOCKS));
                if lost == 0 { KnownSegments::ByBlocks(state) } else { KnownSegments::Unknown }
            }
            _ => KnownSegments::None,
        }
    }

    fn device(
        &self,
        index: usize,
        mut state: LaneState,
        host: Option<&LaneState>,
        stacks: &mut StackIndex,
    ) -> DeviceSnapshot {
        let device = index as u8;
        let lane = self.lane(index);
        let word = |name: usize| lane.map_or(0, |lane| self.word(lane.head + name));
        let traced = self.is_traced(index, &state);
        let (segment_source, segments) = if traced {
            (SegmentSource::Allocator, allocator_segments(&state, stacks))
        } else {
            let segments = host.map(|host| runtime_segments(host, device)).unwrap_or_default();
            let source =
                if segments.is_empty() { SegmentSource::None } else { SegmentSource::Runtime };
            (source, segments)
        };
        let uuid = self.device_uuids().into_iter().find(|(number, _)| *number == device);
        DeviceSnapshot {
            device,
            uuid: uuid.map(|(_, uuid)| uuid).unwrap_or_default(),
            allocated: state.allocated,
            reserved: state.reserved,
            device_bytes: self
                .totals()
                .iter()
                .find(|total| total.device == device)
                .map_or(0, |total| total.device_bytes),
            blocks: blocks(&state.live, stacks),
            segments,
            segment_source,
            before: uses(state.before.take().unwrap_or_default().sums, stacks),
            trace: trace(&state, host, traced, device, stacks),
            step_source: StepSource::Recorded,
            complete: word(head::LOST_BLOCKS) == 0 && word(head::LOST_SEGMENTS) == 0,
        }
    }
}

fn blocks(live: &Live, stacks: &mut StackIndex) -> Vec<Block> {
    live.iter()
        .map(|entry| Block {
            address: entry.address,
            size: entry.size,
            requested: entry.requested,
            stack: stacks.of(entry.stack),
            birth_step: entry.birth(),
            birth_ns: entry.birth_ns,
            stream_pool: entry.owner,
            pending: entry.pending,
        })
        .collect()
}

fn uses(sums: BTreeMap<u32, (u64, u64)>, stacks: &mut StackIndex) -> Vec<StackUse> {
    let mut uses: Vec<StackUse> = sums
        .into_iter()
        .map(|(id, (bytes, blocks))| StackUse { stack: stacks.of(id), bytes, blocks })
        .collect();
    uses.sort_by_key(|each| each.stack);
    uses
}

/// Memory in the host lane, or in the lane of CPU tensors, by origin and device.
fn outside_uses(live: &Live) -> Vec<OutsideUse> {
    let mut sums: BTreeMap<(Origin, u8), (u64, u64)> = BTreeMap::new();
    for entry in live.iter() {
        let origin = Origin::from_number(entry.owner);
        let device = if origin.is_on_device() { entry.device } else { 0 };
        let (bytes, count) = sums.entry((origin, device)).or_default();
        *bytes = bytes.saturating_add(entry.size);
        *count += 1;
    }
    let each = |((origin, device), (bytes, count))| OutsideUse { origin, device, bytes, count };
    sums.into_iter().map(each).collect()
}

fn allocator_segments(state: &LaneState, stacks: &mut StackIndex) -> Vec<Segment> {
    let each = |(entry, small): (SegmentEntry, bool)| Segment {
        address: entry.address,
        size: entry.size,
        stream_pool: entry.stream_pool,
        stack: stacks.of(entry.stack),
        expandable: entry.expandable,
        small,
    };
    state.segments.list().into_iter().map(each).collect()
}

fn runtime_segments(host: &LaneState, device: u8) -> Vec<Segment> {
    const SMALL_BYTES: u64 = GRANULE_SMALL;
    let is_segment =
        |owner: u16, of: u8| of == device && Origin::from_number(owner) == Origin::CudaMalloc;
    host.live
        .iter()
        .filter(|entry| is_segment(entry.owner, entry.device))
        .map(|entry| Segment {
            address: entry.address,
            size: entry.size,
            small: entry.size == SMALL_BYTES,
            ..Segment::default()
        })
        .collect()
}

/// Events of the device's lane, failed calls and, where the trace tracker does not report segments
/// (`traced`), calls of `cudaMalloc` and `cudaFree`, in the order of their times.
fn trace(
    state: &LaneState,
    host: Option<&LaneState>,
    traced: bool,
    device: u8,
    stacks: &mut StackIndex,
) -> Vec<TraceEvent> {
    // A trace that goes back to the lane's first event has the segment that this one lies in, too.
    let since = match state.trace.first() {
        Some(_) if state.trace_first == 0 => 0,
        first => first.map_or(u64::MAX, |event| event.mono_ns),
    };
    let mut line = |event: &Event, kind: TraceKind, stream_pool: u16| TraceEvent {
        kind,
        mono_ns: event.mono_ns,
        address: event.address,
        size: event.size,
        detail: event.detail,
        stack: stacks.of(event.stack),
        stream_pool,
        step: u64::from(event.step),
    };
    // A lane is in the order of its positions, whatever its times say.
    let mut trace: Vec<(u64, TraceEvent)> = Vec::with_capacity(state.trace.len());
    let mut latest_ns = 0;
    for event in &state.trace {
        let Some(kind) = trace_kind(event.kind) else { continue };
        latest_ns = event.mono_ns.max(latest_ns);
        trace.push((latest_ns, line(event, kind, event.owner)));
    }
    let host = host.map(|host| host.trace.as_slice()).unwrap_or_default();
    for event in host.iter().filter(|event| event.mono_ns >= since) {
        let is_segment = !traced && Origin::from_number(event.owner) == Origin::CudaMalloc;
        let kind = match event.kind {
            Kind::Alloc if is_segment => TraceKind::SegmentAlloc,
            Kind::Free if is_segment => TraceKind::SegmentFree,
            Kind::MallocFailed => TraceKind::MallocFailed,
            _ => continue,
        };
        if event.device == device {
            trace.push((event.mono_ns, line(event, kind, 0)));
        }
    }
    trace.sort_by_key(|(at_ns, _)| *at_ns);
    trace.into_iter().map(|(_, event)| event).collect()
}

fn trace_kind(kind: Kind) -> Option<TraceKind> {
    Some(match kind {
        Kind::Alloc => TraceKind::Alloc,
        Kind::Free => TraceKind::Free,
        Kind::Oom => TraceKind::Oom,
        Kind::MallocFailed => TraceKind::MallocFailed,
        Kind::FreeDeferred => TraceKind::FreeDeferred,
        Kind::FreeCompleted => TraceKind::FreeCompleted,
        Kind::SegmentAlloc => TraceKind::SegmentAlloc,
        Kind::SegmentFree => TraceKind::SegmentFree,
        Kind::SegmentMap => TraceKind::SegmentMap,
        Kind::SegmentUnmap => TraceKind::SegmentUnmap,
        Kind::Snapshot => TraceKind::Snapshot,
        Kind::Mark => return None,
    })
}

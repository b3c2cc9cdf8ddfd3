//! A memory snapshot of PyTorch as the state of a rank, in the form that tapes and captures have.
//!
//! While the file came in, each of its dictionaries became a record (`records`). The top of the
//! pickle then lists the records of the snapshot. Facts that a file lacks stay unknown: sizes of
//! devices, names of jobs, births of blocks that are older than the trace (their `birth_step` is
//! 0). Steps are found, or counted by the recorder; [`DeviceSnapshot::step_source`] says which. A
//! file has the requested bytes of freed blocks; they are rounded as the allocator rounds by
//! default.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use memtape_tape::identity::Identity;
use memtape_tape::snapshot::{
    Block, DeviceSnapshot, RankSnapshot, SegmentSource, TraceEvent, TraceKind,
};

use crate::read::fault::Fault;
use crate::read::reader::Whole;
use crate::read::records::{LoadedSegment, Records, Word, word};
use crate::read::settings::{Settings, settings};
use crate::read::steps::{self, Steps};
use crate::read::value::{Heap, Record, Slot, Value};

pub use crate::read::records::{Annotation, Missing};
pub use crate::read::settings::Setting;

/// A memory snapshot.
#[derive(Clone, Debug, Default)]
pub struct TorchFile {
    /// The state. Its tape has no name where Memtape did not export the file: then the rank is not
    /// known, and the steps count from the beginning of the trace.
    pub rank: RankSnapshot,
    /// Beginnings and ends of the profiler's annotations, in the order of the file.
    pub annotations: Vec<Annotation>,
    /// Settings of the allocator as the file has them; the state has those that are in effect.
    pub settings: Vec<(String, Setting)>,
    /// Notes of the reader besides the data.
    pub notes: Notes,
}

/// Notes of a reader besides the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Shape of the file.
    pub shape: Shape,
    /// Memtape exported it: it names its rank.
    pub is_exported: bool,
    /// Pickle protocol.
    pub protocol: u8,
    /// Bytes of the pickle.
    pub bytes: u64,
    /// Keys that records lack.
    pub missing: Vec<Missing>,
    /// Blocks, segments and events that lack an address or a size, and what does not belong in its
    /// list: all were left out.
    pub unusable: u64,
}

/// Shape of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// The result of `torch.cuda.memory._snapshot()`.
    #[default]
    Snapshot,
    /// The result of `torch.cuda.memory_snapshot()`: segments only.
    Segments,
}

/// A key of the dumps of NCCL's flight recorder.
const OF_FLIGHT_RECORDER: &str = "pg_config";

/// The snapshot that the records make.
pub(crate) fn assemble(whole: Whole) -> Result<TorchFile, Fault> {
    let Whole { mut heap, mut records, root, protocol, bytes } = whole;
    let top = Top::of(&heap, root)?;
    let of_segments = listed(&mut heap, &mut records, top.segments, (Record::Segment, "segment"))?;
    let traces = traces(&mut heap, &mut records, top.traces)?;
    let kind = (Record::Annotation, "annotation");
    let of_annotations = listed(&mut heap, &mut records, top.annotations, kind)?;
    let annotations: Vec<Annotation> = within(&records.annotations, &of_annotations)
        .iter()
        .filter_map(|annotation| annotation.clone())
        .collect();
    let of_origin = settings(&heap, top.origin);
    let origin = Settings::of(&of_origin);
    let of_allocator = settings(&heap, top.settings);
    let mut missing = top.missing();
    missing.extend(records.missing());

    let mut devices = devices(&mut records, &of_segments, &traces, &origin);
    let mut last_step = 0;
    for (index, trace) in traces.iter().enumerate().rev().filter(|(_, it)| !it.is_empty()) {
        records.events.truncate(trace.end as usize);
        let events = records.take_events(trace.start);
        let index = u8::try_from(index).ok();
        let Some(device) = index.and_then(|index| devices.get_mut(&index)) else { continue };
        let steps = steps::find(&records, &annotations, &origin, (device.device, &events));
        last_step = steps.finished().max(last_step);
        add_trace(device, events, &steps);
    }
    let narrow =
        |name: &str| origin.number(name).and_then(|n| n.try_into().ok()).unwrap_or_default();
    let rank = RankSnapshot {
        identity: Identity {
            tape_id: origin.text("tape_id").unwrap_or_default().to_string(),
            job: origin.text("job").unwrap_or_default().to_string(),
            attempt: narrow("attempt"),
            rank: narrow("rank"),
            ..Identity::default()
        },
        step: origin.number("step").unwrap_or(last_step),
        wall_ns: records.newest_ns.and_then(|ns| ns.try_into().ok()).unwrap_or_default(),
        devices: devices.into_values().collect(),
        settings: Settings::of(&of_allocator).as_texts(),
        stream_pools: records.stream_pools,
        frames: records.stacks.frames,
        stacks: records.stacks.stacks,
        ..RankSnapshot::default()
    };
    let (shape, is_exported, unusable) =
        (top.shape, !origin.is_empty(), records.unusable + records.stacks.strays);
    let notes = Notes { shape, is_exported, protocol, bytes, missing, unusable };
    Ok(TorchFile { rank, annotations, settings: of_allocator, notes })
}

fn within<'a, T>(all: &'a [T], range: &Range<u32>) -> &'a [T] {
    all.get(range.start as usize..range.end as usize).unwrap_or_default()
}

/// Range of the records of a list; empty for a value that is no list.
fn listed(
    heap: &mut Heap,
    records: &mut Records,
    list: Option<Value>,
    (kind, name): (Record, &'static str),
) -> Result<Range<u32>, Fault> {
    let Some(list) = list else { return Ok(0..0) };
    let found = records.listed(heap, list, kind, name)?;
    records.unusable += u64::from(found.is_none());
    Ok(found.unwrap_or(0..0))
}

/// The events of each device: a list of lists, or a list of events, which is the first device's.
fn traces(
    heap: &mut Heap,
    records: &mut Records,
    list: Option<Value>,
) -> Result<Vec<Range<u32>>, Fault> {
    let slot = list.and_then(Value::object).map(|number| heap.slot(number));
    let items = slot.map(|slot| heap.items(slot).to_vec()).unwrap_or_default();
    let kind = (Record::Event, "trace entry");
    if let Some(Slot::Records(_)) = slot {
        return Ok([listed(heap, records, list, kind)?].into());
    }
    items.into_iter().map(|trace| listed(heap, records, Some(trace), kind)).collect()
}

/// The values at the top of the pickle.
#[derive(Debug, Default)]
struct Top {
    shape: Shape,
    segments: Option<Value>,
    traces: Option<Value>,
    annotations: Option<Value>,
    settings: Option<Value>,
    origin: Option<Value>,
}

impl Top {
    fn of(heap: &Heap, root: Value) -> Result<Self, Fault> {
        let Some(number) = root.object() else {
            return Err(Fault::NoSnapshot("a single number or text"));
        };
        let slot = heap.slot(number);
        let items = heap.items(slot);
        match slot {
            Slot::Dict(_) => Self::of_dict(heap, items),
            Slot::EmptyDict => Err(Fault::NoSnapshot("an empty dictionary")),
            Slot::EmptyList | Slot::List(_) | Slot::Records(_) => {
                let is_of_segments = match slot {
                    Slot::Records(list) => {
                        heap.list(list).is_some_and(|list| list.strays(Record::Segment) == 0)
                    }
                    slot => slot == Slot::EmptyList,
                };
                if !is_of_segments {
                    return Err(Fault::NoSnapshot("a list of other things than segments"));
                }
                Ok(Self { shape: Shape::Segments, segments: Some(root), ..Self::default() })
            }
            Slot::Record(..) => Err(Fault::NoSnapshot("one piece of a snapshot")),
            _ => Err(Fault::NoSnapshot("a tuple or a list that was used")),
        }
    }

    fn of_dict(heap: &Heap, pairs: &[Value]) -> Result<Self, Fault> {
        let mut top = Self::default();
        for &[key, value] in pairs.as_chunks::<2>().0 {
            let part = match word(key) {
                Some(Word::Segments) => &mut top.segments,
                Some(Word::DeviceTraces) => &mut top.traces,
                Some(Word::AllocatorSettings) => &mut top.settings,
                Some(Word::ExternalAnnotations) => &mut top.annotations,
                Some(Word::Memtape) => &mut top.origin,
                _ => continue,
            };
            *part = Some(value);
        }
        if top.segments.is_none() && top.traces.is_none() {
            let is_of_nccl = |[key, _]: &[Value; 2]| match key {
                Value::Text(text) => heap.text(*text) == OF_FLIGHT_RECORDER,
                _ => false,
            };
            return Err(Fault::NoSnapshot(match pairs.as_chunks().0.iter().any(is_of_nccl) {
                true => "a dump of NCCL's flight recorder, which holds collectives and no memory",
                false => "a dictionary without the keys segments, device_traces",
            }));
        }
        Ok(top)
    }

    /// The keys that a whole snapshot lacks.
    fn missing(&self) -> Vec<Missing> {
        let expected = [
            ("segments", self.segments),
            ("device_traces", self.traces),
            ("allocator_settings", self.settings),
            ("external_annotations", self.annotations),
        ];
        let is_whole = self.shape == Shape::Snapshot;
        let absent = expected.into_iter().filter(|(_, part)| is_whole && part.is_none());
        let missing = |(key, _)| Missing { record: Record::Snapshot, key, count: 1, of: 1 };
        absent.map(missing).collect()
    }
}

/// Devices with memory or events, without their traces.
fn devices(
    records: &mut Records,
    of_segments: &Range<u32>,
    traces: &[Range<u32>],
    origin: &Settings<'_>,
) -> BTreeMap<u8, DeviceSnapshot> {
    let mut devices: BTreeMap<u8, DeviceSnapshot> = BTreeMap::new();
    let fresh = |device: u8| DeviceSnapshot {
        device,
        segment_source: SegmentSource::Allocator,
        step_source: steps::NO_STEPS,
        complete: true,
        ..DeviceSnapshot::default()
    };
    for loaded in within(&records.segments, of_segments) {
        match u8::try_from(loaded.device) {
            Ok(device) if loaded.segment.address > 0 && loaded.segment.size > 0 => {
                let found = devices.entry(device).or_insert_with(|| fresh(device));
                records.unusable += add_segment(found, loaded, &records.blocks);
            }
            _ => records.unusable += 1,
        }
    }
    for (device, _) in (0..=u8::MAX).zip(traces).filter(|(_, trace)| !trace.is_empty()) {
        devices.entry(device).or_insert_with(|| fresh(device));
    }
    for (device, found) in &mut devices {
        found.blocks.sort_unstable_by_key(|block| block.address);
        found.segments.sort_unstable_by_key(|segment| segment.address);
        let sizes = found.segments.iter().map(|segment| segment.size);
        found.reserved = sizes.fold(0, u64::saturating_add);
        // Segments that Memtape made up around the blocks, for viewers.
        if origin.is_true(&format!("devices.{device}.segments_made_up")) {
            found.reserved = origin.number(&format!("devices.{device}.reserved")).unwrap_or(0);
            found.segments.clear();
            found.segment_source = SegmentSource::None;
        }
    }
    devices
}

/// Adds a segment and its live blocks; how many of the blocks are not usable.
fn add_segment(
    found: &mut DeviceSnapshot,
    loaded: &LoadedSegment,
    blocks: &[(Block, bool)],
) -> u64 {
    let segment = loaded.segment;
    let mut unusable = 0;
    found.segments.push(segment);
    let Some(range) = &loaded.blocks else {
        found.allocated = found.allocated.saturating_add(loaded.allocated);
        return 0;
    };
    let mut next = segment.address;
    for &(block, is_live) in within(blocks, range) {
        if block.size == 0 {
            unusable += 1;
            continue;
        }
        // Old releases write no address: blocks lie in a row.
        let address = if block.address > 0 { block.address } else { next };
        next = address.saturating_add(block.size);
        if !is_live {
            continue;
        }
        if !block.pending {
            found.allocated = found.allocated.saturating_add(block.size);
        }
        found.blocks.push(Block { address, stream_pool: segment.stream_pool, ..block });
    }
    unusable
}

/// Numbers the steps of the events of a device, and dates its blocks by the last allocation at the
/// address of each.
fn add_trace(device: &mut DeviceSnapshot, mut events: Vec<Option<TraceEvent>>, steps: &Steps) {
    let is_request = |event: &TraceEvent| event.kind == TraceKind::FreeDeferred;
    let has_requests = events.iter().flatten().any(is_request);
    let mut born: Vec<Option<usize>> = alloc::vec![None; device.blocks.len()];
    let mut finished_at = steps.forwards();
    for index in 0..events.len() {
        let before = index.checked_sub(1).and_then(|before| events.get(before).copied().flatten());
        let Some(Some(event)) = events.get_mut(index) else { continue };
        event.step = finished_at(index);
        match event.kind {
            // A free that no stream holds up is two entries in a row.
            TraceKind::FreeCompleted
                if before.is_some_and(|it| is_request(&it) && it.address == event.address) =>
            {
                let whole = before.map(|it| TraceEvent { kind: TraceKind::Free, ..it });
                events[index - 1] = whole;
                events[index] = None;
            }
            TraceKind::FreeCompleted if !has_requests => event.kind = TraceKind::Free,
            TraceKind::Alloc => {
                let at = device.blocks.binary_search_by_key(&event.address, |block| block.address);
                let place = at.ok().and_then(|at| born.get_mut(at));
                place.into_iter().for_each(|place| *place = Some(index));
            }
            _ => {}
        }
    }
    for (block, born) in device.blocks.iter_mut().zip(born) {
        let allocation = born.and_then(|index| events.get_mut(index)?.as_mut());
        allocation.into_iter().for_each(|allocation| date(block, allocation));
    }
    device.step_source = steps.source;
    // In the same memory, which `flatten` would not do.
    #[expect(clippy::filter_map_identity)]
    let trace = events.into_iter().filter_map(|event| event).collect();
    device.trace = trace;
}

/// Completes a live block and its allocation from each other.
fn date(block: &mut Block, allocation: &mut TraceEvent) {
    (block.birth_step, block.birth_ns) = (allocation.step, allocation.mono_ns);
    // The allocator may have handed out more than was asked for.
    allocation.size = block.size;
    // With `context="state"` the trace has no stacks.
    if allocation.stack == 0 {
        allocation.stack = block.stack;
    }
}

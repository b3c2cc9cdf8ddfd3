//! The file that `torch.cuda.memory._dump_snapshot()` would have made, from a rank's state. It
//! opens in pytorch.org/memory_viz and in `torch.cuda._memory_viz`.
//!
//! With the allocator's trace on the tape (`MEMTAPE_DETAIL=1`) all of it is PyTorch's own word.
//! Without it a recorder does not know everything PyTorch knows:
//!
//! | field | what stands there without the trace |
//! |---|---|
//! | `requested_size` | the rounded size, so the viewers show no loss by rounding |
//! | `stream` | 0: all memory looks like the default stream's |
//! | `segment_pool_id`, `is_expandable` | (0, 0) and False |
//! | `frames` of segments and of frees | segments: none; a free: those of the allocation |
//! | `device_free` of an OOM | device size less what this process reserves: an upper bound |
//! | `time_us` | exact distances; the last event is put at the end of the step |
//! | `state` | `active_allocated` or `inactive`: pending frees look like frees |
//!
//! A key that PyTorch does not have, `memtape`, says which rank and step this is, where its steps
//! end, under `unknown` which of these fields are made up, for each device what it reserves and
//! whether its segments are made up, and how many blocks and events of a damaged tape had to be
//! left out.

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use memtape_tape::snapshot::step_source::StepSource;
use memtape_tape::snapshot::{
    Block, DeviceSnapshot, RankSnapshot, Segment, SegmentSource, TraceEvent, TraceKind,
};

use crate::read::torch::{Annotation, Setting};
use crate::write::layout::{self, LaidSegment, Layout, Piece, SEGMENT_BYTES_SMALL};
use crate::write::marks::{self, StepEnd, StepEnds};
use crate::write::writer::{MemoId, Writer};

/// Fields without a meaning when there is no allocator's trace.
pub(super) const UNKNOWN_WITHOUT_TRACE: [&str; 5] =
    ["requested_size", "stream", "segment_pool_id", "is_expandable", "active_pending_free"];

/// The rank's state as a pickle of PyTorch's memory snapshot.
pub fn torch_snapshot(snapshot: &RankSnapshot) -> Vec<u8> {
    annotated_snapshot(snapshot, &[], &[])
}

/// As the whole snapshot, in parts of about 64 KiB, each given to `parts` when it is made. Returns
/// true when `parts` accepted all of them, and stops at the first refusal.
pub fn torch_snapshot_in_parts(
    snapshot: &RankSnapshot,
    parts: &mut dyn FnMut(Vec<u8>) -> bool,
) -> bool {
    annotated_snapshot_in_parts(snapshot, &[], &[], parts)
}

/// A state that was read from a file, with the annotations and the allocator's settings that the
/// file had.
pub fn annotated_snapshot(
    snapshot: &RankSnapshot,
    annotations: &[Annotation],
    settings: &[(String, Setting)],
) -> Vec<u8> {
    let mut pickle = Vec::new();
    annotated_snapshot_in_parts(snapshot, annotations, settings, &mut |part| {
        pickle.extend_from_slice(&part);
        true
    });
    pickle
}

fn annotated_snapshot_in_parts(
    snapshot: &RankSnapshot,
    annotations: &[Annotation],
    settings: &[(String, Setting)],
    parts: &mut dyn FnMut(Vec<u8>) -> bool,
) -> bool {
    let layouts: Vec<Layout> = snapshot.devices.iter().map(layout::lay_out).collect();
    let mut export = Export {
        snapshot,
        annotations,
        settings,
        writer: Writer::new(parts),
        frames: alloc::vec![None; snapshot.frames.len()],
        stacks: alloc::vec![None; snapshot.stacks.len()],
        clock_offset_ns: clock_offset_ns(snapshot),
        step_ends: Vec::new(),
    };
    export.whole(&layouts);
    export.writer.finish()
}

/// Offset from the trace's monotonic times to Unix time, in nanoseconds.
fn clock_offset_ns(snapshot: &RankSnapshot) -> i64 {
    let last = snapshot.devices.iter().filter_map(|d| d.trace.last()).map(|e| e.mono_ns).max();
    match last.and_then(|ns| i64::try_from(ns).ok()) {
        Some(last_ns) if snapshot.wall_ns > 0 => snapshot.wall_ns.saturating_sub(last_ns),
        _ => 0,
    }
}

/// Bytes asked for, or the rounded size where they are not known.
fn requested(block: &Block) -> u64 {
    if block.requested > 0 { block.requested } else { block.size }
}

/// The saturating sum of sizes: a tape may claim any sizes.
fn total(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// The snapshot, the pickle, and the memo of values written so far.
struct Export<'a> {
    snapshot: &'a RankSnapshot,
    /// Those of the file that it was read from.
    annotations: &'a [Annotation],
    /// The allocator's settings in the file that it was read from.
    settings: &'a [(String, Setting)],
    writer: Writer<'a>,
    frames: Vec<Option<MemoId>>,
    stacks: Vec<Option<MemoId>>,
    clock_offset_ns: i64,
    /// Each device with the ends of its steps; known when the traces are written.
    step_ends: Vec<(&'a DeviceSnapshot, Vec<StepEnd>)>,
}

impl<'a> Export<'a> {
    fn whole(&mut self, layouts: &[Layout]) {
        self.writer.dict_start();
        self.writer.key("segments");
        self.segments(layouts);
        self.writer.key("device_traces");
        self.device_traces(layouts);
        self.writer.key("allocator_settings");
        self.allocator_settings();
        self.writer.key("external_annotations");
        self.annotations();
        self.writer.key("memtape");
        self.origin(layouts);
        self.writer.dict_end();
    }

    /// Settings of the file that it was read from, or else those of the recorded environment.
    fn allocator_settings(&mut self) {
        let of_environment = self.snapshot.identity.allocator.as_ref();
        let of_environment = of_environment.filter(|_| self.settings.is_empty());
        self.writer.dict_start();
        if let Some(text) = of_environment {
            self.text("PYTORCH_CUDA_ALLOC_CONF", text);
        }
        for (key, value) in self.settings {
            self.writer.key(key);
            self.setting(value);
        }
        self.writer.dict_end();
    }

    fn setting(&mut self, value: &Setting) {
        match value {
            Setting::None => self.writer.none(),
            Setting::Bool(value) => self.writer.truth(*value),
            Setting::Int(value) => self.writer.signed(*value),
            Setting::Float(value) => self.writer.float(*value),
            Setting::Text(value) => self.writer.text(value),
            Setting::List(items) => {
                self.writer.list_start();
                for item in items {
                    self.writer.item();
                    self.setting(item);
                }
                self.writer.list_end();
            }
            Setting::Dict(inner) => {
                self.writer.dict_start();
                for (key, value) in inner {
                    self.writer.key(key);
                    self.setting(value);
                }
                self.writer.dict_end();
            }
        }
    }

    fn segments(&mut self, layouts: &[Layout]) {
        self.writer.list_start();
        for (device, layout) in self.snapshot.devices.iter().zip(layouts) {
            for segment in &layout.segments {
                if self.writer.is_over() {
                    break;
                }
                self.writer.item();
                self.segment(device.device, segment);
            }
        }
        self.writer.list_end();
    }

    fn segment(&mut self, device: u8, segment: &LaidSegment) {
        let known = segment.known.unwrap_or(Segment {
            small: segment.size == SEGMENT_BYTES_SMALL,
            ..Segment::default()
        });
        let place = self.snapshot.stream_pool(known.stream_pool);
        let live = || segment.pieces.iter().filter_map(|piece| piece.live);
        let in_use = || live().filter(|block| !block.pending);
        let (first, second) = place.pool.unwrap_or_default();
        self.writer.dict_start();
        self.number("device", u64::from(device));
        self.number("address", segment.address);
        self.number("total_size", segment.size);
        self.number("allocated_size", total(in_use().map(|block| block.size)));
        self.number("active_size", total(live().map(|block| block.size)));
        self.number("requested_size", total(live().map(|block| requested(&block))));
        self.number("stream", place.stream.unwrap_or_default());
        self.text("segment_type", if known.small { "small" } else { "large" });
        self.writer.key("segment_pool_id");
        self.writer.pair(first, second);
        self.writer.key("is_expandable");
        self.writer.truth(known.expandable);
        self.stack_frames(known.stack);
        self.writer.key("blocks");
        self.writer.list_start();
        for piece in &segment.pieces {
            if self.writer.is_over() {
                break;
            }
            self.writer.item();
            self.block(piece);
        }
        self.writer.list_end();
        self.writer.dict_end();
    }

    fn block(&mut self, piece: &Piece) {
        let (state, requested, stack) = match piece.live {
            Some(block) if block.pending => ("active_pending_free", requested(&block), block.stack),
            Some(block) => ("active_allocated", requested(&block), block.stack),
            None => ("inactive", 0, 0),
        };
        self.writer.dict_start();
        self.number("address", piece.address);
        self.number("size", piece.size);
        self.number("requested_size", requested);
        self.text("state", state);
        self.stack_frames(stack);
        self.writer.dict_end();
    }

    /// One list for each device index up to the highest in use: viewers index it by device.
    fn device_traces(&mut self, layouts: &[Layout]) {
        let snapshot = self.snapshot;
        let highest = snapshot.devices.iter().map(|device| device.device).max();
        self.writer.list_start();
        for index in 0..=highest.unwrap_or(0) {
            self.writer.item();
            self.writer.list_start();
            for (device, layout) in snapshot.devices.iter().zip(layouts) {
                if device.device == index {
                    let ends = self.trace(device, &layout.trace);
                    // Steps that were guessed are none that were recorded.
                    let is_recorded = device.step_source == StepSource::Recorded;
                    let newest = if is_recorded { ends.newest() } else { &[] };
                    self.step_ends.push((device, newest.to_vec()));
                }
            }
            self.writer.list_end();
        }
        self.writer.list_end();
    }

    /// Writes a trace, and finds the ends of its steps.
    fn trace(&mut self, device: &DeviceSnapshot, trace: &[TraceEvent]) -> StepEnds {
        let (mut ends, mut entries) = (StepEnds::default(), 0);
        for event in trace {
            if self.writer.is_over() {
                break;
            }
            ends.add(event, entries);
            entries += self.event(device, event);
        }
        ends
    }

    /// Annotations of the file, steps of each device, and what the program said of itself, which is
    /// of no device.
    fn annotations(&mut self) {
        let first = self.snapshot.devices.first().map_or(0, |device| device.device);
        let at_us = |mono_ns: u64| u64::try_from(self.time_us(mono_ns)).unwrap_or(0);
        let of_steps = self.step_ends.iter();
        let of_steps =
            of_steps.flat_map(|(device, ends)| marks::of_steps(device.device, ends, at_us));
        let of_program = marks::of_program(first, &self.snapshot.marks, at_us);
        let made: Vec<Annotation> = of_steps.chain(of_program).collect();
        let of_file = self.annotations.iter().filter(|of| marks::is_kept(of));
        self.writer.list_start();
        for annotation in of_file.chain(&made) {
            self.writer.item();
            self.writer.dict_start();
            if let Some(device) = annotation.device {
                self.number("device", u64::from(device));
            }
            self.text("name", &annotation.name);
            self.text("stage", if annotation.is_start { "START" } else { "END" });
            self.number("time_us", annotation.at_us);
            self.writer.dict_end();
        }
        self.writer.list_end();
    }

    fn time_us(&self, mono_ns: u64) -> i64 {
        let mono_ns = i64::try_from(mono_ns).unwrap_or(i64::MAX);
        mono_ns.saturating_add(self.clock_offset_ns) / 1000
    }

    /// Writes the entries of an event; their number.
    fn event(&mut self, device: &DeviceSnapshot, event: &TraceEvent) -> u64 {
        match event.kind {
            TraceKind::Alloc => self.entry("alloc", "addr", event.address, event),
            TraceKind::Free => {
                self.entry("free_requested", "addr", event.address, event);
                self.entry("free_completed", "addr", event.address, event);
                return 2;
            }
            TraceKind::FreeDeferred => self.entry("free_requested", "addr", event.address, event),
            TraceKind::FreeCompleted => self.entry("free_completed", "addr", event.address, event),
            TraceKind::SegmentAlloc => self.entry("segment_alloc", "addr", event.address, event),
            TraceKind::SegmentFree => self.entry("segment_free", "addr", event.address, event),
            TraceKind::SegmentMap => self.entry("segment_map", "addr", event.address, event),
            TraceKind::SegmentUnmap => self.entry("segment_unmap", "addr", event.address, event),
            TraceKind::Snapshot => self.entry("snapshot", "addr", 0, event),
            TraceKind::Oom => {
                let upper_bound = device.device_bytes.saturating_sub(device.reserved);
                let free_bytes = if event.detail > 0 { event.detail } else { upper_bound };
                self.entry("oom", "device_free", free_bytes, event);
            }
            TraceKind::MallocFailed => return 0,
        }
        1
    }

    fn entry(&mut self, action: &str, place: &str, address_or_free: u64, event: &TraceEvent) {
        let of_block = !matches!(event.kind, TraceKind::Oom | TraceKind::Snapshot);
        let size = if of_block && event.detail > 0 { event.detail } else { event.size };
        self.writer.item();
        self.writer.dict_start();
        self.text("action", action);
        self.number(place, address_or_free);
        self.number("size", size);
        let place = self.snapshot.stream_pool(event.stream_pool);
        self.number("stream", place.stream.unwrap_or_default());
        if let Some((first, second)) = place.pool {
            self.writer.key("pool_id");
            self.writer.pair(first, second);
        }
        self.writer.key("time_us");
        self.writer.signed(self.time_us(event.mono_ns));
        self.stack_frames(event.stack);
        self.writer.dict_end();
    }

    fn origin(&mut self, layouts: &[Layout]) {
        let identity = &self.snapshot.identity;
        let sum = |count: fn(&Layout) -> u64| layouts.iter().map(count).sum::<u64>();
        let complete = self.snapshot.devices.iter().all(|device| device.complete);
        self.writer.dict_start();
        self.text("tape_id", &identity.tape_id);
        self.text("job", &identity.job);
        self.number("attempt", u64::from(identity.attempt));
        self.number("rank", u64::from(identity.rank));
        self.number("world_size", u64::from(identity.world_size));
        self.number("step", self.snapshot.step);
        self.number("blocks_left_out", sum(|layout| layout.blocks_left_out));
        self.number("events_left_out", sum(|layout| layout.events_left_out));
        self.writer.key("complete");
        self.writer.truth(complete);
        self.writer.key("unknown");
        self.writer.list_start();
        let unknown: &[&str] = match (self.is_traced(), self.has_pools()) {
            (false, _) => &UNKNOWN_WITHOUT_TRACE,
            // The trace of older releases has no pools.
            (true, false) => &["segment_pool_id"],
            (true, true) => &[],
        };
        for field in unknown {
            self.writer.item();
            self.writer.text(field);
        }
        self.writer.list_end();
        self.writer.key("devices");
        self.writer.dict_start();
        for (device, ends) in core::mem::take(&mut self.step_ends) {
            self.writer.key(&device.device.to_string());
            self.writer.dict_start();
            self.number("reserved", device.reserved);
            self.writer.key("segments_made_up");
            self.writer.truth(device.segment_source != SegmentSource::Allocator);
            self.writer.key("step_ends");
            self.writer.dict_start();
            for end in ends {
                self.number(&end.finished.to_string(), end.entries);
            }
            self.writer.dict_end();
            self.writer.dict_end();
        }
        self.writer.dict_end();
        self.writer.dict_end();
    }

    /// The allocator itself reported everything.
    fn is_traced(&self) -> bool {
        let devices = &self.snapshot.devices;
        devices.iter().all(|device| device.segment_source == SegmentSource::Allocator)
    }

    /// True if the trace names the memory pools.
    fn has_pools(&self) -> bool {
        self.snapshot.stream_pools.iter().any(|place| place.pool.is_some())
    }

    /// The value of the key `frames`: a list that all blocks of this stack share.
    fn stack_frames(&mut self, stack: u32) {
        self.writer.key("frames");
        // An index that the table does not have means the unknown stack, which stands at 0.
        let stack = if (stack as usize) < self.stacks.len() { stack as usize } else { 0 };
        if let Some(&Some(memo)) = self.stacks.get(stack) {
            return self.writer.reference(memo);
        }
        self.writer.list_start();
        for &frame in self.snapshot.stacks.get(stack).map(Vec::as_slice).unwrap_or_default() {
            if (frame as usize) < self.frames.len() {
                self.writer.item();
                self.frame(frame as usize);
            }
        }
        self.writer.list_end();
        let memo = self.writer.remember();
        if let Some(slot) = self.stacks.get_mut(stack) {
            *slot = Some(memo);
        }
    }

    fn frame(&mut self, index: usize) {
        if let Some(&Some(memo)) = self.frames.get(index) {
            return self.writer.reference(memo);
        }
        let Some(frame) = self.snapshot.frames.get(index) else { return };
        self.writer.dict_start();
        self.text("name", &frame.function);
        self.text("filename", &frame.file);
        self.number("line", u64::from(frame.line));
        self.writer.dict_end();
        let memo = self.writer.remember();
        if let Some(slot) = self.frames.get_mut(index) {
            *slot = Some(memo);
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        self.writer.key(key);
        self.writer.unsigned(value);
    }

    fn text(&mut self, key: &str, value: &str) {
        self.writer.key(key);
        self.writer.text(value);
    }
}

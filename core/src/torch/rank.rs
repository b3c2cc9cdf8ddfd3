//! A file of PyTorch as the state of a rank, in the form that tapes and captures have.
//!
//! What a file lacks stays unknown: sizes of devices, names of jobs, births of blocks that are
//! older than the trace (their `birth_step` is 0). Steps are found, or counted by the recorder;
//! [`DeviceSnapshot::step_source`] says which. C++ frames are left out. Of freed blocks a
//! file has the bytes that were asked for; they are rounded as the allocator rounds by default.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ops::Range;

use super::origin::{number, reserved_without_segments, text};
use super::stacks::Stacks;
use super::steps::{self, Steps};
use crate::addresses::Addresses;
use crate::identity::Identity;
use crate::pickle::torch::{
    Action, Block as TorchBlock, BlockState, Event, Segment as TorchSegment, Setting, SettingValue,
    TorchSnapshot,
};
use crate::snapshot::{
    Block, DeviceSnapshot, RankSnapshot, Segment, SegmentSource, StreamPool, TraceEvent, TraceKind,
};

/// Different streams and pools of a file; more count as the unknown one.
const STREAM_POOLS_MAX: usize = 60_000;

/// Sizes are rounded up to multiples of this (`kMinBlockSize`).
const BLOCK_BYTES_MIN: u64 = 512;

/// Events after which the room of those that were converted is given back.
const EVENTS_CONVERTED: usize = 1 << 20;

/// Settings that are not off, zero or empty unless the user sets them, with what they are then.
const DEFAULTS: [(&str, i64); 1] = [("pinned_num_register_threads", 1)];

/// The state of a rank that a file holds.
#[derive(Clone, Debug, Default)]
pub struct Converted {
    /// The state. Its tape has no name where Memtape did not export the file: then the rank is not
    /// known, and the steps count from the beginning of the trace.
    pub rank: RankSnapshot,
    /// Blocks, segments and events that lack an address or a size, and were left out.
    pub unusable: u64,
}

/// The state of the rank that wrote this file.
pub fn rank_state(mut torch: TorchSnapshot) -> Converted {
    let devices: Vec<(u32, Range<u32>, Steps)> = devices(&torch)
        .into_iter()
        .map(|device| {
            let trace = torch.traces.get(device as usize).cloned().unwrap_or_default();
            let steps = steps::find(&torch, device, torch.events_of(&trace));
            (device, trace, steps)
        })
        .collect();
    let newest_us = torch.events.iter().filter_map(Event::time_us).max();
    let mut events = core::mem::take(&mut torch.events);
    let mut conversion = Conversion::of(&torch);
    let mut found: Vec<DeviceSnapshot> =
        devices.iter().map(|(device, _, steps)| conversion.device(*device, steps)).collect();
    let mut in_order: Vec<_> = devices.iter().zip(&mut found).collect();
    in_order.sort_by_key(|((_, trace, _), _)| core::cmp::Reverse(trace.start));
    for ((_, trace, steps), device) in in_order {
        conversion.trace(&mut events, trace, steps, device);
    }
    let last_step = devices.iter().map(|(_, _, steps)| steps.finished()).max().unwrap_or(0);
    let rank = RankSnapshot {
        identity: Identity {
            tape_id: text(&torch, "tape_id").unwrap_or_default().to_string(),
            job: text(&torch, "job").unwrap_or_default().to_string(),
            attempt: narrow(number(&torch, "attempt")),
            rank: narrow(number(&torch, "rank")),
            ..Identity::default()
        },
        step: number(&torch, "step").unwrap_or(last_step),
        wall_ns: newest_us.unwrap_or_default().saturating_mul(1000),
        devices: found,
        stream_pools: conversion.sorted_stream_pools(),
        frames: conversion.stacks.frames,
        stacks: conversion.stacks.stacks,
        settings: settings(&torch),
        ..RankSnapshot::default()
    };
    Converted { rank, unusable: conversion.unusable }
}

fn narrow(number: Option<u64>) -> u32 {
    number.and_then(|number| number.try_into().ok()).unwrap_or_default()
}

/// Devices with memory or events.
fn devices(torch: &TorchSnapshot) -> BTreeSet<u32> {
    let with_events = torch.traces.iter().zip(0..).filter(|(trace, _)| !trace.is_empty());
    let of_segments = torch.segments.iter().map(|segment| segment.device.unwrap_or(0));
    of_segments.chain(with_events.map(|(_, index)| index)).collect()
}

/// Stream and pool.
type Key = (Option<u64>, Option<(u64, u64)>);

/// A file without its events, and what is common to its devices.
struct Conversion<'a> {
    torch: &'a TorchSnapshot,
    stacks: Stacks<'a>,
    stream_pools: BTreeMap<Key, u16>,
    unusable: u64,
}

impl<'a> Conversion<'a> {
    fn of(torch: &'a TorchSnapshot) -> Self {
        let stream_pools = BTreeMap::from([(Key::default(), 0)]);
        Self { torch, stacks: Stacks::new(torch), stream_pools, unusable: 0 }
    }

    fn stream_pool(&mut self, key: Key) -> u16 {
        if self.stream_pools.len() >= STREAM_POOLS_MAX {
            return self.stream_pools.get(&key).copied().unwrap_or_default();
        }
        let next = self.stream_pools.len() as u16;
        *self.stream_pools.entry(key).or_insert(next)
    }

    fn sorted_stream_pools(&self) -> Vec<StreamPool> {
        let mut sorted: Vec<(&Key, &u16)> = self.stream_pools.iter().collect();
        sorted.sort_unstable_by_key(|&(_, number)| number);
        sorted.into_iter().map(|(&(stream, pool), _)| StreamPool { stream, pool }).collect()
    }

    /// A device without its trace.
    fn device(&mut self, device: u32, steps: &Steps) -> DeviceSnapshot {
        let torch = self.torch;
        let mut found = DeviceSnapshot {
            device: u8::try_from(device).unwrap_or(u8::MAX),
            segment_source: SegmentSource::Allocator,
            step_source: steps.source,
            complete: true,
            ..DeviceSnapshot::default()
        };
        for segment in torch.segments.iter().filter(|of| of.device.unwrap_or(0) == device) {
            self.segment(&mut found, segment);
        }
        found.blocks.sort_unstable_by_key(|block| block.address);
        found.segments.sort_unstable_by_key(|segment| segment.address);
        let sizes = found.segments.iter().map(|segment| segment.size);
        found.reserved = sizes.fold(0, u64::saturating_add);
        if let Some(reserved) = reserved_without_segments(torch, device) {
            found.reserved = reserved;
            found.segments.clear();
            found.segment_source = SegmentSource::None;
        }
        found
    }

    /// Adds a segment and its live blocks.
    fn segment(&mut self, found: &mut DeviceSnapshot, segment: &TorchSegment) {
        let (Some(address), Some(size)) = (segment.address, segment.total_bytes) else {
            self.unusable += 1;
            return;
        };
        let stream_pool = self.stream_pool((segment.stream, segment.pool));
        found.segments.push(Segment {
            address,
            size,
            stream_pool,
            stack: segment.stack.map_or(0, |stack| self.stacks.number(stack)),
            expandable: segment.is_expandable.unwrap_or(false),
            small: segment.is_small.unwrap_or(false),
        });
        let torch = self.torch;
        let mut next = address;
        for block in torch.blocks_of(segment) {
            // Old releases write no address: blocks lie in a row.
            let at = block.address().unwrap_or(next);
            let Some(size) = block.bytes() else {
                self.unusable += 1;
                continue;
            };
            next = at.saturating_add(size);
            self.block(found, block, (at, size, stream_pool));
        }
        if segment.blocks.is_none() {
            let allocated = segment.allocated_bytes.unwrap_or_default();
            found.allocated = found.allocated.saturating_add(allocated);
        }
    }

    fn block(
        &mut self,
        found: &mut DeviceSnapshot,
        block: &TorchBlock,
        (address, size, stream_pool): (u64, u64, u16),
    ) {
        let pending = match block.state {
            Some(BlockState::Allocated) => false,
            Some(BlockState::PendingFree) => true,
            Some(BlockState::Inactive) | None => return,
        };
        if !pending {
            found.allocated = found.allocated.saturating_add(size);
        }
        found.blocks.push(Block {
            address,
            size,
            requested: block.requested_bytes().unwrap_or_default(),
            stack: block.stack().map_or(0, |stack| self.stacks.number(stack)),
            stream_pool,
            pending,
            ..Block::default()
        });
    }

    /// Converts the events of a device from the last to the first, and dates its blocks. Those
    /// events, and all behind them, are taken out.
    fn trace(
        &mut self,
        events: &mut Vec<Event>,
        of: &Range<u32>,
        steps: &Steps,
        device: &mut DeviceSnapshot,
    ) {
        events.truncate(of.end as usize);
        let first = of.start as usize;
        let mut live = Addresses::default();
        for (block, index) in device.blocks.iter().zip(0_u32..) {
            live.insert(block.address, index);
        }
        let is_request = |event: &Event| event.action == Action::FreeRequested;
        let has_requests = events.get(first..).unwrap_or_default().iter().any(is_request);
        let mut finished_at = steps.backwards();
        let mut trace = Vec::with_capacity(events.len().saturating_sub(first));
        while events.len() > first {
            let Some(event) = events.pop() else { break };
            if events.len().is_multiple_of(EVENTS_CONVERTED) {
                events.shrink_to_fit();
            }
            // A free that no stream holds up is two entries in a row.
            let is_whole = event.action == Action::FreeCompleted
                && events.len() > first
                && events.last().is_some_and(|before| {
                    is_request(before) && before.address() == event.address()
                });
            let event = if is_whole { events.pop().unwrap_or(event) } else { event };
            let Some(kind) = kind(event.action, is_whole || !has_requests) else { continue };
            let Some(mut converted) = self.event(&event, kind) else {
                self.unusable += 1;
                continue;
            };
            converted.step = finished_at(events.len() - first);
            if kind == TraceKind::Alloc
                && let Some(index) = live.remove(converted.address)
                && let Some(block) = device.blocks.get_mut(index as usize)
            {
                date(block, &mut converted);
            }
            trace.push(converted);
        }
        trace.reverse();
        device.trace = trace;
    }

    /// An event without its step; none of a block without address or size.
    fn event(&mut self, event: &Event, kind: TraceKind) -> Option<TraceEvent> {
        let bytes = event.bytes();
        let is_of_block = matches!(
            kind,
            TraceKind::Alloc | TraceKind::Free | TraceKind::FreeDeferred | TraceKind::FreeCompleted
        );
        let (address, size, detail) = match kind {
            TraceKind::Oom => (0, bytes.unwrap_or(0), event.device_free_bytes().unwrap_or(0)),
            _ if is_of_block => (event.address()?, rounded(bytes?), bytes?),
            _ => (event.address().unwrap_or(0), bytes.unwrap_or(0), 0),
        };
        let time_us = u64::try_from(event.time_us().unwrap_or_default()).unwrap_or(0);
        let stream_pool = (self.torch.stream_of(event), self.torch.pool_of(event));
        Some(TraceEvent {
            kind,
            mono_ns: time_us.saturating_mul(1000),
            address,
            size,
            detail,
            stack: event.stack().map_or(0, |stack| self.stacks.number(stack)),
            stream_pool: self.stream_pool(stream_pool),
            step: 0,
        })
    }
}

/// What an entry of a trace is; `is_free` where a completed free is one that was not deferred.
fn kind(action: Action, is_free: bool) -> Option<TraceKind> {
    Some(match action {
        Action::FreeRequested | Action::FreeCompleted if is_free => TraceKind::Free,
        Action::FreeRequested => TraceKind::FreeDeferred,
        Action::FreeCompleted => TraceKind::FreeCompleted,
        Action::Alloc => TraceKind::Alloc,
        Action::SegmentAlloc => TraceKind::SegmentAlloc,
        Action::SegmentFree => TraceKind::SegmentFree,
        Action::SegmentMap => TraceKind::SegmentMap,
        Action::SegmentUnmap => TraceKind::SegmentUnmap,
        Action::Snapshot => TraceKind::Snapshot,
        Action::Oom => TraceKind::Oom,
        Action::Annotate | Action::Unknown => return None,
    })
}

/// A live block and its allocation: each has what the other lacks.
fn date(block: &mut Block, allocation: &mut TraceEvent) {
    (block.birth_step, block.birth_ns) = (allocation.step, allocation.mono_ns);
    // The allocator may have handed out more than was asked for.
    allocation.size = block.size;
    // With `context="state"` the trace has no stacks.
    if allocation.stack == 0 {
        allocation.stack = block.stack;
    }
}

/// Bytes as the allocator rounds them.
fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(BLOCK_BYTES_MIN).unwrap_or(u64::MAX)
}

/// Settings as text, without those that are off, zero, empty or as PyTorch has them by default.
fn settings(torch: &TorchSnapshot) -> Vec<(String, String)> {
    let text = |setting: &Setting| {
        let value = match setting.value {
            SettingValue::Bool(true) => "True".to_string(),
            SettingValue::Int(number)
                if number > 0 && !DEFAULTS.contains(&(setting.name.as_str(), number)) =>
            {
                number.to_string()
            }
            SettingValue::Float(number) if number != 0.0 => number.to_string(),
            SettingValue::Text(text) if !torch.text(text).is_empty() => {
                torch.text(text).to_string()
            }
            _ => return None,
        };
        Some((setting.name.clone(), value))
    };
    torch.settings.iter().filter_map(text).collect()
}

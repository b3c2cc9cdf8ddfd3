//! One file, condensed: live blocks with the step they were born in, what each stack held at
//! earlier steps, levels, the highest moment, failed requests, and free memory.
//!
//! A snapshot may be a gigabyte of events. They are gone through here, once, and are not needed
//! afterwards, so that the files of many ranks can be compared in little memory.
//!
//! It compares nothing and judges nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::origin::{Origin, origin, reserved_without_segments};
use super::replay::Replay;
use super::space::{Refusal, Space, space};
use super::stacks::Stacks;
use super::steps::{self, StepSource};
use super::walk::{self, Walk, whole};
use crate::diagnosis::evidence::account::median;
use crate::diagnosis::evidence::churn::Churn;
use crate::pickle::torch::{
    Block as TorchBlock, BlockState, Event, Segment as TorchSegment, SettingValue, TorchSnapshot,
};
use crate::snapshot::{Block, Frame, Segment, StackUse, StreamPool};

/// Different streams and pools of a file; more count as the unknown one.
const STREAM_POOLS_MAX: usize = 60_000;

/// One file, condensed.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Every frame named by a stack; entry 0 is the unknown frame.
    pub frames: Vec<Frame>,
    /// Frame indexes, innermost first; entry 0 is the unknown stack.
    pub stacks: Vec<Vec<u32>>,
    /// Streams and pools; entry 0 is the unknown one.
    pub stream_pools: Vec<StreamPool>,
    /// Devices with memory or events, by index.
    pub devices: Vec<DeviceLook>,
    /// The allocator's settings that differ from their defaults, as text.
    pub settings: Vec<(String, String)>,
    /// Rank, step and job, where the file says them (Memtape's own exports do).
    pub origin: Origin,
    /// Unix time of the newest event, in microseconds.
    pub newest_us: Option<i64>,
    /// Blocks, segments and events that say too little to be used.
    pub unusable: u64,
    /// Stacks are there for at least some blocks.
    pub has_stacks: bool,
}

/// One device of a file.
#[derive(Clone, Debug, Default)]
pub struct DeviceLook {
    /// Device index.
    pub device: u32,
    /// Bytes in live blocks.
    pub allocated: u64,
    /// Bytes in blocks that were given back and that a stream still uses.
    pub pending: u64,
    /// Bytes that live blocks were asked for with; the rest of them is rounding.
    pub requested: u64,
    /// Live blocks by address. Births are counted from the first step of the trace, which is 1;
    /// 0 is older.
    pub blocks: Vec<Block>,
    /// Segments by address; none where they are not known.
    pub segments: Vec<Segment>,
    /// True where the file's segments are made up: of [`Self::space`] only `reserved` and `in_use`
    /// are known.
    pub lacks_segments: bool,
    /// Memory held and not used.
    pub space: Space,
    /// Bytes of segments in private pools, and of live blocks in them.
    pub private_pools: (u64, u64),
    /// What happened.
    pub trace: TraceLook,
}

impl DeviceLook {
    /// The step of the trace in which a live block was allocated; 0 for an older block. The first
    /// step of a cut trace is everything before its other steps, so its blocks count as older.
    pub(crate) fn birth_step(&self, block: &Block) -> u64 {
        let oldest = u64::from(self.trace.is_cut);
        if block.birth_step > oldest { block.birth_step } else { 0 }
    }
}

impl DeviceLook {
    /// Free bytes between live blocks; none where the segments are not known.
    pub fn inactive_split(&self) -> Option<u64> {
        (!self.lacks_segments).then_some(self.space.split_free)
    }
}

/// The trace of a device.
#[derive(Clone, Debug, Default)]
pub struct TraceLook {
    /// Number of events.
    pub events: u64,
    /// Unix times of the first and the last event, in microseconds.
    pub span_us: Option<(i64, i64)>,
    /// Who says where steps end.
    pub source: StepSource,
    /// Ends of steps in the trace.
    pub ends: u64,
    /// The trace had more: its first step is all that came before.
    pub is_cut: bool,
    /// The number that the profiler or the recorder gives the last step.
    pub last_number: Option<u64>,
    /// What each stack held, at the beginning and at each end of a step.
    pub marks: Vec<Mark>,
    /// Allocations of the trace by stack and size, for sizes that live blocks of it have.
    pub born: Vec<(u32, u64, u64)>,
    /// Ends of steps that the longest-lived block of each stack lived through, of those that the
    /// trace saw come and go; stacks with none are left out.
    pub lived: BTreeMap<u32, u64>,
    /// Lowest allocated bytes in each step; one more than there are ends.
    pub floors: Vec<u64>,
    /// Highest allocated bytes in each step.
    pub peaks: Vec<u64>,
    /// Lowest reserved bytes in each step.
    pub reserved: Vec<u64>,
    /// What was alive at the peaks of the first and of the last whole step; none where there are
    /// not two. The first and the last step of a trace are cut.
    pub whole_peaks: Option<(Alive, Alive)>,
    /// The highest moment.
    pub peak: Option<Alive>,
    /// Failed requests, the newest ones.
    pub ooms: Vec<Oom>,
    /// Failed requests in all.
    pub oom_count: u64,
    /// Steps that gave segments back and took some.
    pub churn: Churn,
    /// The stack that gave back most segments.
    pub returned_by: u32,
    /// Live blocks whose birth the trace has.
    pub dated: u64,
    /// Nothing is older than the trace: it began with the process.
    pub is_whole: bool,
    /// Allocations at an address that was in use.
    pub contradictions: u64,
}

impl TraceLook {
    /// What a step needs: the median peak of the whole steps; none where there are none.
    pub fn step_need(&self) -> Option<u64> {
        let peaks = whole(&self.peaks);
        (!peaks.is_empty()).then(|| median(peaks.to_vec()))
    }
}

/// What each stack held when a step ended.
#[derive(Clone, Debug, Default)]
pub struct Mark {
    /// By stack.
    pub uses: Vec<StackUse>,
    /// Blocks older than the trace that were freed later, by size, as far as blocks that are
    /// alive have that size: their stack is not known.
    pub nameless: Vec<(u64, u64)>,
}

/// What was alive at a moment.
#[derive(Clone, Debug, Default)]
pub struct Alive {
    /// Allocated bytes.
    pub bytes: u64,
    /// Unix time, in microseconds.
    pub time_us: Option<i64>,
    /// In which step of the trace, from 1.
    pub step: u64,
    /// By stack, largest first.
    pub uses: Vec<StackUse>,
    /// Of blocks older than the trace that were freed later, whose stack is not known.
    pub nameless: StackUse,
}

/// A request that failed.
#[derive(Clone, Debug, Default)]
pub struct Oom {
    /// Bytes asked for.
    pub bytes: u64,
    /// Free bytes of the device, which the allocator did not hold.
    pub device_free: Option<u64>,
    /// Stack that asked.
    pub stack: u32,
    /// What was alive.
    pub alive: Alive,
    /// What was held and free.
    pub space: Space,
    /// Why it was not good enough.
    pub refusal: Refusal,
}

/// Condenses a file.
pub fn look(snapshot: &TorchSnapshot) -> Look {
    let mut shared = Shared::new(snapshot);
    let devices = shared.devices();
    shared.into_look(devices)
}

/// Stream and pool.
pub(crate) type Key = (Option<u64>, Option<(u64, u64)>);

/// What all devices of a file have in common.
pub(super) struct Shared<'a> {
    snapshot: &'a TorchSnapshot,
    pub(super) stacks: Stacks<'a>,
    places: BTreeMap<Key, u16>,
    unusable: u64,
}

impl<'a> Shared<'a> {
    pub(super) fn new(snapshot: &'a TorchSnapshot) -> Self {
        Self {
            snapshot,
            stacks: Stacks::new(snapshot),
            places: BTreeMap::from([(Key::default(), 0)]),
            unusable: 0,
        }
    }

    /// Devices with memory or events.
    pub(super) fn devices(&mut self) -> Vec<DeviceLook> {
        let snapshot = self.snapshot;
        let with_events = snapshot.traces.iter().zip(0..).filter(|(trace, _)| !trace.is_empty());
        let of_segments = snapshot.segments.iter().map(|segment| segment.device.unwrap_or(0));
        let devices: BTreeSet<u32> =
            of_segments.chain(with_events.map(|(_, index)| index)).collect();
        devices.into_iter().map(|device| self.device(device)).collect()
    }

    /// These devices, with the stacks, streams and pools that they name.
    pub(super) fn into_look(self, devices: Vec<DeviceLook>) -> Look {
        let snapshot = self.snapshot;
        Look {
            stream_pools: self.sorted_stream_pools(),
            has_stacks: self.stacks.stacks.len() > 1,
            frames: self.stacks.frames,
            stacks: self.stacks.stacks,
            devices,
            settings: settings(snapshot),
            origin: origin(snapshot),
            newest_us: snapshot.events.iter().filter_map(Event::time_us).max(),
            unusable: self.unusable,
        }
    }

    pub(super) fn stream_pool(&mut self, key: Key) -> u16 {
        if self.places.len() >= STREAM_POOLS_MAX {
            return self.places.get(&key).copied().unwrap_or_default();
        }
        let next = self.places.len() as u16;
        *self.places.entry(key).or_insert(next)
    }

    fn device(&mut self, device: u32) -> DeviceLook {
        let mut found = DeviceLook { device, ..DeviceLook::default() };
        let snapshot = self.snapshot;
        let trace = snapshot.traces.get(device as usize).cloned().unwrap_or_default();
        let events = snapshot.events_of(&trace);
        let replay = Replay::of(events);
        let steps = steps::find(snapshot, device, events);
        let mut born = Vec::new();
        for segment in &snapshot.segments {
            if segment.device.unwrap_or(0) == device {
                self.segment(&mut found, &mut born, segment, &replay);
            }
        }
        found.blocks.sort_unstable_by_key(|block| block.address);
        found.segments.sort_unstable_by_key(|segment| segment.address);
        let step_of = |event: u32| 1 + steps.starts.partition_point(|&start| start <= event) as u64;
        for (address, event) in born {
            let at = found.blocks.binary_search_by_key(&address, |block| block.address);
            let Some(block) = at.ok().and_then(|at| found.blocks.get_mut(at)) else { continue };
            block.birth_step = step_of(event);
            let time_us = events.get(event as usize).and_then(Event::time_us).unwrap_or(0);
            block.birth_ns = u64::try_from(time_us).unwrap_or(0).saturating_mul(1000);
            found.trace.dated += 1;
        }
        self.unusable += replay.unusable;
        let places = self.sorted_stream_pools();
        let live: Vec<(u64, u64)> = found.blocks.iter().map(|b| (b.address, b.size)).collect();
        (found.space, _) = space(&found.segments, &places, &live, None);
        if let Some(reserved) = reserved_without_segments(snapshot, device) {
            let in_use = found.allocated.saturating_add(found.pending);
            found.space = Space { reserved, in_use, ..Space::default() };
            found.segments.clear();
            found.lacks_segments = true;
        }
        let walk = Walk { events, replay: &replay, steps: &steps, stacks: &mut self.stacks };
        found.trace = walk::trace(walk, &found, &self.places);
        found
    }

    fn sorted_stream_pools(&self) -> Vec<StreamPool> {
        let mut places: Vec<(&Key, &u16)> = self.places.iter().collect();
        places.sort_unstable_by_key(|&(_, number)| number);
        places.into_iter().map(|(&(stream, pool), _)| StreamPool { stream, pool }).collect()
    }

    /// Adds a segment and its live blocks; those whose birth the trace has go into `born`.
    fn segment(
        &mut self,
        found: &mut DeviceLook,
        born: &mut Vec<(u64, u32)>,
        segment: &TorchSegment,
        replay: &Replay,
    ) {
        let (Some(address), Some(size)) = (segment.address, segment.total_bytes) else {
            self.unusable += 1;
            return;
        };
        let place = self.stream_pool((segment.stream, segment.pool));
        let stack = segment.stack.map_or(0, |stack| self.stacks.number(stack));
        found.segments.push(Segment {
            address,
            size,
            stream_pool: place,
            stack,
            expandable: segment.is_expandable.unwrap_or(false),
            small: segment.is_small.unwrap_or(false),
        });
        let before = found.allocated;
        let mut next = address;
        let blocks = self.snapshot.blocks_of(segment);
        for block in blocks {
            // Old releases write no address: blocks lie in a row.
            let at = block.address().unwrap_or(next);
            let Some(size) = block.bytes() else {
                self.unusable += 1;
                continue;
            };
            next = at.saturating_add(size);
            self.block(found, born, block, (at, size, place), replay);
        }
        if segment.blocks.is_none() {
            found.allocated =
                found.allocated.saturating_add(segment.allocated_bytes.unwrap_or_default());
        }
        if segment.pool.is_some_and(|pool| pool != (0, 0)) {
            found.private_pools.0 = found.private_pools.0.saturating_add(size);
            found.private_pools.1 += found.allocated - before;
        }
    }

    fn block(
        &mut self,
        found: &mut DeviceLook,
        born: &mut Vec<(u64, u32)>,
        block: &TorchBlock,
        (address, size, place): (u64, u64, u16),
        replay: &Replay,
    ) {
        let pending = match block.state {
            Some(BlockState::Allocated) => false,
            Some(BlockState::PendingFree) => true,
            Some(BlockState::Inactive) | None => return,
        };
        let requested = block.requested_bytes().unwrap_or_default();
        let sum = if pending { &mut found.pending } else { &mut found.allocated };
        *sum = sum.saturating_add(size);
        if !pending {
            let requested = if requested > 0 { requested } else { size };
            found.requested = found.requested.saturating_add(requested);
            born.extend(replay.birth(address).map(|event| (address, event)));
        }
        let stack = block.stack().map_or(0, |stack| self.stacks.number(stack));
        let block = Block {
            address,
            size,
            requested,
            stack,
            stream_pool: place,
            pending,
            ..Block::default()
        };
        found.blocks.push(block);
    }
}

/// Settings that are not off, zero or empty unless the user sets them, with what they are then.
const DEFAULTS: [(&str, i64); 1] = [("pinned_num_register_threads", 1)];

/// Settings as text, without those that are off, zero, empty or as PyTorch has them by default.
fn settings(snapshot: &TorchSnapshot) -> Vec<(String, String)> {
    let text = |setting: &crate::pickle::torch::Setting| {
        let value = match setting.value {
            SettingValue::Bool(true) => "True".to_string(),
            SettingValue::Int(number)
                if number > 0 && !DEFAULTS.contains(&(setting.name.as_str(), number)) =>
            {
                number.to_string()
            }
            SettingValue::Float(number) if number != 0.0 => number.to_string(),
            SettingValue::Text(text) if !snapshot.text(text).is_empty() => {
                snapshot.text(text).to_string()
            }
            _ => return None,
        };
        Some((setting.name.clone(), value))
    };
    snapshot.settings.iter().filter_map(text).collect()
}

//! The state of a rank with what its traces show, without the traces themselves.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use memtape_tape::hash::fnv_1a;

use crate::diagnosis::evidence::account::{Stack, uses};
use crate::diagnosis::evidence::past::Past;
use crate::diagnosis::evidence::segments::{Shape, shape};
use crate::identity::end::End;
use crate::snapshot::ledger::Ledger;
use crate::snapshot::{DeviceSnapshot, RankSnapshot};

/// The clocks of PyTorch and of a recorder may differ by as much about one event.
const CLOCKS_DIFFER_US: u64 = 1_000_000;

/// The state of a rank, condensed.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The state without its devices.
    pub rank: RankSnapshot,
    /// Its devices.
    pub devices: Vec<DeviceHistory>,
    /// What its source knows of the process.
    pub process: ProcessState,
}

/// What a source knows of the process of a state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessState {
    /// Nothing.
    #[default]
    Unknown,
    /// The process lived when the state was read.
    Alive,
    /// The tape is not sealed and has no writer: the process was killed, or the tape is a copy.
    Unsealed,
    /// The process ended like this, with its exit status where that is known.
    Ended(End, Option<i32>),
}

/// One device of a rank.
#[derive(Clone, Debug, Default)]
pub struct DeviceHistory {
    /// The state without the trace.
    pub state: DeviceSnapshot,
    /// How what is reserved is divided; none where the segments are not known.
    pub shape: Option<Shape>,
    /// What happened.
    pub past: Past,
}

/// Bytes and blocks that are alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Held {
    pub(super) fn add(&mut self, bytes: u64, blocks: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.blocks = self.blocks.saturating_add(blocks);
    }
}

/// The states of one rank.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// Global rank.
    pub rank: u32,
    /// Its states, oldest first.
    pub states: Vec<History>,
}

impl History {
    /// Condenses a state.
    pub fn of(mut rank: RankSnapshot) -> Self {
        let devices = core::mem::take(&mut rank.devices);
        let mut condensed = Vec::with_capacity(devices.len());
        for mut state in devices {
            let (shape, past) = (shape(&rank, &state), Past::of(&rank, &state));
            state.trace = Vec::new();
            condensed.push(DeviceHistory { state, shape, past });
        }
        Self { rank, devices: condensed, process: ProcessState::Unknown }
    }

    /// The device that holds most bytes.
    pub fn primary_device(&self) -> Option<&DeviceHistory> {
        self.devices.iter().max_by_key(|device| device.state.allocated)
    }

    /// The device with this index.
    pub fn device(&self, device: u8) -> Option<&DeviceHistory> {
        self.devices.iter().find(|found| found.state.device == device)
    }

    /// True where Memtape recorded it: then rank, job and step are known.
    pub fn is_recorded(&self) -> bool {
        !self.rank.identity.tape_id.is_empty()
    }

    /// Unix time of the state, in microseconds; none where it is not known.
    pub fn newest_us(&self) -> Option<i64> {
        (self.rank.wall_ns > 0).then_some(self.rank.wall_ns / 1000)
    }

    /// True where it is known when the state was: then one that is the same is a copy of it. Ranks
    /// that do the same work may have the same memory at the same addresses.
    pub fn is_dated(&self) -> bool {
        self.is_recorded() || self.newest_us().is_some()
    }

    /// True where both show one process at one point in time: the same memory at the same addresses
    /// after the same event. Of states without events the memory alone is compared, and of recorded
    /// ones nothing: their tapes count steps.
    fn is_same_state(&self, other: &Self) -> bool {
        let differ_us = match (self.is_recorded(), other.is_recorded()) {
            (true, true) => return false,
            (false, false) => 0,
            _ => CLOCKS_DIFFER_US,
        };
        let are_near = match (self.newest_us(), other.newest_us()) {
            (Some(one), Some(other)) => one.abs_diff(other) <= differ_us,
            (one, other) => one == other,
        };
        are_near && self.memory() == other.memory()
    }

    /// Whether the ends of its steps are known, the number of its events, and whether its segments
    /// are known.
    fn known_past(&self) -> (bool, u64, bool) {
        let devices = || self.devices.iter();
        let are_steps_known = devices().any(|device| device.past.source.is_known());
        let events = devices().map(|device| device.past.events).sum();
        (are_steps_known, events, devices().any(|device| device.shape.is_some()))
    }

    /// Tape and step of a recorded state.
    fn recorded_step(&self) -> Option<(&str, u64)> {
        self.is_recorded().then_some((self.rank.identity.tape_id.as_str(), self.rank.step))
    }

    /// Device, address and size of each block, in any order.
    fn blocks(&self) -> impl Iterator<Item = (u8, u64, u64)> {
        self.devices.iter().flat_map(|of| {
            of.state.blocks.iter().map(|block| (of.state.device, block.address, block.size))
        })
    }

    /// A number that is the same for the same memory, whatever the order of its blocks.
    fn memory_hash(&self) -> u64 {
        let hash = |(device, address, size): (u8, u64, u64)| {
            fnv_1a([device.into(), address, size].into_iter().flat_map(u64::to_le_bytes))
        };
        self.blocks().map(hash).fold(0, u64::wrapping_add)
    }

    /// Its blocks in order.
    fn memory(&self) -> Vec<(u8, u64, u64)> {
        let mut memory: Vec<_> = self.blocks().collect();
        memory.sort_unstable();
        memory
    }

    /// Unix time of a moment of the past, in microseconds.
    pub fn time_us(&self, mono_ns: u64) -> Option<i64> {
        let spans = self.devices.iter().filter_map(|device| device.past.span_ns);
        let newest_ns = i64::try_from(spans.map(|(_, last)| last).max()?).ok()?;
        let offset_ns = self.rank.wall_ns.checked_sub(newest_ns)?;
        Some(i64::try_from(mono_ns).ok()?.checked_add(offset_ns)? / 1000)
    }

    /// True where at least some blocks have a stack.
    pub fn has_stacks(&self) -> bool {
        self.rank.stacks.len() > 1
    }

    /// The frames of a stack.
    pub(crate) fn stack(&self, stack: u32) -> Stack<'_> {
        self.rank.frames_of(stack).collect()
    }

    /// The live bytes and blocks of each stack of a device, by what the stack says.
    pub(crate) fn held(&self, device: &DeviceHistory) -> BTreeMap<Stack<'_>, Held> {
        let mut by_stack: BTreeMap<Stack<'_>, Held> = BTreeMap::new();
        let live = device.state.blocks.iter().filter(|block| !block.pending);
        for (stack, of) in uses(live.copied(), None, |_| false) {
            by_stack.entry(self.stack(stack)).or_default().add(of.bytes, of.blocks);
        }
        by_stack
    }
}

impl Rank {
    /// One state for each point in time, oldest first: of equal ones that with most of its past.
    pub(super) fn distinct_states(&self) -> Vec<&History> {
        let mut distinct: BTreeMap<usize, &History> = BTreeMap::new();
        for (first, state) in firsts(&self.states).into_iter().zip(&self.states) {
            let known = distinct.entry(first).or_insert(state);
            if known.known_past() <= state.known_past() {
                *known = state;
            }
        }
        distinct.into_values().collect()
    }
}

/// For each state the index of the first that shows the same process at the same point in time: its
/// own index where no earlier one does.
pub fn firsts<'a>(states: impl IntoIterator<Item = &'a History>) -> Vec<usize> {
    let mut of_step: BTreeMap<(&str, u64), usize> = BTreeMap::new();
    let mut of_memory: BTreeMap<u64, Vec<(usize, &History)>> = BTreeMap::new();
    let first = |(at, state): (usize, &'a History)| {
        let step = state.recorded_step();
        if let Some(first) = step.and_then(|step| of_step.get(&step)) {
            return *first;
        }
        let distinct = of_memory.entry(state.memory_hash()).or_default();
        let known = distinct.iter().find(|(_, known)| known.is_same_state(state));
        let first = known.map_or(at, |(first, _)| *first);
        if first == at {
            distinct.push((at, state));
        }
        of_step.extend(step.map(|step| (step, first)));
        first
    };
    states.into_iter().enumerate().map(first).collect()
}

impl DeviceHistory {
    /// Free bytes between live blocks, as the ledger counts them; none where no segments are known.
    pub fn inactive_split(&self) -> Option<u64> {
        Ledger::inactive_split(&self.state)
    }

    /// Bytes in blocks that were given back and that a stream still uses.
    pub fn pending(&self) -> u64 {
        let pending = self.state.blocks.iter().filter(|block| block.pending);
        pending.fold(0, |sum, block| sum.saturating_add(block.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Block, Segment, SegmentSource};

    #[test]
    fn the_inactive_split_is_that_of_the_ledger() {
        let state = |segment_source| DeviceSnapshot {
            allocated: 4 << 20,
            reserved: 40 << 20,
            blocks: alloc::vec![Block { size: 4 << 20, ..Block::default() }],
            segments: alloc::vec![
                Segment { size: 20 << 20, ..Segment::default() },
                Segment { address: 1 << 30, size: 20 << 20, ..Segment::default() },
            ],
            segment_source,
            complete: true,
            ..DeviceSnapshot::default()
        };
        let split = |source| {
            let devices = alloc::vec![state(source)];
            let history = History::of(RankSnapshot { devices, ..RankSnapshot::default() });
            history.devices.first().and_then(DeviceHistory::inactive_split)
        };
        assert_eq!(split(SegmentSource::Allocator), Some(16 << 20));
        assert_eq!(split(SegmentSource::Runtime), Some(16 << 20), "cudaMalloc gave the segments");
        assert_eq!(split(SegmentSource::None), None);
    }
}

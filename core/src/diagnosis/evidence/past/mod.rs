//! What the trace of a device shows of its past: levels and memory by stack at the ends of steps
//! and at the highest moment, requests that failed, and what the allocator was asked for.
//!
//! A trace may hold millions of events. They are gone through here and are not needed afterwards,
//! so that the states of many ranks can be compared in little memory. It does not matter who wrote
//! the trace: a recorder, or PyTorch.
//!
//! It compares nothing and judges nothing.

mod refusal;
pub(crate) mod replay;
mod walk;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

pub use refusal::{Refusal, Refused};

use self::replay::{Levels, Replay};
use self::walk::{Sums, Walk};
use super::account::median;
use super::bursts::{Bursts, bursts};
use super::churn::Churn;
use super::segments::{Requests, requests};
use crate::snapshot::step_source::StepSource;
use crate::snapshot::{
    DeviceSnapshot, RankSnapshot, StackUse, TraceEvent, TraceKind, allocation_step,
};

/// Steps that are looked at, the newest; older ones count as the time before the trace.
pub const STEPS_MAX: usize = 128;

/// Failed requests that are looked at, the newest; all are counted.
const REFUSED_MAX: usize = 4;

/// The past of a device.
#[derive(Clone, Debug, Default)]
pub struct Past {
    /// Number of events.
    pub events: u64,
    /// CLOCK_MONOTONIC of the first and the last event, in nanoseconds; of files of PyTorch Unix
    /// time.
    pub span_ns: Option<(u64, u64)>,
    /// Who says where steps end.
    pub source: StepSource,
    /// Ends of steps in the trace.
    pub ends: u64,
    /// The trace had more: its first step is all that came before.
    pub is_cut: bool,
    /// Steps that had finished when the last one began.
    pub last_step: u64,
    /// For each live block of the device the step of the trace in which it was allocated, from 1;
    /// 0 for an older block.
    pub births: Vec<u64>,
    /// What each stack held, at the beginning and at each end of a step.
    pub marks: Vec<StepMark>,
    /// Allocations of the trace by stack and size, for sizes that live blocks of it have.
    pub(crate) born: Vec<(u32, u64, u64)>,
    /// Ends of steps that the longest-lived block of each stack lived through, of those that the
    /// trace saw come and go; stacks with none are left out.
    pub(crate) lived: BTreeMap<u32, u64>,
    /// Lowest allocated bytes in each step; one more than there are ends.
    pub floors: Vec<u64>,
    /// Highest allocated bytes in each step.
    pub peaks: Vec<u64>,
    /// Lowest reserved bytes in each step.
    pub reserved: Vec<u64>,
    /// What was alive at the peaks of the first and of the last whole step; none where there are
    /// not two. The first and the last step of a trace are cut.
    pub(crate) whole_peaks: Option<(Alive, Alive)>,
    /// The highest moment.
    pub peak: Option<Alive>,
    /// Failed requests, the newest ones.
    pub refused: Vec<Refused>,
    /// Failed requests in all.
    pub refused_count: u64,
    /// Steps that gave segments back and took some.
    pub(crate) churn: Churn,
    /// What the allocator was asked for.
    pub(crate) requests: Option<Requests>,
    /// Many blocks freed at one moment.
    pub(crate) bursts: Option<Bursts>,
    /// Nothing is older than the trace: it began with the process.
    pub is_whole: bool,
    /// Allocations at an address that was in use.
    pub contradictions: u64,
    /// Most bytes that the trace shows alive at its end are in no block of the device.
    pub(crate) lacks_blocks: bool,
}

/// What each stack held when a step ended.
#[derive(Clone, Debug, Default)]
pub struct StepMark {
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
    /// When, as [`Past::span_ns`]; 0 where that is not known.
    pub mono_ns: u64,
    /// In which step of the trace, from 1.
    pub step: u64,
    /// By stack, largest first.
    pub uses: Vec<StackUse>,
    /// Of blocks older than the trace that were freed later, whose stack is not known.
    pub nameless: StackUse,
}

/// The whole steps of a trace: the first and the last one are cut.
pub(crate) fn whole<T>(steps: &[T]) -> &[T] {
    steps.get(1..steps.len().saturating_sub(1)).unwrap_or_default()
}

impl Past {
    /// What the trace of this device of a rank shows.
    pub fn of(rank: &RankSnapshot, device: &DeviceSnapshot) -> Self {
        let events = device.trace.as_slice();
        let replay = Replay::of(events);
        let (starts, is_cut) = starts(events);
        let born_in = |event: u32| 1 + starts.partition_point(|&start| start <= event) as u64;
        let oldest = u64::from(is_cut);
        let birth = |address: u64| {
            replay.birth(address).map(born_in).filter(|&step| step > oldest).unwrap_or(0)
        };
        let mut past = Self {
            events: events.len() as u64,
            source: if starts.is_empty() { StepSource::None } else { device.step_source },
            ends: starts.len() as u64,
            is_cut,
            last_step: events.iter().map(|event| event.step).max().unwrap_or(rank.step),
            births: device.blocks.iter().map(|block| birth(block.address)).collect(),
            contradictions: replay.contradictions(),
            lacks_blocks: lacks_blocks(device, &replay),
            ..Self::default()
        };
        let Some((first, last)) = events.first().zip(events.last()) else { return past };
        past.span_ns = Some((first.mono_ns, last.mono_ns)).filter(|&(first, _)| first > 0);
        let walk = Walk { device, events, replay: &replay, starts: &starts };
        past.walk(rank, &walk);
        past.churn = Churn::of(events, past.last_step);
        past.requests = requests(device);
        past.bursts = bursts(rank, device, &replay);
        past
    }

    /// Goes through the trace with all stacks in mind.
    fn walk(&mut self, rank: &RankSnapshot, walk: &Walk<'_>) {
        let sums = Sums::before(walk.device, walk.replay);
        let older_bytes = sums.bytes();
        self.is_whole = older_bytes == 0 && walk.replay.older.is_empty();
        let levels = walk.replay.levels(walk.events, walk.starts, older_bytes);
        let is_oom = |(_, event): &(usize, &TraceEvent)| event.kind == TraceKind::Oom;
        let failed = walk.events.iter().enumerate().filter(is_oom);
        let failed: Vec<usize> = failed.map(|(at, _)| at).collect();
        self.refused_count = failed.len() as u64;
        let failed = failed.get(failed.len().saturating_sub(REFUSED_MAX)..).unwrap_or_default();
        let of_whole = whole(&levels.peaks_at);
        let ends = of_whole.first().copied().zip(of_whole.last().copied());
        let ends = ends.filter(|_| of_whole.len() > 1);
        let mut wanted: BTreeSet<usize> = failed.iter().copied().collect();
        wanted.insert(levels.highest_at);
        wanted.extend(ends.into_iter().flat_map(|(first, last)| [first, last]));
        let sizes = walk.sizes();
        let (marks, mut moments) = walk.sums(sums, &wanted, &sizes);
        self.marks = marks;
        self.born = walk.born(&sizes);
        self.lived = walk.lived();
        for &at in failed {
            let alive = moments.get(&at).cloned().unwrap_or_default();
            self.refused.extend(walk.refused(rank, at, &alive));
        }
        self.whole_peaks = ends.and_then(|(first, last)| {
            Some((moments.get(&first)?.clone(), moments.get(&last)?.clone()))
        });
        self.peak = moments.remove(&levels.highest_at);
        self.reserved = walk.reserved();
        let Levels { floors, peaks, .. } = levels;
        (self.floors, self.peaks) = (floors, peaks);
    }

    /// What a step needs: the median peak of the whole steps; none where none are known.
    pub fn step_need(&self) -> Option<u64> {
        let peaks = whole(&self.peaks);
        (self.source.is_known() && !peaks.is_empty()).then(|| median(peaks.to_vec()))
    }
}

/// Returns what was alive at the peak of a device's trace, and the step of that peak, from 1;
/// `None` without a trace. It is the [`Past::peak`], without the rest of the past.
pub(crate) fn peak(device: &DeviceSnapshot) -> Option<(u64, Alive)> {
    let events = device.trace.as_slice();
    let (replay, (starts, _)) = (Replay::of(events), starts(events));
    let walk = Walk { device, events, replay: &replay, starts: &starts };
    let sums = Sums::before(device, &replay);
    let at = replay.levels(events, &starts, sums.bytes()).highest_at;
    let highest = events.get(at.saturating_sub(1))?;
    let (_, mut moments) = walk.sums(sums, &BTreeSet::from([at]), &BTreeSet::new());
    Some((allocation_step(highest.step), moments.remove(&at)?))
}

fn lacks_blocks(device: &DeviceSnapshot, replay: &Replay) -> bool {
    let of_trace = device.blocks.iter().filter(|block| replay.birth(block.address).is_some());
    let known = of_trace.fold(0, |sum: u64, block| sum.saturating_add(block.size));
    known < replay.live_bytes(&device.trace) / 2
}

/// The first event of each step but the first, of the newest [`STEPS_MAX`] steps, and whether there
/// were more. Events of another lane may be a step behind; steps never go back.
fn starts(events: &[TraceEvent]) -> (Vec<u32>, bool) {
    let mut step = events.first().map_or(0, |event| event.step);
    let mut starts: Vec<u32> = Vec::new();
    for (event, index) in events.iter().zip(0_u32..) {
        if event.step > step {
            step = event.step;
            starts.push(index);
        }
    }
    let too_many = starts.len().saturating_sub(STEPS_MAX);
    starts.drain(..too_many);
    (starts, too_many > 0)
}

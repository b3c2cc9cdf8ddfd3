//! Finds the steps of a training loop in a trace, which has no marks of them.
//!
//! Memtape's own exports say where steps end. Some traces of PyTorch have them beside: the
//! profiler's `ProfilerStep#`, or `Optimizer.step#`, which PyTorch writes beside every trace. Else
//! a step is what recurs: a stack of the optimizer, or any stack that returns at even distances.
//! Layers of a model return at even distances too, so steps by recurrence are called *guessed* and
//! believed less.
//!
//! Distances are counted in events, not in time: a step of another length has other sizes, but
//! the same events.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use super::origin::step_ends;
use crate::diagnosis::constants::{OPTIMIZER_REGULAR_PPM_MIN, REGULAR_PPM_MIN};
use crate::pickle::torch::{Action, Event, Stage, TorchSnapshot};

/// Bursts that a stack must come in to say anything about steps.
const BURSTS_MIN: usize = 3;

/// Steps that are looked at, the newest; older ones count as the time before the trace.
pub const STEPS_MAX: usize = 128;

/// Who says where steps end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum StepSource {
    /// None were found.
    #[default]
    None,
    /// Memtape's recorder, which counted them: the file is Memtape's own export.
    Recorded,
    /// The profiler's `ProfilerStep#`.
    Profiler,
    /// `Optimizer.step#`, which PyTorch writes beside the trace.
    Optimizer,
    /// Stacks of the optimizer in the trace.
    OptimizerStacks,
    /// The most regular stack of the trace: a guess.
    #[strum(serialize = "guessed")]
    Period,
}

impl StepSource {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// It is known, and not guessed.
    pub fn is_known(self) -> bool {
        !matches!(self, Self::None | Self::Period)
    }
}

/// Where the steps of a trace end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) source: StepSource,
    /// First event of each step but the first, in order.
    pub(crate) starts: Vec<u32>,
    /// The number that the profiler or the recorder gives the step that begins last.
    pub(crate) last_number: Option<u64>,
    /// There were more than [`STEPS_MAX`]: the first one is all that came before.
    pub(crate) are_cut: bool,
}

/// Finds the steps of a device's trace.
pub(crate) fn find(snapshot: &TorchSnapshot, device: u32, events: &[Event]) -> Steps {
    let mut found = recorded(snapshot, device, events)
        .or_else(|| annotated(snapshot, device, events))
        .or_else(|| recurring(snapshot, events))
        .unwrap_or_default();
    // A step ends when what it held is gone: it begins with the next allocation.
    let mut from = 0;
    for start in &mut found.starts {
        from = from.max(*start as usize);
        let rest = events.get(from..).unwrap_or_default();
        from += rest.iter().take_while(|event| event.action != Action::Alloc).count();
        *start = u32::try_from(from).unwrap_or(u32::MAX);
    }
    found.starts.dedup();
    let too_many = found.starts.len().saturating_sub(STEPS_MAX);
    found.are_cut = too_many > 0;
    found.starts.drain(..too_many);
    found
}

/// Steps that Memtape's recorder counted.
fn recorded(snapshot: &TorchSnapshot, device: u32, events: &[Event]) -> Option<Steps> {
    let mut ends = step_ends(snapshot, device);
    ends.retain(|&(_, event)| event > 0 && (event as usize) < events.len());
    ends.dedup_by_key(|&mut (_, event)| event);
    let last_number = ends.last().map(|&(finished, _)| finished)?;
    let starts = ends.into_iter().map(|(_, event)| event).collect();
    let source = StepSource::Recorded;
    Some(Steps { source, starts, last_number: Some(last_number), ..Steps::default() })
}

/// Steps that PyTorch wrote down.
fn annotated(snapshot: &TorchSnapshot, device: u32, events: &[Event]) -> Option<Steps> {
    let profiler = named(snapshot, device, Stage::Start, |name| name.strip_prefix("ProfilerStep#"));
    let starts = starts_at(events, profiler.iter().map(|&(time_us, _)| time_us));
    if starts.len() + 1 >= BURSTS_MIN {
        let last_number = profiler.last().and_then(|(_, number)| number.parse().ok());
        let source = StepSource::Profiler;
        return Some(Steps { source, starts, last_number, ..Steps::default() });
    }
    // With several optimizers the first one that steps is what a step is counted by.
    let optimizer = |name| str::strip_prefix(name, "Optimizer.step#");
    let all = named(snapshot, device, Stage::End, optimizer);
    let anchor = all.first().map(|&(_, name)| name)?;
    let ends = all.iter().filter(|&&(_, name)| name == anchor).map(|&(time_us, _)| time_us);
    let starts = starts_at(events, ends);
    (starts.len() + 1 >= BURSTS_MIN).then_some(Steps {
        source: StepSource::Optimizer,
        starts,
        ..Steps::default()
    })
}

/// Times and names of annotations, in the order of time.
fn named<'a>(
    snapshot: &'a TorchSnapshot,
    device: u32,
    stage: Stage,
    strip: impl Fn(&'a str) -> Option<&'a str>,
) -> Vec<(i64, &'a str)> {
    let one = |annotation: &'a crate::pickle::torch::Annotation| {
        let is_it = annotation.stage == Some(stage)
            && annotation.device().is_none_or(|found| found == device);
        let time_us = annotation.time_us().filter(|_| is_it)?;
        Some((time_us, strip(snapshot.name_of(annotation)?)?))
    };
    let mut found: Vec<(i64, &str)> = snapshot.annotations.iter().filter_map(one).collect();
    found.sort_by_key(|&(time_us, _)| time_us);
    found
}

/// The first event at or after each of these times, as far as there are events before it.
fn starts_at(events: &[Event], times: impl Iterator<Item = i64>) -> Vec<u32> {
    let mut starts: Vec<u32> = Vec::new();
    let mut from = 0;
    for time_us in times {
        let is_before = |event: &Event| event.time_us().is_none_or(|at| at < time_us);
        let later = events.get(from..).unwrap_or_default();
        from += later.iter().take_while(|event| is_before(event)).count();
        let start = u32::try_from(from).unwrap_or(u32::MAX);
        if from > 0 && starts.last().is_none_or(|&last| last < start) {
            starts.push(start);
        }
    }
    starts
}

/// Steps by what comes again and again.
fn recurring(snapshot: &TorchSnapshot, events: &[Event]) -> Option<Steps> {
    let by_stack = EventsByStack::of(snapshot.stack_count(), events);
    let stacks = 1..u32::try_from(snapshot.stack_count()).unwrap_or(u32::MAX);
    let mut of_optimizer: Vec<u32> = stacks
        .clone()
        .filter(|&stack| {
            !by_stack.events_of_stack(stack).is_empty() && is_optimizer(snapshot, stack)
        })
        .flat_map(|stack| by_stack.events_of_stack(stack).iter().copied())
        .collect();
    of_optimizer.sort_unstable();
    if let Some(rhythm) = rhythm(&of_optimizer, events.len(), 2)
        && rhythm.regular_ppm >= OPTIMIZER_REGULAR_PPM_MIN
    {
        let starts = rhythm.ends.iter().map(|&end| end + 1).collect();
        let source = StepSource::OptimizerStacks;
        return Some(Steps { source, starts, ..Steps::default() });
    }
    // Most of what a loop allocates comes in its own rhythm.
    let mut by_bursts: BTreeMap<usize, (u64, Rhythm)> = BTreeMap::new();
    for stack in stacks {
        let places = by_stack.events_of_stack(stack);
        let Some(found) = rhythm(places, events.len(), BURSTS_MIN) else { continue };
        if found.regular_ppm < REGULAR_PPM_MIN {
            continue;
        }
        let (weight, best) =
            by_bursts.entry(found.ends.len()).or_insert_with(|| (0, found.clone()));
        *weight += places.len() as u64;
        if found.regular_ppm > best.regular_ppm {
            *best = found;
        }
    }
    let (_, best) = by_bursts.into_values().max_by_key(|&(weight, _)| weight)?;
    let starts = best.ends.iter().map(|&end| end + 1).collect();
    Some(Steps { source: StepSource::Period, starts, ..Steps::default() })
}

/// What comes in bursts.
#[derive(Clone, Debug)]
struct Rhythm {
    /// Last event of each burst.
    ends: Vec<u32>,
    /// Share of the trace that lies in distances near the typical one.
    regular_ppm: u64,
}

/// The bursts of events with these numbers, in a trace of `events` events.
fn rhythm(places: &[u32], events: usize, bursts_min: usize) -> Option<Rhythm> {
    let gaps = || places.iter().zip(places.iter().skip(1)).map(|(a, b)| b - a);
    // Bursts are cut where it is silent for long, as half of the time between events is.
    let long = weighted_median(gaps().collect());
    let is_cut = |gap: u32| gap >= (long / 3).max(2);
    let mut ends: Vec<u32> =
        places.iter().zip(gaps()).filter(|&(_, gap)| is_cut(gap)).map(|(&at, _)| at).collect();
    ends.extend(places.last());
    if ends.len() < bursts_min {
        return None;
    }
    let distances = || ends.iter().zip(ends.iter().skip(1)).map(|(a, b)| b - a);
    let typical = weighted_median(distances().collect());
    let is_near = |d: &u32| (typical - typical / 3..=typical + typical / 2).contains(d);
    let near: u64 = distances().filter(is_near).map(u64::from).sum();
    // Before the first and behind the last burst lies a part of a distance.
    let first = ends.first().copied().unwrap_or_default();
    let behind = events as u64 - u64::from(ends.last().copied().unwrap_or_default());
    let near = near + u64::from(typical.min(first)) + u64::from(typical).min(behind);
    let regular_ppm = near * 1_000_000 / (events as u64).max(1);
    Some(Rhythm { ends, regular_ppm })
}

/// Half of the sum lies in values of at least this.
fn weighted_median(mut values: Vec<u32>) -> u32 {
    values.sort_unstable();
    let half = values.iter().map(|&value| u64::from(value)).sum::<u64>() / 2;
    let mut sum = 0;
    let at = values.iter().rev().find(|&&value| {
        sum += u64::from(value);
        sum >= half
    });
    at.copied().unwrap_or_default()
}

/// A stack of `torch.optim`, or of an optimizer that is made like one.
fn is_optimizer(snapshot: &TorchSnapshot, stack: u32) -> bool {
    snapshot.stack(stack).iter().any(|&frame| {
        let frame = snapshot.frame(frame);
        let file = frame.file.unwrap_or_default();
        file.contains("torch/optim/")
            || (frame.name == Some("step") && file.to_ascii_lowercase().contains("optim"))
    })
}

/// Allocations by stack: for each stack the numbers of its events.
struct EventsByStack {
    ends: Vec<u32>,
    places: Vec<u32>,
}

impl EventsByStack {
    fn of(stacks: usize, events: &[Event]) -> Self {
        let births = || {
            let numbered = (0..u32::MAX).zip(events);
            let births = numbered.filter(|(_, event)| event.action == Action::Alloc);
            births.map(|(number, event)| (event.stack().unwrap_or_default() as usize, number))
        };
        let mut ends = vec![0_u32; stacks + 1];
        births().for_each(|(stack, _)| *ends.get_mut(stack + 1).unwrap_or(&mut 0) += 1);
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum;
        }
        // Filling moves the beginning of each stack to its end, which is where the next begins.
        let mut places = vec![0; sum as usize];
        for (stack, number) in births() {
            let Some(end) = ends.get_mut(stack) else { continue };
            if let Some(place) = places.get_mut(*end as usize) {
                *place = number;
            }
            *end += 1;
        }
        Self { ends, places }
    }

    fn of_stack_start(&self, stack: usize) -> usize {
        stack.checked_sub(1).and_then(|before| self.ends.get(before)).map_or(0, |&end| end as usize)
    }

    fn events_of_stack(&self, stack: u32) -> &[u32] {
        let stack = stack as usize;
        let end = self.ends.get(stack).map_or(0, |&end| end as usize);
        self.places.get(self.of_stack_start(stack)..end).unwrap_or_default()
    }
}

//! Finds the steps of a training loop in a trace, which has no marks of them.
//!
//! Memtape's own exports say where steps end. Some traces of PyTorch have them beside: the
//! profiler's `ProfilerStep#`, or `Optimizer.step#`, which PyTorch writes beside every trace;
//! several optimizers of one name end several times a step, and the work between them shows it.
//! Else a step is what recurs: a stack of the optimizer, or any stack that returns at even
//! distances. Layers of a model return at even distances too, so steps by recurrence are called
//! *guessed* and believed less.
//!
//! Distances are counted in events, not in time: a step of another length has other sizes, but
//! the same events.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use memtape_tape::snapshot::step_source::StepSource;
use memtape_tape::snapshot::{TraceEvent, TraceKind};

use crate::read::records::{Annotation, Records};
use crate::read::settings::Settings;

/// A trace without steps.
pub(crate) const NO_STEPS: StepSource = StepSource::None;

/// An entry of a trace; none for an entry without memory.
type Entry = Option<TraceEvent>;

/// Minimum bursts of a stack before it is used to find steps.
const BURSTS_MIN: usize = 3;

/// Share of a trace at even distances from which on a stack may mark its steps, in ppm.
const REGULAR_PPM_MIN: u64 = 700_000;

/// Minimum regularity of the optimizer's stacks, which occur only at steps.
const OPTIMIZER_REGULAR_PPM_MIN: u64 = 400_000;

/// Optimizers of one name that are told apart.
const OPTIMIZERS_MAX: usize = 8;

/// Ends of optimizers whose work is compared, the newest.
const ENDS_COMPARED_MAX: usize = 64;

/// Where the steps of a trace end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) source: StepSource,
    /// First event of each step but the first, and the number of steps finished before it.
    starts: Vec<(u32, u64)>,
    /// Steps that had finished when the trace begins.
    before: u64,
}

/// Finds the steps of the trace of a device.
pub(crate) fn find(
    records: &Records,
    annotations: &[Annotation],
    origin: &Settings<'_>,
    (device, events): (u8, &[Entry]),
) -> Steps {
    if let Some(starts) = recorded(origin, device, events) {
        return Steps::of(StepSource::Recorded, starts, events);
    }
    let found = annotated(annotations, device, events).or_else(|| recurring(records, events));
    let (source, starts, last_number) = found.unwrap_or((NO_STEPS, Vec::new(), None));
    // A trace without numbers begins at step 0.
    let before = last_number.unwrap_or(0).saturating_sub(starts.len() as u64);
    let numbered = starts.into_iter().zip(before + 1..).collect();
    Steps::of(source, numbered, events)
}

fn is_alloc(event: &Entry) -> bool {
    event.is_some_and(|event| event.kind == TraceKind::Alloc)
}

impl Steps {
    /// Bounds of steps. A step ends with its last free: the next one begins at the next allocation.
    fn of(source: StepSource, mut starts: Vec<(u32, u64)>, events: &[Entry]) -> Self {
        let before = starts.first().map_or(0, |&(_, finished)| finished.saturating_sub(1));
        let mut from = 0;
        for (start, _) in &mut starts {
            from = from.max(*start as usize);
            let rest = events.get(from..).unwrap_or_default();
            from += rest.iter().take_while(|event| !is_alloc(event)).count();
            *start = u32::try_from(from).unwrap_or(u32::MAX);
        }
        // Of steps without an allocation the last one counts.
        starts.reverse();
        starts.dedup_by_key(|&mut (start, _)| start);
        starts.reverse();
        Self { source, starts, before }
    }

    /// Steps that had finished at the end of the trace.
    pub(crate) fn finished(&self) -> u64 {
        self.starts.last().map_or(self.before, |&(_, finished)| finished)
    }

    /// Returns the number of steps finished before an event; events must be asked in order.
    pub(crate) fn forwards(&self) -> impl FnMut(usize) -> u64 {
        let (mut rest, mut finished) = (self.starts.as_slice(), self.before);
        move |event| {
            while let Some((&(_, by_then), later)) =
                rest.split_first().filter(|((start, _), _)| *start as usize <= event)
            {
                (rest, finished) = (later, by_then);
            }
            finished
        }
    }
}

/// Steps that Memtape's recorder counted: how many had finished, and the number of the event behind
/// the end.
fn recorded(origin: &Settings<'_>, device: u8, events: &[Entry]) -> Option<Vec<(u32, u64)>> {
    let prefix = format!("devices.{device}.step_ends.");
    let one = |(name, event): (&str, u64)| {
        let finished: u64 = name.strip_prefix(prefix.as_str())?.parse().ok()?;
        let event = u32::try_from(event).ok()?;
        (event > 0 && (event as usize) < events.len()).then_some((event, finished))
    };
    let mut ends: Vec<(u32, u64)> = origin.numbers().filter_map(one).collect();
    ends.sort_unstable();
    (!ends.is_empty()).then_some(ends)
}

/// Source of the step boundaries, first events of the steps without the first step's, and the last
/// step's number where it has one.
type Found = (StepSource, Vec<u32>, Option<u64>);

/// Steps that PyTorch wrote down.
fn annotated(annotations: &[Annotation], device: u8, events: &[Entry]) -> Option<Found> {
    let profiler = named(annotations, device, true, "ProfilerStep#");
    let starts = starts_at(events, profiler.iter().map(|&(at_us, _)| at_us));
    if starts.len() + 1 >= BURSTS_MIN {
        let last_number = profiler.last().and_then(|(_, number)| number.parse().ok());
        return Some((StepSource::Profiler, starts, last_number));
    }
    // With several optimizers the first one that steps is what a step is counted by.
    let all = named(annotations, device, false, "Optimizer.step#");
    let anchor = all.first().map(|&(_, name)| name)?;
    let ends = all.iter().filter(|&&(_, name)| name == anchor).map(|&(at_us, _)| at_us);
    let starts = starts_at(events, ends);
    let optimizers = optimizers(&starts, events);
    let starts: Vec<u32> = starts.into_iter().step_by(optimizers).collect();
    (starts.len() + 1 >= BURSTS_MIN).then_some((StepSource::Optimizer, starts, None))
}

/// Times of annotations whose names begin so, and what follows in each, in the order of time.
fn named<'a>(
    annotations: &'a [Annotation],
    device: u8,
    is_start: bool,
    prefix: &str,
) -> Vec<(u64, &'a str)> {
    let is_of = |of: &&Annotation| {
        of.is_start == is_start && of.device.is_none_or(|found| found == u32::from(device))
    };
    let of = annotations.iter().filter(is_of);
    let mut found: Vec<(u64, &str)> =
        of.filter_map(|of| Some((of.at_us, of.name.strip_prefix(prefix)?))).collect();
    found.sort_by_key(|&(at_us, _)| at_us);
    found
}

/// The first event at or after each of these times, as far as there are events before it.
fn starts_at(events: &[Entry], times: impl Iterator<Item = u64>) -> Vec<u32> {
    let mut starts: Vec<u32> = Vec::new();
    let mut from = 0;
    for time_us in times {
        let is_before = |event: &Entry| event.is_none_or(|event| event.mono_ns / 1000 < time_us);
        let later = events.get(from..).unwrap_or_default();
        from += later.iter().take_while(|event| is_before(event)).count();
        let start = u32::try_from(from).unwrap_or(u32::MAX);
        if from > 0 && starts.last().is_none_or(|&last| last < start) {
            starts.push(start);
        }
    }
    starts
}

/// How many optimizers of one name step one after the other: as many as there are ends from one
/// stretch of work to the next one of the same stacks, where the stretches between have others.
fn optimizers(starts: &[u32], events: &[Entry]) -> usize {
    let newest = starts.get(starts.len().saturating_sub(ENDS_COMPARED_MAX)..).unwrap_or_default();
    let stacks = |(from, to): (&u32, &u32)| -> BTreeSet<u32> {
        let events = events.get(*from as usize..*to as usize).unwrap_or_default();
        let births = events.iter().filter(|event| is_alloc(event)).flatten();
        births.map(|event| event.stack).filter(|&stack| stack > 0).collect()
    };
    let work: Vec<BTreeSet<u32>> = newest.iter().zip(newest.iter().skip(1)).map(stacks).collect();
    // Most stretches share most of their stacks with the stretch at this distance.
    let is_alike = |&distance: &usize| {
        let pairs = || work.iter().zip(work.iter().skip(distance));
        let is_same = |(a, b): &(&BTreeSet<u32>, &BTreeSet<u32>)| {
            2 * a.intersection(b).count() > a.union(b).count()
        };
        let (same, all) = (pairs().filter(is_same).count(), pairs().count());
        same * 4 >= all * 3 && all >= BURSTS_MIN - 1
    };
    (1..=OPTIMIZERS_MAX).find(is_alike).unwrap_or(1)
}

/// Steps by what comes again and again.
fn recurring(records: &Records, events: &[Entry]) -> Option<Found> {
    let by_stack = EventsByStack::of(records.stacks.stacks.len(), events);
    let stacks = 1..u32::try_from(records.stacks.stacks.len()).unwrap_or(u32::MAX);
    let mut of_optimizer: Vec<u32> = stacks
        .clone()
        .filter(|&stack| {
            !by_stack.events_of_stack(stack).is_empty() && is_optimizer(records, stack)
        })
        .flat_map(|stack| by_stack.events_of_stack(stack).iter().copied())
        .collect();
    of_optimizer.sort_unstable();
    if let Some(rhythm) = rhythm(&of_optimizer, events.len(), 2)
        && rhythm.regular_ppm >= OPTIMIZER_REGULAR_PPM_MIN
    {
        let starts = rhythm.ends.iter().map(|&end| end + 1).collect();
        return Some((StepSource::OptimizerStacks, starts, None));
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
    Some((StepSource::Guessed, starts, None))
}

/// Events that come in bursts.
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
fn is_optimizer(records: &Records, stack: u32) -> bool {
    let frames = records.stacks.stacks.get(stack as usize).map(Vec::as_slice).unwrap_or_default();
    frames.iter().filter_map(|&frame| records.stacks.frames.get(frame as usize)).any(|frame| {
        frame.file.contains("torch/optim/")
            || (frame.function == "step" && frame.file.to_ascii_lowercase().contains("optim"))
    })
}

/// Allocations by stack: for each stack the numbers of its events.
struct EventsByStack {
    ends: Vec<u32>,
    places: Vec<u32>,
}

impl EventsByStack {
    fn of(stacks: usize, events: &[Entry]) -> Self {
        let births = || {
            let numbered = (0..u32::MAX).zip(events);
            let births = numbered.filter(|(_, event)| is_alloc(event));
            births.map(|(number, event)| (event.map_or(0, |event| event.stack) as usize, number))
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

//! Many blocks of many ages, freed at one moment.
//!
//! A training step frees what it made itself: blocks of one birth, or two. Python's garbage
//! collector frees whatever hung in cycles since it last ran, of all births. So does a program
//! that empties a list; the trace alone cannot tell the two apart.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::ops::Range;

use crate::diagnosis::evidence::past::replay::Replay;
use crate::snapshot::frames::telling_frame;
use crate::snapshot::{DeviceSnapshot, Frame, RankSnapshot, TraceEvent, TraceKind};

/// Births of the blocks that a burst frees, at least.
const BIRTHS_MIN: usize = 6;

/// What was freed of one line at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Burst {
    pub(crate) blocks: u64,
    pub(crate) births: u64,
    pub(crate) bytes: u64,
    /// The step in which that was.
    pub(crate) step: u64,
    /// The step in which the oldest of them was born; none where that was before the trace.
    pub(crate) first_birth: Option<u64>,
}

impl Burst {
    /// Is the next one overdue? What gathered over some steps and was freed at one moment has
    /// gathered for much longer since: whatever freed it has stopped, as a collector that was
    /// switched off.
    pub(crate) fn is_overdue(&self, step: u64) -> bool {
        let Some(first_birth) = self.first_birth else { return false };
        let gathered = self.step.saturating_sub(first_birth);
        let since = step.saturating_sub(self.step);
        since.saturating_mul(2) > gathered.saturating_mul(3)
    }
}

/// The bursts of each line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bursts(BTreeMap<Frame, (u64, Burst)>);

/// Frees without an allocation between them, in one step.
#[derive(Default)]
struct Run {
    /// Its first event.
    start: usize,
    /// Different births of its blocks, the first [`BIRTHS_MIN`] of them.
    births: Vec<u64>,
    step: u64,
}

/// What a run freed of one line.
#[derive(Default)]
struct Freed {
    births: BTreeSet<u64>,
    /// Some were born before the trace.
    has_older: bool,
    blocks: u64,
    bytes: u64,
}

/// A trace with its replay.
struct Walk<'a> {
    snapshot: &'a RankSnapshot,
    trace: &'a [TraceEvent],
    replay: &'a Replay,
}

impl<'a> Walk<'a> {
    /// The allocation of the block that an event frees, if the trace shows it, and its step. What
    /// was there before the trace has one birth, as far as is known.
    fn birth(&self, number: usize) -> (Option<&'a TraceEvent>, u64) {
        let born = u32::try_from(number).ok().and_then(|number| self.replay.born_at(number));
        let born = born.and_then(|born| self.trace.get(born as usize));
        let oldest = self.trace.first().map_or(0, |event| event.step);
        (born, born.map_or(oldest.saturating_sub(1), |born| born.step))
    }

    /// What was freed of each line by the events with these numbers.
    fn by_line(&self, numbers: Range<usize>) -> BTreeMap<&'a Frame, Freed> {
        let mut by_stack: BTreeMap<u32, Freed> = BTreeMap::new();
        for number in numbers {
            let event = self.trace.get(number).filter(|event| is_free(event));
            let Some(event) = event else { continue };
            let (born, birth) = self.birth(number);
            let freed = by_stack.entry(born.unwrap_or(event).stack).or_default();
            freed.has_older |= born.is_none();
            freed.births.insert(birth);
            freed.blocks += 1;
            freed.bytes = freed.bytes.saturating_add(event.size);
        }
        let mut by_line: BTreeMap<&Frame, Freed> = BTreeMap::new();
        for (stack, freed) in by_stack {
            let frames: Vec<&Frame> = self.snapshot.frames_of(stack).collect();
            let Some(frame) = telling_frame(&frames) else { continue };
            let line = by_line.entry(frame).or_default();
            line.births.extend(freed.births);
            line.has_older |= freed.has_older;
            line.blocks += freed.blocks;
            line.bytes = line.bytes.saturating_add(freed.bytes);
        }
        by_line
    }
}

fn is_free(event: &TraceEvent) -> bool {
    matches!(event.kind, TraceKind::Free | TraceKind::FreeDeferred)
}

/// What the trace shows, gone through by `replay`; none where there is no trace.
pub(crate) fn bursts(
    snapshot: &RankSnapshot,
    device: &DeviceSnapshot,
    replay: &Replay,
) -> Option<Bursts> {
    let walk = Walk { snapshot, trace: device.trace.as_slice(), replay };
    walk.trace.first()?;
    let (mut found, mut run) = (Bursts::default(), Run::default());
    for (number, event) in walk.trace.iter().enumerate() {
        if event.kind == TraceKind::Alloc {
            found.take(&walk, &mut run, number);
        } else if is_free(event) {
            if event.step != run.step {
                found.take(&walk, &mut run, number);
            }
            run.step = event.step;
            let (_, birth) = walk.birth(number);
            if run.births.len() < BIRTHS_MIN && !run.births.contains(&birth) {
                run.births.push(birth);
            }
        }
    }
    found.take(&walk, &mut run, walk.trace.len());
    Some(found)
}

impl Bursts {
    /// How many bursts a line had, and the last of them.
    pub(crate) fn of(&self, frame: &Frame) -> Option<(u64, &Burst)> {
        self.0.get(frame).map(|(count, burst)| (*count, burst))
    }

    /// Ends a run of frees before the event with this number. Most are of one or two births, and
    /// no burst of any line.
    fn take(&mut self, walk: &Walk<'_>, run: &mut Run, end: usize) {
        let numbers = core::mem::replace(&mut run.start, end)..end;
        let births = run.births.len();
        run.births.clear();
        if births < BIRTHS_MIN {
            return;
        }
        for (frame, freed) in walk.by_line(numbers) {
            if freed.births.len() < BIRTHS_MIN {
                continue;
            }
            let (count, last) = self.0.entry(frame.clone()).or_default();
            *count += 1;
            let (blocks, bytes, step) = (freed.blocks, freed.bytes, run.step);
            let first_birth = freed.births.first().copied().filter(|_| !freed.has_older);
            let births = freed.births.len() as u64;
            *last = Burst { blocks, births, bytes, step, first_birth };
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    fn event(kind: TraceKind, address: u64, step: u64) -> TraceEvent {
        TraceEvent {
            kind,
            mono_ns: 0,
            address,
            size: 10,
            detail: 0,
            stack: 1,
            stream_pool: 0,
            step,
        }
    }

    fn frame() -> Frame {
        Frame { file: "/app/t.py".to_string(), line: 3, function: "f".to_string() }
    }

    /// The bursts of the only line there is.
    fn found(trace: Vec<TraceEvent>) -> Option<(u64, Burst)> {
        let device = DeviceSnapshot { trace, ..DeviceSnapshot::default() };
        let snapshot = RankSnapshot {
            frames: [Frame::default(), frame()].to_vec(),
            stacks: [Vec::new(), [1].to_vec()].to_vec(),
            ..RankSnapshot::default()
        };
        let bursts = bursts(&snapshot, &device, &Replay::of(&device.trace))?;
        bursts.of(&frame()).map(|(count, burst)| (count, burst.clone()))
    }

    #[test]
    fn a_collection_frees_blocks_of_many_births() {
        use TraceKind::{Alloc, Free};
        assert_eq!(found(Vec::new()), None);
        let mut trace: Vec<TraceEvent> = (0..40).map(|step| event(Alloc, step, step)).collect();
        trace.extend((0..40).map(|address| event(Free, address, 40)));
        let first_birth = Some(0);
        let expected = Burst { blocks: 40, births: 40, bytes: 400, step: 40, first_birth };
        assert_eq!(found(trace.clone()), Some((1, expected.clone())));
        // After 60 steps more the next one is late.
        assert_eq!([80, 100, 101].map(|step| expected.is_overdue(step)), [false, false, true]);
        // One that is older than the trace: over how many steps they gathered is not known.
        trace.push(event(Free, 99, 40));
        let (_, burst) = found(trace).expect("a burst");
        assert_eq!((burst.first_birth, burst.is_overdue(u64::MAX)), (None, false));
    }

    #[test]
    fn a_step_that_frees_its_own_is_no_burst() {
        use TraceKind::{Alloc, Free};
        let step = |step: u64| {
            let made = (0..50).map(move |address| event(Alloc, address, step));
            made.chain((0..50).map(move |address| event(Free, address, step)))
        };
        assert_eq!(found((0..20).flat_map(step).collect()), None);
        // What was there before the trace has no known births.
        assert_eq!(found((0..50).map(|address| event(Free, address, 9)).collect()), None);
    }
}

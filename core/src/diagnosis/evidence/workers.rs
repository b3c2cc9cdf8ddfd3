//! Where the workers of a rank were busy, by samples of their stacks.
//!
//! A worker makes what it keeps while it runs, so the function of the user's that it runs most is
//! the first place to look. That is no proof: samples measure time, not memory, and the evidence
//! says how many there were.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::account::{Stack, signed};
use super::case::share_of;
use crate::diagnosis::constants::EXPLAINED_PPM_MIN;
use crate::diagnosis::words::{count, location, plural};
use crate::snapshot::frames::is_user_frame;
use crate::snapshot::workers::WorkerSamples;
use crate::snapshot::{Frame, RankSnapshot};

/// Fewer samples of the user's code say nothing about shares.
const SAMPLES_MIN: u64 = 5;

/// What the samples of a rank's workers say.
pub(crate) struct WorkerEvidence<'a> {
    samples: &'a WorkerSamples,
    /// Samples of the user's code.
    own: u64,
    busiest: Option<Busiest<'a>>,
}

/// The line that workers ran most, of the function that they ran most.
struct Busiest<'a> {
    frame: &'a Frame,
    /// The most frequent stack through it, innermost frame first.
    stack: Stack<'a>,
    /// Samples of the line.
    line: u64,
    /// Samples of its function.
    function: u64,
}

impl<'a> WorkerEvidence<'a> {
    /// `None` where no workers were sampled.
    pub(crate) fn of(snapshot: &'a RankSnapshot) -> Option<Self> {
        let samples = snapshot.worker_samples.as_ref()?;
        let stack = |stack: u32| snapshot.worker_frames(stack);
        let stacks: Vec<(Stack<'_>, u64)> =
            samples.stacks.iter().map(|each| (stack(each.stack), each.samples)).collect();
        let own = sum(&stacks, |_| true);
        Some(Self { samples, own, busiest: busiest(&stacks, own) })
    }

    /// The line to look at first.
    pub(crate) fn line(&self) -> Option<&'a Frame> {
        self.busiest.as_ref().map(|busiest| busiest.frame)
    }

    /// The stack of that line, innermost frame first.
    pub(crate) fn stack(&self) -> &[&'a Frame] {
        self.busiest.as_ref().map_or(&[], |busiest| &busiest.stack)
    }

    /// `; the workers ran data.py:12 in decode most often`.
    pub(crate) fn said(&self) -> String {
        let said = |frame| format!("; the workers ran {} most often", location(frame));
        self.line().map(said).unwrap_or_default()
    }

    /// What was seen, in a sentence.
    pub(crate) fn evidence(&self) -> Option<String> {
        let busiest = self.busiest.as_ref()?;
        Some(format!(
            "{} ran {} in {} of {}, its function in {}, during {} s: that is where they spend \
             time, and no proof of what they keep",
            self.workers(),
            location(busiest.frame),
            count(busiest.line),
            plural(self.samples.samples(), "sample"),
            count(busiest.function),
            self.samples.duration_ns / 1_000_000_000,
        ))
    }

    /// `2 workers`, `4 of 8 workers`.
    fn workers(&self) -> String {
        let WorkerSamples { processes, processes_failed, processes_left_out, .. } = *self.samples;
        let sampled = u64::from(processes);
        match sampled + u64::from(processes_failed) + u64::from(processes_left_out) {
            all if all == sampled => plural(all, "worker"),
            all => format!("{sampled} of {}", plural(all, "worker")),
        }
    }

    /// Why no line is named, or not all workers were sampled; a sentence each.
    pub(crate) fn against(&self) -> Vec<String> {
        let mut said = Vec::new();
        if !self.samples.failure.is_empty() {
            let workers = plural(u64::from(self.samples.processes_failed), "worker");
            said.push(format!("{workers} could not be sampled: {}", self.samples.failure));
        }
        if self.busiest.is_none() && self.samples.processes > 0 {
            said.push(format!(
                "no line of the workers can be named: of {} taken during {} s, {} are of the \
                 user's code",
                plural(self.samples.samples(), "sample"),
                self.samples.duration_ns / 1_000_000_000,
                count(self.own),
            ));
        }
        said
    }
}

/// Each stack speaks for its innermost function that many of the stacks have.
fn busiest<'a>(stacks: &[(Stack<'a>, u64)], all: u64) -> Option<Busiest<'a>> {
    if all < SAMPLES_MIN {
        return None;
    }
    let through = |function: &Frame| sum(stacks, |frame| is_same_function(frame, function));
    let is_enough =
        |function: &Frame| share_of(signed(through(function)), signed(all)) >= EXPLAINED_PPM_MIN;
    let mut functions: BTreeMap<(&str, &str), (u64, &Frame)> = BTreeMap::new();
    for (stack, samples) in stacks {
        let Some(frame) = own(stack).find(|frame| is_enough(frame)) else { continue };
        let of = functions.entry((&frame.file, &frame.function)).or_insert((0, frame));
        of.0 = of.0.saturating_add(*samples);
    }
    let (_, function) = functions.into_values().max_by_key(|(samples, _)| *samples)?;
    let lines = stacks.iter().flat_map(|(stack, _)| own(stack));
    let of_function = lines.filter(|frame| is_same_function(frame, function));
    let of_line = |frame: &Frame| sum(stacks, |other| other == frame);
    let frame = of_function.max_by_key(|frame| of_line(frame))?;
    // Stacks come most frequent first.
    let stack = stacks.iter().find(|(stack, _)| stack.contains(&frame))?.0.clone();
    Some(Busiest { frame, stack, line: of_line(frame), function: through(function) })
}

/// Samples whose stacks have such a frame of the user's.
fn sum(stacks: &[(Stack<'_>, u64)], is_it: impl Fn(&Frame) -> bool) -> u64 {
    let of_it = stacks.iter().filter(|(stack, _)| own(stack).any(&is_it));
    of_it.fold(0, |sum: u64, (_, samples)| sum.saturating_add(*samples))
}

fn own<'s, 'a>(stack: &'s [&'a Frame]) -> impl Iterator<Item = &'a Frame> + 's {
    stack.iter().copied().filter(|frame| is_user_frame(frame))
}

/// The profiler tells plain names: methods of one name in one file are not told apart.
fn is_same_function(a: &Frame, b: &Frame) -> bool {
    (&a.file, &a.function) == (&b.file, &b.function)
}

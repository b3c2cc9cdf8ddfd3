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

/// Fewer samples say nothing about shares.
const SAMPLES_MIN: u64 = 4;

/// What the samples of a rank's workers say.
pub(crate) struct WorkerEvidence<'a> {
    samples: &'a WorkerSamples,
    busiest: Option<Busiest<'a>>,
}

/// The line that workers ran most, of the function that they ran most.
struct Busiest<'a> {
    frame: &'a Frame,
    /// The most frequent stack through it, innermost frame first.
    stack: Stack<'a>,
    /// Samples of its function.
    samples: u64,
}

impl<'a> WorkerEvidence<'a> {
    /// `None` where no workers were sampled.
    pub(crate) fn of(snapshot: &'a RankSnapshot) -> Option<Self> {
        let samples = snapshot.worker_samples.as_ref()?;
        Some(Self { samples, busiest: busiest(snapshot, samples) })
    }

    /// The line to look at first.
    pub(crate) fn line(&self) -> Option<&'a Frame> {
        self.busiest.as_ref().map(|busiest| busiest.frame)
    }

    /// The stack of that line, innermost frame first.
    pub(crate) fn stack(&self) -> &[&'a Frame] {
        self.busiest.as_ref().map_or(&[], |busiest| &busiest.stack)
    }

    /// `; they ran mostly data.py:12 in decode`.
    pub(crate) fn said(&self) -> String {
        let said = |frame| format!("; the workers ran mostly {}", location(frame));
        self.line().map(said).unwrap_or_default()
    }

    /// What was seen, in a sentence.
    pub(crate) fn evidence(&self) -> Option<String> {
        let busiest = self.busiest.as_ref()?;
        Some(format!(
            "{} ran {} in {} of {}, taken for {} s: that is where they spend time, not proof of \
             what they keep",
            plural(u64::from(self.samples.processes), "worker"),
            location(busiest.frame),
            count(busiest.samples),
            plural(self.samples.samples(), "sample"),
            self.samples.duration_ns / 1_000_000_000,
        ))
    }

    /// Why no line is named, or not all workers were sampled; a sentence each.
    pub(crate) fn against(&self) -> Vec<String> {
        let mut said = Vec::new();
        if !self.samples.failure.is_empty() {
            let workers = plural(u64::from(self.samples.processes_left_out), "worker");
            said.push(format!("{workers} could not be sampled: {}", self.samples.failure));
        }
        if self.busiest.is_none() && self.samples.processes > 0 {
            said.push(match self.samples.samples() {
                all @ 0..SAMPLES_MIN => {
                    let all = plural(all, "sample");
                    format!("the workers were idle while they were sampled: {all} of running code")
                }
                all => format!("{} of workers name no line of the user's", plural(all, "sample")),
            });
        }
        said
    }
}

fn busiest<'a>(snapshot: &'a RankSnapshot, samples: &WorkerSamples) -> Option<Busiest<'a>> {
    let all = samples.samples();
    if all < SAMPLES_MIN {
        return None;
    }
    let stack = |stack: u32| inside(snapshot.frames_of(stack).collect());
    let stacks: Vec<(Stack<'_>, u64)> =
        samples.stacks.iter().map(|each| (stack(each.stack), each.samples)).collect();
    // Stacks come most frequent first. The first function that enough of them have, seen from
    // within, is the narrowest.
    let functions = || stacks.iter().flat_map(|(stack, _)| own(stack));
    let enough = |frame: &&&Frame| {
        share_of(signed(through(&stacks, frame)), signed(all)) >= EXPLAINED_PPM_MIN
    };
    let function = functions().find(enough)?;
    let mut lines: BTreeMap<&Frame, u64> = BTreeMap::new();
    for (stack, samples) in &stacks {
        let line = own(stack).find(|frame| is_same_function(frame, function));
        let Some(line) = line else { continue };
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(*samples);
    }
    let frame = lines.into_iter().max_by_key(|(_, samples)| *samples)?.0;
    let of_line = stacks.iter().find(|(stack, _)| stack.contains(&frame));
    let stack = of_line.map(|(stack, _)| stack.clone()).unwrap_or_default();
    Some(Busiest { frame, stack, samples: through(&stacks, function) })
}

/// The frames inside the process's own start. A forked process has the frames of its parent
/// further out.
fn inside(mut stack: Stack<'_>) -> Stack<'_> {
    let starts = |frame: &&Frame| frame.file.ends_with("multiprocessing/process.py");
    if let Some(start) = stack.iter().position(starts) {
        stack.truncate(start);
    }
    stack
}

fn own<'s, 'a>(stack: &'s [&'a Frame]) -> impl Iterator<Item = &'s &'a Frame> {
    stack.iter().filter(|frame| is_user_frame(frame))
}

/// Samples whose stacks have this function.
fn through(stacks: &[(Stack<'_>, u64)], function: &Frame) -> u64 {
    let has_it = |stack: &Stack<'_>| own(stack).any(|frame| is_same_function(frame, function));
    let of_it = stacks.iter().filter(|(stack, _)| has_it(stack));
    of_it.fold(0, |sum: u64, (_, samples)| sum.saturating_add(*samples))
}

fn is_same_function(a: &Frame, b: &Frame) -> bool {
    (&a.file, &a.function) == (&b.file, &b.function)
}

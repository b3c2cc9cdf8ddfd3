//! What is wrong with the memory of a job, by states of its ranks that no detector watched:
//! PyTorch's own snapshots, tapes, captures.
//!
//! Each state is condensed ([`History`]), and the states of all ranks are put at the same step.
//! [`analyze`] then looks for growth as the detector does in a running job, but in the traces and
//! in the differences between states; what is found is diagnosed by the judges of a running job.
//! Where the program counted no steps they are found in the trace, and that is said as a doubt.

mod aligned;
mod alone;
mod beyond;
mod candidates;
mod diff;
mod failures;
mod held;
mod history;
mod levels;
mod program;
mod survivors;
mod unjudged;

use alloc::vec;
use alloc::vec::Vec;

use self::aligned::{Aligned, aligned};
use self::candidates::{Candidate, FINDERS};
use self::failures::FAILURES;
use self::survivors::survivors;
use self::unjudged::{unchecked, unjudged};
use super::answer::diagnosis::Diagnosis;
use super::class::Class;
use crate::detector::{Growth, Layer};
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

pub use super::answer::failure::why_refused;
pub use super::evidence::past::{Alive, Past, Refusal, Refused};
pub use super::evidence::segments::Shape;
pub use beyond::PeakLines;
pub use diff::{Change, Diff, diff};
pub use held::{HeldLine, Kind};
pub use history::{DeviceHistory, Held, History, ProcessState, Rank, firsts};
pub use levels::{Level, Sides, StepLevel, different_levels, different_trends};
pub use program::Program;
pub use unjudged::Unjudged;

/// What the states say.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    /// What is wrong; none where nothing is.
    pub found: Option<Found>,
    /// What is wrong on further devices, and in further states.
    pub also: Vec<Found>,
    /// Why that is no all-clear; none where something is wrong, or everything was checked.
    pub unjudged: Option<Unjudged>,
    /// The rank that the lines below are of: the one with the fault, or the one that holds most.
    pub rank: u32,
    /// Its device, by index.
    pub device: u8,
    /// Which of its states they are of, by index.
    pub state: usize,
    /// What each line holds now, largest first.
    pub lines: Vec<HeldLine>,
    /// What each line held at the peak of the trace, largest first.
    pub peak: Vec<HeldLine>,
    /// Of the peak, what is older than the trace and was freed since: bytes, blocks.
    pub peak_nameless: (u64, u64),
    /// Steps that growth was counted over; 0 where none are known.
    pub steps: u64,
    /// What was not checked on every device, with the whole steps that the check takes; 0 where no
    /// number of steps is enough.
    pub unchecked: Vec<(Layer, usize)>,
    /// A line that keeps something of each step, too little for a finding, and how much a step.
    pub small: Option<(Frame, u64)>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the judges say of it.
    pub diagnosis: Diagnosis,
    /// What was found, as the detector would report it. Its steps are counted in the files.
    pub growth: Growth,
    /// Number of the last of those steps; none where the files number no steps.
    pub last_number: Option<u64>,
    /// All ranks that have it.
    pub ranks: Vec<u32>,
    /// Bytes that it is about: of memory that stays, what lives under the culprit line.
    pub bytes: u64,
    /// Live blocks under that line; 0 where it is not about live blocks.
    pub blocks: u64,
    /// Which of several states of the rank shows it, by index, where not all together do.
    pub alone: Option<usize>,
}

impl Found {
    /// Over how many steps its rate was measured, and the numbers of the first and the last, where
    /// the files number them.
    pub fn measured(&self) -> (u64, Option<[u64; 2]>) {
        let Growth { onset_step, last_step, .. } = self.growth;
        let steps = last_step.saturating_sub(onset_step);
        (steps, self.last_number.map(|last| [last.saturating_sub(steps), last]))
    }
}

/// A rank with its states, oldest first.
type States<'a> = (u32, Vec<&'a History>);

/// Compares the ranks by the device of each that holds most, and judges every other device by
/// itself; of ranks with several states then each state alone. A fault with a known class comes
/// before one of [`Class::Unknown`].
pub fn analyze(ranks: &[Rank]) -> Analysis {
    let all_states: Vec<States<'_>> =
        ranks.iter().map(|of| (of.rank, of.distinct_states())).collect();
    let mut all = of_devices(&all_states);
    let count = all_states.iter().map(|(_, states)| states.len()).max().unwrap_or(0);
    for back in 1..=if count > 1 { count } else { 0 } {
        let alone = all_states.iter().filter_map(|(rank, states)| {
            Some((*rank, vec![*states.get(states.len().checked_sub(back)?)?]))
        });
        for mut one in of_devices(&alone.collect::<Vec<_>>()) {
            one.also.clear();
            let Some(found) = &mut one.found else { continue };
            let of_rank = all_states.iter().find(|(rank, _)| *rank == found.growth.rank);
            let states = of_rank.map(|(_, states)| states.as_slice()).unwrap_or_default();
            let at = states.len().saturating_sub(back);
            if states.len() > 1 && !alone::is_refuted(found, states, at) {
                found.alone = index_of(ranks, found.growth.rank, states.get(at).copied());
                all.push(one);
            }
        }
    }
    // Of equals the first stays the first.
    all.sort_by_key(|of| {
        let class = of.found.as_ref().map(|found| found.diagnosis.class);
        (class.is_none(), class == Some(Class::Unknown))
    });
    let mut analysis = all.remove(0);
    let rest = all.into_iter().flat_map(|other| other.found.into_iter().chain(other.also));
    analysis.also.extend(alone::without_repeats(analysis.found.as_ref(), rest));
    let alone = analysis.found.as_ref().and_then(|found| found.alone);
    let newest = all_states.iter().find(|(rank, _)| *rank == analysis.rank);
    let newest = newest.and_then(|(_, states)| states.last().copied());
    analysis.state = alone.or_else(|| index_of(ranks, analysis.rank, newest)).unwrap_or(0);
    analysis.unchecked = unchecked(&all_states);
    if analysis.found.is_none() {
        analysis.unjudged = unjudged(&all_states);
    }
    analysis
}

/// The index of a state of a rank.
fn index_of(ranks: &[Rank], rank: u32, state: Option<&History>) -> Option<usize> {
    let (of_rank, state) = (ranks.iter().find(|of| of.rank == rank)?, state?);
    of_rank.states.iter().position(|of| core::ptr::eq(of, state))
}

/// The primary devices of all ranks together, then each other device in which something is found.
fn of_devices(ranks: &[States<'_>]) -> Vec<Analysis> {
    let of_primary = ranks.iter().filter_map(|(rank, states)| {
        Some((*rank, states.as_slice(), states.last()?.primary_device()?))
    });
    let others = ranks.iter().flat_map(|(rank, states)| {
        let state = states.last();
        let first = state.and_then(|of| of.primary_device()).map(|device| device.state.device);
        let devices = state.into_iter().flat_map(|state| &state.devices);
        let others = devices.filter(move |device| Some(device.state.device) != first);
        others.map(|device| (*rank, states.as_slice(), device))
    });
    let primary = analyzed(&aligned(of_primary));
    let others = others.map(|one| analyzed(&aligned(core::iter::once(one))));
    core::iter::once(primary).chain(others.filter(|other| other.found.is_some())).collect()
}

fn analyzed(all: &[Aligned<'_>]) -> Analysis {
    let found = FINDERS.iter().find_map(|find| find(all)).and_then(|found| judged(all, &found));
    let failures = FAILURES.iter().filter_map(|find| find(all));
    let failures = failures.filter_map(|failure| judged(all, &failure));
    let is_new = |failure: &Found| {
        found.as_ref().is_some_and(|found| found.diagnosis.class != failure.diagnosis.class)
    };
    let also = failures.filter(is_new).collect();
    // Of equal ones the first, as a reader expects.
    let most = || all.iter().rev().max_by_key(|one| one.device.state.allocated);
    let rank = found.as_ref().map(|found| found.growth.rank);
    let focus = all.iter().find(|one| Some(one.rank) == rank).or_else(most);
    let Some(one) = focus else { return Analysis::default() };
    let others = all.iter().filter(|other| other.rank != one.rank);
    let others: Vec<_> = others.map(|other| held::by_line(other, &other.kept)).collect();
    let peak = one.past().peak.as_ref();
    Analysis {
        also,
        found,
        unjudged: None,
        rank: one.rank,
        device: one.device.state.device,
        state: 0,
        lines: held::lines(one, &one.kept, &others),
        peak: peak.map(|peak| held::at_peak(one, &peak.uses)).unwrap_or_default(),
        peak_nameless: peak.map_or((0, 0), |p| (p.nameless.bytes, p.nameless.blocks)),
        steps: one.steps(),
        unchecked: Vec::new(),
        small: small(one),
    }
}

/// The judges' answer to what was found.
fn judged(all: &[Aligned<'_>], candidate: &Candidate) -> Option<Found> {
    let one = all.get(candidate.at)?;
    let diagnosis = candidate.diagnosed(all)?;
    let Candidate { growth, ranks, request, .. } = candidate;
    let request = request.as_ref().or(one.history.rank.failed_request.as_ref());
    let (bytes, blocks) = candidates::concerned(one, growth, &diagnosis, request);
    let (growth, ranks, last_number) = (*growth, ranks.clone(), one.number(growth.last_step));
    Some(Found { diagnosis, growth, last_number, ranks, bytes, blocks, alone: None })
}

/// A line that keeps too little in each step to matter; none where the ends of steps are unknown.
fn small(one: &Aligned<'_>) -> Option<(Frame, u64)> {
    let are_steps_known = one.earlier > 0 || one.past().source.is_known();
    let found = survivors(one).filter(|found| are_steps_known && !found.matters())?;
    let stack = one.stack(*found.stacks.first()?);
    Some((telling_frame(&stack).cloned().unwrap_or_default(), found.rate()))
}

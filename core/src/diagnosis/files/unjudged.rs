//! Whether the states of ranks say enough for an all-clear, and why not.
//!
//! "Nothing is wrong" is said only where every device of every rank was checked: the ends of its
//! steps are known, and there are enough of them. What is found stands in any case.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::States;
use super::history::{DeviceHistory, History, ProcessState};
use crate::detector::{Layer, has_idle_risen, trace_points_min, trend_of_idle};
use crate::diagnosis::constants::GENERATIONS_MIN;
use crate::diagnosis::evidence::past::whole;
use crate::diagnosis::words::plural;
use crate::snapshot::step_source::StepSource;

/// Why states of ranks allow no verdict; of several reasons the last one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unjudged {
    /// No file has events.
    NoHistory,
    /// There are events, and no ends of steps were found in them.
    NoSteps,
    /// What was taken for steps only recurs in the trace; layers of a model do so, too.
    GuessedSteps,
    /// So few steps ended in the trace that what stays of each cannot be told from what passes.
    FewSteps(u64),
    /// Most of what the events show alive is in no block: what stays cannot be seen.
    NoBlocks,
    /// Some ranks can be judged, and others cannot.
    SomeRanks,
}

impl Unjudged {
    /// What it means, in one sentence.
    pub fn sentence(self) -> String {
        match self {
            Self::NoHistory => {
                "there is no history, so growth cannot be told from memory that the job needs"
            }
            Self::NoSteps => {
                "no ends of steps were found in the history, so growth cannot be told from memory \
                 that a step needs"
            }
            Self::GuessedSteps => {
                "the ends of its steps are not known: what recurs in the trace may be layers of a \
                 model, so growth cannot be told from memory that a step needs"
            }
            Self::FewSteps(ends) => {
                let ended = plural(ends, "step");
                return format!(
                    "{ended} ended in the history, and growth shows over {GENERATIONS_MIN}"
                );
            }
            Self::NoBlocks => {
                "it lacks most of the blocks that its history shows alive, so what stays is not \
                 seen"
            }
            Self::SomeRanks => {
                "some ranks have no history or lack live blocks, or too few ends of steps are \
                 known of them; nothing wrong is seen in the others"
            }
        }
        .to_string()
    }

    /// What to do with files of PyTorch, and with what Memtape recorded (`is_recorded`).
    pub fn advice(self, is_recorded: bool) -> &'static str {
        match self {
            Self::NoBlocks if is_recorded => {
                "run the job again with a larger tape, such as with MEMTAPE_BLOCKS=524288"
            }
            _ if is_recorded => {
                "let every rank finish some steps: a script that steps no optimizer calls \
                 memtape.step() in its loop"
            }
            Self::NoBlocks => {
                "write the file with torch.cuda.memory._dump_snapshot: its segments list the live \
                 blocks"
            }
            Self::NoHistory | Self::SomeRanks => {
                "call torch.cuda.memory._record_memory_history(max_entries=100_000, \
                 stacks=\"python\") before the part to analyze, let at least 8 steps pass, and \
                 call torch.cuda.memory._dump_snapshot on every rank"
            }
            Self::NoSteps | Self::GuessedSteps | Self::FewSteps(_) => {
                "record at least 8 optimizer steps (max_entries of _record_memory_history bounds \
                 the history)"
            }
        }
    }
}

/// Why these ranks allow no all-clear; none where all of them do.
pub(super) fn unjudged(ranks: &[States<'_>]) -> Option<Unjudged> {
    let of_ranks = || ranks.iter().map(|(_, distinct)| of_rank(distinct));
    let why = of_ranks().flatten().max()?;
    let is_any_judged = of_ranks().any(|why| why.is_none());
    Some(if is_any_judged { Unjudged::SomeRanks } else { why })
}

/// Of the distinct states of a rank one that can be judged is enough.
fn of_rank(distinct: &[&History]) -> Option<Unjudged> {
    // Several states are compared with each other, however few steps each of them shows.
    let ends_min = if distinct.len() > 1 { 1 } else { GENERATIONS_MIN };
    let states = || distinct.iter().map(|state| of_state(state, ends_min));
    if states().any(|why| why.is_none()) {
        return None;
    }
    Some(states().flatten().max().unwrap_or(Unjudged::NoHistory))
}

fn of_state(state: &History, ends_min: u64) -> Option<Unjudged> {
    if state.devices.is_empty() {
        return Some(Unjudged::NoHistory);
    }
    moving(state).filter_map(|device| of_device(device, ends_min)).max()
}

/// The devices that may grow with the steps: nothing does where fewer events happened than steps
/// ended on another device.
fn moving(state: &History) -> impl Iterator<Item = &DeviceHistory> {
    let known = state.devices.iter().filter(|device| device.past.source.is_known());
    let ends = known.map(|device| device.past.ends).max().unwrap_or(0);
    state.devices.iter().filter(move |device| ends == 0 || device.past.events >= ends)
}

/// What was not checked on every device of the ranks, with the whole steps that a trend takes: the
/// device with the fewest steps decides. Then what the files do not hold.
pub(super) fn unchecked(ranks: &[States<'_>]) -> Vec<(Layer, usize)> {
    let states = || ranks.iter().filter_map(|(_, states)| states.last().copied());
    let of_devices = states().flat_map(moving).map(DeviceHistory::unchecked);
    let mut layers = of_devices.max_by_key(Vec::len).unwrap_or_default();
    // No file holds readings of the host, of the device and of the progress over time.
    layers.extend([Layer::Host, Layer::NonTorch, Layer::Progress].map(|layer| (layer, 0)));
    let of_process = || states().map(|state| state.process);
    let is_live = of_process().any(|process| process == ProcessState::Alive);
    let is_known = |process: ProcessState| match process {
        ProcessState::Unknown => false,
        ProcessState::Unsealed => is_live,
        ProcessState::Alive | ProcessState::Ended(..) => true,
    };
    if !of_process().all(is_known) {
        layers.push((Layer::Process, 0));
    }
    layers
}

impl DeviceHistory {
    /// The layers for whose trend the trace holds too few whole steps, with the steps that a trend
    /// takes; 0 for reserved memory that rose in stairs too few for a trend.
    pub fn unchecked(&self) -> Vec<(Layer, usize)> {
        let steps = whole(&self.past.peaks).len();
        let of = [Layer::Peak, Layer::Reserved].map(|layer| (layer, trace_points_min(layer)));
        let mut few: Vec<_> = of.into_iter().filter(|&(_, min)| steps < min).collect();
        let (reserved, peaks) = (whole(&self.past.reserved), whole(&self.past.peaks));
        let has_risen = trend_of_idle(reserved, peaks).is_none() && has_idle_risen(reserved, peaks);
        if has_risen && few.is_empty() {
            few.push((Layer::Reserved, 0));
        }
        few
    }

    /// Why this device by itself allows no all-clear; none where it does.
    pub fn unjudged(&self) -> Option<Unjudged> {
        of_device(self, GENERATIONS_MIN)
    }
}

fn of_device(DeviceHistory { past, .. }: &DeviceHistory, ends_min: u64) -> Option<Unjudged> {
    match past.source {
        _ if past.events == 0 => Some(Unjudged::NoHistory),
        StepSource::None => Some(Unjudged::NoSteps),
        StepSource::Guessed => Some(Unjudged::GuessedSteps),
        _ if past.ends < ends_min => Some(Unjudged::FewSteps(past.ends)),
        _ if past.lacks_blocks => Some(Unjudged::NoBlocks),
        _ => None,
    }
}

//! Shows an analysis of snapshots as text and as JSON, both with the same facts.
//!
//! [`notes`] holds the sentences about what the files lack.

pub(crate) mod difference;
pub(crate) mod json;
pub(crate) mod notes;
pub(crate) mod text;

use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::evidence::torch::look::{DeviceLook, Look};
use memtape_core::diagnosis::files::Analysis;

use crate::read::content::Format;
use crate::read::order::Ordered;
use crate::read::snapshots::Snapshot;

/// An analysis and the files that it is of.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    /// The result.
    pub(crate) analysis: &'a Analysis,
    /// Which file is which rank.
    pub(crate) ordered: &'a Ordered,
    /// The files, in the order given.
    pub(crate) files: &'a [Snapshot],
}

/// What the files of a report are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// A single file.
    OneFile,
    /// One rank at several times.
    OverTime,
    /// Several ranks.
    AcrossRanks,
}

/// What is found in the files of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Something is wrong.
    Wrong(Class),
    /// The files allow no verdict.
    CannotJudge,
}

impl Finding {
    /// Every finding that there is.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::CannotJudge).chain(Class::ALL.iter().copied().map(Self::Wrong))
    }

    /// The name a user meets.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Wrong(class) => class.as_str(),
            Self::CannotJudge => "cannot_judge",
        }
    }
}

/// Why files allow no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unjudged {
    /// No file has events.
    NoHistory,
    /// There are events, and no ends of steps were found in them.
    NoSteps,
    /// Some ranks have ends of steps, and others have none.
    SomeRanks,
}

impl Unjudged {
    /// What it means, in one sentence.
    fn sentence(self) -> &'static str {
        match self {
            Self::NoHistory => {
                "there is no history, so growth cannot be told from memory that the job needs"
            }
            Self::NoSteps => {
                "no ends of steps were found in the history, so growth cannot be told from memory \
                 that a step needs"
            }
            Self::SomeRanks => {
                "some ranks have no history, or no ends of steps were found in it; nothing wrong \
                 is seen in the others"
            }
        }
    }

    /// What to do with files of PyTorch, and with what Memtape recorded (`is_recorded`).
    fn advice(self, is_recorded: bool) -> &'static str {
        match self {
            _ if is_recorded => {
                "let every rank finish some steps: a script that steps no optimizer calls \
                 memtape.step() in its loop"
            }
            Self::NoHistory | Self::SomeRanks => {
                "call torch.cuda.memory._record_memory_history(max_entries=100_000, \
                 stacks=\"python\") before the part to analyze, let at least 8 steps pass, and \
                 call torch.cuda.memory._dump_snapshot on every rank"
            }
            Self::NoSteps => {
                "record several optimizer steps (max_entries of _record_memory_history bounds the \
                 history)"
            }
        }
    }
}

impl<'a> Report<'a> {
    /// Why there is no verdict, where the files do not allow one: some rank has no ends of steps.
    pub(crate) fn unjudged(&self) -> Option<Unjudged> {
        if self.analysis.verdict.is_some() {
            return None;
        }
        let ranks = &self.ordered.ranks;
        let has = |looks: &[Look], is: fn(&DeviceLook) -> bool| {
            looks.iter().any(|look| look.devices.iter().any(is))
        };
        let is_recorded = |looks: &[Look]| has(looks, |device| device.trace.events > 0);
        let has_steps = |looks: &[Look]| has(looks, |device| device.trace.ends > 0);
        if ranks.iter().all(|rank| has_steps(&rank.looks)) {
            return None;
        }
        if ranks.iter().any(|rank| has_steps(&rank.looks)) {
            return Some(Unjudged::SomeRanks);
        }
        let is_recorded = ranks.iter().any(|rank| is_recorded(&rank.looks));
        Some(if is_recorded { Unjudged::NoSteps } else { Unjudged::NoHistory })
    }

    /// What to do where the files allow no verdict.
    fn advice(&self, why: Unjudged) -> &'static str {
        why.advice(self.files.iter().all(|file| file.format != Format::Pickle))
    }

    /// What is found; none where nothing is wrong.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let verdict = self.analysis.verdict.as_ref().map(|verdict| Finding::Wrong(verdict.class));
        verdict.or(self.unjudged().map(|_| Finding::CannotJudge))
    }

    /// The contents of each file, with its rank and its position among the rank's files.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&'a Snapshot, u32, usize, &'a Look)> {
        let ranks = &self.ordered.ranks;
        self.files.iter().zip(&self.ordered.positions).filter_map(|(file, &(rank, nth))| {
            let of_rank = ranks.iter().find(|found| found.rank == rank)?;
            Some((file, rank, nth, of_rank.looks.get(nth)?))
        })
    }

    /// The newest file of the rank whose lines are shown.
    pub(crate) fn focus(&self) -> Option<&'a Look> {
        let ranks = &self.ordered.ranks;
        ranks.iter().find(|found| found.rank == self.analysis.rank)?.looks.last()
    }

    /// What the files are of.
    pub(crate) fn mode(&self) -> Mode {
        match (self.ordered.ranks.len(), self.files.len()) {
            (_, 1) => Mode::OneFile,
            (1, _) => Mode::OverTime,
            _ => Mode::AcrossRanks,
        }
    }
}

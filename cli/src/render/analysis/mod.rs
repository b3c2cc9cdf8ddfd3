//! Shows an analysis of snapshots as text and as JSON, both with the same facts.
//!
//! [`notes`] holds the sentences about missing parts of the files.

pub(crate) mod difference;
pub(crate) mod json;
pub(crate) mod notes;
pub(crate) mod text;

use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::files::{Analysis, DeviceHistory, History, Past};
use memtape_core::snapshot::step_source::StepSource;

use crate::read::content::Format;
use crate::read::order::Ordered;
use crate::read::snapshots::Snapshot;

/// An analysis, with its files.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    /// The result.
    pub(crate) analysis: &'a Analysis,
    /// The rank of each file.
    pub(crate) ordered: &'a Ordered,
    /// The files, in the order given.
    pub(crate) files: &'a [Snapshot],
}

/// Relation of the files of a report: one file, one rank over time, or several ranks.
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

/// Result of the analysis of a job's files.
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

    /// Name shown to users.
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
    /// The trace has events, but no ends of steps were found in them.
    NoSteps,
    /// Step boundaries are guesses from repetition in the trace; layers of a model repeat, too.
    GuessedSteps,
    /// Some ranks have ends of steps, and others have none.
    SomeRanks,
}

impl Unjudged {
    /// The reason in one sentence.
    fn sentence(self) -> &'static str {
        match self {
            Self::NoHistory => {
                "there is no history, so growth cannot be told from memory that the job needs"
            }
            Self::NoSteps => {
                "no ends of steps were found in the history, so growth cannot be told from memory \
                 that a step needs"
            }
            Self::GuessedSteps => {
                "its steps are guessed from what recurs in the trace, which may be layers of a \
                 model: nothing that grows is seen, and that says little"
            }
            Self::SomeRanks => {
                "some ranks have no history, or no ends of steps were found in it; nothing wrong \
                 is seen in the others"
            }
        }
    }

    /// Advice for files of PyTorch, and for files that Memtape recorded (`is_recorded`).
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
            Self::NoSteps | Self::GuessedSteps => {
                "record several optimizer steps (max_entries of _record_memory_history bounds the \
                 history)"
            }
        }
    }
}

impl<'a> Report<'a> {
    /// Why there is no verdict, where the files do not allow one: the ends of the steps of some
    /// rank are not known.
    pub(crate) fn unjudged(&self) -> Option<Unjudged> {
        if self.analysis.found.is_some() {
            return None;
        }
        let ranks = &self.ordered.ranks;
        let has = |states: &[History], is: fn(&Past) -> bool| {
            states.iter().any(|state| state.devices.iter().any(|device| is(&device.past)))
        };
        let any = |is: fn(&Past) -> bool| ranks.iter().any(|rank| has(&rank.states, is));
        let has_steps = |past: &Past| past.source.is_known();
        if ranks.iter().all(|rank| has(&rank.states, has_steps)) {
            return None;
        }
        Some(match () {
            () if any(has_steps) => Unjudged::SomeRanks,
            () if any(|past| past.source == StepSource::Guessed) => Unjudged::GuessedSteps,
            () if any(|past| past.events > 0) => Unjudged::NoSteps,
            () => Unjudged::NoHistory,
        })
    }

    /// Advice where the files allow no verdict.
    fn advice(&self, why: Unjudged) -> &'static str {
        why.advice(self.files.iter().all(|file| file.format != Format::Pickle))
    }

    /// The finding; none where nothing is wrong.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let found = self.analysis.found.as_ref();
        found
            .map(|found| Finding::Wrong(found.diagnosis.class))
            .or(self.unjudged().map(|_| Finding::CannotJudge))
    }

    /// The contents of each file, with its rank and its position among the rank's files.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&'a Snapshot, u32, usize, &'a History)> {
        let ranks = &self.ordered.ranks;
        self.files.iter().zip(&self.ordered.positions).filter_map(|(file, &(rank, nth))| {
            let of_rank = ranks.iter().find(|found| found.rank == rank)?;
            Some((file, rank, nth, of_rank.states.get(nth)?))
        })
    }

    /// The device whose lines are shown, in the newest file of its rank.
    pub(crate) fn device(&self) -> Option<&'a DeviceHistory> {
        self.focus()?.device(self.analysis.device)
    }

    /// The newest file of the rank whose lines are shown.
    pub(crate) fn focus(&self) -> Option<&'a History> {
        let ranks = &self.ordered.ranks;
        ranks.iter().find(|found| found.rank == self.analysis.rank)?.states.last()
    }

    /// Relation of the files.
    pub(crate) fn mode(&self) -> Mode {
        match (self.ordered.ranks.len(), self.files.len()) {
            (_, 1) => Mode::OneFile,
            (1, _) => Mode::OverTime,
            _ => Mode::AcrossRanks,
        }
    }
}

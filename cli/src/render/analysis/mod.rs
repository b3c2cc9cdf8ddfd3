//! Shows an analysis of snapshots as text and as JSON, both with the same facts.
//!
//! [`notes`] holds the sentences about missing parts of the files.

pub(crate) mod difference;
pub(crate) mod json;
pub(crate) mod notes;
pub(crate) mod text;

use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::files::{Analysis, DeviceHistory, Found, History};

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

/// Relation of the files of a report: one state, one rank over time, or several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// A single file, or copies of one.
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

impl<'a> Report<'a> {
    /// Why there is no verdict, and what to do about it, where the files do not allow one.
    pub(crate) fn unjudged(&self) -> Option<(String, &'static str)> {
        let is_recorded = self.files.iter().all(|file| file.format != Format::Pickle);
        let why = self.analysis.unjudged?;
        Some((why.sentence(), why.advice(is_recorded)))
    }

    /// What is wrong, on all devices.
    pub(crate) fn found(&self) -> impl Iterator<Item = &'a Found> {
        self.analysis.found.iter().chain(&self.analysis.also)
    }

    /// The findings; none where nothing is wrong.
    pub(crate) fn findings(&self) -> impl Iterator<Item = Finding> {
        let found = self.found().map(|found| Finding::Wrong(found.diagnosis.class));
        found.chain(self.analysis.unjudged.map(|_| Finding::CannotJudge))
    }

    /// The contents of each file, with its rank and its position among the rank's files.
    pub(crate) fn contents(&self) -> impl Iterator<Item = (&'a Snapshot, u32, usize, &'a History)> {
        let ranks = &self.ordered.ranks;
        self.files.iter().zip(&self.ordered.positions).filter_map(|(file, &(rank, nth))| {
            let of_rank = ranks.iter().find(|found| found.rank == rank)?;
            Some((file, rank, nth, of_rank.states.get(nth)?))
        })
    }

    /// The device whose lines are shown.
    pub(crate) fn device(&self) -> Option<&'a DeviceHistory> {
        self.focus()?.device(self.analysis.device)
    }

    /// The state whose lines are shown.
    pub(crate) fn focus(&self) -> Option<&'a History> {
        let ranks = &self.ordered.ranks;
        let of_rank = ranks.iter().find(|found| found.rank == self.analysis.rank)?;
        of_rank.states.get(self.analysis.state)
    }

    /// The file that shows a finding by itself, where it is one of several of its rank.
    pub(crate) fn alone(&self, found: &Found) -> Option<&'a Snapshot> {
        let position = (found.growth.rank, found.alone?);
        let mut files = self.files.iter().zip(&self.ordered.positions);
        files.find(|(_, known)| **known == position).map(|(file, _)| file)
    }

    /// For each file the one whose state it shows again; none where it is no copy.
    pub(crate) fn originals(&self) -> impl Iterator<Item = Option<&'a Snapshot>> {
        let originals = self.ordered.originals.iter().enumerate();
        originals.map(|(at, &original)| self.files.get(original).filter(|_| original != at))
    }

    /// Relation of the files.
    pub(crate) fn mode(&self) -> Mode {
        let states = self.originals().filter(Option::is_none).count();
        match (self.ordered.ranks.len(), states) {
            (_, 1) => Mode::OneFile,
            (1, _) => Mode::OverTime,
            _ => Mode::AcrossRanks,
        }
    }
}

//! How an analysis of snapshots is shown: as text, and as JSON.
//!
//! Both say the same; [`notes`] has the sentences about what the files lack.

pub(crate) mod difference;
pub(crate) mod json;
mod notes;
pub(crate) mod text;

use memtape_core::analysis::Analysis;
use memtape_core::analysis::look::{DeviceLook, Look};

use crate::read::order::Ordered;
use crate::read::snapshots::Snapshot;

/// What was found, and in what.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    /// The result.
    pub(crate) analysis: &'a Analysis,
    /// Which file is which rank.
    pub(crate) ordered: &'a Ordered,
    /// The files, in the order given.
    pub(crate) files: &'a [Snapshot],
}

impl<'a> Report<'a> {
    /// What each file shows, with its rank and the number of its moment.
    pub(crate) fn looks(&self) -> impl Iterator<Item = (&'a Snapshot, u32, usize, &'a Look)> {
        let ranks = &self.ordered.ranks;
        self.files.iter().zip(&self.ordered.places).filter_map(|(file, &(rank, moment))| {
            let of_rank = ranks.iter().find(|found| found.rank == rank)?;
            Some((file, rank, moment, of_rank.looks.get(moment)?))
        })
    }

    /// The newest look at the rank that the lines are of.
    pub(crate) fn focus(&self) -> Option<&'a Look> {
        let ranks = &self.ordered.ranks;
        ranks.iter().find(|found| found.rank == self.analysis.rank)?.looks.last()
    }

    /// There are several ranks, or several moments of one, or a single file.
    pub(crate) fn mode(&self) -> &'static str {
        match (self.ordered.ranks.len(), self.files.len()) {
            (_, 1) => "one_file",
            (1, _) => "over_time",
            _ => "across_ranks",
        }
    }
}

/// The device of a file that holds most.
pub(crate) fn home(look: &Look) -> Option<&DeviceLook> {
    look.devices.iter().max_by_key(|device| device.allocated)
}

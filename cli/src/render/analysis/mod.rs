//! Shows an analysis of snapshots as text and as JSON, both with the same facts.
//!
//! [`notes`] holds the sentences about what the files lack.

pub(crate) mod difference;
pub(crate) mod json;
mod notes;
pub(crate) mod text;

use memtape_core::diagnosis::evidence::torch::look::{DeviceLook, Look};
use memtape_core::diagnosis::files::Analysis;

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

impl<'a> Report<'a> {
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

    /// Whether there are several ranks, one rank at several times, or a single file.
    pub(crate) fn mode(&self) -> &'static str {
        match (self.ordered.ranks.len(), self.files.len()) {
            (_, 1) => "one_file",
            (1, _) => "over_time",
            _ => "across_ranks",
        }
    }
}

/// The device of a file that holds most bytes.
pub(crate) fn primary_device(look: &Look) -> Option<&DeviceLook> {
    look.devices.iter().max_by_key(|device| device.allocated)
}

//! What sets two groups of ranks apart: of one run, or of two.

use memtape_core::account::Unit;
use memtape_core::differences::{self, Kind, Level};
use memtape_core::snapshot::Frame;
use serde::{Deserialize, Serialize};

use super::name::Named;

/// Which ranks and steps are compared, and with what: with another run where one is named, else
/// with the other ranks of the attempt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DifferencesQuery {
    /// The attempt; without one the newest.
    pub attempt: Option<u32>,
    /// First step; of both runs.
    pub from: Option<u64>,
    /// Last step; of both runs.
    pub to: Option<u64>,
    /// First chosen rank; of both runs.
    pub first_rank: Option<u32>,
    /// Last chosen rank; of both runs.
    pub last_rank: Option<u32>,
    /// The job that the baseline is of; without one the same job.
    pub baseline_job: Option<String>,
    /// The attempt that the baseline is of; without one the newest of `baseline_job`, or without
    /// that no other run.
    pub baseline_attempt: Option<u32>,
}

/// What sets the chosen ranks apart from the baseline.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Differences {
    /// The chosen ranks.
    pub chosen: Group,
    /// What they are compared with: ranks of the same attempt, or of another run.
    pub baseline: Group,
    /// Those that explain most first: each account that both have, and at most 64 lines and 64
    /// traits that differ.
    pub differences: Vec<Difference>,
    /// Lines that differ and are not in the list: none of them differs by more bytes than one that
    /// is.
    pub lines_left_out: u32,
    /// Traits that differ and are not in the list: those that explain least.
    pub traits_left_out: u32,
}

/// Ranks that are compared.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Group {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The ranks.
    pub ranks: u32,
    /// Ranks whose lines are known: as they were counted last.
    pub counted_ranks: u32,
    /// First of the steps at which they were counted last, whichever steps are compared; null
    /// where no rank is counted.
    pub counted_first_step: Option<u64>,
    /// Last of these steps.
    pub counted_last_step: Option<u64>,
    /// First step that was compared; null where no step is kept.
    pub first_step: Option<u64>,
    /// Last step that was compared.
    pub last_step: Option<u64>,
    /// True if older steps were left out, because there are too many records.
    pub is_cut: bool,
}

/// One fact of both groups.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Difference {
    /// What it is.
    pub kind: Named<Kind>,
    /// The word of the account, or the value of the trait; empty for a line.
    pub name: String,
    /// The frames that tell the line from others, innermost first; none for memory without a stack,
    /// and for everything that is no line.
    pub frames: Vec<Frame>,
    /// What the values count.
    pub unit: Named<Unit>,
    /// Of the chosen ranks.
    pub chosen: Level,
    /// Of the baseline.
    pub baseline: Level,
    /// Of all pairs of a chosen rank and one of the baseline, the part in which the chosen one has
    /// more, less the part in which it has less: from -1,000 to 1,000.
    pub separation_permille: i32,
    /// How much it explains, from 0 to 1,000: of an account the separation times the part by which
    /// its levels differ, by their medians or by their highest values where these differ more
    /// (among the ranks of one run, not by the highest of the larger group); of a line the
    /// separation times its part of the difference in allocated bytes; of a trait the separation
    /// times what the first account or line explains.
    pub explains_permille: u32,
}

impl From<differences::Difference> for Difference {
    fn from(of: differences::Difference) -> Self {
        let differences::Difference { kind, name, frames, unit, chosen, baseline, .. } = of;
        let (separation_permille, explains_permille) =
            (of.separation_permille, of.explains_permille);
        let (kind, unit) = (kind.into(), unit.into());
        Self { kind, name, frames, unit, chosen, baseline, separation_permille, explains_permille }
    }
}

//! The steps of one rank, and of many, for a screen.

use memtape_core::account::{Account, Source, Unit};
use serde::{Deserialize, Serialize};

use super::name::Named;

/// Columns of equal length. Where there are more steps than points, neighbouring steps are one
/// point: the last step, the lowest minimum, the highest peak and the highest reserve. With an
/// account, its columns stand beside the steps, and the other three are empty.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Series {
    /// Numbers of the steps.
    pub steps: Vec<u64>,
    /// Lowest bytes in tensors in the step.
    pub step_min_bytes: Vec<u64>,
    /// Highest bytes in tensors in the step.
    pub peak_bytes: Vec<u64>,
    /// Highest bytes the allocator held in the step.
    pub reserved_bytes: Vec<u64>,
    /// Step records of the rank that are not kept, because its node or owner sent more than are
    /// kept: of their steps every second, fourth, … is there.
    pub steps_left_out: u64,
    /// The account that was asked for.
    pub account: Option<AccountColumns>,
}

/// The values of an account of a rank: as many as points. What is not known is null or left out,
/// never 0.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AccountColumns {
    /// Its name.
    pub name: Named<Account>,
    /// The unit of its values.
    pub unit: Named<Unit>,
    /// Where its values are kept: `readings` in the memory of the coordinator alone, since its
    /// start, and of each 16, 64 or 256 steps only the lowest.
    pub source: Named<Source>,
    /// The lowest value of each point.
    pub lowest: Vec<u64>,
    /// The highest value of each point.
    pub highest: Vec<u64>,
    /// First step of which anything is known, also of steps that were not asked for.
    pub known_from_step: Option<u64>,
    /// Why nothing is known; null where something is.
    pub unknown: Option<String>,
    /// Bytes that the account can hold at most, together with what else counts there: the size of
    /// the device, the limit of the rank's cgroup, or the memory of the host.
    pub limit_bytes: Option<u64>,
}

/// An account of many ranks over many steps. The number of a cell or a median stands for `base`
/// plus `scale` times the number, in `unit`, rounded down; null where nothing is known.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Area {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// The account.
    pub account: Named<Account>,
    /// The unit of its values.
    pub unit: Named<Unit>,
    /// Where its values are kept: `readings` in the memory of the coordinator alone, since its
    /// start, and of each 16, 64 or 256 steps only the lowest.
    pub source: Named<Source>,
    /// What the number 0 stands for.
    pub base: u64,
    /// What 1 more stands for: a power of two.
    pub scale: u64,
    /// First step of the first column.
    pub first_step: u64,
    /// Steps of each column: a power of two.
    pub steps_per_column: u64,
    /// For each column the lower median over all ranks that were asked for. The value of a rank is
    /// the lowest of the account `allocated`, of every other one the highest, in the steps of the
    /// column; in the last column, of a rank without a value there that of the column before.
    pub medians: Vec<Option<u32>>,
    /// Neighbouring ranks, in order.
    pub rows: Vec<AreaRow>,
    /// First step of which anything is known, also of steps that were not asked for.
    pub known_from_step: Option<u64>,
    /// Why nothing is known; null where something is.
    pub unknown: Option<String>,
    /// More step records are kept than one answer reads: the oldest of them are left out.
    pub is_cut: bool,
    /// Step records of these ranks that are not kept, because a node or an owner sent more than are
    /// kept: of their steps every second, fourth, … is there.
    pub steps_left_out: u64,
}

/// A rank, or neighbouring ranks, in an area.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct AreaRow {
    /// First rank of the row.
    pub first_rank: u32,
    /// Last rank of the row.
    pub last_rank: u32,
    /// The rank with the highest value of the row; null where none has one.
    pub extreme_rank: Option<u32>,
    /// For each column the highest value of the ranks, each as for the median.
    pub cells: Vec<Option<u32>>,
}

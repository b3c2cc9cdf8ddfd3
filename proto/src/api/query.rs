//! What stands behind the question mark of a request.

use memtape_core::account::Account;
use memtape_core::identity::owner::is_called;
use serde::{Deserialize, Serialize};

/// Which job a list is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobQuery {
    /// Only those of the jobs with this id or name.
    pub job: Option<String>,
}

impl JobQuery {
    /// Is something of the job with this id in the list?
    pub fn has(&self, id: &str) -> bool {
        self.job.as_ref().is_none_or(|job| is_called(id, job))
    }
}

/// Which attempt, and which of its ranks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RanksQuery {
    /// Number of the attempt; without one the newest.
    pub attempt: Option<u32>,
    /// Only this rank and those of the same role, the nearest numbers first to be taken.
    pub near: Option<u32>,
    /// Most ranks of the answer: with `near` the nearest, else those whose memory grows fastest.
    /// All without a number.
    pub most: Option<usize>,
}

/// Which attempt, and which rank.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LinesQuery {
    /// Number of the attempt; without one the newest.
    pub attempt: Option<u32>,
    /// Only the lines of this rank.
    pub rank: Option<u32>,
}

/// Which steps, and how many points.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SeriesQuery {
    /// The rank.
    pub rank: u32,
    /// Its device; without one the device that holds most.
    pub device: Option<u8>,
    /// The attempt; without one the newest.
    pub attempt: Option<u32>,
    /// First step.
    pub from: Option<u64>,
    /// Last step.
    pub to: Option<u64>,
    /// Most points of the answer, at most 20,000; without a number 1,000.
    pub points: Option<usize>,
    /// The account whose values are wanted; without one the minimum, the peak and the reserve of
    /// the device.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "memtape_core::tape::schema::words::<Account>")
    )]
    #[serde(default)]
    pub account: Option<Account>,
}

/// Which account, of which ranks and steps, and how many rows and columns.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AreaQuery {
    /// The account; without one `allocated`, the per-step minimum.
    #[cfg_attr(
        feature = "schema",
        schemars(schema_with = "memtape_core::tape::schema::words::<Account>")
    )]
    #[serde(default)]
    pub account: Account,
    /// The attempt; without one the newest.
    pub attempt: Option<u32>,
    /// First step.
    pub from: Option<u64>,
    /// Last step.
    pub to: Option<u64>,
    /// First rank.
    pub first_rank: Option<u32>,
    /// Last rank.
    pub last_rank: Option<u32>,
    /// Most rows, from 1 to 1,024; without a number 128. Fewer where ranks do not fill them.
    pub rows: Option<usize>,
    /// Most columns, from 2 to 1,024; without a number 512. Fewer where the answer would have more
    /// than 131,072 cells, or ranks times columns are more than the coordinator has memory for.
    pub columns: Option<usize>,
}

/// Which entries of the audit.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditQuery {
    /// Only entries with greater numbers; without one from the first on.
    pub after: Option<u64>,
}

/// What is to be in a backup.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupQuery {
    /// Snapshots of captures, too; true without it.
    pub snapshots: Option<bool>,
    /// The shard of the store; that of the coordinator that is asked without it.
    pub shard: Option<u16>,
}

//! Why a capture is taken: the name of each reason, its rank, its urgency and its gravity.
//!
//! A new reason is a variant here, an arm in each `match` of this file, a call in `triggers.rs`,
//! and the caller in the coordinator. The compiler names every arm that is missing.

use serde::{Deserialize, Serialize};

/// Why a capture was asked for. In the store its name stands as `reason` and its rank as
/// `reason_rank`; a name of another version counts as [`Reason::Manual`].
#[derive(
    Clone,
    Debug,
    Default,
    PartialEq,
    Eq,
    strum::EnumIter,
    strum::IntoStaticStr,
    Deserialize,
    Serialize,
)]
#[strum(serialize_all = "snake_case")]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// The detector found growth on this rank.
    Growth {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// The detector found growth of the worker processes of this rank: they are sampled, too.
    WorkerGrowth {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// This rank needs more memory in each step than its peers.
    Imbalance {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// The job stands still, and this rank is furthest behind.
    Standstill {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// A request for memory failed for good on this rank.
    OutOfMemory {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// This rank's process died.
    Death {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// Allocations had to be retried on this rank.
    Retries {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// This rank holds nearly all of its device.
    Reserved {
        /// Global rank.
        #[serde(rename = "reason_rank")]
        rank: u32,
    },
    /// A restart is about to happen.
    Restart,
    /// A healthy state to compare with later.
    Baseline,
    /// Asked for by hand.
    #[default]
    #[serde(other)]
    Manual,
}

/// Degree to which a reason overrides the limits of captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// Waits for the interval and for the budget.
    Usual,
    /// Waits for a budget of twice the bytes only.
    Urgent,
    /// Waits for nothing.
    Manual,
}

impl Reason {
    /// The name in output.
    pub fn as_str(&self) -> &'static str {
        self.into()
    }

    /// Rank that the reason is about.
    pub fn rank(&self) -> Option<u32> {
        match *self {
            Self::Growth { rank }
            | Self::WorkerGrowth { rank }
            | Self::Imbalance { rank }
            | Self::Standstill { rank }
            | Self::OutOfMemory { rank }
            | Self::Death { rank }
            | Self::Retries { rank }
            | Self::Reserved { rank } => Some(rank),
            Self::Manual | Self::Restart | Self::Baseline => None,
        }
    }

    /// Rank whose own reports alone are the reason: a job stands still by the reports of all ranks.
    pub fn claimed_by(&self) -> Option<u32> {
        self.rank().filter(|_| !matches!(self, Self::Standstill { .. }))
    }

    /// Is the reason a failed request or the death of the rank?
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Death { .. })
    }

    pub(crate) fn urgency(&self) -> Urgency {
        match self {
            Self::Manual => Urgency::Manual,
            Self::OutOfMemory { .. } | Self::Death { .. } | Self::Restart => Urgency::Urgent,
            Self::Growth { .. }
            | Self::WorkerGrowth { .. }
            | Self::Imbalance { .. }
            | Self::Standstill { .. }
            | Self::Retries { .. }
            | Self::Reserved { .. }
            | Self::Baseline => Urgency::Usual,
        }
    }

    /// Gravity of the reason. Of two reasons for one capture, the graver one names it.
    pub(crate) fn gravity(&self) -> u8 {
        match self {
            Self::OutOfMemory { .. } => 6,
            Self::Death { .. } => 5,
            Self::Retries { .. } => 4,
            Self::Growth { .. }
            | Self::WorkerGrowth { .. }
            | Self::Imbalance { .. }
            | Self::Standstill { .. }
            | Self::Restart => 3,
            Self::Reserved { .. } => 2,
            Self::Manual => 1,
            Self::Baseline => 0,
        }
    }
}

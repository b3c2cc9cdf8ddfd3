//! Failures of ranks: a death, or a failed request for memory.
//!
//! `deaths.rs` decides the incident that a failure belongs to.

use alloc::format;
use alloc::string::String;

use crate::capture::Reason;
use crate::detector::{Growth, GrowthKey, Layer, Scope};
use crate::identity::end::End;

/// A death is captured by its own trigger. Where no such capture was taken within this time, the
/// incident requests one, in nanoseconds.
pub(super) const FAILURE_CAPTURE_WAIT_NS: u64 = 10_000_000_000;

/// Failure of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct Failure {
    /// Global rank.
    pub rank: u32,
    /// Device index in its process.
    pub device: u8,
    /// Steps that it had finished.
    pub step: u64,
    /// Unix time, in nanoseconds.
    pub wall_ns: i64,
    /// Ranks of the attempt.
    pub ranks: u32,
    /// Kind of the failure.
    pub kind: FailureKind,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum FailureKind {
    /// A request for memory failed for good; the process lives.
    OutOfMemory,
    /// The process died.
    Died(End),
}

impl Failure {
    /// Returns the failure as a growth of 0 bytes at its step.
    pub(super) fn growth(&self) -> Growth {
        let layer = Layer::Process;
        let key = GrowthKey { rank: self.rank, device: self.device, layer, scope: Scope::OneRank };
        Growth::still(&key, (self.step, self.step), 0, self.ranks.saturating_sub(1))
    }

    /// The failure in a sentence, before any comparison.
    pub(super) fn sentence(&self) -> String {
        let (rank, step) = (self.rank, self.step);
        match self.kind {
            FailureKind::OutOfMemory => {
                format!("a request of rank {rank} for memory failed after step {step}")
            }
            FailureKind::Died(end) => format!("rank {rank} {} after step {step}", end.in_words()),
        }
    }

    /// Why a capture is taken.
    pub(super) fn reason(&self) -> Reason {
        match self.kind {
            FailureKind::OutOfMemory => Reason::OutOfMemory { rank: self.rank },
            FailureKind::Died(_) => Reason::Death { rank: self.rank },
        }
    }
}

//! Failures of ranks: a death, or a failed request for memory.
//!
//! `deaths.rs` decides the incident that a failure belongs to.

use alloc::format;
use alloc::string::String;

use crate::capture::Reason;
use crate::detector::{Growth, GrowthKey, Layer, Scope};
use crate::diagnosis::{Class, SIGKILL, ended};
use crate::identity::end::{End, TOGETHER_NS};

/// A death is captured by its own trigger. Where no such capture was taken within this time, the
/// incident requests one, in nanoseconds.
pub(super) const FAILURE_CAPTURE_WAIT_NS: u64 = 10_000_000_000;

/// Failure of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
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
    /// Its exit status, or its signal as a negative number, where it is known.
    #[serde(default)]
    pub exit_status: Option<i32>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
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

    /// Is more known of this failure than of the `known` one of the same rank? An agent that begins
    /// again reports the failed request of a dead process once more.
    pub(super) fn says_more_than(&self, known: &Self) -> bool {
        match (self.kind, known.kind) {
            (FailureKind::Died(end), FailureKind::Died(known_end)) => {
                end.says_more_than(self.exit_status, (known_end, known.exit_status))
            }
            (FailureKind::Died(_), FailureKind::OutOfMemory) => true,
            (FailureKind::OutOfMemory, _) => false,
        }
    }

    /// Was the rank asked to end?
    pub(super) fn was_asked(&self) -> bool {
        matches!(self.kind, FailureKind::Died(end) if end.was_asked(self.exit_status))
    }

    /// Was the rank killed, by SIGKILL or a signal that is not known?
    pub(super) fn may_be_sigkill(&self) -> bool {
        let is_killed = self.kind == FailureKind::Died(End::Killed);
        is_killed && self.exit_status.is_none_or(|status| status == SIGKILL)
    }

    /// Did this failure come first? Ends on two nodes within [`TOGETHER_NS`] have no order, and
    /// neither has what the kernel kills with a cgroup: then a kill for memory comes first, and a
    /// rank that was asked to end last.
    pub(super) fn came_before(&self, other: &Self, is_one_clock: bool) -> bool {
        let ends_with = |victim: &Self, of: &Self| victim.is_oom_kill() && of.may_be_sigkill();
        let is_one_kill = ends_with(self, other) || ends_with(other, self);
        let apart_ns = if is_one_clock && !is_one_kill { 0 } else { TOGETHER_NS };
        let earlier_ns = other.wall_ns.saturating_sub(self.wall_ns);
        let is_together = earlier_ns.saturating_abs() <= apart_ns;
        let weight = |of: &Self| (of.is_oom_kill(), !of.was_asked());
        earlier_ns > apart_ns || (is_together && weight(self) > weight(other))
    }

    /// Did the kernel kill the rank for memory of the host?
    pub(super) fn is_oom_kill(&self) -> bool {
        self.kind == FailureKind::Died(End::OomKilled)
    }

    /// Class of its incident, before anything is compared.
    pub(super) fn class(&self) -> Class {
        match self.kind {
            FailureKind::OutOfMemory => Class::OutOfMemory,
            FailureKind::Died(_) => Class::Died,
        }
    }

    /// What happened, before anything is compared.
    pub(super) fn sentence(&self) -> String {
        let (rank, step) = (self.rank, self.step);
        match self.kind {
            FailureKind::OutOfMemory => {
                format!("a request of rank {rank} for memory failed after step {step}")
            }
            FailureKind::Died(end) => {
                format!("rank {rank} {} after step {step}", ended(end, self.exit_status))
            }
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

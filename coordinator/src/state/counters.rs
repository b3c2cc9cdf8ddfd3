//! Counters: completed work, and everything that was refused, dropped or lost, by its reason.
//!
//! All tasks share them. They only grow, and `/metrics` shows them.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memtape_core::action::TargetKind;
use memtape_core::action::VerdictKind;
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// Something that was done.
#[derive(Clone, Copy, Debug, EnumCount, Eq, PartialEq)]
pub(crate) enum Count {
    Reports,
    Steps,
    CapturesComplete,
    CapturesPartial,
    CapturesRefused,
    /// Captures deleted because they were too old, took too many bytes, or were too many.
    CapturesByAge,
    CapturesByBytes,
    CapturesByNumber,
    Snapshots,
    SnapshotBytes,
    Incidents,
    ActionsTaken,
    ActionsDryRun,
    ActionsDeclined,
    ActionsFailed,
    /// Seconds of training that actions saved, at most.
    TrainingSecondsSaved,
}

/// Why something is not there; by these names in the metrics.
#[derive(Clone, Copy, Debug, EnumCount, Eq, IntoStaticStr, PartialEq, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Loss {
    /// An agent's message broke a bound; its stream was closed.
    BadMessage,
    /// A message about a tape that was not announced on its stream's node.
    UnknownTape,
    /// A job beyond the number that can be remembered, or a rank beyond its bound.
    NoRoom,
    /// A rank, a further device of one, or a job beyond the number that one node may have.
    NodeFull,
    /// A rank that began or ended beyond the number that a node may report in a time.
    NodeChangesTooMany,
    /// A capture that an agent took by itself, beyond the number that its node or job may have in
    /// a time.
    AgentCapturesTooMany,
    /// A rank of a report that broke a bound.
    BadRank,
    /// Censuses of a rank beyond the memory that it, its node or all ranks may take.
    CensusesLeftOut,
    /// Settings of the allocator that PyTorch has not, of a rank that was announced.
    SettingsLeftOut,
    /// An agent did not take its messages; its stream was closed.
    SlowAgent,
    /// An agent was refused: too many, its name is taken, or no role makes it its node's agent.
    AgentRefused,
    /// Step records that were overwritten on the tape before they were read.
    StepsMissed,
    /// Step records that are not kept: their node or owner sent more than its rate.
    StepsThinned,
    /// A connection was closed because no call was in progress, or its client did not read.
    ConnectionOverdue,
    /// An idle connection was closed because another one needed its place.
    ConnectionGivenUp,
    /// A connection was closed because its certificate or its role is no longer valid.
    ConnectionDistrusted,
    /// A caller was refused: unproven, or without a role.
    CallerRefused,
    /// A request beyond a caller's rate of requests.
    RequestsTooMany,
    /// A download that was ended because its client read too slowly.
    SlowDownload,
    /// An upload that was ended because its snapshot came too slowly.
    SlowUpload,
    /// A decision to do nothing that was not audited, because its owner had many lately.
    DecisionNotAudited,
    /// A refusal that was not audited, because its caller or network had many lately.
    RefusalNotAudited,
    /// An entry of the audit that could not be written.
    AuditEntry,
    /// A snapshot that came too late, twice, or was never asked for.
    StaleSnapshot,
    /// A snapshot that was too large, or differed from its answer.
    BadSnapshot,
    /// An incident beyond the number that may be open, or a record beyond the number kept.
    Forgotten,
    /// Step records that agents dropped from their full spools while they were disconnected.
    SpooledSteps,
    /// Snapshots of agent-initiated captures that a spool dropped.
    SpooledSnapshots,
    /// Ends of ranks and announcements of agent-initiated captures that a spool dropped.
    SpooledFacts,
    /// Files that agents refused: they are the copy of another tape.
    TapeCopies,
    /// Likewise: their lock is held by a process that they do not name.
    TapesWithWrongHolder,
    /// Likewise: they were made before the node was started.
    TapesOfOtherBoots,
    /// Likewise: further files of their user exceed the quota.
    TapesWithoutRoom,
}

/// All counters.
#[derive(Debug)]
pub(crate) struct Counters {
    counts: [AtomicU64; Count::COUNT],
    losses: [AtomicU64; Loss::COUNT],
    /// Verdicts about actions, by how they were carried out.
    verdicts: [[AtomicU64; VerdictKind::VARIANTS.len()]; TargetKind::VARIANTS.len()],
}

impl Default for Counters {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { counts: from_fn(zero), losses: from_fn(zero), verdicts: Default::default() }
    }
}

impl Counters {
    pub(crate) fn add(&self, count: Count, more: u64) {
        saturate(&self.counts[count as usize], more);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// Counts a verdict about an action of this kind.
    pub(crate) fn prove(&self, kind: TargetKind, verdict: VerdictKind) {
        let of_kind = self.verdicts.get(kind as usize);
        if let Some(counter) = of_kind.and_then(|of_kind| of_kind.get(verdict as usize)) {
            saturate(counter, 1);
        }
    }

    /// Every verdict about every kind of action, with its count.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = (TargetKind, VerdictKind, u64)> {
        TargetKind::VARIANTS.iter().zip(&self.verdicts).flat_map(|(kind, of_kind)| {
            let verdicts = VerdictKind::VARIANTS.iter().zip(of_kind);
            verdicts.map(|(verdict, count)| (*kind, *verdict, count.load(Relaxed)))
        })
    }

    pub(crate) fn lose(&self, loss: Loss, more: u64) {
        saturate(&self.losses[loss as usize], more);
    }

    /// Every reason with its count.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Loss::VARIANTS
            .iter()
            .zip(&self.losses)
            .map(|(loss, count)| (loss.into(), count.load(Relaxed)))
    }
}

/// Adds to a counter, which stays at its maximum instead of wrapping around.
fn saturate(counter: &AtomicU64, more: u64) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |known| Some(known.saturating_add(more)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_counter() {
        let counters = Counters::default();
        for (index, loss) in Loss::VARIANTS.iter().enumerate() {
            counters.lose(*loss, index as u64);
        }
        let counted: Vec<(&str, u64)> = counters.losses().collect();
        assert_eq!(counted[..2], [("bad_message", 0), ("unknown_tape", 1)]);
        assert_eq!(counted.last(), Some(&("tapes_without_room", Loss::COUNT as u64 - 1)));
    }
}

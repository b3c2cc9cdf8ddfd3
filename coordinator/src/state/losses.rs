//! Counters: what was done, and everything that was refused, dropped or lost, by its reason.
//!
//! They are shared by all tasks, only ever grow, and are shown at `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why something is not there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Loss {
    /// An agent's message broke a bound; its stream was closed.
    BadMessage,
    /// A message about a tape that was never announced on its stream's node.
    UnknownTape,
    /// A job beyond the number that can be remembered, or a rank beyond its bound.
    NoRoom,
    /// An agent did not take its messages; its stream was closed.
    SlowAgent,
    /// An agent was refused: too many, or its name is taken.
    AgentRefused,
    /// Step records that were overwritten on the tape before they were read.
    StepsMissed,
    /// A body that came too late, twice, or was never asked for.
    StaleBody,
    /// A body that was too large, or not what its answer said.
    BadBody,
    /// An incident beyond the number that may be open, or a record beyond the number kept.
    Forgotten,
    /// Step records that agents dropped from their full disks while they were alone.
    SpooledSteps,
    /// Bodies of solo captures, likewise.
    SpooledBodies,
    /// Ends of ranks and announcements of solo captures, likewise.
    SpooledFacts,
}

const REASONS: [(Loss, &str); 12] = [
    (Loss::BadMessage, "bad_message"),
    (Loss::UnknownTape, "unknown_tape"),
    (Loss::NoRoom, "no_room"),
    (Loss::SlowAgent, "slow_agent"),
    (Loss::AgentRefused, "agent_refused"),
    (Loss::StepsMissed, "steps_missed"),
    (Loss::StaleBody, "stale_body"),
    (Loss::BadBody, "bad_body"),
    (Loss::Forgotten, "forgotten"),
    (Loss::SpooledSteps, "spooled_steps"),
    (Loss::SpooledBodies, "spooled_bodies"),
    (Loss::SpooledFacts, "spooled_facts"),
];

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    losses: [AtomicU64; REASONS.len()],
    pub(crate) reports: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) captures_complete: AtomicU64,
    pub(crate) captures_partial: AtomicU64,
    pub(crate) captures_refused: AtomicU64,
    /// Captures deleted because they were too old, took too many bytes, or were too many.
    pub(crate) captures_by_age: AtomicU64,
    pub(crate) captures_by_bytes: AtomicU64,
    pub(crate) captures_by_count: AtomicU64,
    pub(crate) bodies: AtomicU64,
    pub(crate) body_bytes: AtomicU64,
    pub(crate) incidents: AtomicU64,
    pub(crate) actions_taken: AtomicU64,
    pub(crate) actions_dry_run: AtomicU64,
    pub(crate) actions_declined: AtomicU64,
    pub(crate) actions_failed: AtomicU64,
}

impl Counters {
    /// One more.
    pub(crate) fn lose(&self, loss: Loss) {
        self.lose_many(loss, 1);
    }

    /// Some more.
    pub(crate) fn lose_many(&self, loss: Loss, count: u64) {
        self.losses[loss as usize].fetch_add(count, Relaxed);
    }

    /// Every reason with its count.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.iter().zip(&self.losses).map(|((_, name), count)| (*name, count.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_place() {
        let counters = Counters::default();
        for (index, (loss, _)) in REASONS.iter().enumerate() {
            assert_eq!(*loss as usize, index);
            counters.lose_many(*loss, index as u64);
        }
        assert_eq!(counters.losses().map(|(_, count)| count).max(), Some(11));
    }
}

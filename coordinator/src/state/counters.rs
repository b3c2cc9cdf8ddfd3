//! Counters: what was done, and everything that was refused, dropped or lost, by its reason.
//!
//! All tasks share them. They only grow, and `/metrics` shows them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Something that was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
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
    Bodies,
    BodyBytes,
    Incidents,
    ActionsTaken,
    ActionsDryRun,
    ActionsDeclined,
    ActionsFailed,
}

const COUNTS: usize = Count::ActionsFailed as usize + 1;

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
    /// Step records that agents dropped from their full spools while they were disconnected.
    SpooledSteps,
    /// Bodies of agent-initiated captures, likewise.
    SpooledBodies,
    /// Ends of ranks and announcements of agent-initiated captures, likewise.
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
    counts: [AtomicU64; COUNTS],
    losses: [AtomicU64; REASONS.len()],
}

impl Counters {
    pub(crate) fn add(&self, count: Count, more: u64) {
        self.counts[count as usize].fetch_add(more, Relaxed);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    pub(crate) fn lose(&self, loss: Loss, more: u64) {
        self.losses[loss as usize].fetch_add(more, Relaxed);
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
    fn every_reason_has_its_own_counter() {
        let counters = Counters::default();
        for (index, (loss, _)) in REASONS.iter().enumerate() {
            assert_eq!(*loss as usize, index);
            counters.lose(*loss, index as u64);
        }
        assert_eq!(counters.losses().map(|(_, count)| count).max(), Some(11));
    }
}

//! The detectors of one attempt: one for the ranks that count steps, and one for each rank that
//! counts turns.
//!
//! Ranks that train do the same work in the same step, so one detector compares them. Turns of two
//! servers are not the same work: each serves its own requests, or none. So each is judged by its
//! own past alone, and silence, desynchronization and step time mean nothing among them.

use std::collections::{BTreeMap, VecDeque};

use memtape_core::detector::{Detector, Finding, Growth, GrowthKey, Limits, RankView, Scope};

/// All detectors of one attempt.
#[derive(Debug)]
pub(crate) struct Detectors {
    limits: Limits,
    of_steps: Detector,
    of_turns: BTreeMap<u32, OfTurns>,
    /// Findings of turns that are over.
    findings: VecDeque<Finding>,
}

/// The detector of one rank that counts turns.
#[derive(Debug)]
struct OfTurns {
    detector: Detector,
    /// What it reported and has not closed, by the key that it gave; the key that was passed on.
    open: BTreeMap<GrowthKey, GrowthKey>,
}

impl Detectors {
    pub(super) fn new(limits: Limits) -> Self {
        let of_steps = Detector::new(limits.clone());
        Self { limits, of_steps, of_turns: BTreeMap::new(), findings: VecDeque::new() }
    }

    /// The detector that judges a rank.
    pub(crate) fn of(&self, rank: u32) -> &Detector {
        self.of_turns.get(&rank).map_or(&self.of_steps, |of| &of.detector)
    }

    pub(super) fn of_mut(&mut self, rank: u32) -> &mut Detector {
        self.of_turns.get_mut(&rank).map_or(&mut self.of_steps, |of| &mut of.detector)
    }

    /// What is known of a rank.
    pub(crate) fn state(&self, rank: u32) -> RankView {
        self.of(rank).state(rank)
    }

    /// How long a step takes; a rank's turns have no part in it.
    pub(crate) fn step_time_ns(&self) -> Option<u64> {
        self.of_steps.step_time_ns()
    }

    /// Samples and readings that were not judged.
    pub(crate) fn samples_refused(&self) -> u64 {
        let of_turns = self.of_turns.values().map(|of| of.detector.samples_refused());
        of_turns.fold(self.of_steps.samples_refused(), u64::saturating_add)
    }

    /// How many ranks there will be, when it is known.
    pub(super) fn expect_ranks(&mut self, ranks: u32) {
        self.of_steps.expect_ranks(ranks);
    }

    /// The parallel role of a rank is known.
    pub(super) fn set_role(&mut self, rank: u32, role: u64) {
        self.of_steps.set_role(rank, role);
    }

    /// The process of a rank is over.
    pub(super) fn rank_ended(&mut self, rank: u32) {
        self.of_mut(rank).rank_ended(rank);
    }

    /// The rank counts turns from now on. Nothing happens when it did before.
    pub(super) fn begin_turns(&mut self, rank: u32) {
        let new = || {
            let mut detector = Detector::new(self.limits.clone());
            detector.expect_ranks(1);
            OfTurns { detector, open: BTreeMap::new() }
        };
        self.of_turns.entry(rank).or_insert_with(new);
    }

    /// The rank counts steps from now on: what it grew by in turns is over, and its steps are
    /// compared with those of its peers.
    pub(super) fn end_turns(&mut self, rank: u32) {
        let Some(of) = self.of_turns.remove(&rank) else { return };
        let at_step = of.detector.state(rank).last_step;
        let closed = of.open.into_values().map(|key| Finding::Closed { key, at_step });
        self.findings.extend(closed);
    }

    /// What there is to say next; call until none. `is_alone` says that the attempt has one rank.
    pub(super) fn poll(&mut self, is_alone: bool) -> Option<Finding> {
        let of_steps = self.findings.pop_front().or_else(|| self.of_steps.poll());
        of_steps.or_else(|| self.of_turns.values_mut().find_map(|of| of.poll(is_alone)))
    }
}

impl OfTurns {
    /// The next finding. Its detector takes its rank for the only one; among other ranks what it
    /// finds is about one rank.
    fn poll(&mut self, is_alone: bool) -> Option<Finding> {
        let in_attempt = |growth: Growth, key: GrowthKey| Growth { scope: key.scope, ..growth };
        Some(match self.detector.poll()? {
            Finding::Opened(growth) => {
                let own = growth.key();
                let key = if is_alone { own } else { GrowthKey { scope: Scope::OneRank, ..own } };
                self.open.insert(own, key);
                Finding::Opened(in_attempt(growth, key))
            }
            Finding::Updated(growth) => {
                let key = self.open.get(&growth.key()).copied().unwrap_or(growth.key());
                Finding::Updated(in_attempt(growth, key))
            }
            Finding::Closed { key, at_step } => {
                Finding::Closed { key: self.open.remove(&key).unwrap_or(key), at_step }
            }
        })
    }
}

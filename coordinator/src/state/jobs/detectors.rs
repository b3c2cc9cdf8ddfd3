//! The detectors of one attempt: one for the ranks that count steps, and one for each rank that
//! counts turns.
//!
//! Ranks that train do the same work in the same step, so one detector compares them. Turns of two
//! servers are not the same work: each serves its own requests, or none. So each server is judged
//! by its own past alone, and silence, desynchronization and step time mean nothing among them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memtape_core::detector::{Detector, Finding, Growth, GrowthKey, RankView};

/// All detectors of one attempt.
#[derive(Debug, Default)]
pub(crate) struct Detectors {
    of_steps: Detector,
    of_turns: BTreeMap<u32, OfTurns>,
    /// Ranks whose detectors may have findings to report.
    touched: BTreeSet<u32>,
    /// Findings of turns that are over.
    findings: VecDeque<Finding>,
}

/// The detector of one rank that counts turns.
#[derive(Debug)]
struct OfTurns {
    detector: Detector,
    /// Growths that were reported and not closed.
    open: BTreeSet<GrowthKey>,
}

impl Detectors {
    /// The detector that judges a rank.
    pub(crate) fn of(&self, rank: u32) -> &Detector {
        self.of_turns.get(&rank).map_or(&self.of_steps, |of| &of.detector)
    }

    pub(super) fn of_mut(&mut self, rank: u32) -> &mut Detector {
        match self.of_turns.get_mut(&rank) {
            Some(of) => {
                self.touched.insert(rank);
                &mut of.detector
            }
            None => &mut self.of_steps,
        }
    }

    /// The detector's view of a rank.
    pub(crate) fn state(&self, rank: u32) -> RankView {
        self.of(rank).state(rank)
    }

    /// Growth of a rank as the detector measures it, in bytes a step.
    pub(crate) fn own_rate(&self, rank: u32) -> i64 {
        self.of(rank).own_rate(rank)
    }

    /// The open finding that this key names, with its newest figures.
    pub(crate) fn newest(&self, key: &GrowthKey) -> Option<Growth> {
        self.of(key.rank).newest(key)
    }

    /// Duration of a step; turns are not counted.
    pub(crate) fn step_time_ns(&self) -> Option<u64> {
        self.of_steps.step_time_ns()
    }

    /// Samples and readings that were not judged.
    pub(crate) fn samples_refused(&self) -> u64 {
        let of_turns = self.of_turns.values().map(|of| of.detector.samples_refused());
        of_turns.fold(self.of_steps.samples_refused(), u64::saturating_add)
    }

    /// Sets the expected number of ranks.
    pub(super) fn expect_ranks(&mut self, ranks: u32) {
        self.of_steps.expect_ranks(ranks);
    }

    /// Sets the parallel role of a rank.
    pub(super) fn set_role(&mut self, rank: u32, role: u64) {
        self.of_steps.set_role(rank, role);
    }

    /// Handles the end of a rank's process.
    pub(super) fn rank_ended(&mut self, rank: u32) {
        self.of_mut(rank).rank_ended(rank);
    }

    /// The rank counts turns from now on. Nothing happens when it did before.
    pub(super) fn begin_turns(&mut self, rank: u32) {
        let new = || {
            let mut detector = Detector::default();
            detector.expect_ranks(1);
            OfTurns { detector, open: BTreeSet::new() }
        };
        self.of_turns.entry(rank).or_insert_with(new);
    }

    /// The rank counts steps from now on: closes its growth in turns, and compares its steps with
    /// the steps of its peers.
    pub(super) fn end_turns(&mut self, rank: u32) {
        let Some(of) = self.of_turns.remove(&rank) else { return };
        let newest = of.open.iter().filter_map(|key| of.detector.newest(key));
        let closed = newest.map(Finding::Closed);
        self.findings.extend(closed);
    }

    /// The next finding to report; call until none.
    pub(super) fn poll(&mut self) -> Option<Finding> {
        let of_steps = self.findings.pop_front().or_else(|| self.of_steps.poll());
        of_steps.or_else(|| self.poll_turns())
    }

    fn poll_turns(&mut self) -> Option<Finding> {
        while let Some(rank) = self.touched.first() {
            let finding = self.of_turns.get_mut(rank).and_then(OfTurns::poll);
            if finding.is_some() {
                return finding;
            }
            self.touched.pop_first();
        }
        None
    }
}

impl OfTurns {
    fn poll(&mut self) -> Option<Finding> {
        let finding = self.detector.poll()?;
        match &finding {
            Finding::Opened(growth) => {
                self.open.insert(growth.key());
            }
            Finding::Closed(growth) => {
                self.open.remove(&growth.key());
            }
            Finding::Updated(_) => {}
        }
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::detector::{Sample, Scope};
    use memtape_core::tape::StepRecord;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// The findings of a rank that keeps 4 MiB of each turn.
    fn leak(detectors: &mut Detectors, rank: u32) -> Vec<Finding> {
        let mut findings = Vec::new();
        for turn in 1..=1_000 {
            let floor_allocated = GIB + turn * 4 * MIB;
            let sample = Sample {
                rank,
                device_bytes: 8 * GIB,
                record: StepRecord {
                    first_step: turn,
                    last_step: turn,
                    floor_allocated,
                    peak_allocated: floor_allocated + 100 * MIB,
                    end_allocated: floor_allocated,
                    floor_reserved: 7 * GIB,
                    peak_reserved: 7 * GIB,
                    end_reserved: 7 * GIB,
                    ..StepRecord::default()
                },
                ..Sample::default()
            };
            detectors.of_mut(rank).sample(turn * 100_000_000, &sample);
            findings.extend(std::iter::from_fn(|| detectors.poll()));
        }
        findings
    }

    #[test]
    fn a_rank_that_counts_turns_is_judged_by_its_own_past() {
        let mut detectors = Detectors::default();
        detectors.expect_ranks(8);
        detectors.begin_turns(3);
        let opened = |finding: &Finding| match finding {
            Finding::Opened(growth) => Some(growth.key()),
            Finding::Updated(_) | Finding::Closed(_) => None,
        };
        let found = leak(&mut detectors, 3);
        let keys: Vec<GrowthKey> = found.iter().filter_map(opened).collect();
        let scopes: Vec<Scope> = keys.iter().map(|key| key.scope).collect();
        assert_eq!(scopes, [Scope::OneRank], "{found:?}");
        assert!(detectors.of(3).step_time_ns().is_some() && detectors.step_time_ns().is_none());
        // What grew in turns is over with the first step.
        detectors.end_turns(3);
        let closed = std::iter::from_fn(|| detectors.poll()).map(|finding| match finding {
            Finding::Closed(growth) => growth.key(),
            Finding::Opened(_) | Finding::Updated(_) => panic!("{finding:?}"),
        });
        assert_eq!(closed.collect::<Vec<_>>(), keys);
        assert_eq!(detectors.state(3), RankView::default(), "it is new among its peers");
    }

    #[test]
    fn turns_of_one_rank_do_not_wait_for_another_rank() {
        let mut detectors = Detectors::default();
        detectors.begin_turns(0);
        detectors.begin_turns(1);
        detectors.of_mut(1).sample(
            0,
            &Sample {
                rank: 1,
                record: StepRecord { first_step: 1, ..StepRecord::default() },
                ..Sample::default()
            },
        );
        assert!(!leak(&mut detectors, 0).is_empty());
    }
}

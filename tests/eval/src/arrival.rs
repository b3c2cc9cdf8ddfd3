//! The reports that reach the coordinator, and when.
//!
//! Each node reads its tapes once a second and reports the steps that were finished since. Nodes
//! read at different times; a node that was held up reports everything at once; some samples never
//! come. Readings from outside of the tape come with the same reports.

use crate::job::NODE_RANKS;
use crate::rng::Rng;
use crate::scenario::Scenario;

/// Time between two reports of a node.
const REPORT_NS: u64 = 1_000_000_000;

/// Steps of one rank in one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Global rank.
    pub rank: u32,
    /// First step that is new, from 1.
    pub from: u64,
    /// Last one.
    pub to: u64,
}

/// One report of one node.
#[derive(Clone, Debug)]
pub struct Report {
    /// When it comes.
    pub now_ns: u64,
    /// Ranks and their new steps.
    pub reported: Vec<Reported>,
}

/// All reports of a job in the order in which they come.
pub struct Reports<'a> {
    scenario: &'a Scenario,
    nodes: Vec<Node>,
}

struct Node {
    first_rank: u32,
    due_ns: u64,
    reported: u64,
    /// How far each rank is ahead of or behind the others, as a share of a step.
    lag_ns: Vec<u64>,
    reported_of: Vec<u64>,
    rng: Rng,
}

impl<'a> Reports<'a> {
    /// The reports of a scenario.
    pub fn of(scenario: &'a Scenario) -> Self {
        let nodes = (0..scenario.ranks.div_ceil(NODE_RANKS))
            .map(|node| {
                let mut rng = Rng::new(scenario.seed, 0xa11_0000 + u64::from(node));
                let first_rank = node * NODE_RANKS;
                let ranks = NODE_RANKS.min(scenario.ranks - first_rank) as usize;
                let lag_ns = (0..ranks).map(|_| rng.between(0, scenario.step_ns / 4 + 1)).collect();
                let due_ns = rng.between(0, REPORT_NS);
                Node { first_rank, due_ns, reported: 0, lag_ns, reported_of: vec![0; ranks], rng }
            })
            .collect();
        Self { scenario, nodes }
    }

    /// True when this sample never comes.
    pub fn is_lost(&self, rank: u32, step: u64) -> bool {
        let arrival = &self.scenario.arrival;
        let is_silent = arrival.silent.is_some_and(|(silent, from)| silent == rank && step >= from);
        let draw = crate::rng::mix(self.scenario.seed ^ (u64::from(rank) << 40) ^ step);
        is_silent || draw % 1_000_000 < arrival.loss_ppm
    }
}

impl Iterator for Reports<'_> {
    type Item = Report;

    fn next(&mut self) -> Option<Report> {
        let scenario = self.scenario;
        let waiting = self.nodes.iter_mut().filter(|node| node.reported < scenario.steps);
        let node = waiting.min_by_key(|node| node.due_ns)?;
        let now_ns = node.due_ns;
        let mut reported = Vec::new();
        for (index, known) in node.reported_of.iter_mut().enumerate() {
            let lag_ns = node.lag_ns.get(index).copied().unwrap_or(0);
            let finished = now_ns.saturating_sub(lag_ns) / scenario.step_ns.max(1);
            let to = finished.min(scenario.steps);
            if to > *known {
                reported.push(Reported {
                    rank: node.first_rank + index as u32,
                    from: *known + 1,
                    to,
                });
                *known = to;
            }
        }
        node.reported = node.reported_of.iter().copied().min().unwrap_or(u64::MAX);
        node.due_ns += REPORT_NS;
        // A report a second: sixty chances a minute to be held up.
        if node.rng.between(0, 60_000_000) < scenario.arrival.stall_ppm {
            node.due_ns += node.rng.between(0, scenario.arrival.stall_ns_max + 1);
        }
        Some(Report { now_ns, reported })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::families::families;

    use super::*;

    #[test]
    fn every_step_is_reported_once_and_never_before_it_is_over() {
        let family = families().into_iter().find(|family| family.name == "sample_loss");
        let scenario = family.and_then(|family| family.scenario(2, 16)).expect("there is one");
        let mut reported = BTreeSet::new();
        let mut last_ns = 0;
        for report in Reports::of(&scenario) {
            assert!(report.now_ns >= last_ns, "reports come in order");
            last_ns = report.now_ns;
            for part in report.reported {
                for step in part.from..=part.to {
                    assert!(step * scenario.step_ns <= report.now_ns, "step {step} is not over");
                    assert!(reported.insert((part.rank, step)), "reported twice");
                }
            }
        }
        assert_eq!(reported.len() as u64, scenario.steps * u64::from(scenario.ranks));
    }
}

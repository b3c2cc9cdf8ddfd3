//! Facts for a decision of the policy, gathered from the incident, its job and earlier actions.

use std::collections::BTreeMap;

use memtape_core::action::{Action, ActionKind, Progress};
use memtape_core::diagnosis::RestartAnswer;
use memtape_core::incident::Incident;
use memtape_core::limits::APPROVALS_MAX;
use memtape_core::policy::{Explanation, Facts, Reach};
use memtape_core::tape::mailbox::Offers;

use crate::state::actions::Actions;
use crate::state::actions::calls::living_ranks;
use crate::state::jobs::attempt::Attempt;
use crate::state::jobs::ownership::Proved;
use memtape_disk::clock::Now;

/// Memory that failed within this time makes a restart urgent.
const URGENT_NS: u64 = 300_000_000_000;

/// Time in which an approved restart may begin.
const APPROVED_NS: u64 = 3_600_000_000_000;

/// Incidents whose restart a person has approved, with the time of approval. At most
/// [`APPROVALS_MAX`]; an approval ends with its restart, after an hour, or with the coordinator.
#[derive(Debug, Default)]
pub(super) struct Approved(BTreeMap<String, u64>);

impl Approved {
    /// Notes an approval; the oldest gives way.
    pub(super) fn add(&mut self, now_ns: u64, incident: &str) {
        self.0.retain(|_, at_ns| now_ns.saturating_sub(*at_ns) < APPROVED_NS);
        if self.0.len() >= APPROVALS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, at_ns)| **at_ns).map(|(id, _)| id.clone());
            oldest.map(|oldest| self.0.remove(&oldest));
        }
        self.0.insert(incident.to_string(), now_ns);
    }

    /// Removes an approval, because its restart is decided: the next one needs a new approval.
    pub(super) fn remove(&mut self, incident: &str) {
        self.0.remove(incident);
    }

    fn has(&self, now_ns: u64, incident: &str) -> bool {
        let at_ns = self.0.get(incident);
        at_ns.is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < APPROVED_NS)
    }
}

impl Actions {
    /// A person approves a restart because of an incident.
    pub(crate) fn approve(&mut self, now: Now, incident: &str) {
        self.approved.add(now.mono_ns, incident);
    }

    /// The action that the policy would take about an incident now, and why.
    pub(crate) fn explain(&self, now: Now, incident: &Incident, of: &Proved<'_>) -> Explanation {
        self.policy.explain(now.mono_ns, &self.facts(now, incident, of), &self.actions)
    }

    /// Facts for a decision about an incident of a job that has proved this.
    pub(super) fn facts<'a>(&self, now: Now, incident: &'a Incident, of: &Proved<'a>) -> Facts<'a> {
        let Proved { jobs, own, .. } = of;
        let attempt = jobs.get(incident.serial);
        let rank = attempt.and_then(|attempt| attempt.ranks.get(&incident.growth.rank));
        let diagnosis = incident.diagnosis.as_ref();
        let failed_ns = rank.and_then(|rank| rank.failed_ns);
        Facts {
            job: &incident.job,
            owner: attempt.map(|attempt| &attempt.record.owner),
            node: rank.map_or("", |rank| &rank.record.node),
            is_proved: attempt.is_none_or(|known| of.has(known, incident.growth.rank)),
            is_current: self.left.are_agents_back(now, jobs, incident.serial),
            attempt: incident.attempt,
            serial: incident.serial,
            incident: &incident.id,
            class: incident.class(),
            restart: diagnosis.map_or(RestartAnswer::Unknown, |known| known.restart.answer),
            oom_in_ns: incident.seconds_to_oom.map(|s| s.saturating_mul(1_000_000_000)),
            job_ends_first: incident.job_ends_first(),
            urgent: failed_ns.is_some_and(|at_ns| now.mono_ns.saturating_sub(at_ns) < URGENT_NS),
            objection: incident.objection(),
            ended: jobs.is_over(own, incident.serial),
            observed: self.at_work(&incident.job),
            offers: attempt.map(offers).unwrap_or_default(),
            reach: attempt.map_or(Reach::Unknown, |attempt| self.reach(now, attempt)),
            is_approved: self.approved.has(now.mono_ns, &incident.id),
        }
    }

    /// Action under way on a job, or done without a verdict yet.
    fn at_work(&self, job: &str) -> Option<ActionKind> {
        let is_at_work = |action: &&Action| {
            action.job == job && (action.is_observed() || action.progress() == Progress::UnderWay)
        };
        self.actions.iter().rev().find(is_at_work).map(|action| action.kind)
    }
}

/// Remedies that all living ranks of an attempt offer that its job has proved.
fn offers(attempt: &Attempt) -> Offers {
    let mut offered = living_ranks(attempt).map(|(_, rank)| rank.offered);
    let first = offered.next().unwrap_or_default();
    offered.fold(first, Offers::and)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_approval_is_for_one_restart_and_for_an_hour() {
        let mut approved = Approved::default();
        approved.add(0, "inc-1");
        approved.add(0, "inc-2");
        assert!(approved.has(APPROVED_NS - 1, "inc-1"));
        approved.remove("inc-1");
        assert!(!approved.has(1, "inc-1") && approved.has(1, "inc-2"));
        assert!(!approved.has(APPROVED_NS, "inc-2"));
    }
}

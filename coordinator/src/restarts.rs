//! Restarts: what core's policy decides about open incidents, and what comes of it.
//!
//! Every decision is logged, stored and shown, also the one to do nothing; the same decision is
//! not written down twice in a row. Dry run is the default: what would be done is shown.

use std::sync::atomic::Ordering::Relaxed;

use memtape_core::diagnosis::Class;
use memtape_core::restart::{Decision, Facts};

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::hooks::{Kind, Order};
use crate::incidents::IncidentState;
use crate::model::ActionRecord;
use crate::store::Changes;

/// An open incident is considered again after this time: its end comes nearer.
const CONSIDER_EVERY_NS: u64 = 30_000_000_000;

/// Memory that failed within this time makes a restart urgent.
const URGENT_NS: u64 = 300_000_000_000;

impl Coordinator {
    /// Considers all open incidents whose turn it is.
    pub(crate) fn reconsider_restarts(&mut self, now: Now) {
        let is_due = |incident: &IncidentState| {
            let considered_ns = incident.considered_ns;
            incident.record.is_open()
                && incident.class() != Class::Unknown
                && considered_ns
                    .is_none_or(|at_ns| now.mono_ns.saturating_sub(at_ns) >= CONSIDER_EVERY_NS)
        };
        let due: Vec<String> = self
            .incidents
            .iter()
            .filter(|(_, incident)| is_due(incident))
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            self.consider_restart(now, &id);
        }
    }

    /// Considers one incident.
    pub(crate) fn consider_restart(&mut self, now: Now, id: &str) {
        let Some(incident) = self.incidents.get_mut(id).filter(|known| known.record.is_open())
        else {
            return;
        };
        incident.considered_ns = Some(now.mono_ns);
        let record = &incident.record;
        let attempt = self.cluster.attempts.get(&record.serial);
        let rank = attempt.and_then(|attempt| attempt.ranks.get(&record.rank));
        let failed_ns = rank.and_then(|rank| rank.failed_ns);
        let facts = Facts {
            job: &record.job,
            attempt: record.attempt,
            incident: id,
            class: incident.class(),
            oom_in_ns: record.seconds_to_oom.map(|s| s.saturating_mul(1_000_000_000)),
            urgent: failed_ns.is_some_and(|at_ns| now.mono_ns.saturating_sub(at_ns) < URGENT_NS),
            ended: self.cluster.is_over(record.serial),
        };
        let decision = self.policy.decide(now.mono_ns, &facts);
        let words: String = decision.why.chars().filter(|c| !c.is_ascii_digit()).collect();
        if !decision.act && !decision.dry_run && words == incident.decided {
            return;
        }
        incident.decided = words;
        let order = Order {
            action: String::new(),
            incident: id.to_string(),
            job: record.job.clone(),
            attempt: record.attempt,
            rank: record.rank,
            node: rank.map(|rank| rank.record.node.clone()).unwrap_or_default(),
            class: record.class.clone(),
            sentence: record.sentence.clone(),
            why: decision.why.clone(),
            wall_ns: now.wall_ns,
        };
        tracing::info!(incident = %id, job = ?order.job, "restart policy: {}", decision.why);
        for kind in self.hooks.kinds() {
            self.decided(now, kind, &decision, order.clone());
        }
    }

    fn decided(&mut self, now: Now, kind: Kind, decision: &Decision, mut order: Order) {
        order.action = self.ids.next(now.wall_ns, "act");
        let has_hook = kind != Kind::None;
        let (verdict, outcome, counter) = match (decision.act, decision.dry_run) {
            (true, _) if has_hook => ("restart", "running", &self.counters.actions_taken),
            (true, _) => ("restart", "no hook is configured", &self.counters.actions_failed),
            (_, true) => ("would restart", "not run: dry run", &self.counters.actions_dry_run),
            _ => ("nothing", "", &self.counters.actions_declined),
        };
        counter.fetch_add(1, Relaxed);
        let record = ActionRecord {
            id: order.action.clone(),
            incident_id: order.incident.clone(),
            job: order.job.clone(),
            attempt: order.attempt,
            kind: kind.as_str().to_string(),
            decision: verdict.to_string(),
            dry_run: decision.dry_run,
            why: decision.why.clone(),
            wall_ns: now.wall_ns,
            outcome: outcome.to_string(),
        };
        let mut changes = Changes::default();
        changes.put(&record);
        self.actions.push_back(record);
        if !(decision.act && has_hook) {
            self.write(changes);
            return;
        }
        // Written down first: after a crash in between, nobody asks for a second restart.
        let (hooks, events) = (self.hooks.clone(), self.events.clone());
        let runtime = tokio::runtime::Handle::current();
        let run = move |result: Result<(), String>| {
            if result.is_ok() {
                runtime.spawn(async move { hooks.run(kind, order, events).await });
            }
        };
        self.store.write(changes, Box::new(run));
    }

    /// A hook came to its end.
    pub(crate) fn acted(&mut self, action: &str, outcome: String, is_failure: bool) {
        if is_failure {
            self.counters.actions_failed.fetch_add(1, Relaxed);
            tracing::error!(action, "the restart hook failed: {outcome}");
        } else {
            tracing::info!(action, "the restart hook ran: {outcome}");
        }
        let known = self.actions.iter_mut().rev().find(|record| record.id == action);
        let Some(record) = known else { return };
        record.outcome = outcome;
        let mut changes = Changes::default();
        changes.put(record);
        self.write(changes);
    }
}

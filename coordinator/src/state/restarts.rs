//! Restarts: what core's policy decides about open incidents, and what comes of it.
//!
//! Every decision is logged, stored and shown, also the one to do nothing; the same decision is
//! not written down twice in a row. Dry run is the default: what would be done is shown.

use std::sync::atomic::Ordering::Relaxed;

use memtape_core::capture::Reason;
use memtape_core::diagnosis::Class;
use memtape_core::policy::{Decision, Facts, Mode};

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::records::{ActionRecord, HELD_OUTCOME};
use crate::state::incidents::IncidentState;
use crate::store::Changes;
use crate::work::hooks::{Kind, Order};
use crate::work::tasks::Work;

/// An open incident is considered again after this time: its end comes nearer.
const CONSIDER_EVERY_NS: u64 = 30_000_000_000;

/// Memory that failed within this time makes a restart urgent.
const URGENT_NS: u64 = 300_000_000_000;

/// A capture of this age still shows what a restart would take away.
const FRESH_NS: i64 = 60_000_000_000;

/// A restart that waits for a capture. Bounded by the policy: each is a restart it allowed.
#[derive(Clone, Debug)]
pub(crate) struct HeldRestart {
    serial: u32,
    capture: String,
    kind: Kind,
    order: Order,
}

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
            restart: record.told.restart.answer,
            oom_in_ns: record.seconds_to_oom.map(|s| s.saturating_mul(1_000_000_000)),
            urgent: failed_ns.is_some_and(|at_ns| now.mono_ns.saturating_sub(at_ns) < URGENT_NS),
            ended: self.cluster.is_over(record.serial),
        };
        let decision = self.policy.decide(now.mono_ns, &facts);
        if incident.decided.as_ref().is_some_and(|earlier| decision.repeats(earlier)) {
            return;
        }
        incident.decided = Some(decision.clone());
        let order = Order {
            action: String::new(),
            incident: id.to_string(),
            job: record.job.clone(),
            attempt: record.attempt,
            rank: record.rank,
            node: rank.map(|rank| rank.record.node.clone()).unwrap_or_default(),
            class: record.class.clone(),
            sentence: record.sentence.clone(),
            why: decision.to_string(),
            wall_ns: now.wall_ns,
        };
        tracing::info!(incident = %id, job = ?order.job, "restart policy: {decision}");
        let serial = record.serial;
        let acts = matches!(decision, Decision::Restart(_));
        let picture = acts.then(|| self.last_picture(now, id, serial)).flatten();
        for kind in self.hooks.kinds() {
            self.decided(now, kind, &decision, order.clone(), picture.as_deref());
        }
    }

    /// A restart takes the evidence with it: the capture to wait for, none when there is a fresh
    /// one or none can be had.
    fn last_picture(&mut self, now: Now, incident: &str, serial: u32) -> Option<String> {
        let known = self.incidents.get(incident)?.record.capture_id.as_ref();
        let closed_wall_ns = known.and_then(|id| self.captures.get(id)?.record.closed_wall_ns);
        if closed_wall_ns.is_some_and(|at_ns| now.wall_ns.saturating_sub(at_ns) < FRESH_NS) {
            return None;
        }
        let asked = self.request_capture(now, serial, Reason::Restart, None);
        asked.inspect_err(|why| tracing::warn!("no capture before the restart: {why}")).ok()
    }

    fn decided(
        &mut self,
        now: Now,
        kind: Kind,
        decision: &Decision,
        mut order: Order,
        picture: Option<&str>,
    ) {
        order.action = self.ids.next(now.wall_ns, "act");
        let has_hook = kind != Kind::None;
        let running = picture
            .map_or_else(|| "running".to_string(), |capture| format!("{HELD_OUTCOME}{capture}"));
        let (verdict, outcome, counter) = match decision {
            Decision::Restart(_) if has_hook => {
                ("restart", running.as_str(), &self.counters.actions_taken)
            }
            Decision::Restart(_) => {
                ("restart", "no hook is configured", &self.counters.actions_failed)
            }
            Decision::WouldRestart(_) => {
                ("would restart", "not run: dry run", &self.counters.actions_dry_run)
            }
            Decision::Nothing(_) => ("nothing", "", &self.counters.actions_declined),
        };
        counter.fetch_add(1, Relaxed);
        let record = ActionRecord {
            id: order.action.clone(),
            incident_id: order.incident.clone(),
            job: order.job.clone(),
            attempt: order.attempt,
            kind: kind.as_str().to_string(),
            decision: verdict.to_string(),
            dry_run: self.policy.settings().mode == Mode::DryRun,
            why: decision.to_string(),
            wall_ns: now.wall_ns,
            outcome: outcome.to_string(),
        };
        let mut changes = Changes::default();
        changes.put(&record);
        self.actions.push_back(record);
        if !(matches!(decision, Decision::Restart(_)) && has_hook) {
            self.write(changes);
            return;
        }
        if let Some(capture) = picture {
            self.write(changes);
            let serial = self.incidents.get(&order.incident).map_or(0, |known| known.record.serial);
            self.held.push(HeldRestart { serial, capture: capture.to_string(), kind, order });
            return;
        }
        self.run_restart(changes, kind, order);
    }

    /// The capture that restarts waited for is closed, or gone.
    pub(crate) fn run_restarts_after(&mut self, capture: &str) {
        let due: Vec<HeldRestart> =
            self.held.extract_if(.., |held| held.capture == capture).collect();
        for HeldRestart { serial, kind, order, .. } in due {
            // The launcher may have been quicker, or the growth may have ended.
            let incident = self.incidents.get(&order.incident);
            let is_open = incident.is_some_and(|incident| incident.record.is_open());
            let is_due = is_open && !self.cluster.is_over(serial);
            let mut changes = Changes::default();
            let mut actions = self.actions.iter_mut().rev();
            if let Some(record) = actions.find(|record| record.id == order.action) {
                let outcome = if is_due { "running" } else { "not run: its reason is gone" };
                record.outcome = outcome.to_string();
                changes.put(record);
            }
            if is_due {
                self.run_restart(changes, kind, order);
            } else {
                self.write(changes);
            }
        }
    }

    /// Written down first: after a crash in between, nobody asks for a second restart.
    fn run_restart(&self, changes: Changes, kind: Kind, order: Order) {
        let works = self.works.clone();
        let run = move |result: Result<(), String>| {
            if result.is_ok() {
                // Nobody works any more when the coordinator stops.
                let _ = works.send(Work::Restart(kind, order));
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

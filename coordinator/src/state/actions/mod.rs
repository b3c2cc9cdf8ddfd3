//! Actions: the policy's decisions about restarts, and what became of them.
//!
//! Every decision is logged, stored and shown, also the one to do nothing. The same decision is not
//! written down twice in a row. Dry run is the default: what would be done is shown. A restart is
//! stored before its target is asked, and observed from then on (`observing.rs`); a coordinator
//! that was killed meanwhile observes, and does not ask again. The targets are in `restart/`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memtape_core::capture::{Reason, Refusal};
use memtape_core::diagnosis::RestartAnswer;
use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::ACTIONS_MAX;
use memtape_core::policy::budgets::{Progress, Restart};
use memtape_core::policy::{Decision, Facts, Mode, Objection, Outcome, Policy, Settings};
use memtape_proto::api::ActionKind;

use crate::clock::Now;
use crate::records::{ActionRecord, Cause};
use crate::restart::target::{Order, Target};
use crate::state::captures::Captures;
use crate::state::counters::Count;
use crate::state::effects::{After, Asker, Context, Effect, Proposal, Work};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Attempt;
use crate::store::clock::StoreClock;
use crate::store::{Changes, Store};

mod observing;
mod remedies;

/// Memory that failed within this time makes a restart urgent.
const URGENT_NS: u64 = 300_000_000_000;

/// A capture of this age still shows what a restart would take away.
const FRESH_NS: i64 = 60_000_000_000;

/// Time for which a budget that is spent is one entry of the audit.
const SPENT_AUDITED_NS: u64 = 600_000_000_000;

/// All actions, oldest first, and the policy that decides on them.
#[derive(Debug)]
pub(crate) struct Actions {
    ids: Ids,
    policy: Policy,
    targets: Vec<Arc<dyn Target>>,
    actions: VecDeque<ActionRecord>,
    held: Vec<HeldRestart>,
    /// Measures the times of observations: it runs while a coordinator does.
    clock: StoreClock,
    /// When it was audited last that the budget of a scope is spent.
    spent_audited_ns: BTreeMap<&'static str, u64>,
}

/// A restart that waits for a capture. Bounded by the policy: each is a restart it allowed.
#[derive(Clone, Debug)]
struct HeldRestart {
    serial: u32,
    capture: String,
    target: Arc<dyn Target>,
    order: Box<Order>,
}

impl Actions {
    /// Takes up the actions that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        settings: Settings,
        targets: Vec<Arc<dyn Target>>,
        mut records: Vec<ActionRecord>,
        store: &Store,
    ) -> Self {
        let mut ids = Ids::default();
        for action in &mut records {
            ids.seen(&action.id);
            if let Some(outcome) = after_a_kill(&action.outcome) {
                action.outcome = outcome;
                action.forget_if_not_asked();
                store.write(Changes::of(action), Box::new(|_| {}));
            }
        }
        let mut policy = Policy::new(settings);
        for (action, progress) in restarts(&records) {
            // What was only shown spends nothing of what is really done.
            if action.dry_run && policy.settings().mode == Mode::Act {
                continue;
            }
            let restart = Restart {
                job: &action.job,
                owner: action.owner.as_ref(),
                node: &action.node,
                attempt: action.attempt,
                is_dry_run: action.dry_run,
            };
            // The monotonic clock starts at the wall clock's reading.
            let at_ns = u64::try_from(action.wall_ns).unwrap_or(0);
            policy.restore(now.mono_ns, at_ns, &restart, progress);
        }
        let (actions, held, clock) = (records.into(), Vec::new(), store.clock());
        let spent_audited_ns = BTreeMap::new();
        let mut restored = Self { ids, policy, targets, actions, held, clock, spent_audited_ns };
        let proofs = restored.actions.iter().filter_map(ActionRecord::proof);
        proofs.for_each(|proof| restored.policy.prove(&proof));
        restored
    }

    /// All actions, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &ActionRecord> {
        self.actions.iter()
    }

    /// Considers a restart for one incident.
    pub(crate) fn consider(
        &mut self,
        context: &mut Context,
        id: &str,
        incidents: &mut Incidents,
        jobs: &Jobs,
        captures: &Captures,
    ) {
        let incident = incidents.get(id).map(Tracked::incident);
        let Some(incident) = incident.filter(|incident| incident.is_open()) else { return };
        let proposal = self.propose(context.now, incident, jobs);
        let decision = &proposal.decision;
        let closed_wall_ns =
            (incident.capture_id.as_ref()).and_then(|id| captures.get(id)?.record.closed_wall_ns);
        let is_fresh = closed_wall_ns
            .is_some_and(|at_ns| context.now.wall_ns.saturating_sub(at_ns) < FRESH_NS);
        if !incidents.is_news(id, decision) {
            return;
        }
        tracing::info!(incident = %id, job = ?proposal.order.job, "restart policy: {decision}");
        if matches!(decision, Decision::Restart(_)) && !is_fresh {
            // A restart takes the evidence with it.
            let (serial, asker) = (proposal.serial, Asker::Restart(Box::new(proposal)));
            let reason = Reason::Restart;
            context.push(Effect::RequestCapture { serial, reason, step: None, asker });
        } else {
            self.decide(context, &proposal, None);
        }
    }

    fn propose(&mut self, now: Now, incident: &Incident, jobs: &Jobs) -> Proposal {
        let attempt = jobs.get(incident.serial);
        let number = incident.growth.rank;
        let rank = attempt.and_then(|attempt| attempt.ranks.get(&number));
        let diagnosis = incident.diagnosis.as_ref();
        let failed_ns = rank.and_then(|rank| rank.failed_ns);
        let owner = attempt.and_then(|attempt| attempt.record.owner.clone());
        let facts = Facts {
            job: &incident.job,
            owner: owner.as_ref(),
            node: rank.map_or("", |rank| &rank.record.node),
            is_agreed: attempt.is_none_or(Attempt::agents_agree),
            attempt: incident.attempt,
            serial: incident.serial,
            incident: &incident.id,
            class: incident.class(),
            restart: diagnosis.map_or(RestartAnswer::Unknown, |known| known.restart.answer),
            oom_in_ns: incident.seconds_to_oom.map(|s| s.saturating_mul(1_000_000_000)),
            urgent: failed_ns.is_some_and(|at_ns| now.mono_ns.saturating_sub(at_ns) < URGENT_NS),
            ended: jobs.is_over(incident.serial),
            is_observed: self.actions.iter().any(|of| of.job == incident.job && of.is_observed()),
        };
        let decision = self.policy.decide(now.mono_ns, &facts);
        let workload = rank.map(|rank| rank.record.workload.clone()).unwrap_or_default();
        let order = Order {
            action: String::new(),
            incident: incident.id.clone(),
            job: incident.job.clone(),
            attempt: incident.attempt,
            rank: number,
            node: rank.map(|rank| rank.record.node.clone()).unwrap_or_default(),
            owner_uid: owner.as_ref().map(|owner| owner.uid),
            namespace: owner.as_ref().map(|owner| owner.namespace.clone()).unwrap_or_default(),
            owner,
            slurm_job: workload.slurm_job,
            pod: workload.pod,
            pod_uid: workload.pod_uid,
            class: incident.class().as_str().to_string(),
            sentence: incident.sentence(),
            why: decision.to_string(),
            wall_ns: now.wall_ns,
        };
        let observation = observing::begin(incident, attempt);
        Proposal { serial: incident.serial, decision, order, observation }
    }

    /// The answer to the request for a capture before a restart; without one it runs at once.
    pub(crate) fn capture_answered(
        &mut self,
        context: &mut Context,
        proposal: &Proposal,
        answer: Result<String, Refusal>,
    ) {
        let capture =
            answer.inspect_err(|why| tracing::warn!("no capture before the restart: {why}")).ok();
        self.decide(context, proposal, capture.as_deref());
    }

    /// Writes a decision down, for each target, and follows it.
    fn decide(
        &mut self,
        context: &mut Context,
        Proposal { serial, decision, order, observation }: &Proposal,
        capture: Option<&str>,
    ) {
        let mut targets: Vec<_> = self.targets.iter().cloned().map(Some).collect();
        if targets.is_empty() {
            targets.push(None);
        }
        for target in targets {
            let action = self.ids.next(context.now.wall_ns, Kind::Action);
            let order = Box::new(Order { action, ..order.clone() });
            let (outcome, count) = match (decision, capture) {
                (Decision::Restart(_), _) if target.is_none() => {
                    (Outcome::NoTarget, Count::ActionsFailed)
                }
                (Decision::Restart(_), Some(capture)) => {
                    (Outcome::Waiting { capture: capture.to_string() }, Count::ActionsTaken)
                }
                (Decision::Restart(_), None) => (Outcome::Running, Count::ActionsTaken),
                (Decision::WouldRestart(_), _) => (Outcome::DryRun, Count::ActionsDryRun),
                (Decision::Nothing(_), _) => (Outcome::Nothing, Count::ActionsDeclined),
            };
            context.count(count);
            let record = ActionRecord {
                id: order.action.clone(),
                incident_id: order.incident.clone(),
                job: order.job.clone(),
                owner: order.owner.clone(),
                node: order.node.clone(),
                attempt: order.attempt,
                kind: target.as_ref().map_or(ActionKind::None, |target| target.kind()).into(),
                decision: decision.as_str().to_string(),
                dry_run: self.policy.settings().mode == Mode::DryRun,
                why: decision.to_string(),
                wall_ns: context.now.wall_ns,
                observation: self.observed(context.now, &outcome, observation),
                verdict: None,
                outcome,
            };
            let changes = Changes::of(&record);
            self.actions.push_back(record);
            let to_run = target.filter(|_| matches!(decision, Decision::Restart(_)));
            let after = match (to_run, capture) {
                (None, _) => After::Nothing,
                (Some(target), None) => After::Start(Work::Restart { target, order }),
                (Some(target), Some(capture)) => {
                    let capture = capture.to_string();
                    self.held.push(HeldRestart { serial: *serial, capture, target, order });
                    After::Nothing
                }
            };
            context.write_then(changes, after);
        }
        self.audit(context, decision, order);
        // A restart without a target is over already.
        if matches!(decision, Decision::Restart(_)) {
            self.settle(&order.incident, context.now.wall_ns);
        }
    }

    /// Has a decision audited: what a dry run shows, and that a budget is spent. A restart is
    /// audited where its target is asked. Users can make the policy decline often, so that a spent
    /// budget is one entry in ten minutes.
    fn audit(&mut self, context: &mut Context, decision: &Decision, order: &Order) {
        let action = match decision {
            Decision::WouldRestart(_) => "restart (dry run)",
            Decision::Nothing(
                Objection::BudgetSpent { scope, .. } | Objection::TriesSpent { scope, .. },
            ) => {
                let now_ns = context.now.mono_ns;
                let audited_ns = self.spent_audited_ns.get(scope.as_str()).copied();
                if audited_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < SPENT_AUDITED_NS) {
                    return;
                }
                self.spent_audited_ns.insert(scope.as_str(), now_ns);
                "no restart: budget spent"
            }
            Decision::Restart(_) | Decision::Nothing(_) => return,
        };
        let subject = format!("{} {}: {}", order.job, order.incident, decision);
        context.push(Effect::Audit { action, subject, cause: Cause::User });
    }

    /// The capture that restarts waited for is closed, or deleted.
    pub(crate) fn capture_closed(
        &mut self,
        context: &mut Context,
        capture: &str,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let due: Vec<HeldRestart> =
            self.held.extract_if(.., |held| held.capture == capture).collect();
        for HeldRestart { serial, target, order, .. } in due {
            // The launcher may have been quicker, or the growth may have ended.
            let incident = incidents.get(&order.incident);
            let is_open = incident.is_some_and(|known| known.incident().is_open());
            let is_due = is_open && !jobs.is_over(serial);
            let outcome = if is_due { Outcome::Running } else { Outcome::Overtaken };
            let changes = self.note(context.now, &order.action, outcome);
            let work = Work::Restart { target, order };
            context.write_then(changes, if is_due { After::Start(work) } else { After::Nothing });
        }
    }

    /// A target came to its end.
    pub(crate) fn restarted(&mut self, context: &mut Context, action: &str, outcome: Outcome) {
        if matches!(outcome, Outcome::Failed { .. } | Outcome::Refused { .. }) {
            context.count(Count::ActionsFailed);
            tracing::error!(action, "the restart target failed: {outcome}");
        } else {
            tracing::info!(action, "the restart target ran: {outcome}");
        }
        let changes = self.note(context.now, action, outcome);
        context.write(changes);
    }

    /// Notes what became of an action; the change to be written.
    fn note(&mut self, now: Now, action: &str, outcome: Outcome) -> Changes {
        let asked_ns = observing::asked_ns(self.clock, now);
        let known = self.actions.iter_mut().rev().find(|record| record.id == action);
        let Some(record) = known else { return Changes::default() };
        if let (Outcome::Running, Some(observation)) = (&outcome, &mut record.observation) {
            observation.asked_ns = Some(asked_ns);
        }
        record.outcome = outcome;
        record.forget_if_not_asked();
        let changes = Changes::of(record);
        let (incident, wall_ns) = (record.incident_id.clone(), record.wall_ns);
        self.settle(&incident, wall_ns);
        changes
    }

    /// Reports to the policy what has become of the restart that an incident was given at this
    /// time, when all its targets are done.
    fn settle(&mut self, incident: &str, wall_ns: i64) {
        let of_restart = self
            .actions
            .iter()
            .rev()
            .filter(|record| record.incident_id == incident && record.wall_ns == wall_ns);
        let ended = of_restart.max_by_key(|record| record.outcome.progress());
        let ended = ended.map(|record| (&record.job, record.outcome.progress()));
        if let Some((job, progress)) = ended.filter(|(_, it)| *it != Progress::UnderWay) {
            self.policy.settle(job, progress);
        }
    }

    /// Deletes the oldest actions when there are too many, and of these none that budgets count.
    pub(crate) fn make_room(&mut self, context: &mut Context) {
        let mut changes = Changes::default();
        let remembered_ns = i64::try_from(self.policy.remembered_ns()).unwrap_or(i64::MAX);
        let since_ns = context.now.wall_ns.saturating_sub(remembered_ns);
        let is_counted = |record: &ActionRecord| record.is_counted() && record.wall_ns >= since_ns;
        while self.actions.len() > ACTIONS_MAX {
            let oldest = self.actions.iter().position(|record| !is_counted(record)).unwrap_or(0);
            if let Some(oldest) = self.actions.remove(oldest) {
                changes.delete(&oldest);
            }
        }
        context.write(changes);
    }
}

/// What is said of an action whose coordinator was killed before it came to its end.
fn after_a_kill(outcome: &Outcome) -> Option<Outcome> {
    match outcome {
        // The order is gone; the policy decides again.
        Outcome::Waiting { .. } => Some(Outcome::Lost),
        Outcome::Running => Some(Outcome::Failed {
            why:
                "the coordinator was restarted meanwhile: whether the job was restarted, its next \
                  attempt shows"
                    .to_string(),
        }),
        Outcome::Nothing
        | Outcome::DryRun
        | Outcome::NoTarget
        | Outcome::Lost
        | Outcome::Overtaken
        | Outcome::Finished { .. }
        | Outcome::Refused { .. }
        | Outcome::Failed { .. } => None,
    }
}

/// The restarts among actions, oldest first, each by the first of its targets, and what became of
/// it.
fn restarts(records: &[ActionRecord]) -> Vec<(&ActionRecord, Progress)> {
    // A decision has an action for each target, but is one restart.
    let mut found: Vec<(&ActionRecord, Progress)> = Vec::new();
    let mut known = BTreeMap::new();
    for record in records.iter().filter(|record| record.is_counted()) {
        let index = *known.entry((&record.incident_id, record.wall_ns)).or_insert(found.len());
        let progress = record.outcome.progress();
        match found.get_mut(index) {
            Some((_, greatest)) => *greatest = progress.max(*greatest),
            None => found.push((record, progress)),
        }
    }
    found
}

#[cfg(test)]
mod tests;

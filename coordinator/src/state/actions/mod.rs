//! Actions: the policy's decisions about jobs whose memory grows and about nodes whose GPU memory
//! was not given back, and what became of them.
//!
//! Every decision is logged, stored and shown, also the one to do nothing. The same decision is not
//! written down twice in a row. Dry run is the default: what would be done is shown. Core decides
//! the states of an action ([`memtape_core::action::Action`]): each change is stored before its
//! effects begin. Facts for decisions are gathered in `facts.rs`, nodes are watched in `nodes.rs`,
//! ranks are called in `calls.rs`, jobs observed in `observing.rs`, decisions audited in
//! `auditing.rs`, and actions of an earlier process are taken up in `taking_up.rs`. The targets are
//! in `restart/`.

use std::collections::BTreeMap;
use std::sync::Arc;

use memtape_core::action::remedy::Signal;
use memtape_core::action::{Action, ActionKind, Event, Next, Outcome, Progress, TargetKind};
use memtape_core::capture::Reason;
use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::identity::owner::{Owner, OwnerKey};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::ACTIONS_MAX;
use memtape_core::policy::{Decision, Mode, Objection, Settings};
use memtape_core::rates::Rates;
use memtape_core::sharing::Shares;

use crate::quota::declined_decisions;
use crate::restart::RestartConfig;
use crate::restart::proving::Prover;
use crate::restart::target::{Order, Target};
use crate::state::actions::calls::RankCall;
use crate::state::captures::Captures;
use crate::state::counters::Count;
use crate::state::effects::{After, Context, Effect, Work};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Attempt;
use memtape_disk::clock::Now;
use memtape_store::StoreClock;
use memtape_store::{Changes, Store};

mod auditing;
mod calls;
mod facts;
mod nodes;
mod observing;
mod taking_up;

pub(crate) use observing::{ended, of_row};

/// A capture of this age still shows what a restart would take away.
const FRESH_NS: i64 = 60_000_000_000;

/// All actions, oldest first, and the policy that decides on them.
#[derive(Debug)]
pub(crate) struct Actions {
    ids: Ids,
    policy: Settings,
    /// Targets that restart jobs, and targets that keep nodes out.
    targets: Vec<Arc<dyn Target>>,
    node_targets: Vec<Arc<dyn Target>>,
    signal: Option<Signal>,
    report_interval_ns: u64,
    actions: Vec<Action>,
    /// Effects that begin when the last change of an action is stored, by the action's id.
    next: BTreeMap<String, Next>,
    calls: Vec<RankCall>,
    /// Restarts that a person has approved, by incident.
    approved: facts::Approved,
    nodes: nodes::Nodes,
    /// Actions that an earlier process left under way.
    left: taking_up::Left,
    /// Measures the times of observations: it runs while a coordinator does.
    clock: StoreClock,
    /// Rate of audited decisions to do nothing, by owner.
    declined: Rates,
}

impl Actions {
    /// Takes up the actions that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        config: &RestartConfig,
        report_interval_ns: u64,
        (mut actions, mut ids): (Vec<Action>, Ids),
        store: &Store,
    ) -> Self {
        let clock = store.clock();
        for action in &mut actions {
            ids.seen(&action.id);
            // The monotonic clock starts at the wall clock's reading.
            action.at_ns = u64::try_from(action.wall_ns).unwrap_or(0).min(now.mono_ns);
        }
        let left = taking_up::Left::new(now, clock, &mut actions, store);
        Self {
            ids,
            policy: config.policy.clone(),
            targets: config.targets(),
            node_targets: config.node_targets(),
            signal: config.signal,
            report_interval_ns,
            actions,
            next: BTreeMap::new(),
            calls: Vec::new(),
            approved: facts::Approved::default(),
            nodes: nodes::Nodes::default(),
            left,
            clock,
            declined: declined_decisions(),
        }
    }

    /// All actions, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Action> {
        self.actions.iter()
    }

    fn get(&self, id: &str) -> Option<&Action> {
        self.actions.iter().rev().find(|action| action.id == id)
    }

    /// Considers what to do about one incident.
    pub(crate) fn consider(
        &mut self,
        context: &mut Context,
        id: &str,
        incidents: &mut Incidents,
        jobs: &mut Jobs,
        captures: &mut Captures,
    ) {
        let (now, incident) = (context.now, incidents.get(id).map(Tracked::incident));
        let Some(incident) = incident.filter(|incident| incident.is_open()) else { return };
        let facts = self.facts(now, incident, &jobs.proved(&incident.job));
        let decision = self.policy.decide(now.mono_ns, &facts, &self.actions);
        if decision == Decision::Nothing(Objection::NotBack) {
            return incidents.consider_again(id);
        }
        let (serial, capture_id) = (incident.serial, incident.capture_id.clone());
        let action = self.decided(now, incident, &decision, jobs.get(serial));
        if !incidents.is_news(id, &decision) {
            return;
        }
        tracing::info!(incident = %id, job = ?action.job, "policy: {decision}");
        let is_restart = matches!(decision, Decision::Act(ActionKind::Restart, _));
        let closed_ns = capture_id.and_then(|id| captures.get(&id)?.record.closed_wall_ns);
        let is_fresh = closed_ns.is_some_and(|at_ns| now.wall_ns.saturating_sub(at_ns) < FRESH_NS);
        let capture = match is_restart && !is_fresh {
            // A restart takes the evidence with it.
            true => request_capture(context, serial, &action.node, jobs, captures),
            false => None,
        };
        if is_restart {
            self.approved.remove(id);
        }
        self.audit(context, &action, &decision);
        let ended = match decision {
            Decision::Act(..) => None,
            Decision::WouldAct(..) => Some(Outcome::DryRun),
            Decision::Nothing(_) => Some(Outcome::Nothing),
        };
        let step = self.step_for(jobs, serial, action.kind);
        self.follow(context, &action, ended, capture, step);
    }

    /// The action that a decision about an incident asks for, without a name and a target.
    fn decided(
        &self,
        now: Now,
        incident: &Incident,
        decision: &Decision,
        attempt: Option<&Attempt>,
    ) -> Action {
        let rank = attempt.and_then(|attempt| attempt.ranks.get(&incident.growth.rank));
        let mode = self.policy.rule(&incident.job, incident.class()).mode;
        Action {
            kind: decision.kind().unwrap_or_default(),
            incident_id: incident.id.clone(),
            job: incident.job.clone(),
            owner: attempt.map(|attempt| attempt.record.owner.clone()),
            node: rank.map(|rank| rank.record.node.clone()).unwrap_or_default(),
            attempt: incident.attempt,
            dry_run: mode == Mode::DryRun,
            why: decision.to_string(),
            wall_ns: now.wall_ns,
            at_ns: now.mono_ns,
            observation: Some(observing::begin(incident, attempt)),
            ..Action::default()
        }
    }

    /// Stores a decision for each of its targets, and begins it unless it has `ended`. A restart
    /// waits for the capture; the ranks act at the step.
    fn follow(
        &mut self,
        context: &mut Context,
        decided: &Action,
        ended: Option<Outcome>,
        capture: Option<String>,
        step: Option<u64>,
    ) {
        let now_ns = observing::now_ns(self.clock, context.now);
        for target in self.targets_of(decided.kind, ended.as_ref()) {
            let id = self.ids.next(context.now.wall_ns, Kind::Action);
            let mut action = Action { id: id.clone(), target, ..decided.clone() };
            let next = match (&ended, target) {
                (Some(outcome), _) => action.end(outcome.clone()),
                (None, TargetKind::None) => action.end(Outcome::NoTarget),
                (None, _) => action.begin(now_ns, capture.clone(), step),
            };
            context.count(match action.outcome {
                Outcome::NoTarget => Count::ActionsFailed,
                Outcome::DryRun => Count::ActionsDryRun,
                Outcome::Nothing => Count::ActionsDeclined,
                _ => Count::ActionsTaken,
            });
            let changes = Changes::of(&action);
            self.actions.push(action);
            self.when_stored(context, changes, id, next);
        }
    }

    /// Kinds of the targets that carry out an action of this kind, or would.
    fn targets_of(&self, kind: ActionKind, ended: Option<&Outcome>) -> Vec<TargetKind> {
        let kinds = |of: &[Arc<dyn Target>]| of.iter().map(|it| it.kind()).collect::<Vec<_>>();
        let mut targets = match kind {
            _ if ended == Some(&Outcome::Nothing) => Vec::new(),
            ActionKind::Gc | ActionKind::EmptyCache => vec![TargetKind::Ranks],
            ActionKind::Restart => kinds(&self.targets),
            ActionKind::KeepOut => kinds(&self.node_targets),
        };
        if kind == ActionKind::Restart && ended != Some(&Outcome::Nothing) {
            targets.extend(self.signal.map(|_| TargetKind::Signal));
        }
        if targets.is_empty() { vec![TargetKind::None] } else { targets }
    }

    /// Target of an action; none for an action that the ranks carry out, or where the target is not
    /// configured.
    fn target(&self, action: &Action) -> Option<Arc<dyn Target>> {
        let targets = match action.kind {
            ActionKind::KeepOut => &self.node_targets,
            ActionKind::Gc | ActionKind::EmptyCache | ActionKind::Restart => &self.targets,
        };
        targets.iter().find(|target| target.kind() == action.target).cloned()
    }

    /// Stores a change of an action; what follows is done when it is stored.
    fn when_stored(&mut self, context: &mut Context, changes: Changes, action: String, next: Next) {
        let after = match next {
            Next::Nothing => {
                self.next.remove(&action);
                After::Nothing
            }
            Next::CallRanks { .. } | Next::AskTarget => {
                self.next.insert(action.clone(), next);
                After::TellAction { action }
            }
        };
        context.write_then(changes, after);
    }

    /// Handles that the last change of an action is stored: its effects may begin.
    pub(crate) fn stored(
        &mut self,
        context: &mut Context,
        id: &str,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let (Some(next), Some(action)) = (self.next.remove(id), self.get(id)) else { return };
        let is_by_signal = action.target == TargetKind::Signal;
        match (next, self.target(action)) {
            (Next::AskTarget, Some(target)) => {
                let order = Box::new(order(action, incidents, jobs));
                context.push(Effect::Start(Work::Act { kind: action.kind, target, order }));
            }
            (Next::AskTarget, None) if !is_by_signal => {
                self.advance(context, id, Event::Abandoned);
            }
            (Next::AskTarget | Next::CallRanks { .. } | Next::Nothing, _) => {
                self.call_ranks(context, id, next, jobs);
            }
        }
    }

    /// Handles that a capture is closed, or deleted: restarts that waited for it go on.
    pub(crate) fn capture_closed(
        &mut self,
        context: &mut Context,
        capture: &str,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let waiting = Outcome::Waiting { capture: capture.to_string() };
        let waits = |action: &&Action| action.outcome == waiting && !self.left.waits(&action.id);
        let due: Vec<Action> = self.actions.iter().filter(waits).cloned().collect();
        for action in due {
            // The launcher may have been quicker, or the growth may have ended.
            let event = match is_due(&action, incidents, jobs) {
                Some(serial) => {
                    Event::CaptureClosed { step: self.step_for(jobs, serial, action.kind) }
                }
                None => Event::Overtaken,
            };
            self.advance(context, &action.id, event);
        }
    }

    /// A target came to its end.
    pub(crate) fn acted(&mut self, context: &mut Context, action: &str, outcome: Outcome) {
        self.advance(context, action, Event::Answered(outcome));
    }

    /// Handles an event of an action: stores the new state, and begins the effects when it is
    /// stored.
    fn advance(&mut self, context: &mut Context, id: &str, event: Event) {
        let now_ns = observing::now_ns(self.clock, context.now);
        let Some(action) = self.actions.iter_mut().rev().find(|action| action.id == id) else {
            return;
        };
        let before = action.clone();
        let next = action.handle(now_ns, event);
        if next == Next::Nothing && *action == before {
            return;
        }
        let outcome = &action.outcome;
        if matches!(outcome, Outcome::Failed { .. } | Outcome::Refused { .. }) {
            context.count(Count::ActionsFailed);
            tracing::error!(action = id, "the action failed: {outcome}");
        } else {
            tracing::info!(action = id, "action: {outcome}");
        }
        let changes = Changes::of(&*action);
        self.when_stored(context, changes, id.to_string(), next);
    }

    /// Deletes actions when there are too many: the oldest of the holder that has most, and of
    /// these none that budgets count.
    pub(crate) fn make_room(&mut self, context: &mut Context) {
        let mut changes = Changes::default();
        let remembered_ns = self.policy.budgets.remembered_ns();
        let since_ns = context.now.mono_ns.saturating_sub(remembered_ns);
        let is_counted =
            |action: &Action| action.progress() != Progress::Dropped && action.at_ns >= since_ns;
        while self.actions.len() > ACTIONS_MAX {
            let oldest = surplus(&self.actions, is_counted);
            changes.delete(&self.actions.remove(oldest));
        }
        context.write(changes);
    }
}

/// Holder of an action, where bounds are shared.
pub(crate) fn holder(of: &Action) -> (&str, Option<OwnerKey<'_>>) {
    (&of.node, of.owner.as_ref().map(Owner::key))
}

/// Index of the action that is deleted first: of those that no budget counts, the oldest of the
/// holder that has most.
fn surplus(actions: &[Action], is_counted: impl Fn(&Action) -> bool) -> usize {
    let uncounted = || actions.iter().enumerate().filter(|(_, of)| !is_counted(of));
    let mut shares = Shares::default();
    uncounted().for_each(|(_, of)| shares.add(holder(of), 1));
    let most = shares.most();
    let oldest = uncounted().find(|(_, of)| Some(holder(of)) == most);
    oldest.map_or(0, |(at, _)| at)
}

/// Requests a capture of the job before its restart; without one it is restarted at once.
fn request_capture(
    context: &mut Context,
    serial: u32,
    node: &str,
    jobs: &mut Jobs,
    captures: &mut Captures,
) -> Option<String> {
    match captures.request(context, serial, Reason::Restart, None, jobs) {
        Ok(capture) => {
            context.audit("capture", capture.clone(), Some(node));
            Some(capture)
        }
        Err(why) => {
            tracing::warn!("no capture before the restart: {why}");
            None
        }
    }
}

/// The attempt of an action, while there is still a reason for the action.
fn is_due(action: &Action, incidents: &Incidents, jobs: &Jobs) -> Option<u32> {
    let serial = action.observation.as_ref()?.serial;
    let incident = incidents.get(&action.incident_id)?.incident();
    let is_over = || jobs.is_over(&jobs.own(&incident.job), serial);
    (incident.is_open() && !is_over()).then_some(serial)
}

/// The order that a target receives.
fn order(action: &Action, incidents: &Incidents, jobs: &Jobs) -> Order {
    let incident = incidents.get(&action.incident_id).map(Tracked::incident);
    let observation = action.observation.as_ref();
    let number = observation.map_or(0, |observation| observation.rank);
    let attempt = observation.and_then(|observation| jobs.get(observation.serial));
    let rank = attempt.and_then(|attempt| attempt.ranks.get(&number));
    let workload = rank.map(|rank| rank.record.workload.clone()).unwrap_or_default();
    let owner = action.owner.clone();
    Order {
        action: action.id.clone(),
        incident: action.incident_id.clone(),
        job: action.job.clone(),
        attempt: action.attempt,
        rank: number,
        node: action.node.clone(),
        owner_uid: owner.as_ref().map(|owner| owner.uid),
        namespace: owner.map(|owner| owner.namespace.name().to_string()).unwrap_or_default(),
        slurm_job: workload.slurm_job,
        pod: workload.pod,
        pod_uid: workload.pod_uid,
        class: incident.map(|it| it.class().as_str().to_string()).unwrap_or_default(),
        sentence: incident.map(Incident::sentence).unwrap_or_default(),
        why: action.why.clone(),
        wall_ns: action.wall_ns,
        prover: Prover::None,
    }
}

#[cfg(test)]
mod tests;

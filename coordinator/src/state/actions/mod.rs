//! Actions: the policy's decisions about jobs whose memory grows, and what became of them.
//!
//! Every decision is logged, stored and shown, also the one to do nothing. The same decision is not
//! written down twice in a row. Dry run is the default: what would be done is shown. The lifecycle
//! of an action is core's ([`memtape_core::action::Lifecycle`]): each change is stored, and what
//! follows from it is done then. What a decision rests on is gathered in `facts.rs`, ranks are
//! called in `calls.rs`, jobs observed in `observing.rs`, decisions audited in `auditing.rs`, and
//! what an earlier process left is taken up in `taking_up.rs`.
//! The targets are in `restart/`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use memtape_core::action::remedy::Signal;
use memtape_core::action::{Event, Lifecycle, Next, Plan};
use memtape_core::capture::{Reason, Refusal};
use memtape_core::identity::ids::{Ids, Kind};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::ACTIONS_MAX;
use memtape_core::policy::budgets::{Progress, Restart};
use memtape_core::policy::remedy::Remedy;
use memtape_core::policy::{Decision, Mode, Objection, Outcome, Policy};
use memtape_proto::api::ActionKind;

use crate::restart::RestartConfig;
use crate::restart::target::{Order, Target};
use crate::state::actions::auditing::Audited;
use crate::state::actions::calls::RankCall;
use crate::state::captures::Captures;
use crate::state::counters::Count;
use crate::state::effects::{After, Asker, Context, Effect, Proposal, Work};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Attempt;
use memtape_disk::clock::Now;
use memtape_store::StoreClock;
use memtape_store::records::ActionRecord;
use memtape_store::{Changes, Store};

mod auditing;
mod calls;
mod facts;
mod observing;
mod taking_up;

pub(crate) use observing::{ended, of_row};

/// A capture of this age still shows what a restart would take away.
const FRESH_NS: i64 = 60_000_000_000;

/// All actions, oldest first, and the policy that decides on them.
#[derive(Debug)]
pub(crate) struct Actions {
    ids: Ids,
    policy: Policy,
    targets: Vec<Arc<dyn Target>>,
    signal: Option<Signal>,
    report_interval_ns: u64,
    actions: VecDeque<ActionRecord>,
    /// The actions that are under way, by name. Bounded by the policy: each is one it allowed.
    pending: BTreeMap<String, Pending>,
    calls: Vec<RankCall>,
    /// Incidents because of which a person has approved a restart.
    approved: facts::Approved,
    /// What an earlier process left.
    left: taking_up::Left,
    /// Measures the times of observations: it runs while a coordinator does.
    clock: StoreClock,
    audited: Audited,
}

/// What an action that is under way needs to go on.
#[derive(Clone, Debug)]
struct Pending {
    serial: u32,
    remedy: Remedy,
    way: Way,
    order: Box<Order>,
    /// What to do when the last change is stored.
    next: Next,
}

/// How an action is carried out.
#[derive(Clone, Debug)]
enum Way {
    /// Not at all: a restart without a target.
    None,
    /// By a restart target.
    Target(Arc<dyn Target>),
    /// By a signal to every rank.
    Signal(Signal),
    /// Inside the ranks.
    Ranks,
}

impl Way {
    fn kind(&self) -> ActionKind {
        match self {
            Self::None => ActionKind::None,
            Self::Target(target) => target.kind(),
            Self::Signal(_) => ActionKind::Signal,
            Self::Ranks => ActionKind::Ranks,
        }
    }
}

impl Actions {
    /// Takes up the actions that an earlier process left.
    pub(crate) fn restore(
        now: Now,
        config: &RestartConfig,
        report_interval_ns: u64,
        mut records: Vec<ActionRecord>,
        store: &Store,
    ) -> Self {
        let (mut ids, clock) = (Ids::default(), store.clock());
        records.iter().for_each(|action| ids.seen(&action.id));
        let left = taking_up::Left::new(now, clock, &mut records, store);
        let mut policy = Policy::new(config.policy.clone());
        for (action, progress) in counted(&records) {
            let of = Restart {
                job: &action.job,
                owner: action.owner.as_ref(),
                node: &action.node,
                attempt: action.attempt,
                is_dry_run: action.dry_run,
            };
            // The monotonic clock starts at the wall clock's reading.
            let at_ns = u64::try_from(action.wall_ns).unwrap_or(0);
            policy.restore((now.mono_ns, at_ns), action.lifecycle.remedy, &of, progress);
        }
        records.iter().filter_map(observing::proof).for_each(|proof| policy.prove(&proof));
        Self {
            ids,
            policy,
            targets: config.targets(),
            signal: config.signal,
            report_interval_ns,
            actions: records.into(),
            pending: BTreeMap::new(),
            calls: Vec::new(),
            approved: facts::Approved::default(),
            left,
            clock,
            audited: Audited::default(),
        }
    }

    /// All actions, oldest first.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &ActionRecord> {
        self.actions.iter()
    }

    /// Considers what to do about one incident.
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
        if *decision == Decision::Nothing(Objection::NotBack) {
            return incidents.consider_again(id);
        }
        let closed_wall_ns =
            (incident.capture_id.as_ref()).and_then(|id| captures.get(id)?.record.closed_wall_ns);
        let is_fresh = closed_wall_ns
            .is_some_and(|at_ns| context.now.wall_ns.saturating_sub(at_ns) < FRESH_NS);
        if !incidents.is_news(id, decision) {
            return;
        }
        tracing::info!(incident = %id, job = ?proposal.order.job, "policy: {decision}");
        if matches!(decision, Decision::Act(Remedy::Restart, _)) && !is_fresh {
            // A restart takes the evidence with it.
            let (serial, asker) = (proposal.serial, Asker::Restart(Box::new(proposal)));
            let reason = Reason::Restart;
            context.push(Effect::RequestCapture { serial, reason, step: None, asker });
        } else {
            self.decide(context, &proposal, None, jobs);
        }
    }

    fn propose(&mut self, now: Now, incident: &Incident, jobs: &Jobs) -> Proposal {
        let attempt = jobs.get(incident.serial);
        let decision = self.policy.decide(now.mono_ns, &self.facts(now, incident, jobs));
        let order =
            Order { why: decision.to_string(), wall_ns: now.wall_ns, ..order(incident, attempt) };
        let is_dry_run = self.policy.mode(&incident.job, incident.class()) == Mode::DryRun;
        let observation = observing::begin(incident, attempt);
        Proposal { serial: incident.serial, decision, is_dry_run, order, observation }
    }

    /// The answer to the request for a capture before a restart; without one it runs at once.
    pub(crate) fn capture_answered(
        &mut self,
        context: &mut Context,
        proposal: &Proposal,
        answer: Result<String, Refusal>,
        jobs: &Jobs,
    ) {
        let capture =
            answer.inspect_err(|why| tracing::warn!("no capture before the restart: {why}")).ok();
        self.decide(context, proposal, capture.as_deref(), jobs);
    }

    /// Writes a decision down, for each way to follow it, and follows it.
    fn decide(
        &mut self,
        context: &mut Context,
        proposal: &Proposal,
        capture: Option<&str>,
        jobs: &Jobs,
    ) {
        let Proposal { serial, decision, is_dry_run, order, observation } = proposal;
        for way in self.ways(decision) {
            let action = self.ids.next(context.now.wall_ns, Kind::Action);
            let order = Box::new(Order { action: action.clone(), ..order.clone() });
            let (lifecycle, next) = match decision {
                Decision::Act(remedy, _) if matches!(way, Way::None) => {
                    (Lifecycle::ended(*remedy, Outcome::NoTarget), Next::Nothing)
                }
                Decision::Act(remedy, _) => {
                    let step = self.step_for(jobs, *serial, *remedy);
                    let plan = Plan { capture: capture.map(String::from), step };
                    let now_ns = observing::now_ns(self.clock, context.now);
                    Lifecycle::begin(now_ns, *remedy, observation.clone(), plan)
                }
                Decision::WouldAct(remedy, _) => {
                    (Lifecycle::ended(*remedy, Outcome::DryRun), Next::Nothing)
                }
                Decision::Nothing(_) => {
                    (Lifecycle::ended(Remedy::default(), Outcome::Nothing), Next::Nothing)
                }
            };
            context.count(match (decision, &lifecycle.outcome) {
                (Decision::Act(..), Outcome::NoTarget) => Count::ActionsFailed,
                (Decision::Act(..), _) => Count::ActionsTaken,
                (Decision::WouldAct(..), _) => Count::ActionsDryRun,
                (Decision::Nothing(_), _) => Count::ActionsDeclined,
            });
            let record = ActionRecord {
                id: action.clone(),
                incident_id: order.incident.clone(),
                job: order.job.clone(),
                owner: order.owner.clone(),
                node: order.node.clone(),
                attempt: order.attempt,
                kind: way.kind().into(),
                decision: decision.as_str().to_string(),
                dry_run: *is_dry_run,
                why: decision.to_string(),
                wall_ns: context.now.wall_ns,
                lifecycle,
            };
            let changes = Changes::of(&record);
            let is_under_way = record.lifecycle.outcome.progress() == Progress::UnderWay;
            let remedy = record.lifecycle.remedy;
            self.actions.push_back(record);
            if is_under_way {
                let pending = Pending { serial: *serial, remedy, way, order, next };
                self.pending.insert(action.clone(), pending);
            }
            context.write_then(changes, after(next, action));
        }
        if matches!(decision, Decision::Act(Remedy::Restart, _)) {
            self.approved.remove(&order.incident);
        }
        self.audit(context, decision, order);
        // A restart without a target is over already.
        if let Decision::Act(remedy, _) = decision {
            self.settle(&order.incident, context.now.wall_ns, *remedy);
        }
    }

    /// How a decision is followed, or would be.
    fn ways(&self, decision: &Decision) -> Vec<Way> {
        if decision.remedy().is_some_and(Remedy::is_inside) {
            return vec![Way::Ranks];
        }
        let targets = self.targets.iter().cloned().map(Way::Target);
        let ways: Vec<Way> = targets.chain(self.signal.map(Way::Signal)).collect();
        if ways.is_empty() { vec![Way::None] } else { ways }
    }

    /// The last change of an action is stored: what follows from it may be done.
    pub(crate) fn stored(&mut self, context: &mut Context, action: &str, jobs: &Jobs) {
        let Some(pending) = self.pending.get_mut(action) else { return };
        match (&pending.way, pending.next) {
            (Way::Target(target), Next::AskTarget) => {
                pending.next = Next::Nothing;
                let (target, order) = (target.clone(), pending.order.clone());
                context.push(Effect::Start(Work::Restart { target, order }));
            }
            (_, Next::Nothing) => {}
            (_, Next::AskTarget | Next::CallRanks { .. }) => {
                self.call_ranks(context, action, jobs);
            }
        }
    }

    /// The capture that restarts waited for is closed, or deleted.
    pub(crate) fn capture_closed(
        &mut self,
        context: &mut Context,
        capture: &str,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let waiting = Outcome::Waiting { capture: capture.to_string() };
        let waits = |record: &&ActionRecord| record.lifecycle.outcome == waiting;
        let due: Vec<String> = self.actions.iter().filter(waits).map(|it| it.id.clone()).collect();
        for action in due {
            let Some(serial) = self.pending.get(&action).map(|pending| pending.serial) else {
                continue;
            };
            // The launcher may have been quicker, or the growth may have ended.
            let event = match self.is_due(&action, incidents, jobs) {
                true => Event::CaptureClosed { step: self.step_for(jobs, serial, Remedy::Restart) },
                false => Event::Overtaken,
            };
            self.advance(context, &action, event);
        }
    }

    /// Is there still a reason for a restart that is under way?
    fn is_due(&self, action: &str, incidents: &Incidents, jobs: &Jobs) -> bool {
        let Some(pending) = self.pending.get(action) else { return false };
        let incident = incidents.get(&pending.order.incident);
        incident.is_some_and(|known| known.incident().is_open()) && !jobs.is_over(pending.serial)
    }

    /// A target came to its end.
    pub(crate) fn restarted(&mut self, context: &mut Context, action: &str, outcome: Outcome) {
        self.advance(context, action, Event::Answered(outcome));
    }

    /// Something happened to an action: what it has become is stored, and what follows is done
    /// then.
    fn advance(&mut self, context: &mut Context, action: &str, event: Event) {
        let now_ns = observing::now_ns(self.clock, context.now);
        let known = self.actions.iter_mut().rev().find(|record| record.id == action);
        let Some(record) = known else { return };
        let before = record.lifecycle.clone();
        let next = record.lifecycle.handle(now_ns, event);
        if next == Next::Nothing && record.lifecycle == before {
            return;
        }
        let outcome = &record.lifecycle.outcome;
        let is_ended = outcome.progress() != Progress::UnderWay;
        if matches!(outcome, Outcome::Failed { .. } | Outcome::Refused { .. }) {
            context.count(Count::ActionsFailed);
            tracing::error!(action, "the action failed: {outcome}");
        } else {
            tracing::info!(action, "action: {outcome}");
        }
        let changes = Changes::of(record);
        let (incident, wall_ns) = (record.incident_id.clone(), record.wall_ns);
        let remedy = record.lifecycle.remedy;
        match self.pending.get_mut(action) {
            Some(_) if is_ended => drop(self.pending.remove(action)),
            Some(pending) => pending.next = next,
            None => {}
        }
        self.settle(&incident, wall_ns, remedy);
        context.write_then(changes, after(next, action.to_string()));
    }

    /// Reports to the policy what has become of the action that an incident was given at this
    /// time, when all its targets are done.
    fn settle(&mut self, incident: &str, wall_ns: i64, remedy: Remedy) {
        let of_action = self
            .actions
            .iter()
            .rev()
            .filter(|record| record.incident_id == incident && record.wall_ns == wall_ns);
        let ended = of_action.max_by_key(|record| record.lifecycle.outcome.progress());
        let ended = ended.map(|record| (&record.job, record.lifecycle.outcome.progress()));
        if let Some((job, progress)) = ended.filter(|(_, it)| *it != Progress::UnderWay) {
            self.policy.settle(job, remedy, progress);
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

/// What a target is given because of an incident, without a name, a reason and a time.
fn order(incident: &Incident, attempt: Option<&Attempt>) -> Order {
    let number = incident.growth.rank;
    let rank = attempt.and_then(|attempt| attempt.ranks.get(&number));
    let owner = attempt.and_then(|attempt| attempt.record.owner.clone());
    let workload = rank.map(|rank| rank.record.workload.clone()).unwrap_or_default();
    Order {
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
        ..Order::default()
    }
}

/// What follows when the change of an action is stored.
fn after(next: Next, action: String) -> After {
    match next {
        Next::Nothing => After::Nothing,
        Next::CallRanks { .. } | Next::AskTarget => After::TellAction { action },
    }
}

/// The actions that budgets count, oldest first, each by the first of its targets, and what became
/// of it.
fn counted(records: &[ActionRecord]) -> Vec<(&ActionRecord, Progress)> {
    // A decision has an action for each target, but is one restart.
    let mut found: Vec<(&ActionRecord, Progress)> = Vec::new();
    let mut known = BTreeMap::new();
    for record in records.iter().filter(|record| record.is_counted()) {
        let index = *known.entry((&record.incident_id, record.wall_ns)).or_insert(found.len());
        let progress = record.lifecycle.outcome.progress();
        match found.get_mut(index) {
            Some((_, greatest)) => *greatest = progress.max(*greatest),
            None => found.push((record, progress)),
        }
    }
    found
}

#[cfg(test)]
mod tests;

//! Takes up the actions that an earlier process left under way.
//!
//! A target that was being asked may have restarted the job: its action is observed, and the target
//! finishes what it left half done. All other actions go on when the agents of their ranks are
//! back, or after a time without them: they wait for their capture, or their ranks are called again
//! under the same name, because an agent follows each call once while it runs. What an action needs
//! is made from its incident; where that is gone, or the target or the policy is another one now,
//! it is given up. What follows from a kill is decided in core
//! ([`memtape_core::action::Lifecycle`]).

use std::sync::Arc;

use memtape_core::action::{Event, Next};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::TAKE_UP_SECONDS_MAX;
use memtape_core::policy::budgets::Progress;
use memtape_core::policy::{Mode, Outcome};
use memtape_proto::api::{ActionKind, Named};

use crate::restart::target::{Order, Target};
use crate::state::actions::calls::living_ranks;
use crate::state::actions::{Actions, Pending, Way, observing, order};
use crate::state::captures::Captures;
use crate::state::effects::{Context, Work};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Presence;
use memtape_disk::clock::Now;
use memtape_store::StoreClock;
use memtape_store::records::ActionRecord;
use memtape_store::{Changes, Store};

/// The actions that an earlier process left, by name, oldest first.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Restarts whose targets were being asked, until they look at them.
    interrupted: Vec<String>,
    /// Those that go on.
    waiting: Vec<String>,
    since_ns: u64,
}

impl Left {
    /// Those of these records that are under way. Actions whose target may have acted are observed
    /// from now on.
    pub(super) fn new(
        now: Now,
        clock: StoreClock,
        records: &mut [ActionRecord],
        store: &Store,
    ) -> Self {
        let mut left = Self { since_ns: now.mono_ns, ..Self::default() };
        for action in records {
            let outcome = &action.lifecycle.outcome;
            // Signals go through agents, which send each once.
            let has_target = action.kind != ActionKind::Signal;
            if *outcome == Outcome::Running && has_target {
                left.interrupted.push(action.id.clone());
                let event = Event::Restored { acts_once: false };
                action.lifecycle.handle(observing::now_ns(clock, now), event);
                store.write(Changes::of(action), Box::new(|_| {}));
            } else if outcome.progress() == Progress::UnderWay {
                left.waiting.push(action.id.clone());
            }
        }
        left
    }

    /// True when every rank of an attempt that may be alive is reported of since the coordinator
    /// was started, or there was time for it.
    pub(super) fn are_agents_back(&self, now: Now, jobs: &Jobs, serial: u32) -> bool {
        let waited_ns = now.mono_ns.saturating_sub(self.since_ns);
        let Some(attempt) = jobs.get(serial) else { return true };
        waited_ns >= TAKE_UP_SECONDS_MAX * 1_000_000_000
            || living_ranks(attempt).all(|(_, rank)| rank.presence == Presence::Here)
    }
}

impl Actions {
    /// Restarts that an earlier process may have left half done, for their targets to finish.
    pub(crate) fn take_left(&mut self) -> Vec<Work> {
        let left = std::mem::take(&mut self.left.interrupted);
        let records = self.actions.iter().filter(|record| left.contains(&record.id));
        let work = |record: &ActionRecord| {
            let Some(target) = self.target(record) else {
                give_up(record);
                return None;
            };
            let owner = record.owner.as_ref();
            let order = Box::new(Order {
                action: record.id.clone(),
                namespace: owner.map(|owner| owner.namespace.clone()).unwrap_or_default(),
                ..Order::default()
            });
            Some(Work::Resume { target, order })
        };
        records.filter_map(work).collect()
    }

    /// A target has finished what was left half done, if anything was.
    pub(crate) fn resumed(&mut self, context: &mut Context, action: &str, done: Option<Outcome>) {
        if let Some(outcome) = done {
            self.advance(context, action, Event::Resumed(outcome));
        }
    }

    /// Goes on with the actions that were left, when their agents are back.
    pub(crate) fn take_up(
        &mut self,
        context: &mut Context,
        captures: &Captures,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        if self.left.waiting.is_empty() {
            return;
        }
        for action in std::mem::take(&mut self.left.waiting) {
            let Some(record) = self.actions.iter().find(|record| record.id == action) else {
                continue;
            };
            let serial = record.lifecycle.observation.as_ref().map(|seen| seen.serial);
            let is_back = |serial| self.left.are_agents_back(context.now, jobs, serial);
            if serial.is_none_or(is_back) {
                let record = record.clone();
                self.take_up_one(context, &record, captures, incidents, jobs);
            } else {
                self.left.waiting.push(action);
            }
        }
    }

    fn take_up_one(
        &mut self,
        context: &mut Context,
        record: &ActionRecord,
        captures: &Captures,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let (action, lifecycle) = (record.id.as_str(), &record.lifecycle);
        let incident = incidents.get(&record.incident_id).map(Tracked::incident);
        // An operator may have switched the policy off, to stop just this.
        let acts =
            |incident: &Incident| self.policy.mode(&incident.job, incident.class()) == Mode::Act;
        let incident = incident.filter(|incident| acts(incident));
        let (Some(way), Some(incident)) = (self.way(record), incident) else {
            give_up(record);
            return self.advance(context, action, Event::Abandoned);
        };
        tracing::info!(action, job = ?record.job, "taken up: {}", lifecycle.outcome);
        let (serial, remedy) = (incident.serial, lifecycle.remedy);
        let order = Box::new(Order {
            action: action.to_string(),
            why: record.why.clone(),
            wall_ns: record.wall_ns,
            ..order(incident, jobs.get(serial))
        });
        // After its end nothing can be sent any more, and what was sent shows.
        let acts_once = matches!(way, Way::Signal(_)) && !jobs.is_over(serial);
        let pending = Pending { serial, remedy, way, order, next: Next::Nothing };
        self.pending.insert(action.to_string(), pending);
        match &lifecycle.outcome {
            Outcome::Waiting { capture } => {
                if captures.get(capture).is_none_or(|known| known.record.is_closed()) {
                    self.capture_closed(context, capture, incidents, jobs);
                }
            }
            // There is no one to call again: what was done shows.
            Outcome::AtStep { .. } if remedy.is_inside() && jobs.is_over(serial) => {
                self.advance(context, action, Event::Abandoned);
            }
            // Nothing but these is under way.
            _ => self.advance(context, action, Event::Restored { acts_once }),
        }
    }

    /// How an action that is stored is carried out; none where it cannot be any more.
    fn way(&self, record: &ActionRecord) -> Option<Way> {
        let Named::Known(kind) = record.kind else { return None };
        match kind {
            ActionKind::Ranks => Some(Way::Ranks),
            ActionKind::Signal => self.signal.map(Way::Signal),
            ActionKind::Command
            | ActionKind::Webhook
            | ActionKind::Slurm
            | ActionKind::Kubernetes
            | ActionKind::None => self.target(record).map(Way::Target),
        }
    }

    fn target(&self, record: &ActionRecord) -> Option<Arc<dyn Target>> {
        self.targets.iter().find(|target| record.kind == target.kind()).cloned()
    }
}

fn give_up(record: &ActionRecord) {
    let (action, kind) = (&record.id, record.kind.as_str());
    tracing::error!(
        action,
        kind,
        "an action was cut short, and its incident is gone, its target is not configured any more, \
         or the policy does not act on the job any more: inspect the job"
    );
}

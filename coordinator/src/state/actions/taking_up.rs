//! Takes up the actions that an earlier process left under way.
//!
//! A target that was being asked may have restarted the job: its action is observed, and the target
//! finishes its half-done work. All other actions go on when the agents of their ranks are back, or
//! after a time without them: they wait for their capture, or their ranks are called again under
//! the same name, because an agent follows each call once while it runs. The inputs of an action
//! are made from its incident. If the incident is gone, or the target or the policy has changed,
//! the action is given up. Core decides what follows from a kill
//! ([`memtape_core::action::Action`]).

use memtape_core::action::{Action, Event, Outcome, Progress, TargetKind};
use memtape_core::incident::{Incident, Tracked};
use memtape_core::limits::TAKE_UP_SECONDS_MAX;
use memtape_core::policy::Mode;

use crate::restart::target::Order;
use crate::state::actions::calls::living_ranks;
use crate::state::actions::{Actions, observing};
use crate::state::captures::Captures;
use crate::state::effects::{Context, Work};
use crate::state::incidents::Incidents;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Presence;
use memtape_disk::clock::Now;
use memtape_store::StoreClock;
use memtape_store::{Changes, Store};

/// The actions that an earlier process left, by name, oldest first.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Restarts whose targets were being asked, or finished what was left, until they report.
    interrupted: Vec<String>,
    /// Actions that go on.
    waiting: Vec<String>,
    since_ns: u64,
}

impl Left {
    /// The actions under way among these records. Actions whose target may have acted are observed
    /// from now on.
    pub(super) fn new(now: Now, clock: StoreClock, actions: &mut [Action], store: &Store) -> Self {
        let mut left = Self { since_ns: now.mono_ns, ..Self::default() };
        for action in actions {
            // Signals go through agents, which send each once.
            let has_target = !matches!(action.target, TargetKind::Signal | TargetKind::Ranks);
            // An earlier process was killed while the target finished it.
            let is_unfinished = action.outcome == Outcome::Interrupted && action.verdict.is_none();
            if (action.outcome == Outcome::Running || is_unfinished) && has_target {
                left.interrupted.push(action.id.clone());
                let event = Event::Restored { acts_once: false };
                action.handle(observing::now_ns(clock, now), event);
                store.write(Changes::of(&*action), Box::new(|_| {}));
            } else if action.progress() == Progress::UnderWay {
                left.waiting.push(action.id.clone());
            }
        }
        left
    }

    /// True for an action that is not taken up yet.
    pub(super) fn waits(&self, action: &str) -> bool {
        self.waiting.iter().any(|waiting| waiting == action)
    }

    /// True when every rank of an attempt that may be alive is reported of since the coordinator
    /// was started, or there was time for it.
    pub(super) fn are_agents_back(&self, now: Now, jobs: &Jobs, serial: u32) -> bool {
        let waited_ns = now.mono_ns.saturating_sub(self.since_ns);
        let Some(attempt) = jobs.get(serial) else { return true };
        waited_ns >= TAKE_UP_SECONDS_MAX * 1_000_000_000
            || living_ranks(attempt).all(|(_, rank)| {
                let node = jobs.node(&rank.record.node);
                rank.presence == Presence::Here && node.is_some_and(|node| node.reports > 1)
            })
    }
}

impl Actions {
    /// Actions that an earlier process may have left half done. Their targets finish them, or
    /// report the present state.
    pub(crate) fn take_left(&mut self) -> Vec<Work> {
        let left = std::mem::take(&mut self.left.interrupted);
        let actions = self.actions.iter().filter(|action| left.contains(&action.id));
        let work = |action: &Action| {
            let Some(target) = self.target(action) else {
                give_up(action);
                return None;
            };
            let owner = action.owner.as_ref();
            let order = Box::new(Order {
                action: action.id.clone(),
                job: action.job.clone(),
                node: action.node.clone(),
                namespace: owner
                    .map(|owner| owner.namespace.name().to_string())
                    .unwrap_or_default(),
                ..Order::default()
            });
            Some(Work::Resume { kind: action.kind, target, order })
        };
        actions.filter_map(work).collect()
    }

    /// Takes the outcome of a target that finished a half-done action; none where nothing was left.
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
        for id in self.left.waiting.clone() {
            let action = self.get(&id).cloned();
            let seen = action.as_ref().and_then(|action| action.observation.as_ref());
            let is_back = |serial| self.left.are_agents_back(context.now, jobs, serial);
            if !seen.map(|seen| seen.serial).is_none_or(is_back) {
                continue;
            }
            // Each leaves the list in its own turn: until then a capture that several wait for does
            // not advance it.
            self.left.waiting.retain(|waiting| *waiting != id);
            if let Some(action) = action {
                self.take_up_one(context, &action, captures, incidents, jobs);
            }
        }
    }

    fn take_up_one(
        &mut self,
        context: &mut Context,
        action: &Action,
        captures: &Captures,
        incidents: &Incidents,
        jobs: &Jobs,
    ) {
        let id = action.id.as_str();
        let incident = incidents.get(&action.incident_id).map(Tracked::incident);
        // An operator may have switched the policy off, to stop just this.
        let acts = |incident: &&Incident| {
            self.policy.rule(&incident.job, incident.class()).mode == Mode::Act
        };
        let is_possible = match action.target {
            TargetKind::Ranks => true,
            TargetKind::Signal => self.signal.is_some(),
            _ => self.target(action).is_some(),
        };
        let Some(incident) = incident.filter(acts).filter(|_| is_possible) else {
            give_up(action);
            return self.advance(context, id, Event::Abandoned);
        };
        tracing::info!(action = id, job = ?action.job, "taken up: {}", action.outcome);
        let is_over = jobs.is_over(&jobs.own(&action.job), incident.serial);
        match &action.outcome {
            Outcome::Waiting { capture } => {
                if captures.get(capture).is_none_or(|known| known.record.is_closed()) {
                    self.capture_closed(context, capture, incidents, jobs);
                }
            }
            // There is no one to call again: what was done shows.
            Outcome::AtStep { .. } if action.kind.is_inside() && is_over => {
                self.advance(context, id, Event::Abandoned);
            }
            // Nothing but these is under way. After the end of all ranks nothing can be sent any
            // more, and what was sent shows.
            _ => {
                let attempt = jobs.get(incident.serial).filter(|_| !is_over);
                let lives = attempt.is_some_and(|of| living_ranks(of).next().is_some());
                let acts_once = action.target == TargetKind::Signal && lives;
                self.advance(context, id, Event::Restored { acts_once });
            }
        }
    }
}

fn give_up(action: &Action) {
    tracing::error!(
        action = action.id,
        target = ?action.target,
        "an action was cut short, and its incident is gone, its target is not configured any more, \
         or the policy does not act on the job any more: inspect the job"
    );
}

//! The machine of an action: plan, precondition, act, observe, verdict.
//!
//! A restart waits for its capture, then for the checkpoint that the ranks write at one step, and
//! asks its target then. A remedy inside the ranks and the keeping out of a node have no
//! precondition. Each change is stored before its effects begin ([`Next`]). After a kill the action
//! goes on from its stored state: it waits for its capture, and asks the ranks again, because an
//! agent follows each call once, however often it is asked. A target that may have been asked is
//! asked again only where it acts once, too; otherwise the job is observed. The verdict ends the
//! action ([`super::Observation`]).

use alloc::format;
use alloc::string::{String, ToString};

use super::kind::{ActionKind, TargetKind};
use super::outcome::{Outcome, Progress};
use super::{Gain, Job, Observation, Verdict};
use crate::identity::owner::Owner;
use crate::limits::CHECKPOINT_CALLS_MAX;

/// A decision about a job whose memory grows, or about a node whose GPU memory was not given back,
/// and its state so far. A decision has an action for each target.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Action {
    /// Id of the action.
    pub id: String,
    /// Kind of the action, also in a dry run.
    pub kind: ActionKind,
    /// The target that carries the action out.
    pub target: TargetKind,
    /// Id of the incident; empty for an action on a node.
    pub incident_id: String,
    /// Name of the job; empty where it is about a node.
    pub job: String,
    /// Owner of the job; none where unknown.
    pub owner: Option<Owner>,
    /// Node of the incident's rank, or the node to keep out. Empty where unknown.
    pub node: String,
    /// Number of the attempt at the job.
    pub attempt: u32,
    /// True for a dry run, which only shows the action.
    pub dry_run: bool,
    /// The decision and its reason, in a sentence.
    pub why: String,
    /// Time of the decision, Unix time in nanoseconds.
    pub wall_ns: i64,
    /// Time of the decision on the monotonic clock of this process, which budgets count by.
    #[serde(skip)]
    pub at_ns: u64,
    /// Progress or outcome so far.
    pub outcome: Outcome,
    /// Calls to the ranks so far, with that under way.
    pub calls: u32,
    /// The step at which the ranks write a checkpoint before a restart; none where they offer none.
    pub checkpoint_step: Option<u64>,
    /// Outcome of that checkpoint, in one line; empty before.
    pub checkpoint: String,
    /// Observation of the job since the target or the ranks were asked; none where there is nothing
    /// to observe.
    pub observation: Option<Observation>,
    /// Whether the action helped; none until that is known.
    pub verdict: Option<Verdict>,
    /// Time of the verdict, Unix time in nanoseconds.
    pub verdict_wall_ns: Option<i64>,
}

/// An event of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The action's capture is closed, or deleted.
    CaptureClosed {
        /// The step at which the ranks can write a checkpoint now.
        step: Option<u64>,
    },
    /// The call to the action's ranks is over.
    Called {
        /// Outcome of the call.
        outcome: Outcome,
        /// The step at which the ranks could act if they were asked again now.
        step: Option<u64>,
    },
    /// The action's incident, or the attempt, is over.
    Overtaken,
    /// The target has ended, with this outcome.
    Answered(Outcome),
    /// The coordinator was killed, and runs again.
    Restored {
        /// True if the target acts once, even when asked several times for the same action.
        acts_once: bool,
    },
    /// The restarted coordinator cannot carry the action out.
    Abandoned,
    /// The target has finished the half-done action of a killed coordinator.
    Resumed(Outcome),
}

/// Effect that begins when the change is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Nothing,
    /// Have all ranks act at this step.
    CallRanks {
        /// The step.
        step: u64,
    },
    /// Ask the target.
    AskTarget,
}

impl Action {
    /// Begins an action that is decided on; returns its first effect. `now_ns` is on the clock of
    /// observations. `capture` is the capture that a restart waits for. `step` is the step at which
    /// the ranks act, or write their checkpoint.
    pub fn begin(&mut self, now_ns: u64, capture: Option<String>, step: Option<u64>) -> Next {
        match capture {
            Some(capture) if self.kind == ActionKind::Restart => {
                self.outcome = Outcome::Waiting { capture };
                Next::Nothing
            }
            _ => self.prepared(now_ns, step),
        }
    }

    /// Handles an event; returns the effect. Events that do not fit are ignored.
    pub fn handle(&mut self, now_ns: u64, event: Event) -> Next {
        match (&self.outcome, event) {
            (Outcome::Waiting { .. }, Event::CaptureClosed { step }) => self.prepared(now_ns, step),
            (Outcome::Waiting { .. } | Outcome::AtStep { .. }, Event::Overtaken) => {
                self.end(Outcome::Overtaken)
            }
            (Outcome::AtStep { .. }, Event::Called { outcome, step }) => {
                self.called(now_ns, outcome, step)
            }
            (Outcome::Running, Event::Answered(outcome)) => self.end(outcome),
            (Outcome::Interrupted, Event::Resumed(outcome)) => {
                // The target may have restarted the job: the action stays observed.
                self.outcome = outcome;
                Next::Nothing
            }
            (Outcome::AtStep { step }, Event::Restored { .. }) => Next::CallRanks { step: *step },
            (Outcome::Running, Event::Restored { acts_once: true }) => Next::AskTarget,
            (Outcome::Running, Event::Restored { acts_once: false }) => {
                self.end(Outcome::Interrupted)
            }
            (Outcome::AtStep { .. }, Event::Abandoned) if self.kind.is_inside() => {
                self.end(Outcome::Interrupted)
            }
            (Outcome::Running, Event::Abandoned) => self.end(Outcome::Interrupted),
            (Outcome::Waiting { .. } | Outcome::AtStep { .. }, Event::Abandoned) => {
                self.end(Outcome::Lost)
            }
            (
                _,
                Event::CaptureClosed { .. }
                | Event::Called { .. }
                | Event::Overtaken
                | Event::Answered(_)
                | Event::Restored { .. }
                | Event::Abandoned
                | Event::Resumed(_),
            ) => Next::Nothing,
        }
    }

    /// Checks the job for a verdict; none until there is one. An action that is still called for
    /// inside the ranks has none, because it can be withdrawn.
    pub fn look(&mut self, now_ns: u64, job: &impl Job) -> Option<&Verdict> {
        let verdict = self.observation.as_mut()?.look(now_ns, self.kind, job)?;
        if matches!(self.outcome, Outcome::AtStep { .. }) {
            return None;
        }
        Some(self.verdict.insert(verdict))
    }

    /// True when it was asked for and has no verdict yet.
    pub fn is_observed(&self) -> bool {
        let asked_ns = self.observation.as_ref().and_then(|observation| observation.asked_ns);
        asked_ns.is_some() && self.verdict.is_none()
    }

    /// The verdict's evidence and the gain of the action, in a sentence; none before the verdict.
    pub fn proof(&self) -> Option<String> {
        let verdict = self.verdict.as_ref()?;
        let gain = self.gain().unwrap_or_default();
        Some(format!("{}{gain}", verdict.why()))
    }

    /// Gain of the action; none before the verdict.
    pub fn gain(&self) -> Option<Gain> {
        Some(Gain::of(self.kind, self.observation.as_ref()?, self.verdict.as_ref()?))
    }

    /// The name of the call under way. It is the same after a kill.
    pub fn call_name(&self) -> String {
        format!("{}.{}", self.id, self.calls)
    }

    /// The decision in words, such as `restart`, `would restart` or `nothing`.
    pub fn decision(&self) -> String {
        let verb = self.kind.verb();
        match (&self.outcome, self.dry_run) {
            (Outcome::Nothing, _) => "nothing".to_string(),
            (_, true) => format!("would {verb}"),
            (_, false) => verb.to_string(),
        }
    }

    /// True for the actions of one decision.
    pub fn is_same_decision(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.wall_ns, of.kind);
        key(self) == key(other) && self.incident_id == other.incident_id && self.node == other.node
    }

    /// Progress of the action that budgets count.
    pub fn progress(&self) -> Progress {
        self.outcome.progress()
    }

    /// Whether the action helped; none until that is known, and where it stays unknown.
    pub fn has_helped(&self) -> Option<bool> {
        match self.verdict? {
            Verdict::Helped(_) => Some(true),
            Verdict::NoEffect(_) | Verdict::Worse(_) => Some(false),
            Verdict::Unknown(_) => None,
        }
    }

    /// Continues after the capture.
    fn prepared(&mut self, now_ns: u64, step: Option<u64>) -> Next {
        let Some(step) = step else {
            let why = "no step is known at which all ranks can act".to_string();
            return match self.kind.is_inside() {
                true => self.end(Outcome::Refused { why }),
                false => self.ask(now_ns),
            };
        };
        self.outcome = Outcome::AtStep { step };
        self.calls += 1;
        match self.kind.is_inside() {
            true => {
                if let Some(observation) = &mut self.observation {
                    (observation.step, observation.asked_ns) = (Some(step), Some(now_ns));
                }
            }
            false => self.checkpoint_step = Some(step),
        }
        Next::CallRanks { step }
    }

    /// Takes the outcome of the call to the ranks.
    fn called(&mut self, now_ns: u64, outcome: Outcome, step: Option<u64>) -> Next {
        if self.kind.is_inside() {
            return self.end(outcome);
        }
        let is_surely_not_done = matches!(outcome, Outcome::Refused { .. });
        if is_surely_not_done && step.is_some() && self.calls < CHECKPOINT_CALLS_MAX {
            return self.prepared(now_ns, step);
        }
        let is_written = matches!(outcome, Outcome::Finished { .. });
        if let Some(observation) = &mut self.observation {
            observation.step = self.checkpoint_step.filter(|_| is_written);
        }
        // A checkpoint that failed does not hold a restart up: without it the job dies.
        self.checkpoint = outcome.to_string();
        self.ask(now_ns)
    }

    fn ask(&mut self, now_ns: u64) -> Next {
        self.outcome = Outcome::Running;
        self.calls += 1;
        if let Some(observation) = &mut self.observation {
            observation.asked_ns = Some(now_ns);
        }
        Next::AskTarget
    }

    /// Ends the action, or its current phase. There is nothing to observe where no target was
    /// asked, or surely nothing was done.
    pub fn end(&mut self, outcome: Outcome) -> Next {
        if matches!(
            outcome,
            Outcome::Nothing
                | Outcome::DryRun
                | Outcome::NoTarget
                | Outcome::Lost
                | Outcome::Overtaken
                | Outcome::Refused { .. }
        ) {
            self.observation = None;
        }
        self.outcome = outcome;
        Next::Nothing
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::action::{Seen, Subject};

    fn begin(kind: ActionKind, capture: Option<&str>, step: Option<u64>) -> (Action, Next) {
        let (id, observation) = ("act-1".to_string(), Some(Observation::default()));
        let mut action = Action { id, kind, observation, ..Action::default() };
        let next = action.begin(0, capture.map(ToString::to_string), step);
        (action, next)
    }

    fn finished() -> Outcome {
        Outcome::Finished { said: "done".to_string() }
    }

    fn refused() -> Outcome {
        Outcome::Refused { why: "no answer".to_string() }
    }

    fn called(outcome: Outcome) -> Event {
        Event::Called { outcome, step: Some(20) }
    }

    #[test]
    fn a_restart_waits_for_its_capture_and_its_checkpoint() {
        let (mut action, next) = begin(ActionKind::Restart, Some("cap-1"), None);
        assert_eq!((next, action.is_observed()), (Next::Nothing, false));
        let next = action.handle(1, Event::CaptureClosed { step: Some(7) });
        assert_eq!((next, action.is_observed()), (Next::CallRanks { step: 7 }, false));
        let next = action.handle(2, called(finished()));
        assert_eq!((next, action.is_observed()), (Next::AskTarget, true));
        assert_eq!((action.checkpoint_step, action.checkpoint.as_str()), (Some(7), "done"));
        // Neither is asked for twice.
        assert_eq!(action.handle(3, called(finished())), Next::Nothing);
        assert_eq!(action.handle(3, Event::CaptureClosed { step: None }), Next::Nothing);
        action.handle(4, Event::Answered(finished()));
        assert_eq!((&action.outcome, action.is_observed()), (&finished(), true));
    }

    #[test]
    fn a_checkpoint_that_no_rank_wrote_is_asked_for_once_more() {
        let (mut action, next) = begin(ActionKind::Restart, None, Some(7));
        assert_eq!((next, action.call_name()), (Next::CallRanks { step: 7 }, "act-1.1".into()));
        let next = action.handle(1, called(refused()));
        assert_eq!((next, action.call_name()), (Next::CallRanks { step: 20 }, "act-1.2".into()));
        let next = action.handle(2, called(refused()));
        assert_eq!((next, action.call_name()), (Next::AskTarget, "act-1.3".into()));
        assert_eq!((action.checkpoint_step, action.checkpoint.as_str()), (Some(20), "no answer"));
        // One that some ranks may have written is not.
        let (mut action, _) = begin(ActionKind::Restart, None, Some(7));
        let failed = Outcome::Failed { why: "done on 1 of 2 ranks".to_string() };
        assert_eq!(action.handle(1, called(failed)), Next::AskTarget);
        // Nor is a remedy inside the ranks: the policy decides again.
        let (mut gc, _) = begin(ActionKind::Gc, None, Some(7));
        assert_eq!(gc.handle(1, called(refused())), Next::Nothing);
        assert_eq!((&gc.outcome, gc.is_observed()), (&refused(), false));
    }

    #[test]
    fn a_new_coordinator_resumes_actions_of_a_killed_one() {
        let restored = |action: &Action, acts_once| {
            let mut action = action.clone();
            let next = action.handle(9, Event::Restored { acts_once });
            (next, action)
        };
        let (mut restart, _) = begin(ActionKind::Restart, Some("cap-1"), None);
        assert_eq!(restored(&restart, false), (Next::Nothing, restart.clone()));
        restart.handle(1, Event::CaptureClosed { step: Some(7) });
        assert_eq!(restored(&restart, false), (Next::CallRanks { step: 7 }, restart.clone()));
        restart.handle(2, called(finished()));
        // The same call as before.
        assert_eq!(restored(&restart, true), (Next::AskTarget, restart.clone()));
        let (next, seen) = restored(&restart, false);
        assert_eq!(
            (next, &seen.outcome, seen.is_observed()),
            (Next::Nothing, &Outcome::Interrupted, true)
        );
        restart.handle(3, Event::Answered(finished()));
        assert_eq!(restored(&restart, true), (Next::Nothing, restart.clone()));
        let (gc, next) = begin(ActionKind::Gc, Some("cap-1"), Some(7));
        assert_eq!(next, Next::CallRanks { step: 7 });
        assert_eq!(restored(&gc, false), (Next::CallRanks { step: 7 }, gc));
    }

    #[test]
    fn an_impossible_action_is_given_up_or_observed() {
        let check = |action: &Action, outcome: Outcome, is_observed: bool| {
            let mut action = action.clone();
            assert_eq!(action.handle(9, Event::Abandoned), Next::Nothing);
            assert_eq!((&action.outcome, action.is_observed()), (&outcome, is_observed));
        };
        let (mut restart, _) = begin(ActionKind::Restart, Some("cap-1"), None);
        check(&restart, Outcome::Lost, false);
        restart.handle(1, Event::CaptureClosed { step: Some(7) });
        check(&restart, Outcome::Lost, false);
        restart.handle(2, called(finished()));
        check(&restart, Outcome::Interrupted, true);
        check(&begin(ActionKind::Gc, None, Some(7)).0, Outcome::Interrupted, true);
    }

    #[test]
    fn a_remedy_inside_the_ranks_needs_a_step() {
        let (gc, next) = begin(ActionKind::Gc, None, None);
        assert_eq!((next, gc.is_observed()), (Next::Nothing, false));
        assert_eq!(gc.outcome.to_string(), "no step is known at which all ranks can act");
        // A restart needs none.
        assert_eq!(begin(ActionKind::Restart, None, None).1, Next::AskTarget);
    }

    /// A job whose only rank has made many steps.
    struct Running;

    impl Job for Running {
        fn is_over(&self, _serial: u32) -> bool {
            false
        }

        fn attempt(&self, serial: u32, _of: Subject<'_>) -> Option<Seen> {
            Some(Seen { serial, step: 100, ..Seen::default() })
        }

        fn successor(&self, _serial: u32, _of: Subject<'_>) -> Option<Seen> {
            None
        }
    }

    #[test]
    fn a_call_that_is_not_over_has_no_verdict() {
        let (mut gc, _) = begin(ActionKind::Gc, None, Some(7));
        assert_eq!(gc.look(1, &Running), None);
        let mut taken_back = gc.clone();
        taken_back.handle(2, called(refused()));
        assert_eq!(taken_back.look(3, &Running), None);
        assert_eq!(taken_back.verdict, None);
        gc.handle(2, called(finished()));
        assert!(matches!(gc.look(3, &Running), Some(Verdict::Unknown(_))));
    }

    proptest! {
        /// For any events, and any number of kills between storing a change and its effect, a
        /// target is asked at most once, or for the same call where it acts once; and ranks are
        /// called for one step by calls of one name.
        #[test]
        fn a_target_is_asked_at_most_once(
            has_capture: bool,
            step in prop::option::of(1_u64..9),
            is_inside: bool,
            acts_once: bool,
            events in prop::collection::vec((0_usize..8, any::<bool>()), 0..24),
        ) {
            let kind = if is_inside { ActionKind::Gc } else { ActionKind::Restart };
            let (mut action, first) = begin(kind, has_capture.then_some("cap-1"), step);
            let kinds = [
                Event::CaptureClosed { step },
                called(finished()),
                called(refused()),
                Event::Overtaken,
                Event::Answered(finished()),
                Event::Restored { acts_once },
                Event::Abandoned,
                Event::Resumed(finished()),
            ];
            let is_under_way =
                |action: &Action| action.progress() == Progress::UnderWay;
            let (mut asked, mut names, mut calls) = (0, BTreeSet::new(), BTreeSet::new());
            let mut done = |next: Next, name: String| match next {
                Next::AskTarget => {
                    asked += 1;
                    names.insert(name);
                }
                Next::CallRanks { step } => drop(calls.insert((name, step))),
                Next::Nothing => {}
            };
            done(first, action.call_name());
            for (event, is_killed) in events {
                let was_running = action.outcome == Outcome::Running;
                let next = action.handle(1, kinds[event].clone());
                let is_last = match kinds[event] {
                    Event::Called { .. } => is_inside && !was_running,
                    Event::Overtaken => !was_running,
                    Event::Answered(_) => was_running,
                    Event::Abandoned => true,
                    _ => false,
                };
                let is_waiting = matches!(action.outcome, Outcome::Waiting { .. });
                prop_assert!(!is_last || is_waiting || !is_under_way(&action));
                prop_assert!(!is_waiting || !matches!(kinds[event], Event::Overtaken));
                if is_killed {
                    let next = action.handle(1, Event::Restored { acts_once });
                    done(next, action.call_name());
                } else {
                    done(next, action.call_name());
                }
            }
            prop_assert!(asked <= 1 || acts_once);
            prop_assert!(names.len() <= 1 && calls.len() <= CHECKPOINT_CALLS_MAX as usize);
            let of_calls: BTreeSet<&String> = calls.iter().map(|(name, _)| name).collect();
            prop_assert_eq!(of_calls.len(), calls.len(), "a name is of one step");
            prop_assert!(asked == 0 || !is_inside);
            let is_observed = action.observation.is_some();
            prop_assert!(asked == 0 || is_observed || action.outcome == finished());
        }
    }
}

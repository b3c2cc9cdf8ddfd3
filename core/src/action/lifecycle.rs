//! The lifecycle of an action: plan, precondition, act, observe, verdict.
//!
//! A restart waits for its capture, then for the checkpoint that the ranks write at one step, and
//! asks its target then. A remedy inside the ranks has no precondition. Each change is stored
//! before what follows from it is done ([`Next`]), and after a kill the lifecycle goes on from what
//! is stored: what was surely not asked for yet is given up and decided again, and what may have
//! been asked for is observed, never asked for again. The verdict ends the lifecycle
//! ([`super::Observation`]).

use super::{Observation, Verdict};
use crate::policy::Outcome;
use crate::policy::remedy::Remedy;

/// What has become of an action so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Lifecycle {
    /// What is done.
    pub remedy: Remedy,
    /// How far it has come.
    pub outcome: Outcome,
    /// The step at which the ranks write a checkpoint before a restart; none where they offer none.
    pub checkpoint_step: Option<u64>,
    /// What came of that checkpoint, in one line; empty before.
    pub checkpoint: alloc::string::String,
    /// What was seen of the job since the target or the ranks were asked; none where there is
    /// nothing to observe.
    pub observation: Option<Observation>,
    /// Whether it helped; none until that is known.
    pub verdict: Option<Verdict>,
}

/// What an action needs before it is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The capture that a restart waits for.
    pub capture: Option<alloc::string::String>,
    /// The step at which the ranks act: of a restart, at which they write a checkpoint.
    pub step: Option<u64>,
}

/// What happens to an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its capture is closed, or deleted.
    CaptureClosed {
        /// The step at which the ranks can write a checkpoint now.
        step: Option<u64>,
    },
    /// The call to its ranks is over.
    Called(Outcome),
    /// Its incident, or the attempt, is over.
    Overtaken,
    /// Its target came to its end.
    Answered(Outcome),
    /// The coordinator was killed, and is there again.
    Restored,
    /// The target has finished what the killed coordinator left half done.
    Resumed(Outcome),
}

/// What to do when the change is stored.
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

impl Lifecycle {
    /// An action that is decided on, and the first thing to do. `now_ns` is on the clock of
    /// observations.
    pub fn begin(
        now_ns: u64,
        remedy: Remedy,
        observation: Observation,
        plan: Plan,
    ) -> (Self, Next) {
        let mut lifecycle = Self {
            remedy,
            observation: Some(Observation { remedy, ..observation }),
            ..Self::default()
        };
        let next = match plan.capture {
            Some(capture) if !remedy.is_inside() => {
                lifecycle.outcome = Outcome::Waiting { capture };
                Next::Nothing
            }
            _ => lifecycle.prepared(now_ns, plan.step),
        };
        (lifecycle, next)
    }

    /// One that does nothing, or that only shows what would be done.
    pub fn ended(remedy: Remedy, outcome: Outcome) -> Self {
        Self { remedy, outcome, ..Self::default() }
    }

    /// What follows from an event. Events that do not fit are ignored.
    pub fn handle(&mut self, now_ns: u64, event: Event) -> Next {
        match (&self.outcome, event) {
            (Outcome::Waiting { .. }, Event::CaptureClosed { step }) => self.prepared(now_ns, step),
            (Outcome::Waiting { .. }, Event::Overtaken) => self.end(Outcome::Overtaken),
            (Outcome::AtStep { .. }, Event::Called(outcome)) if self.remedy.is_inside() => {
                self.end(outcome)
            }
            (Outcome::AtStep { .. }, Event::Overtaken) if !self.remedy.is_inside() => {
                self.end(Outcome::Overtaken)
            }
            // A checkpoint that failed does not hold a restart up: without it the job dies.
            (Outcome::AtStep { .. }, Event::Called(outcome)) => {
                self.checkpoint = alloc::string::ToString::to_string(&outcome);
                self.ask(now_ns)
            }
            (Outcome::Running, Event::Answered(outcome)) => self.end(outcome),
            (Outcome::Failed { .. }, Event::Resumed(outcome)) => {
                // It may have restarted the job before: it stays observed.
                self.outcome = outcome;
                Next::Nothing
            }
            (outcome, Event::Restored) => match outcome.after_a_kill(self.remedy) {
                Some(outcome) => self.end(outcome),
                None => Next::Nothing,
            },
            (
                _,
                Event::CaptureClosed { .. }
                | Event::Called(_)
                | Event::Overtaken
                | Event::Answered(_)
                | Event::Resumed(_),
            ) => Next::Nothing,
        }
    }

    /// True when it was asked for and has no verdict yet.
    pub fn is_observed(&self) -> bool {
        let asked_ns = self.observation.as_ref().and_then(|observation| observation.asked_ns);
        asked_ns.is_some() && self.verdict.is_none()
    }

    /// The evidence is there.
    fn prepared(&mut self, now_ns: u64, step: Option<u64>) -> Next {
        let Some(step) = step else { return self.ask(now_ns) };
        self.outcome = Outcome::AtStep { step };
        match self.remedy.is_inside() {
            true => {
                if let Some(observation) = &mut self.observation {
                    (observation.step, observation.asked_ns) = (Some(step), Some(now_ns));
                }
            }
            false => self.checkpoint_step = Some(step),
        }
        Next::CallRanks { step }
    }

    fn ask(&mut self, now_ns: u64) -> Next {
        self.outcome = Outcome::Running;
        if let Some(observation) = &mut self.observation {
            observation.asked_ns = Some(now_ns);
        }
        Next::AskTarget
    }

    /// There is nothing to observe where nothing was asked for, or surely nothing was done.
    fn end(&mut self, outcome: Outcome) -> Next {
        if matches!(outcome, Outcome::Lost | Outcome::Overtaken | Outcome::Refused { .. }) {
            self.observation = None;
        }
        self.outcome = outcome;
        Next::Nothing
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use proptest::prelude::*;

    use super::*;

    fn begin(remedy: Remedy, capture: Option<&str>, step: Option<u64>) -> (Lifecycle, Next) {
        let plan = Plan { capture: capture.map(ToString::to_string), step };
        Lifecycle::begin(0, remedy, Observation::default(), plan)
    }

    fn finished() -> Outcome {
        Outcome::Finished { said: "done".to_string() }
    }

    #[test]
    fn a_restart_waits_for_its_capture_and_its_checkpoint() {
        let (mut lifecycle, next) = begin(Remedy::Restart, Some("cap-1"), None);
        assert_eq!((next, lifecycle.is_observed()), (Next::Nothing, false));
        let next = lifecycle.handle(1, Event::CaptureClosed { step: Some(7) });
        assert_eq!((next, lifecycle.is_observed()), (Next::CallRanks { step: 7 }, false));
        let next = lifecycle.handle(2, Event::Called(finished()));
        assert_eq!((next, lifecycle.is_observed()), (Next::AskTarget, true));
        assert_eq!((lifecycle.checkpoint_step, lifecycle.checkpoint.as_str()), (Some(7), "done"));
        // Neither is asked for twice.
        assert_eq!(lifecycle.handle(3, Event::Called(finished())), Next::Nothing);
        assert_eq!(lifecycle.handle(3, Event::CaptureClosed { step: None }), Next::Nothing);
        lifecycle.handle(4, Event::Answered(finished()));
        assert_eq!((&lifecycle.outcome, lifecycle.is_observed()), (&finished(), true));
    }

    #[test]
    fn a_killed_coordinator_gives_up_what_was_not_asked_for_and_observes_the_rest() {
        let check = |lifecycle: &Lifecycle, outcome: &str, is_observed: bool| {
            let mut lifecycle = lifecycle.clone();
            assert_eq!(lifecycle.handle(9, Event::Restored), Next::Nothing);
            let found = lifecycle.outcome.to_string();
            assert!(found.contains(outcome), "{found}");
            assert_eq!(lifecycle.is_observed(), is_observed, "{found}");
        };
        let (mut restart, _) = begin(Remedy::Restart, Some("cap-1"), None);
        check(&restart, "not run: the coordinator was restarted", false);
        restart.handle(1, Event::CaptureClosed { step: Some(7) });
        check(&restart, "not run: the coordinator was restarted", false);
        restart.handle(2, Event::Called(finished()));
        check(&restart, "its next attempt shows", true);
        restart.handle(3, Event::Answered(finished()));
        check(&restart, "done", true);
        let (gc, next) = begin(Remedy::Gc, Some("cap-1"), Some(7));
        assert_eq!(next, Next::CallRanks { step: 7 });
        check(&gc, "next steps show", true);
    }

    proptest! {
        /// Whatever happens, and however often the coordinator is killed between storing a change
        /// and doing what follows from it, a target is asked at most once.
        #[test]
        fn a_target_is_asked_at_most_once(
            has_capture: bool,
            step in prop::option::of(1_u64..9),
            is_inside: bool,
            events in prop::collection::vec((0_usize..6, any::<bool>()), 0..24),
        ) {
            let remedy = if is_inside { Remedy::Gc } else { Remedy::Restart };
            let step = step.or(is_inside.then_some(3));
            let (mut lifecycle, first) = begin(remedy, has_capture.then_some("cap-1"), step);
            let kinds = [
                Event::CaptureClosed { step },
                Event::Called(finished()),
                Event::Overtaken,
                Event::Answered(finished()),
                Event::Restored,
                Event::Resumed(finished()),
            ];
            let (mut asked, mut called) = (0, 0);
            let mut done = |next: Next, is_killed: bool| match next {
                _ if is_killed => {}
                Next::AskTarget => asked += 1,
                Next::CallRanks { .. } => called += 1,
                Next::Nothing => {}
            };
            done(first, false);
            for (kind, is_killed) in events {
                let next = lifecycle.handle(1, kinds[kind].clone());
                done(next, is_killed);
                if is_killed {
                    prop_assert_eq!(lifecycle.handle(1, Event::Restored), Next::Nothing);
                }
            }
            prop_assert!(asked <= 1 && called <= 1);
            prop_assert!(asked == 0 || !is_inside);
            let is_observed = lifecycle.observation.is_some();
            prop_assert!(asked == 0 || is_observed || lifecycle.outcome == finished());
        }
    }
}

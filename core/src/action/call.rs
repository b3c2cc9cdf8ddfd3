//! A call to all living ranks of an attempt, for one step or at once, and the answer of each.
//!
//! A call for a step is armed on every rank before the step comes. When a rank cannot be armed in
//! time, the call is withdrawn from all: a function that talks to the other ranks, as one that
//! writes a checkpoint may, would wait for the missing one for ever. The step is chosen far enough
//! ahead for this; a network that fails in just these seconds can still leave some ranks armed.
//! The time is passed in; nothing here sends anything.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};

use super::remedy::{Answer, Outcome};
use crate::diagnosis::plural;
use crate::limits::{CALL_ANSWER_SECONDS_MAX, CALL_STEP_SECONDS_MAX};

const SECOND_NS: u64 = 1_000_000_000;

/// A call under way.
#[derive(Clone, Debug)]
pub struct Call {
    /// Step at which the ranks act; none is at once.
    step: Option<u64>,
    /// Outcome and reason of each rank that has answered.
    ranks: BTreeMap<u32, Option<(Outcome, String)>>,
    begun_ns: u64,
    /// Deadline for arming every rank, as the newest step: half of the way to the step.
    arm_by: Option<u64>,
    withdrawn_ns: Option<u64>,
}

/// Next step for a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// Wait.
    Wait,
    /// Take it back from all ranks.
    Withdraw,
    /// The call is over.
    Over(Tally),
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    /// Ranks on which it was done.
    pub done: usize,
    /// Ranks on which it was tried and failed.
    pub failed: usize,
    /// Ranks whose last answer is missing.
    pub unknown: usize,
    /// Ranks that were called.
    pub ranks: usize,
    /// The first rank that did not act, with the reason.
    pub why: Option<String>,
}

impl Tally {
    /// True when it was done on all ranks.
    pub fn is_done(&self) -> bool {
        self.done == self.ranks && self.ranks > 0
    }

    /// True when it was surely done on no rank.
    pub fn is_surely_not_done(&self) -> bool {
        self.done == 0 && self.failed == 0 && self.unknown == 0
    }
}

impl core::fmt::Display for Tally {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { done, ranks, why, .. } = self;
        write!(formatter, "done on {done} of {}", plural(*ranks as u64, "rank"))?;
        why.as_ref().map_or(Ok(()), |why| write!(formatter, "; {why}"))
    }
}

/// Steps from the newest one to that of a call, for ranks that take this time for a step, in
/// nanoseconds, and agents that report this often: time for every rank to be armed, and to be taken
/// back.
pub fn steps_ahead(step_time_ns: u64, interval_ns: u64) -> u64 {
    let needed_ns = 2 * CALL_ANSWER_SECONDS_MAX * SECOND_NS / 3 + 2 * interval_ns;
    needed_ns.div_ceil(step_time_ns.max(1)).saturating_add(2)
}

impl Call {
    /// A call to these ranks.
    pub fn new(now_ns: u64, step: Option<u64>, ranks: impl IntoIterator<Item = u32>) -> Self {
        let ranks = ranks.into_iter().map(|rank| (rank, None)).collect();
        Self { step, ranks, begun_ns: now_ns, arm_by: None, withdrawn_ns: None }
    }

    /// Notes the answer of a rank. A last answer is not replaced; ranks that were not called are
    /// not noted.
    pub fn answered(&mut self, rank: u32, answer: &Answer) {
        self.note(rank, answer.outcome, answer.detail.clone());
    }

    /// Notes that the process of a rank has ended.
    pub fn gone(&mut self, rank: u32) {
        self.note(rank, Outcome::Failed, "its process ended".to_string());
    }

    fn note(&mut self, rank: u32, outcome: Outcome, why: String) {
        let Some(known) = self.ranks.get_mut(&rank) else { return };
        if !known.as_ref().is_some_and(|(known, _)| known.is_final()) {
            *known = Some((outcome, why));
        }
    }

    /// The next step for the call. `newest` is the newest step of all ranks.
    pub fn look(&mut self, now_ns: u64, newest: u64) -> Look {
        if self.outcomes().all(|outcome| outcome.is_some_and(Outcome::is_final)) {
            return Look::Over(self.tally());
        }
        let waits =
            |since_ns: u64, seconds: u64| now_ns.saturating_sub(since_ns) < seconds * SECOND_NS;
        if let Some(withdrawn_ns) = self.withdrawn_ns {
            let is_over = !waits(withdrawn_ns, CALL_ANSWER_SECONDS_MAX);
            return if is_over { Look::Over(self.tally()) } else { Look::Wait };
        }
        let Some(step) = self.step else {
            let is_over = !waits(self.begun_ns, CALL_ANSWER_SECONDS_MAX);
            return if is_over { Look::Over(self.tally()) } else { Look::Wait };
        };
        let is_armed = self.ranks.values().all(Option::is_some);
        let is_refused = self.outcomes().flatten().any(|outcome| {
            matches!(
                outcome,
                Outcome::Refused | Outcome::Late | Outcome::Failed | Outcome::Withdrawn
            )
        });
        let half = step.saturating_sub(newest) / 2;
        let arm_by = *self.arm_by.get_or_insert(step.saturating_sub(half));
        let is_late =
            !is_armed && (newest >= arm_by || !waits(self.begun_ns, CALL_ANSWER_SECONDS_MAX));
        if is_late || is_refused || !waits(self.begun_ns, CALL_STEP_SECONDS_MAX) {
            self.withdrawn_ns = Some(now_ns);
            return Look::Withdraw;
        }
        Look::Wait
    }

    /// True from [`Look::Withdraw`] on.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn_ns.is_some()
    }

    fn outcomes(&self) -> impl Iterator<Item = Option<Outcome>> {
        self.ranks.values().map(|answer| answer.as_ref().map(|(outcome, _)| *outcome))
    }

    fn tally(&self) -> Tally {
        let count = |is: fn(Option<Outcome>) -> bool| self.outcomes().filter(|it| is(*it)).count();
        let is_withdrawn = self.outcomes().any(|outcome| outcome == Some(Outcome::Withdrawn));
        let reasons = self.ranks.iter().filter_map(|(rank, answer)| {
            let why = match answer {
                None => "no answer",
                Some((Outcome::Armed, _)) => "its step was not reached",
                Some((Outcome::Late, why)) if why.is_empty() => "its step had passed",
                Some((Outcome::Failed | Outcome::Refused | Outcome::Late, why)) => why,
                // A rank that was withdrawn because of another one is not the reason.
                Some((Outcome::Done | Outcome::Signalled | Outcome::Withdrawn, _)) => return None,
            };
            Some(format!("rank {rank}: {why}"))
        });
        let withdrawn = is_withdrawn.then(|| "it was taken back".to_string());
        Tally {
            done: count(|it| matches!(it, Some(Outcome::Done | Outcome::Signalled))),
            failed: count(|it| it == Some(Outcome::Failed)),
            unknown: count(|it| it.is_none_or(|it| !it.is_final())),
            ranks: self.ranks.len(),
            why: { reasons }.next().or(withdrawn),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;
    use strum::VariantArray as _;

    use super::*;

    fn answer(outcome: Outcome) -> Answer {
        let detail = if outcome == Outcome::Refused { "its step is 9" } else { "" };
        Answer { outcome, step: 9, took_ns: 0, detail: detail.to_string() }
    }

    #[test]
    fn a_call_is_done_when_it_is_done_on_all_ranks() {
        let mut call = Call::new(0, Some(10), 0..2);
        assert_eq!(call.look(SECOND_NS, 5), Look::Wait);
        (0..2).for_each(|rank| call.answered(rank, &answer(Outcome::Armed)));
        assert_eq!(call.look(60 * SECOND_NS, 10), Look::Wait, "armed ranks may take their time");
        call.answered(0, &answer(Outcome::Done));
        call.answered(0, &answer(Outcome::Refused));
        assert_eq!(call.look(61 * SECOND_NS, 10), Look::Wait);
        call.answered(1, &answer(Outcome::Done));
        let Look::Over(tally) = call.look(61 * SECOND_NS, 10) else { panic!("over") };
        assert!(tally.is_done());
        assert_eq!(tally.to_string(), "done on 2 of 2 ranks");
    }

    #[test]
    fn a_call_refused_by_one_rank_is_withdrawn_from_all() {
        let mut call = Call::new(0, Some(10), 0..2);
        call.answered(0, &answer(Outcome::Armed));
        call.answered(1, &answer(Outcome::Refused));
        assert_eq!(call.look(0, 5), Look::Withdraw);
        assert_eq!(call.look(0, 5), Look::Wait, "once");
        call.answered(0, &answer(Outcome::Withdrawn));
        let Look::Over(tally) = call.look(0, 5) else { panic!("over") };
        assert_eq!(tally.to_string(), "done on 0 of 2 ranks; rank 1: its step is 9");
        assert!(tally.is_surely_not_done());
        // One that failed.
        let mut call = Call::new(0, Some(10), 0..2);
        call.answered(0, &answer(Outcome::Armed));
        call.gone(1);
        assert_eq!(call.look(0, 5), Look::Withdraw);
        // One that does not answer, until half of the steps have passed or the deadline comes.
        for (seconds, newest) in [(0, 8), (CALL_ANSWER_SECONDS_MAX, 5)] {
            let mut call = Call::new(0, Some(10), 0..2);
            call.answered(0, &answer(Outcome::Armed));
            assert_eq!(call.look(0, 5), Look::Wait);
            assert_eq!(call.look(seconds * SECOND_NS, newest), Look::Withdraw);
        }
    }

    #[test]
    fn a_signal_waits_for_the_answers_alone() {
        let mut call = Call::new(0, None, 0..2);
        call.answered(0, &answer(Outcome::Signalled));
        assert_eq!(call.look(SECOND_NS, 500), Look::Wait);
        call.gone(1);
        let Look::Over(tally) = call.look(SECOND_NS, 500) else { panic!("over") };
        assert_eq!(tally.to_string(), "done on 1 of 2 ranks; rank 1: its process ended");
        let mut silent = Call::new(0, None, 0..2);
        let Look::Over(tally) = silent.look(CALL_ANSWER_SECONDS_MAX * SECOND_NS, 0) else {
            panic!("over")
        };
        assert!(!tally.is_surely_not_done());
    }

    #[test]
    fn the_step_is_far_enough_ahead() {
        assert_eq!(steps_ahead(60 * SECOND_NS, SECOND_NS), 3);
        let of_fast = steps_ahead(SECOND_NS / 100, SECOND_NS);
        assert!(of_fast >= 500, "{of_fast}");
    }

    proptest! {
        /// With any answers, a call ends, and is withdrawn at most once.
        #[test]
        fn every_call_ends(
            step in prop::option::of(0_u64..20),
            answers in prop::collection::vec(
                (0_u32..4, 0..Outcome::VARIANTS.len(), 0_u64..20),
                0..12,
            ),
        ) {
            let mut call = Call::new(0, step, 0..3);
            let mut looks = Vec::new();
            for (at, (rank, kind, newest)) in answers.into_iter().enumerate() {
                call.answered(rank, &answer(Outcome::VARIANTS[kind]));
                looks.push(call.look(at as u64 * SECOND_NS, newest));
            }
            let late_ns = (20 + CALL_STEP_SECONDS_MAX) * SECOND_NS;
            looks.push(call.look(late_ns, 0));
            looks.push(call.look(2 * late_ns, 0));
            let withdrawn = looks.iter().filter(|look| **look == Look::Withdraw).count();
            prop_assert!(withdrawn <= 1);
            prop_assert!(matches!(looks.last(), Some(Look::Over(_))));
        }
    }
}

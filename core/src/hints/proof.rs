//! The effect of applied settings: compares the attempt with the settings to an earlier attempt
//! without them, after the same number of steps.
//!
//! A young attempt always holds less than an old one, so both are compared where the shorter one
//! ends. Steps are counted, because an attempt that resumes at a checkpoint does not begin with
//! step 1. The figure is the reserved bytes beyond the peak of tensors: a smaller batch is no
//! success of a setting. The verdict types are shared with actions ([`crate::action`]).

use crate::action::{Ended, Memory, PROOF_STEPS, Verdict, Why};

/// The steps of one device of a rank, from the first one on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Number of the first step; none without steps.
    pub first_step: Option<u64>,
    /// Highest peak, highest reserved bytes, retries until then, and the minimum of the last step,
    /// with its number.
    pub memory: Memory,
}

impl Window {
    /// Adds a step, if it is not beyond `step_max`. Steps may come in any order, and twice.
    pub fn add(&mut self, step_max: u64, step: &Memory) {
        if step.step > step_max {
            return;
        }
        self.first_step = Some(self.first_step.map_or(step.step, |first| first.min(step.step)));
        let memory = &mut self.memory;
        if step.step >= memory.step {
            (memory.step, memory.min_bytes) = (step.step, step.min_bytes);
        }
        memory.peak_bytes = memory.peak_bytes.max(step.peak_bytes);
        memory.reserved_bytes = memory.reserved_bytes.max(step.reserved_bytes);
        memory.retries = memory.retries.max(step.retries);
    }

    /// Number of the window's steps. If the attempt resumed at a checkpoint, the first record
    /// includes all smaller step numbers, so each record is known by its last step.
    pub fn steps(&self) -> u64 {
        self.first_step.map_or(0, |first| self.memory.step.saturating_sub(first).saturating_add(1))
    }

    /// The number of the last step of its first `steps`.
    pub fn step_after(&self, steps: u64) -> u64 {
        self.first_step.unwrap_or(0).saturating_add(steps).saturating_sub(1)
    }

    /// Bytes that the allocator held beyond the peak of tensors.
    fn idle(&self) -> u64 {
        self.memory.reserved_bytes.saturating_sub(self.memory.peak_bytes)
    }
}

/// Figures of an attempt so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Steps that it made.
    pub steps: u64,
    /// A request for memory failed in it for good.
    pub has_failed_request: bool,
    /// End of the attempt; none while it runs.
    pub ended: Option<Ended>,
}

impl Outcome {
    fn is_out_of_memory(&self) -> bool {
        self.has_failed_request && self.ended == Some(Ended::Died)
    }
}

/// The verdict on settings; none while the attempt has made too few steps.
pub fn verdict(before: (&Window, &Outcome), after: (&Window, &Outcome)) -> Option<Verdict> {
    let ((window, outcome), (next, next_outcome)) = (before, after);
    let steps = next_outcome.steps;
    if next_outcome.is_out_of_memory() {
        let why = Why::OutOfMemory { steps };
        match outcome.is_out_of_memory() {
            false => return Some(Verdict::Worse(why)),
            true if steps <= outcome.steps => return Some(Verdict::NoEffect(why)),
            // It came further than the one before: the figures decide.
            true => {}
        }
    } else if next_outcome.ended == Some(Ended::Died) && steps < PROOF_STEPS {
        return Some(Verdict::Unknown(Why::Died { steps }));
    }
    if window.steps().min(next.steps()) < PROOF_STEPS {
        return None;
    }
    let why = Why::Inside { before: window.memory, after: next.memory };
    let (idle, next_idle) = (window.idle(), next.idle());
    let (retries, next_retries) = (window.memory.retries, next.memory.retries);
    let is_worse = next_idle
        > idle.saturating_add(idle / 2).saturating_add(super::SAVING_BYTES_MIN)
        || next_retries > retries;
    let has_helped = next_idle.saturating_mul(2) <= idle && idle > 0
        || next_retries.saturating_mul(2) <= retries && retries > 0;
    Some(match (is_worse, has_helped) {
        (true, _) => Verdict::Worse(why),
        (false, true) => Verdict::Helped(why),
        (false, false) => Verdict::NoEffect(why),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn window(step: u64, peak: u64, reserved: u64, retries: u64) -> Window {
        let (peak_bytes, reserved_bytes) = (peak * GIB, reserved * GIB);
        let memory = Memory { step, min_bytes: GIB, peak_bytes, reserved_bytes, retries };
        Window { first_step: Some(1), memory }
    }

    fn running(steps: u64) -> Outcome {
        Outcome { steps, ..Outcome::default() }
    }

    fn out_of_memory(steps: u64) -> Outcome {
        Outcome { steps, has_failed_request: true, ended: Some(Ended::Died) }
    }

    #[test]
    fn the_figures_decide() {
        let check = |before: Window, after: Window, expected: Option<&str>| {
            let steps = before.memory.step.min(after.memory.step);
            let found = verdict((&before, &running(500)), (&after, &running(steps)));
            assert_eq!(found.as_ref().map(Verdict::as_str), expected, "{before:?} {after:?}");
        };
        let before = window(40, 10, 20, 0);
        check(before, window(40, 10, 14, 0), Some("helped"));
        check(before, window(40, 10, 17, 0), Some("no effect"));
        check(before, window(40, 10, 26, 0), Some("worse"));
        // A smaller batch alone is no success.
        check(before, window(40, 5, 15, 0), Some("no effect"));
        check(before, window(40, 10, 14, 1), Some("worse"));
        check(window(40, 10, 20, 9), window(40, 10, 20, 2), Some("helped"));
        check(window(40, 10, 10, 0), window(40, 10, 10, 0), Some("no effect"));
        check(before, window(19, 10, 11, 0), None);
        check(window(19, 10, 11, 0), window(40, 10, 11, 0), None);
    }

    #[test]
    fn an_attempt_that_ran_out_of_memory_is_worse_unless_the_one_before_did() {
        let (before, after) = (window(60, 10, 20, 0), window(60, 10, 11, 0));
        let check = |outcome: Outcome, next: Outcome, expected: &str| {
            let found = verdict((&before, &outcome), (&after, &next));
            assert_eq!(found.as_ref().map(Verdict::as_str), Some(expected));
        };
        check(running(60), out_of_memory(60), "worse");
        check(out_of_memory(60), out_of_memory(60), "no effect");
        check(out_of_memory(60), out_of_memory(90), "helped");
        let died = Outcome { ended: Some(Ended::Died), ..running(3) };
        check(running(60), died, "unknown");
    }

    #[test]
    fn steps_beyond_the_shorter_attempt_do_not_count() {
        let mut made = Window::default();
        for step in (1..=50).rev().chain([7]) {
            let of = window(step, step, 2 * step, step);
            made.add(30, &of.memory);
        }
        assert_eq!(made, window(30, 30, 60, 30));
        assert_eq!(made.steps(), 30);
    }

    #[test]
    fn the_steps_of_an_attempt_that_resumes_are_counted() {
        let made = |steps: core::ops::RangeInclusive<u64>| {
            let mut made = Window::default();
            steps.for_each(|step| made.add(u64::MAX, &window(step, 10, 11, 0).memory));
            made
        };
        assert_eq!((Window::default().steps(), made(900..=900).steps()), (0, 1));
        assert_eq!((made(900..=919).steps(), made(900..=919).step_after(5)), (20, 904));
        let before = window(950, 10, 20, 0);
        let check = |after: Window, expected: Option<&str>| {
            let next = running(after.steps());
            let found = verdict((&before, &running(950)), (&after, &next));
            assert_eq!(found.as_ref().map(Verdict::as_str), expected, "{after:?}");
        };
        check(made(900..=900), None);
        check(made(900..=918), None);
        check(made(900..=919), Some("helped"));
        let died = Outcome { ended: Some(Ended::Died), ..running(3) };
        let found = verdict((&before, &running(950)), (&made(900..=902), &died));
        assert_eq!(found, Some(Verdict::Unknown(Why::Died { steps: 3 })));
    }

    proptest! {
        /// Against itself, an attempt has no effect; less idle memory is never judged as worse.
        #[test]
        fn verdicts_are_monotonic(
            step in PROOF_STEPS..100, peak in 0_u64..40, reserved in 0_u64..80, less in 0_u64..80,
        ) {
            let before = window(step, peak, reserved, 0);
            let outcome = running(step);
            let same = verdict((&before, &outcome), (&before, &outcome));
            prop_assert_eq!(same.as_ref().map(Verdict::as_str), Some("no effect"));
            let after = window(step, peak, reserved.saturating_sub(less), 0);
            let found = verdict((&before, &outcome), (&after, &outcome));
            prop_assert_ne!(found.as_ref().map(Verdict::as_str), Some("worse"));
        }
    }
}

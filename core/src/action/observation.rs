//! Observes a job after an action that should restart it, until a verdict can be given.
//!
//! The proof of a restart is the job's next attempt: an attempt with a greater number than the one
//! that was acted on. It may have begun before the target reported its end, and while no
//! coordinator ran, so nothing here depends on what the target said. An attempt that makes
//! [`PROOF_STEPS`] steps is measured: the lowest of its per-step minima against that of the
//! last step before. The time is passed in; nothing here knows jobs, stores or targets.

use super::verdict::{Measure, Memory, Verdict, Why};
use crate::limits::{ACTION_RETURN_SECONDS_MAX, ACTION_STEPS_SECONDS_MAX};

/// Steps of the next attempt that show its memory: more than the warm-up of an allocator takes.
pub(super) const PROOF_STEPS: u64 = 20;

const SECOND_NS: u64 = 1_000_000_000;

/// What is known of an action and of what followed. It is stored with the action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct Observation {
    /// Serial number of the attempt that is acted on, never used twice.
    pub serial: u32,
    /// The rank that grew.
    pub rank: u32,
    /// Its device.
    pub device: u8,
    /// The figure of its memory that grew.
    pub measure: Measure,
    /// The memory of that device at the last step before the action; none where it is not known.
    pub before: Option<Memory>,
    /// Bytes by which it has grown.
    pub grown_bytes: u64,
    /// When the target was asked, in nanoseconds; none before.
    pub asked_ns: Option<u64>,
    /// When the next attempt was first seen, in nanoseconds.
    pub begun_ns: Option<u64>,
    /// Serial number of the next attempt.
    pub next: Option<u32>,
    /// The first step of the next attempt that was seen.
    pub first_step: Option<FirstStep>,
}

/// A step, and when it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default))]
pub struct FirstStep {
    /// Its number.
    pub step: u64,
    /// When, in nanoseconds.
    pub seen_ns: u64,
}

/// What the observation asks of a job.
pub trait Job {
    /// Is this attempt over?
    fn is_over(&self, serial: u32) -> bool;
    /// The first attempt after this one, as this device of this rank shows it.
    fn successor(&self, serial: u32, rank: u32, device: u8) -> Option<Successor>;
}

/// The next attempt at a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Successor {
    /// Its serial number.
    pub serial: u32,
    /// Step of its rank; 0 before the first.
    pub step: u64,
    /// The memory of its device at the newest step.
    pub memory: Option<Memory>,
    /// A request for memory failed in it.
    pub has_failed_request: bool,
    /// How it ended.
    pub ended: Option<Ended>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All ranks exited as they should.
    Finished,
    /// A rank died.
    Died,
}

impl Observation {
    /// Looks at the job; none until there is a verdict, and before the target was asked. All times
    /// are of one clock, which may stand while no coordinator runs.
    pub fn look(&mut self, now_ns: u64, job: &impl Job) -> Option<Verdict> {
        let asked_ns = self.asked_ns?;
        let waited_ns = now_ns.saturating_sub(asked_ns);
        let Some(next) = job.successor(self.serial, self.rank, self.device) else {
            let is_late = waited_ns >= ACTION_RETURN_SECONDS_MAX * SECOND_NS;
            return is_late.then(|| match job.is_over(self.serial) {
                true => Verdict::Worse(Why::NotBack { waited_ns }),
                false => Verdict::NoEffect(Why::NotRestarted { waited_ns }),
            });
        };
        self.next = Some(next.serial);
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        if next.step > 0 {
            self.first_step.get_or_insert(FirstStep { step: next.step, seen_ns: now_ns });
        }
        let steps = self.first_step.map_or(0, |first| {
            // A job that goes on at a checkpoint does not begin with step 1.
            next.step.saturating_sub(first.step).saturating_add(1)
        });
        if next.has_failed_request && next.ended != Some(Ended::Finished) {
            return Some(Verdict::Worse(Why::OutOfMemory { steps }));
        }
        if steps >= PROOF_STEPS {
            let measured = self.measured(asked_ns, &next);
            return Some(measured.unwrap_or(Verdict::Unknown(Why::NotMeasured { steps })));
        }
        match next.ended {
            Some(Ended::Finished) => return Some(Verdict::Helped(Why::Finished)),
            Some(Ended::Died) => return Some(Verdict::Worse(Why::Died { steps })),
            None => {}
        }
        let waited_ns = now_ns.saturating_sub(begun_ns);
        let is_late = waited_ns >= ACTION_STEPS_SECONDS_MAX * SECOND_NS;
        is_late.then_some(Verdict::Worse(Why::Stuck { steps, waited_ns }))
    }

    /// Compares the memory; none where one of both is not known.
    fn measured(&self, asked_ns: u64, next: &Successor) -> Option<Verdict> {
        let (before, after, first) = (self.before?, next.memory?, self.first_step?);
        let away_ns = first.seen_ns.saturating_sub(asked_ns);
        let why = Why::Measured { before, after, away_ns };
        // Half of what has grown is more than a step's own variation.
        let held = after.figure(self.measure)?;
        let given_back = before.figure(self.measure)?.saturating_sub(held);
        let is_freed = given_back > 0 && given_back >= self.grown_bytes / 2;
        Some(if is_freed { Verdict::Helped(why) } else { Verdict::NoEffect(why) })
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A job of one rank whose attempt 3 was acted on.
    #[derive(Clone, Debug, Default)]
    struct OneRank {
        is_over: bool,
        next: Option<Successor>,
    }

    impl Job for OneRank {
        fn is_over(&self, _serial: u32) -> bool {
            self.is_over
        }

        fn successor(&self, serial: u32, _rank: u32, _device: u8) -> Option<Successor> {
            assert_eq!(serial, 3);
            self.next
        }
    }

    fn memory(step: u64, mib: u64) -> Memory {
        let [min_bytes, peak_bytes, reserved_bytes] = [mib, mib + 50, mib + 100].map(|it| it * MIB);
        Memory { step, min_bytes, peak_bytes, reserved_bytes }
    }

    fn observation() -> Observation {
        let (before, asked_ns) = (Some(memory(400, 1000)), Some(0));
        let (measure, grown_bytes) = (Measure::Minimum, 600 * MIB);
        Observation { serial: 3, measure, before, asked_ns, grown_bytes, ..Default::default() }
    }

    /// What is said at the last of these times, and nothing at those before.
    fn check(looks: &[(u64, OneRank)], expected: Option<&str>) {
        let mut observation = observation();
        let (last, before) = looks.split_last().expect("a look");
        for (seconds, job) in before {
            assert_eq!(observation.look(seconds * SECOND_NS, job), None, "{job:?}");
        }
        let found = observation.look(last.0 * SECOND_NS, &last.1).map(|it| it.to_string());
        assert_eq!(found.as_deref(), expected, "{looks:?}");
    }

    #[test]
    fn an_attempt_that_does_not_begin() {
        let (runs, over) = (OneRank::default(), OneRank { is_over: true, next: None });
        let late = Some("no effect: the attempt runs on after 15 min");
        check(&[(899, runs.clone()), (900, runs)], late);
        let gone = Some("worse: no attempt began within 15 min");
        check(&[(899, over.clone()), (901, over.clone())], gone);
        let mut waits = Observation { asked_ns: None, ..observation() };
        assert_eq!(waits.look(9_000 * SECOND_NS, &over), None, "it waits for its capture");
    }

    #[test]
    fn the_next_attempt_is_the_proof() {
        let of = |next: Successor| OneRank { is_over: true, next: Some(next) };
        let step = |step, mib| {
            let memory = Some(memory(step, mib));
            of(Successor { step, memory, ..Successor::default() })
        };
        let none = (30, of(Successor::default()));
        // It goes on at step 381, from a checkpoint.
        let first = (50, step(381, 400));
        let helped = "helped: per-step minimum 1,000 MiB at step 400, 400 MiB at step 400 of the \
                      next attempt; peak 1.03 GiB, then 450 MiB; reserved 1.07 GiB, then 500 MiB; \
                      its first step came after 50 s";
        let looks = [none.clone(), first.clone(), (60, step(399, 400)), (61, step(400, 400))];
        check(&looks, Some(helped));
        let same = "no effect: per-step minimum 1,000 MiB at step 400, 990 MiB at step 405 of the \
                    next attempt; peak 1.03 GiB, then 1.02 GiB; reserved 1.07 GiB, then 1.06 GiB; \
                    its first step came after 50 s";
        check(&[none.clone(), first.clone(), (60, step(405, 990))], Some(same));
        // Without steps to compare, what becomes of the attempt counts.
        let ended = |step, ended| {
            let ended = Some(ended);
            (70, of(Successor { step, ended, ..Successor::default() }))
        };
        let finished = Some("helped: the next attempt finished");
        check(&[first.clone(), ended(387, Ended::Finished)], finished);
        let died = Some("worse: the next attempt died after 7 steps");
        check(&[first.clone(), ended(387, Ended::Died)], died);
        let failed = Successor { step: 381, has_failed_request: true, ..Successor::default() };
        let out = Some("worse: the next attempt ran out of memory after 1 step");
        check(&[first, (51, of(failed))], out);
        let mut of_host = Observation { measure: Measure::None, ..observation() };
        assert_eq!(of_host.look(50 * SECOND_NS, &step(1, 400)), None);
        let unknown = of_host.look(60 * SECOND_NS, &step(20, 400)).map(|it| it.to_string());
        let why = "unknown: the next attempt made 20 steps; this kind of memory is not compared";
        assert_eq!(unknown.as_deref(), Some(why));
        let stuck = Some("worse: the next attempt made 0 steps within 30 min");
        check(&[none.clone(), (1829, none.1.clone()), (1830, none.1)], stuck);
    }

    proptest! {
        /// Whatever becomes of the job, there is a verdict in the end, and none says that less
        /// memory is held where more is.
        #[test]
        fn there_is_a_verdict_in_the_end(
            is_over: bool,
            has_next: bool,
            step in 0_u64..40,
            mib in prop::option::of(0_u64..2000),
            has_failed_request: bool,
            ended in prop::option::of(prop::sample::select(&[Ended::Finished, Ended::Died][..])),
        ) {
            let memory = mib.map(|mib| memory(step, mib));
            let last = Successor { serial: 4, step, memory, has_failed_request, ended };
            let first = Successor { step: step.min(1), ..Successor::default() };
            let job = |next| OneRank { is_over, next: Some(next).filter(|_| has_next) };
            let mut observation = observation();
            prop_assert_eq!(observation.look(10 * SECOND_NS, &job(first)), None);
            let verdict = observation.look(4_000 * SECOND_NS, &job(last));
            prop_assert!(verdict.is_some());
            let has_helped = matches!(verdict, Some(Verdict::Helped(Why::Measured { .. })));
            prop_assert!(!has_helped || mib.is_some_and(|mib| mib <= 700));
        }
    }
}

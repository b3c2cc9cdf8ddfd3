//! Observes a job after an action, until a verdict can be given.
//!
//! The proof of a remedy inside the ranks are the steps of the same attempt that follow. The proof
//! of a restart is the job's next attempt: an attempt with a greater number than the one that was
//! acted on. It may have begun before the target reported its end, and while no coordinator ran, so
//! the target's answer is not used here. An attempt that makes [`PROOF_STEPS`] steps is measured:
//! the memory of its newest step against the memory of the last step before. The time is passed in;
//! nothing here knows jobs, stores or targets.

use super::kind::ActionKind;
use super::verdict::{Measure, Memory, Verdict, Why};
use crate::limits::{ACTION_RETURN_SECONDS_MAX, ACTION_STEPS_SECONDS_MAX};
use crate::snapshot::Frame;

/// Steps of the next attempt that show its memory: more than the warm-up of an allocator takes.
pub const PROOF_STEPS: u64 = 20;

const SECOND_NS: u64 = 1_000_000_000;

/// Observation of a job before and after an action. It is stored with the action.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Observation {
    /// Serial number of the attempt that is acted on, never used twice.
    pub serial: u32,
    /// The rank that grew.
    pub rank: u32,
    /// Device of the rank.
    pub device: u8,
    /// The figure of its memory that grew.
    pub measure: Measure,
    /// The memory of that device at the last step before the action; none where it is not known.
    pub before: Option<Memory>,
    /// Growth in bytes; none where blocks or steps were counted.
    pub grown_bytes: Option<u64>,
    /// Bytes that each step keeps; 0 where that is not known.
    pub bytes_per_step: u64,
    /// Duration of a step before the action, in nanoseconds; none where it is not known.
    pub step_ns: Option<u64>,
    /// Time until the device is full before the action, in nanoseconds; none where that is not
    /// known.
    pub oom_in_ns: Option<u64>,
    /// The line of code that holds the growth; none where it is not known.
    pub line: Option<LineSeen>,
    /// The step at which the ranks act; for a restart, the step of the checkpoint that all have
    /// written. None where there is none.
    pub step: Option<u64>,
    /// The newest step that the rank made in the attempt that is acted on.
    pub last_step: u64,
    /// Time at which the target or the ranks were asked, in nanoseconds; none before.
    pub asked_ns: Option<u64>,
    /// Time at which the next attempt was first seen, in nanoseconds.
    pub begun_ns: Option<u64>,
    /// Serial number of the next attempt.
    pub next: Option<u32>,
    /// The first step of the next attempt that was seen.
    pub first_step: Option<FirstStep>,
}

/// Bytes of a line of code on the device, as censuses show them.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct LineSeen {
    /// The line.
    pub frame: Frame,
    /// Bytes before the action; none where no census has the line.
    pub before_bytes: Option<u64>,
    /// Bytes at the verdict; none where there was no census since.
    pub after_bytes: Option<u64>,
}

/// A step, and when it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct FirstStep {
    /// Number of the step.
    pub step: u64,
    /// When, in nanoseconds.
    pub seen_ns: u64,
}

/// The observed part of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The rank.
    pub rank: u32,
    /// Device of the rank.
    pub device: u8,
    /// A line of code.
    pub line: Option<&'a Frame>,
}

/// The facts of a job that an observation needs.
pub trait Job {
    /// Has this attempt ended?
    fn is_over(&self, serial: u32) -> bool;
    /// This attempt.
    fn attempt(&self, serial: u32, of: Subject<'_>) -> Option<Seen>;
    /// The first attempt after this one.
    fn successor(&self, serial: u32, of: Subject<'_>) -> Option<Seen>;
}

/// An attempt at a job, as one device of one rank shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Serial number of the attempt.
    pub serial: u32,
    /// Step of its rank; 0 before the first.
    pub step: u64,
    /// The memory of its device at the newest step.
    pub memory: Option<Memory>,
    /// Step of the device's newest census, and bytes of the line in it.
    pub line: Option<(u64, u64)>,
    /// A request for memory failed in it.
    pub has_failed_request: bool,
    /// End of the attempt.
    pub ended: Option<Ended>,
}

/// End of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All ranks exited as they should.
    Finished,
    /// A rank died.
    Died,
}

impl Observation {
    /// Looks at the job after an action of a kind; none until there is a verdict, and before the
    /// target or the ranks were asked. All times are of one clock, which may stand while no
    /// coordinator runs.
    pub fn look(&mut self, now_ns: u64, kind: ActionKind, job: &impl Job) -> Option<Verdict> {
        let asked_ns = self.asked_ns?;
        match kind.is_inside() {
            true => self.look_inside(now_ns, asked_ns, job),
            false => self.look_at_next(now_ns, asked_ns, job),
        }
    }

    /// The proof of a remedy inside the ranks.
    fn look_inside(&mut self, now_ns: u64, asked_ns: u64, job: &impl Job) -> Option<Verdict> {
        let Some(seen) = job.attempt(self.serial, self.subject()) else {
            return Some(Verdict::Unknown(Why::Gone { steps: 0 }));
        };
        let at_step = self.step.unwrap_or(0);
        self.last_step = seen.step.max(self.last_step);
        if seen.step < at_step {
            // The memory at the last step before.
            self.before = seen.memory.or(self.before);
        }
        // The remedy follows the end of that step: a census of the step itself may be older.
        self.note_line(seen.line.filter(|(step, _)| *step > at_step));
        let steps = seen.step.saturating_sub(at_step);
        if seen.ended == Some(Ended::Died) {
            return Some(Verdict::Worse(Why::DiedInside { steps }));
        }
        if steps >= PROOF_STEPS {
            let (Some(before), Some(after)) = (self.before, seen.memory) else {
                return Some(Verdict::Unknown(Why::NotMeasuredInside { steps }));
            };
            let why = Why::Inside { before, after };
            return Some(match self.is_freed(&before, &after) {
                None => Verdict::Unknown(Why::NotMeasuredInside { steps }),
                Some(true) => Verdict::Helped(why),
                Some(false) => Verdict::NoEffect(why),
            });
        }
        let is_late = now_ns.saturating_sub(asked_ns) >= ACTION_STEPS_SECONDS_MAX * SECOND_NS;
        (seen.ended.is_some() || is_late).then_some(Verdict::Unknown(Why::Gone { steps }))
    }

    /// The proof of a restart.
    fn look_at_next(&mut self, now_ns: u64, asked_ns: u64, job: &impl Job) -> Option<Verdict> {
        let waited_ns = now_ns.saturating_sub(asked_ns);
        if let Some(own) = job.attempt(self.serial, self.subject()) {
            self.last_step = own.step.max(self.last_step);
        }
        let Some(next) = job.successor(self.serial, self.subject()) else {
            let is_late = waited_ns >= ACTION_RETURN_SECONDS_MAX * SECOND_NS;
            return is_late.then(|| match job.is_over(self.serial) {
                true => Verdict::Worse(Why::NotBack { waited_ns }),
                false => Verdict::NoEffect(Why::NotRestarted { waited_ns }),
            });
        };
        self.next = Some(next.serial);
        self.note_line(next.line);
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

    fn subject(&self) -> Subject<'_> {
        let line = self.line.as_ref().map(|line| &line.frame);
        Subject { rank: self.rank, device: self.device, line }
    }

    /// Notes the bytes of the line after the action, from a census with its step.
    fn note_line(&mut self, seen: Option<(u64, u64)>) {
        if let (Some(line), Some((_, bytes))) = (&mut self.line, seen) {
            line.after_bytes = Some(bytes);
        }
    }

    /// Compares the memory; none where one of the two is not known.
    fn measured(&self, asked_ns: u64, next: &Seen) -> Option<Verdict> {
        let (before, after, first) = (self.before?, next.memory?, self.first_step?);
        let away_ns = first.seen_ns.saturating_sub(asked_ns);
        let why = Why::Measured { before, after, away_ns };
        let is_freed = self.is_freed(&before, &after)?;
        Some(if is_freed { Verdict::Helped(why) } else { Verdict::NoEffect(why) })
    }

    /// Is half of the growth given back? That is more than a step's own variation. None where this
    /// memory is not recorded by step, or no bytes were counted.
    fn is_freed(&self, before: &Memory, after: &Memory) -> Option<bool> {
        let held = after.figure(self.measure)?;
        let given_back = before.figure(self.measure)?.saturating_sub(held);
        Some(given_back > 0 && given_back >= self.grown_bytes? / 2)
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
        own: Option<Seen>,
        next: Option<Seen>,
    }

    impl Job for OneRank {
        fn is_over(&self, _serial: u32) -> bool {
            self.is_over
        }

        fn attempt(&self, serial: u32, _of: Subject<'_>) -> Option<Seen> {
            assert_eq!(serial, 3);
            self.own
        }

        fn successor(&self, serial: u32, _of: Subject<'_>) -> Option<Seen> {
            assert_eq!(serial, 3);
            self.next
        }
    }

    fn memory(step: u64, mib: u64) -> Memory {
        let [min_bytes, peak_bytes, reserved_bytes] = [mib, mib + 50, mib + 100].map(|it| it * MIB);
        Memory { step, min_bytes, peak_bytes, reserved_bytes, retries: 0 }
    }

    fn observation() -> Observation {
        let (before, asked_ns) = (Some(memory(400, 1000)), Some(0));
        let (measure, grown_bytes) = (Measure::Minimum, Some(600 * MIB));
        Observation { serial: 3, measure, before, asked_ns, grown_bytes, ..Default::default() }
    }

    /// Expects this verdict on a restart at the last of these times, and none at the times before.
    fn check(looks: &[(u64, OneRank)], expected: Option<&str>) {
        check_of(ActionKind::Restart, observation(), looks, expected);
    }

    fn check_of(
        kind: ActionKind,
        mut observation: Observation,
        looks: &[(u64, OneRank)],
        expected: Option<&str>,
    ) {
        let (last, before) = looks.split_last().expect("a look");
        for (seconds, job) in before {
            assert_eq!(observation.look(seconds * SECOND_NS, kind, job), None, "{job:?}");
        }
        let found = observation.look(last.0 * SECOND_NS, kind, &last.1).map(|it| it.to_string());
        assert_eq!(found.as_deref(), expected, "{looks:?}");
    }

    #[test]
    fn an_attempt_that_does_not_begin() {
        let (runs, over) = (OneRank::default(), OneRank { is_over: true, ..OneRank::default() });
        let late = Some("no effect: the attempt runs on after 15 min");
        check(&[(899, runs.clone()), (900, runs)], late);
        let gone = Some("worse: no attempt began within 15 min");
        check(&[(899, over.clone()), (901, over.clone())], gone);
        let mut waits = Observation { asked_ns: None, ..observation() };
        assert_eq!(
            waits.look(9_000 * SECOND_NS, ActionKind::Restart, &over),
            None,
            "it waits for its capture"
        );
    }

    #[test]
    fn the_next_attempt_is_the_proof() {
        let of = |next: Seen| OneRank { is_over: true, next: Some(next), ..OneRank::default() };
        let step = |step, mib| {
            let memory = Some(memory(step, mib));
            of(Seen { step, memory, ..Seen::default() })
        };
        let none = (30, of(Seen::default()));
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
            (70, of(Seen { step, ended, ..Seen::default() }))
        };
        let finished = Some("helped: the next attempt finished");
        check(&[first.clone(), ended(387, Ended::Finished)], finished);
        let died = Some("worse: the next attempt died after 7 steps");
        check(&[first.clone(), ended(387, Ended::Died)], died);
        let failed = Seen { step: 381, has_failed_request: true, ..Seen::default() };
        let out = Some("worse: the next attempt ran out of memory after 1 step");
        check(&[first, (51, of(failed))], out);
        let mut of_blocks = Observation { grown_bytes: None, ..observation() };
        assert_eq!(of_blocks.look(50 * SECOND_NS, ActionKind::Restart, &step(1, 400)), None);
        let seen = of_blocks.look(60 * SECOND_NS, ActionKind::Restart, &step(20, 400));
        assert!(matches!(seen, Some(Verdict::Unknown(_))), "{seen:?}");
        let mut of_host = Observation { measure: Measure::None, ..observation() };
        assert_eq!(of_host.look(50 * SECOND_NS, ActionKind::Restart, &step(1, 400)), None);
        let unknown = of_host
            .look(60 * SECOND_NS, ActionKind::Restart, &step(20, 400))
            .map(|it| it.to_string());
        let why = "unknown: the next attempt made 20 steps; this kind of memory is not compared";
        assert_eq!(unknown.as_deref(), Some(why));
        let stuck = Some("worse: the next attempt made 0 steps within 30 min");
        check(&[none.clone(), (1829, none.1.clone()), (1830, none.1)], stuck);
    }

    #[test]
    fn the_steps_that_follow_prove_a_remedy_inside() {
        let own = |step, mib| {
            let memory = Some(memory(step, mib));
            OneRank { own: Some(Seen { step, memory, ..Seen::default() }), ..OneRank::default() }
        };
        let check = |looks: &[(u64, OneRank)], expected: Option<&str>| {
            let inside = Observation { step: Some(410), ..observation() };
            check_of(ActionKind::Gc, inside, looks, expected);
        };
        let before = (1, own(409, 1100));
        let helped = "helped: per-step minimum 1.07 GiB at step 409, 400 MiB at step 430; peak \
                      1.12 GiB, then 450 MiB; reserved 1.17 GiB, then 500 MiB";
        check(&[before.clone(), (2, own(429, 400)), (3, own(430, 400))], Some(helped));
        let same = "no effect: per-step minimum 1.07 GiB at step 409, 1.07 GiB at step 430; peak \
                    1.12 GiB, then 1.12 GiB; reserved 1.17 GiB, then 1.17 GiB";
        check(&[before.clone(), (3, own(430, 1100))], Some(same));
        let mut of_retries = before.clone();
        of_retries.1.own.as_mut().unwrap().memory.as_mut().unwrap().retries = 7;
        let retried = &alloc::format!("{helped}; retries 7, then 0");
        check(&[of_retries, (3, own(430, 400))], Some(retried));
        let ended = |ended| {
            let seen = Seen { step: 415, ended: Some(ended), ..Seen::default() };
            (3, OneRank { own: Some(seen), ..OneRank::default() })
        };
        let died = Some("worse: the attempt died after 5 steps");
        check(&[before.clone(), ended(Ended::Died)], died);
        let gone = Some("unknown: the attempt made 5 steps after it");
        check(&[before.clone(), ended(Ended::Finished)], gone);
        check(&[before, (1_801, own(415, 400))], gone);
    }

    #[test]
    fn a_census_before_the_remedy_proves_nothing() {
        let frame = Frame { file: "train.py".into(), line: 66, function: "main".into() };
        let line = Some(LineSeen { frame, before_bytes: Some(1000 * MIB), after_bytes: None });
        let inside = Observation { step: Some(410), line, ..observation() };
        for (census_step, after) in [(410, None), (411, Some(20 * MIB))] {
            let (memory, line) = (Some(memory(430, 400)), Some((census_step, 20 * MIB)));
            let seen = Seen { step: 430, memory, line, ..Seen::default() };
            let mut observation = inside.clone();
            let verdict = observation.look(
                SECOND_NS,
                ActionKind::Gc,
                &OneRank { own: Some(seen), ..OneRank::default() },
            );
            assert!(matches!(verdict, Some(Verdict::Helped(_))), "{verdict:?}");
            assert_eq!(observation.line.unwrap().after_bytes, after, "{census_step}");
        }
    }

    proptest! {
        /// For any course of the job, there is a verdict in the end, and none claims less memory
        /// where more is held.
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
            let last = Seen { serial: 4, step, memory, has_failed_request, ended, line: None };
            let first = Seen { step: step.min(1), ..Seen::default() };
            let job = |seen| {
                let next = Some(seen).filter(|_| has_next);
                OneRank { is_over, own: Some(seen), next }
            };
            let mut observation = observation();
            let mut look = |seconds: u64, seen| {
                observation.look(seconds * SECOND_NS, ActionKind::Restart, &job(seen))
            };
            prop_assert_eq!(look(10, first), None);
            let verdict = look(4_000, last);
            prop_assert!(verdict.is_some());
            let has_helped = matches!(verdict, Some(Verdict::Helped(Why::Measured { .. })));
            prop_assert!(!has_helped || mib.is_some_and(|mib| mib <= 700));
        }
    }
}

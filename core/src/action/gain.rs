//! Gain of an action: steps made again, training saved, time until the device is full, and the line
//! of code that held the memory.
//!
//! All figures are computed from the observation and the verdict; nothing here is stored. Unknown
//! figures are left out. The training that a restart saved is an upper bound: a program that writes
//! checkpoints by itself would have lost less.

use core::fmt::{self, Display, Formatter};

use super::kind::ActionKind;
use super::observation::{LineSeen, Observation};
use super::verdict::{Memory, Verdict, Why};
use crate::diagnosis::{bytes, duration, plural};

/// Gain of an action; [`Display`] puts it into words, each after a semicolon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gain {
    /// Steps after the checkpoint, which the next attempt has to make again.
    pub steps_lost: Option<u64>,
    /// Training that would have been lost, or made impossible, at most, in nanoseconds.
    pub saved_ns: Option<u64>,
    /// Time until the device was full before the action, and is after it at the same rate of
    /// growth, in nanoseconds.
    pub full_in_ns: Option<(u64, u64)>,
    /// The line that held the memory.
    pub line: Option<LineSeen>,
}

impl Gain {
    /// The worth of an action of this kind with this verdict.
    pub fn of(kind: ActionKind, observation: &Observation, verdict: &Verdict) -> Self {
        let Observation { step, step_ns, oom_in_ns, last_step, line, .. } = observation;
        let is_inside = kind.is_inside();
        let later_ns = figures(verdict).and_then(|figures| later_ns(observation, figures));
        // For a restart: the steps up to its checkpoint.
        let trained_ns = step.zip(*step_ns).map(|(step, step_ns)| step.saturating_mul(step_ns));
        let saved_ns = if is_inside { later_ns } else { trained_ns };
        let is_helped = matches!(verdict, Verdict::Helped(_));
        Self {
            steps_lost: step.filter(|_| !is_inside).map(|step| last_step.saturating_sub(step)),
            saved_ns: saved_ns.filter(|_| is_helped),
            full_in_ns: oom_in_ns
                .zip(later_ns)
                .map(|(oom_in_ns, later_ns)| (oom_in_ns, oom_in_ns.saturating_add(later_ns))),
            line: line.clone().filter(|line| line.after_bytes.is_some()),
        }
    }
}

impl Display for Gain {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if let Some(LineSeen { frame, before_bytes, after_bytes: Some(after) }) = &self.line {
            write!(formatter, "; {}:{} holds {}", frame.file, frame.line, bytes(*after))?;
            before_bytes.map_or(Ok(()), |before| {
                write!(formatter, ", and held {} before", bytes(before))
            })?;
        }
        if let Some((before_ns, after_ns)) = self.full_in_ns {
            let (before, after) = (duration(before_ns), duration(after_ns));
            write!(formatter, "; full within {before} before, {after} after at the same rate")?;
        }
        if let Some(lost) = self.steps_lost {
            write!(formatter, "; {} made again", plural(lost, "step"))?;
        }
        Ok(())
    }
}

/// The memory before and after the action.
fn figures(verdict: &Verdict) -> Option<(&Memory, &Memory)> {
    match verdict.why() {
        Why::Measured { before, after, .. } | Why::Inside { before, after } => {
            Some((before, after))
        }
        Why::NotMeasuredInside { .. }
        | Why::DiedInside { .. }
        | Why::Gone { .. }
        | Why::NotMeasured { .. }
        | Why::Finished
        | Why::NotRestarted { .. }
        | Why::NotBack { .. }
        | Why::Stuck { .. }
        | Why::Died { .. }
        | Why::OutOfMemory { .. } => None,
    }
}

/// Delay of the device being full, at the rate at which the figure grew, in nanoseconds.
fn later_ns(observation: &Observation, (before, after): (&Memory, &Memory)) -> Option<u64> {
    let Observation { measure, bytes_per_step, step_ns, .. } = observation;
    let freed = before.figure(*measure)?.saturating_sub(after.figure(*measure)?);
    let steps = freed.checked_div(*bytes_per_step)?;
    Some(steps.saturating_mul((*step_ns)?))
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;
    use crate::action::Measure;
    use crate::snapshot::Frame;

    const SECOND_NS: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn memory(step: u64, mib: u64) -> Memory {
        Memory { step, min_bytes: mib * MIB, ..Memory::default() }
    }

    fn observation() -> Observation {
        Observation {
            measure: Measure::Minimum,
            bytes_per_step: 2 * MIB,
            step_ns: Some(SECOND_NS / 10),
            oom_in_ns: Some(30 * SECOND_NS),
            step: Some(400),
            last_step: 412,
            line: Some(LineSeen {
                frame: Frame { file: "train.py".into(), line: 66, function: "main".into() },
                before_bytes: Some(800 * MIB),
                after_bytes: Some(40 * MIB),
            }),
            ..Observation::default()
        }
    }

    fn measured(before: u64, after: u64) -> Why {
        Why::Measured { before: memory(399, before), after: memory(21, after), away_ns: SECOND_NS }
    }

    #[test]
    fn a_restart_saves_what_its_checkpoint_holds() {
        let gain =
            Gain::of(ActionKind::Restart, &observation(), &Verdict::Helped(measured(800, 40)));
        assert_eq!((gain.steps_lost, gain.saved_ns), (Some(12), Some(40 * SECOND_NS)));
        let said = "; train.py:66 holds 40 MiB, and held 800 MiB before; full within 30 s before, \
                    68 s after at the same rate; 12 steps made again";
        assert_eq!(gain.to_string(), said);
        // Without a checkpoint it is not known what was saved.
        let without = Observation { step: None, ..observation() };
        let gain = Gain::of(ActionKind::Restart, &without, &Verdict::Helped(measured(800, 40)));
        assert_eq!((gain.steps_lost, gain.saved_ns), (None, None));
    }

    #[test]
    fn a_remedy_inside_saves_the_time_until_the_memory_is_full_again() {
        let inside = Why::Inside { before: memory(399, 800), after: memory(420, 600) };
        let gain = Gain::of(ActionKind::Gc, &observation(), &Verdict::Helped(inside));
        assert_eq!((gain.steps_lost, gain.saved_ns), (None, Some(10 * SECOND_NS)));
        let gain = Gain::of(ActionKind::Gc, &observation(), &Verdict::NoEffect(inside));
        assert_eq!(gain.saved_ns, None, "what did not help saved nothing");
    }

    proptest! {
        /// An action without effect saved nothing, and none saves more than was trained or freed.
        #[test]
        fn savings_never_exceed_the_memory_held(
            before in 0_u64..4_000,
            after in 0_u64..4_000,
            bytes_per_step in 0_u64..10_000_000,
            step in prop::option::of(0_u64..1_000),
            is_inside: bool,
            has_helped: bool,
        ) {
            let kind = if is_inside { ActionKind::Gc } else { ActionKind::Restart };
            let known = Observation { bytes_per_step, step, ..observation() };
            let why = match is_inside {
                true => Why::Inside { before: memory(399, before), after: memory(420, after) },
                false => measured(before, after),
            };
            let verdict = if has_helped { Verdict::Helped(why) } else { Verdict::NoEffect(why) };
            let gain = Gain::of(kind, &known, &verdict);
            prop_assert!(has_helped || gain.saved_ns.is_none());
            let freed = before.saturating_sub(after) * MIB;
            let freed_ns = freed.checked_div(bytes_per_step).unwrap_or(0) * SECOND_NS / 10;
            let trained_ns = step.unwrap_or(0) * SECOND_NS / 10;
            let most_ns = if is_inside { freed_ns } else { trained_ns };
            prop_assert!(gain.saved_ns.unwrap_or(0) <= most_ns);
            prop_assert!(gain.full_in_ns.is_none_or(|(before_ns, after_ns)| before_ns <= after_ns));
        }
    }
}

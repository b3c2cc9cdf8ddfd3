//! Planned end of a job, as the environment of its ranks names it.
//!
//! The time is the scheduler's limit: Slurm sets `SLURM_JOB_END_TIME` from version 23.02 on. The
//! number of steps is the user's. Nothing here asks whether the job keeps to its plan.

use alloc::format;
use alloc::string::String;

/// Planned end of a job. Each part is none where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct PlannedEnd {
    /// Unix time at which the scheduler ends the job, in nanoseconds.
    pub ends_at_wall_ns: Option<i64>,
    /// Number of the last step of the rank's process, as the tape counts.
    pub total_steps: Option<u64>,
}

/// A planned end further from the start of its process stands for none, in nanoseconds: Slurm gives
/// a job without a time limit one of a year.
const AHEAD_NS_MAX: i64 = 90 * 24 * 3_600 * 1_000_000_000;

/// Most steps of a process: the largest exact integer of JavaScript.
const TOTAL_STEPS_MAX: u64 = 1 << 53;

impl PlannedEnd {
    /// Reads the end from numbers under these names; Unix time in seconds.
    pub(super) fn from_numbers(number: impl Fn(&[&str]) -> Option<u64>) -> Self {
        let seconds = number(&["MEMTAPE_ENDS_AT", "SLURM_JOB_END_TIME"]);
        let ends_at_wall_ns =
            seconds.and_then(|at| i64::try_from(at).ok()?.checked_mul(1_000_000_000));
        Self { ends_at_wall_ns, total_steps: number(&["MEMTAPE_TOTAL_STEPS"]) }
    }

    /// The parts that can be true of a process that started at this Unix time: its end comes later,
    /// and it takes a step.
    pub fn of_process(self, start_wall_ns: i64) -> Self {
        let is_ahead = |at: &i64| {
            let ahead_ns = at.saturating_sub(start_wall_ns);
            (1..=AHEAD_NS_MAX).contains(&ahead_ns)
        };
        let is_number = |steps: &u64| (1..=TOTAL_STEPS_MAX).contains(steps);
        Self {
            ends_at_wall_ns: self.ends_at_wall_ns.filter(is_ahead),
            total_steps: self.total_steps.filter(is_number),
        }
    }

    /// The lines of a tape's identity.
    pub(crate) fn lines(self) -> String {
        let ends_at = self.ends_at_wall_ns.map(|at| format!("ends_at_wall_ns={at}\n"));
        let steps = self.total_steps.map(|steps| format!("total_steps={steps}\n"));
        ends_at.into_iter().chain(steps).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_NS: i64 = 24 * 3_600 * 1_000_000_000;

    #[test]
    fn the_user_is_believed_before_slurm() {
        let check = |vars: &[(&str, u64)], ends_at_wall_ns, total_steps| {
            let number = |names: &[&str]| {
                let find = |name: &&str| vars.iter().find(|(key, _)| key == name);
                names.iter().find_map(find).map(|(_, value)| *value)
            };
            let expected = PlannedEnd { ends_at_wall_ns, total_steps };
            assert_eq!(PlannedEnd::from_numbers(number), expected, "{vars:?}");
        };
        let slurm = ("SLURM_JOB_END_TIME", 1_700_000_000);
        check(&[], None, None);
        check(&[slurm], Some(1_700_000_000_000_000_000), None);
        check(&[slurm, ("MEMTAPE_ENDS_AT", 7)], Some(7_000_000_000), None);
        check(&[("MEMTAPE_TOTAL_STEPS", 5_000)], None, Some(5_000));
        check(&[("MEMTAPE_ENDS_AT", u64::MAX)], None, None);
    }

    #[test]
    fn an_end_that_cannot_be_is_none() {
        let start = 1_700_000_000 * 1_000_000_000;
        for (ends_at, total_steps, is_time, is_steps) in [
            (start + DAY_NS, 1, true, true),
            (start + 30 * DAY_NS, 1 << 53, true, true),
            (start, 0, false, false),
            (start - DAY_NS, u64::MAX, false, false),
            // Slurm, without a time limit.
            (start + 365 * DAY_NS, 5, false, true),
            (i64::MAX, 5, false, true),
            (i64::MIN, 5, false, true),
        ] {
            let named =
                PlannedEnd { ends_at_wall_ns: Some(ends_at), total_steps: Some(total_steps) };
            let end = named.of_process(start);
            let found = (end.ends_at_wall_ns.is_some(), end.total_steps.is_some());
            assert_eq!(found, (is_time, is_steps), "{named:?}");
        }
    }
}

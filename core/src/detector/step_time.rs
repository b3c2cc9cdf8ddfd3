//! Step time, measured from the arrival times of samples.
//!
//! The samples of one report arrive at one time. Only the last of them was finished just then, so
//! a report counts when the next one arrives.

/// Steps after which the measurement moves on.
const STEPS: u64 = 64;

/// Times in nanoseconds, each with the last step that was finished then.
#[derive(Debug, Default)]
pub(super) struct StepTime {
    /// One to two times [`STEPS`] old.
    older: Option<(u64, u64)>,
    newer: Option<(u64, u64)>,
    /// The report that is arriving.
    arriving: Option<(u64, u64)>,
    step_time_ns: Option<u64>,
}

impl StepTime {
    /// Notes that a rank finished `step`.
    pub(super) fn note(&mut self, now_ns: u64, step: u64) {
        match &mut self.arriving {
            Some((time_ns, last)) if *time_ns == now_ns => *last = step.max(*last),
            arriving => {
                if let Some((time_ns, last)) = arriving.replace((now_ns, step)) {
                    self.arrived(time_ns, last);
                }
            }
        }
    }

    fn arrived(&mut self, now_ns: u64, step: u64) {
        let (older, newer) = match (self.older, self.newer) {
            (Some(older), Some(newer)) => (older, newer),
            _ => {
                self.older = Some((now_ns, step));
                self.newer = Some((now_ns, step));
                return;
            }
        };
        if step <= newer.1 {
            return;
        }
        let (elapsed_ns, steps) = (now_ns.saturating_sub(older.0), step - older.1);
        if elapsed_ns > 0 && steps >= 4 {
            self.step_time_ns = Some((elapsed_ns / steps).max(1));
        }
        if step - newer.1 >= STEPS {
            (self.older, self.newer) = (Some(newer), Some((now_ns, step)));
        }
    }

    pub(super) fn step_time_ns(&self) -> Option<u64> {
        self.step_time_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_many_steps_make_no_step_shorter() {
        let (mut step_time, mut step) = (StepTime::default(), 0);
        for report in 1..=40_u64 {
            for _ in 0..33 {
                step += 1;
                step_time.note(report * 990_000_000, step);
            }
            let measured = step_time.step_time_ns();
            assert!(report < 3 || measured == Some(30_000_000), "report {report}: {measured:?}");
        }
    }

    #[test]
    fn it_follows_the_present_steps() {
        let (mut step_time, mut now_ns) = (StepTime::default(), 0);
        for step in 0..1_000 {
            now_ns += if step < 500 { 30_000_000 } else { 50_000_000 };
            step_time.note(now_ns, step);
            if step == 499 {
                assert_eq!(step_time.step_time_ns(), Some(30_000_000));
            }
        }
        assert_eq!(step_time.step_time_ns(), Some(50_000_000));
    }
}

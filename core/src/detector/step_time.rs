//! Step time, measured from the arrival times of samples.

/// Steps after which the measurement moves on.
const STEPS: u64 = 64;

/// Two earlier (time in nanoseconds, step); the older is one to two times [`STEPS`] old.
#[derive(Debug, Default)]
pub(super) struct StepTime {
    older: Option<(u64, u64)>,
    newer: Option<(u64, u64)>,
    step_time_ns: Option<u64>,
}

impl StepTime {
    /// Notes that a rank finished `step`.
    pub(super) fn note(&mut self, now_ns: u64, step: u64) {
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

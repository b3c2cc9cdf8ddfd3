//! The time by which certificates are judged: a clock that is set back does not make those valid
//! again that have expired.
//!
//! It is the system's clock, but never before the start of the process and the time since then. A
//! clock that is set forward counts for as long as it says so: one that jumps and returns locks
//! clients out for that time, not for good.

use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The later one of the system's clock, and the start with the time since then.
#[derive(Debug)]
pub(crate) struct SteadyTime {
    started: Instant,
    started_unix: Duration,
}

impl SteadyTime {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), started_unix: of_system() }
    }

    /// The time, where the system's clock says this.
    fn at(&self, of_system: Duration) -> UnixTime {
        let now = of_system.max(self.started_unix + self.started.elapsed());
        UnixTime::since_unix_epoch(Duration::from_secs(now.as_secs()))
    }

    pub(crate) fn now(&self) -> UnixTime {
        self.at(of_system())
    }
}

impl TimeProvider for SteadyTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now())
    }
}

fn of_system() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_changes_nothing() {
        let (time, day) = (SteadyTime::new(), Duration::from_secs(86_400));
        let start = time.started_unix;
        let seconds = |of_system: Duration| time.at(of_system).as_secs();
        assert!(seconds(start.saturating_sub(100 * day)) >= start.as_secs());
        assert!(seconds(Duration::ZERO) >= start.as_secs());
    }

    #[test]
    fn a_clock_that_jumps_forward_and_returns_locks_clients_out_no_longer() {
        let (time, day) = (SteadyTime::new(), Duration::from_secs(86_400));
        let start = time.started_unix;
        assert_eq!(time.at(start + 100 * day).as_secs(), (start + 100 * day).as_secs());
        assert!(time.at(start).as_secs() < (start + day).as_secs());
    }
}

//! The time by which certificates are judged: a clock that is set back does not make those valid
//! again that have expired.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// The latest of the system's clock, its earlier readings, and the start with the time since then.
#[derive(Debug)]
pub(crate) struct SteadyTime {
    started: Instant,
    started_unix: Duration,
    latest_seconds: AtomicU64,
}

impl SteadyTime {
    pub(crate) fn new() -> Self {
        let started_unix = of_system();
        let latest_seconds = AtomicU64::new(started_unix.as_secs());
        Self { started: Instant::now(), started_unix, latest_seconds }
    }

    /// The time, where the system's clock says this.
    fn at(&self, of_system: Duration) -> UnixTime {
        let now = of_system.max(self.started_unix + self.started.elapsed()).as_secs();
        let latest = self.latest_seconds.fetch_max(now, Relaxed).max(now);
        UnixTime::since_unix_epoch(Duration::from_secs(latest))
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
        assert_eq!(seconds(start + 100 * day), (start + 100 * day).as_secs());
        assert_eq!(seconds(start.saturating_sub(100 * day)), (start + 100 * day).as_secs());
        assert_eq!(time.now().as_secs(), (start + 100 * day).as_secs());
    }
}

//! The time by which credentials expire: a clock that is set back makes none of them valid again.
//!
//! It is the system's clock, but never before the start of the process and the time since then. A
//! clock that is set forward counts while it is ahead: a clock that jumps and returns locks clients
//! out for that time, not for good. A process that starts again believes the clock it finds: if it
//! remembered the latest time, one wrong jump would last for ever.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// Time since 1970 that judges credentials, where the system's clock shows `of_system`.
pub fn latest(of_system: Duration) -> Duration {
    static START: OnceLock<(Instant, Duration)> = OnceLock::new();
    let (start, started) = START.get_or_init(|| (Instant::now(), system()));
    of_system.max(*started + start.elapsed())
}

/// The clock of rustls.
#[derive(Debug)]
pub(crate) struct SteadyTime;

/// Time since 1970 that judges credentials.
pub fn now() -> Duration {
    latest(system())
}

impl TimeProvider for SteadyTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(now()))
    }
}

fn system() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_clock_that_is_set_back_changes_nothing() {
        let start = latest(system());
        assert!(latest(start.saturating_sub(100 * DAY)) >= start);
        assert!(latest(Duration::ZERO) >= start);
    }

    #[test]
    fn a_clock_that_jumps_forward_and_returns_locks_clients_out_no_longer() {
        let start = latest(system());
        assert_eq!(latest(start + 100 * DAY), start + 100 * DAY);
        assert!(latest(start) < start + DAY);
    }
}

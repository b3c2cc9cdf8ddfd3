//! How often each caller may ask: a bucket of requests for each, which fills again with time.
//!
//! Known callers have their own bucket, wherever they ask from; all others share that of their
//! address. The clock is passed in.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memtape_core::limits::{
    AUDITED_AT_ONCE_MAX, AUDITED_PER_MINUTE_MAX, CALLERS_MAX, REFUSALS_LOGGED_AT_ONCE_MAX,
    REFUSALS_LOGGED_PER_MINUTE_MAX, REQUESTS_AT_ONCE_MAX, REQUESTS_PER_SECOND_MAX,
};

const SECOND_NS: u64 = 1_000_000_000;

/// The buckets of all callers.
#[derive(Debug)]
pub(super) struct Rates {
    /// Time after which one more request has room.
    refill_ns: u64,
    /// Time after which an empty bucket is full.
    full_ns: u64,
    /// When each bucket is full again.
    full_at_ns: Mutex<HashMap<String, u64>>,
}

impl Rates {
    /// Of all requests.
    pub(super) fn of_requests() -> Self {
        Self::new(SECOND_NS / REQUESTS_PER_SECOND_MAX, REQUESTS_AT_ONCE_MAX)
    }

    /// Of those that are audited: no caller fills the audit and drives out what others did.
    pub(super) fn of_audited() -> Self {
        Self::new(60 * SECOND_NS / AUDITED_PER_MINUTE_MAX, AUDITED_AT_ONCE_MAX)
    }

    /// Of refusals that are logged: a flood of them floods no log.
    pub(super) fn of_logged() -> Self {
        Self::new(60 * SECOND_NS / REFUSALS_LOGGED_PER_MINUTE_MAX, REFUSALS_LOGGED_AT_ONCE_MAX)
    }

    fn new(refill_ns: u64, at_once: u64) -> Self {
        Self { refill_ns, full_ns: refill_ns * at_once, full_at_ns: Mutex::default() }
    }

    /// Takes one request from a caller's bucket; the time to wait where it is empty.
    pub(super) fn take(&self, now_ns: u64, caller: &str) -> Result<(), Duration> {
        let mut all = self.full_at_ns.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CALLERS_MAX && !all.contains_key(caller) {
            // A full bucket says nothing.
            all.retain(|_, full_at_ns| *full_at_ns > now_ns);
            if all.len() >= CALLERS_MAX {
                return Err(Duration::from_secs(1));
            }
        }
        let full_at_ns = all.get(caller).copied().unwrap_or(0).max(now_ns) + self.refill_ns;
        if full_at_ns - now_ns > self.full_ns {
            return Err(Duration::from_nanos(full_at_ns - now_ns - self.full_ns));
        }
        all.insert(caller.to_string(), full_at_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_takes_nothing_from_another() {
        let rates = Rates::of_requests();
        let taken = (0..REQUESTS_AT_ONCE_MAX + 10).filter(|_| rates.take(7, "a").is_ok()).count();
        assert_eq!(taken as u64, REQUESTS_AT_ONCE_MAX);
        let wait = rates.take(7, "a").unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rates.take(7, "b").is_ok());
        let later_ns = 7 + u64::try_from(wait.as_nanos()).unwrap();
        assert!(rates.take(later_ns, "a").is_ok() && rates.take(later_ns, "a").is_err());
    }

    #[test]
    fn a_flood_of_refusals_floods_no_log() {
        let logged = Rates::of_logged();
        let lines = (0..100_000).filter(|index| logged.take(index * 1_000_000, "a").is_ok());
        // 100 s of a refusal each millisecond.
        assert!((10..=20).contains(&lines.count()));
        assert!(logged.take(0, "b").is_ok());
    }

    #[test]
    fn many_callers_take_bounded_memory() {
        let rates = Rates::of_requests();
        for caller in 0..CALLERS_MAX {
            assert!(rates.take(0, &caller.to_string()).is_ok());
        }
        assert!(rates.take(0, "one more").is_err());
        assert!(rates.take(rates.refill_ns, "one more").is_ok());
    }
}

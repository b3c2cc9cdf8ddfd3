//! How often each caller may ask: a bucket of requests for each, which fills again with time.
//!
//! Known callers have their own bucket, wherever they ask from; all others share that of their
//! address. The clock is passed in, core counts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use memtape_core::limits::{
    AUDITED_AT_ONCE_MAX, AUDITED_PER_MINUTE_MAX, BAD_TOKENS_AT_ONCE_MAX, BAD_TOKENS_PER_MINUTE_MAX,
    CALLERS_MAX, REFUSALS_LOGGED_AT_ONCE_MAX, REFUSALS_LOGGED_PER_MINUTE_MAX, REQUESTS_AT_ONCE_MAX,
    REQUESTS_PER_SECOND_MAX,
};
use memtape_core::rates;

const SECOND_NS: u64 = 1_000_000_000;

/// The buckets of all callers.
#[derive(Debug)]
pub(super) struct Rates(Mutex<rates::Rates>);

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

    /// Of tokens that are not valid: no network makes the coordinator verify signatures all the
    /// time.
    pub(super) fn of_bad_tokens() -> Self {
        Self::new(60 * SECOND_NS / BAD_TOKENS_PER_MINUTE_MAX, BAD_TOKENS_AT_ONCE_MAX)
    }

    fn new(refill_ns: u64, at_once: u64) -> Self {
        Self(Mutex::new(rates::Rates::new(refill_ns, at_once, CALLERS_MAX)))
    }

    /// Takes one request from a caller's bucket; the time to wait where it is empty.
    pub(super) fn take(&self, now_ns: u64, caller: &str) -> Result<(), Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now_ns, caller)
    }

    /// Has a caller's bucket a request left? Takes none.
    pub(super) fn check(&self, now_ns: u64, caller: &str) -> Result<(), Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check(now_ns, caller)
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
        assert!(rates.take(SECOND_NS / REQUESTS_PER_SECOND_MAX, "one more").is_ok());
    }
}

//! The time of one process: its own clock, which goes faster or slower than the bucket's, and how
//! far the process may run before something reaches it from outside.
//!
//! The clock is the paused one of the process's runtime, which goes on when nothing is left to do.
//! It sets the clock of the product, which belongs to the thread.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memtape_disk::clock::{self, Now};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The time of day at which a simulation begins, after 1970.
const BEGUN_NS: i64 = 1_700_000_000_000_000_000;

/// The clock. It is read inside the runtime of the process only.
#[derive(Debug)]
pub(crate) struct Clock {
    rate: f64,
    /// How far the wall clock is ahead.
    ahead_ns: i64,
    begun: Instant,
    times: Mutex<Times>,
    shortened: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    /// A point of time on both clocks.
    bucket_ns: u64,
    own: Instant,
    /// Until then the process may run, by the bucket's clock.
    limit_ns: u64,
}

impl Clock {
    /// A clock that goes `rate` times as fast as the bucket's, whose time is `bucket_ns` now.
    pub(crate) fn new(rate: f64, ahead_ns: i64, bucket_ns: u64) -> Self {
        let begun = Instant::now();
        let times = Times { bucket_ns, own: begun, limit_ns: bucket_ns };
        Self { rate, ahead_ns, begun, times: Mutex::new(times), shortened: Notify::new() }
    }

    /// The bucket's time.
    pub(crate) fn now_ns(&self) -> u64 {
        let Times { bucket_ns, own, .. } = *self.times();
        bucket_ns + scaled(nanoseconds(own.elapsed()), 1.0 / self.rate)
    }

    /// Sets the product's clock to this one's time.
    pub(crate) fn set_of_product(&self) {
        let wall_ns = BEGUN_NS.saturating_add_unsigned(self.now_ns()).saturating_add(self.ahead_ns);
        clock::set(Now { mono_ns: nanoseconds(self.begun.elapsed()), wall_ns });
    }

    /// The bucket's time at this time of the wall clock.
    pub(crate) fn at_wall(&self, wall_ns: i64) -> u64 {
        wall_ns.saturating_sub(self.ahead_ns).saturating_sub(BEGUN_NS).try_into().unwrap_or(0)
    }

    /// Says that the bucket's time will be this when so much has passed on this clock.
    pub(crate) fn set_after(&self, passed: Duration, bucket_ns: u64) {
        let mut times = self.times();
        (times.bucket_ns, times.own) = (bucket_ns, Instant::now() + passed);
    }

    /// How far this clock goes while the bucket's goes so far.
    pub(crate) fn of_bucket(&self, ns: u64) -> Duration {
        Duration::from_nanos(scaled(ns, self.rate))
    }

    /// Lets the process run until this time of the bucket.
    pub(crate) fn set_limit(&self, limit_ns: u64) {
        self.times().limit_ns = limit_ns;
    }

    /// Lets the process run until this time of the bucket, unless it may not run so far already.
    pub(crate) fn shorten(&self, limit_ns: u64) {
        let mut times = self.times();
        if limit_ns < times.limit_ns {
            times.limit_ns = limit_ns;
            self.shortened.notify_one();
        }
    }

    /// Waits until the process may not run any further.
    pub(crate) async fn reach_limit(&self) {
        loop {
            let Times { bucket_ns, own, limit_ns } = *self.times();
            let passes = self.of_bucket(limit_ns.saturating_sub(bucket_ns));
            // A little later, or what is lost in rounding keeps the process before its limit.
            let end = own + passes + Duration::from_micros(1);
            tokio::select! {
                biased;
                () = sleep_until(end) => return,
                () = self.shortened.notified() => {}
            }
        }
    }

    fn times(&self) -> MutexGuard<'_, Times> {
        self.times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn scaled(ns: u64, rate: f64) -> u64 {
    (ns as f64 * rate) as u64
}

//! The time that SlateDB writes beside each row: it must not go back, or SlateDB refuses the row.
//!
//! It is the wall clock of the opening, and from there on the monotonic clock. Wall clocks of
//! machines differ: an owner whose clock is behind the newest row of earlier owners goes on from
//! that row.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use chrono::{DateTime, Utc};
use memtape_disk::clock;
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use tokio::time::{Instant, sleep};

/// Time that an owner whose clock is behind begins after the newest row: earlier owners wrote
/// tables after it.
const AFTER_ROW_MS: i64 = 60_000;

/// The clock of one ownership.
#[derive(Debug)]
pub(crate) struct Ticks {
    opened: Instant,
    /// Time of the opening, in milliseconds of the Unix time.
    opened_ms: AtomicI64,
}

impl Ticks {
    /// A clock that begins with the wall clock.
    pub(crate) fn new() -> Self {
        let opened_ms = AtomicI64::new(clock::now().wall_ns / 1_000_000);
        Self { opened: Instant::now(), opened_ms }
    }

    /// Notes the time of the newest row.
    pub(crate) fn follow(&self, row_ms: i64) {
        if self.now().timestamp_millis() <= row_ms {
            self.opened_ms.store(row_ms.saturating_add(AFTER_ROW_MS), Relaxed);
        }
    }
}

impl SystemClock for Ticks {
    fn now(&self) -> DateTime<Utc> {
        let opened = DateTime::from_timestamp_millis(self.opened_ms.load(Relaxed));
        opened.unwrap_or_default() + self.opened.elapsed()
    }

    fn sleep<'a>(&'a self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(sleep(time))
    }

    fn ticker<'a>(&'a self, every: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, every)
    }
}

//! The time that SlateDB writes beside each row, and into the name of each table: it must not go
//! back, or SlateDB refuses the row or the table.
//!
//! It is the wall clock of the opening, and from there on the monotonic clock. Wall clocks of
//! machines differ: an owner whose clock is behind what earlier owners wrote goes on from there, at
//! half the speed until its own clock is ahead. So a coordinator whose clock was hours ahead leaves
//! the clock of the shard ahead, and not for ever: an owner makes up for half an hour in each hour.
//! SlateDB offers no way back at once.
//!
//! What earlier owners wrote is in two places: the newest tables are read before the database is
//! opened, which writes tables itself; the newest row can be read only when it is open.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use chrono::{DateTime, Utc};
use memtape_disk::clock;
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::admin::Admin;
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use tokio::time::{Instant, sleep};

/// Time that an owner whose clock is behind begins after what was found: earlier owners may have
/// written more since.
const AFTER_MS: i64 = 60_000;

/// The clock of one ownership.
#[derive(Debug)]
pub(crate) struct Ticks {
    opened: Instant,
    /// The wall clock at the opening, in milliseconds of the Unix time.
    wall_ms: i64,
    /// The time from which the clock went on at the opening, where the wall clock was behind it.
    after_ms: AtomicI64,
}

impl Ticks {
    /// A clock that begins with the wall clock.
    pub(crate) fn new() -> Self {
        let wall_ms = clock::now().wall_ns / 1_000_000;
        Self { opened: Instant::now(), wall_ms, after_ms: AtomicI64::new(i64::MIN) }
    }

    /// Notes a time that earlier owners wrote.
    pub(crate) fn follow(&self, written_ms: i64) {
        if self.now_ms() <= written_ms {
            self.after_ms.store(written_ms.saturating_add(AFTER_MS), Relaxed);
        }
    }

    fn now_ms(&self) -> i64 {
        let passed_ms = i64::try_from(self.opened.elapsed().as_millis()).unwrap_or(i64::MAX);
        let after_ms = self.after_ms.load(Relaxed).saturating_add(passed_ms / 2);
        self.wall_ms.saturating_add(passed_ms).max(after_ms)
    }
}

/// The time of the newest table and compaction of a database; none where there are none yet.
pub(crate) async fn newest_ms(
    path: Path,
    objects: Arc<dyn ObjectStore>,
    seed: Option<u64>,
) -> Result<Option<i64>, slatedb::Error> {
    let mut admin = Admin::builder(path, objects);
    if let Some(seed) = seed {
        admin = admin.with_seed(seed);
    }
    let admin = admin.build();
    let (manifest, compactions) =
        tokio::try_join!(admin.read_manifest(None), admin.read_compactions(None))?;
    let mut times_ms = Vec::new();
    if let Some(manifest) = manifest {
        let tables = manifest.all_sst_views().flat_map(|view| [view.id, view.sst.id.value()]);
        times_ms.extend(tables.map(|id| id.timestamp_ms()));
        times_ms.extend(manifest.last_compacted_l0_sst_view_id().map(|id| id.timestamp_ms()));
    }
    if let Some(compactions) = compactions {
        times_ms.extend(compactions.recent_compactions().map(|of| of.id().timestamp_ms()));
    }
    Ok(times_ms.into_iter().max().and_then(|newest_ms| newest_ms.try_into().ok()))
}

impl SystemClock for Ticks {
    fn now(&self) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(self.now_ms()).unwrap_or_default()
    }

    fn sleep<'a>(&'a self, time: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(sleep(time))
    }

    fn ticker<'a>(&'a self, every: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_ahead_is_made_up_for_and_never_goes_back() {
        let ticks = Ticks::new();
        let hour_ms = 3_600_000;
        ticks.follow(ticks.wall_ms + hour_ms);
        let mut before_ms = ticks.now_ms();
        assert!(before_ms > ticks.wall_ms + hour_ms);
        for _ in 0..3 {
            tokio::time::advance(Duration::from_secs(3_600)).await;
            let now_ms = ticks.now_ms();
            assert!(now_ms >= before_ms + hour_ms / 2);
            before_ms = now_ms;
        }
        assert_eq!(before_ms, ticks.wall_ms + 3 * hour_ms);
        ticks.follow(0);
        assert_eq!(ticks.now_ms(), before_ms);
    }
}

//! The one place where the coordinator reads a clock.
//!
//! A simulation sets the clock of its thread; nothing else is then read.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

// The monotonic time starts at the Unix time of the process's first reading, so that times of an
// earlier process can be placed on it.
pub(crate) use memtape_core::incident::Now;

/// The present moment.
pub(crate) fn now() -> Now {
    #[cfg(any(test, feature = "simulation", feature = "bench"))]
    if let Some(now) = SET.get() {
        return now;
    }
    static START: OnceLock<(Instant, i64)> = OnceLock::new();
    let wall_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    let (start, start_wall_ns) = START.get_or_init(|| (Instant::now(), wall_ns));
    let passed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Now { mono_ns: start_wall_ns.unsigned_abs().saturating_add(passed_ns), wall_ns }
}

#[cfg(any(test, feature = "simulation", feature = "bench"))]
thread_local! {
    /// What a simulation says the time is.
    static SET: std::cell::Cell<Option<Now>> = const { std::cell::Cell::new(None) };
}

/// From now on it is this moment, in this thread, until another is set.
#[cfg(any(test, feature = "simulation", feature = "bench"))]
pub(crate) fn set(now: Now) {
    SET.set(Some(now));
}

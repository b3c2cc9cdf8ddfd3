//! The one place where the coordinator reads a clock.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// One moment on two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Never goes back; for distances in time. It starts at the Unix time of the process's first
    /// reading, so that moments of an earlier process can be placed on it.
    pub(crate) mono_ns: u64,
    /// Unix time; for people.
    pub(crate) wall_ns: i64,
}

/// The present moment.
pub(crate) fn now() -> Now {
    static START: OnceLock<(Instant, i64)> = OnceLock::new();
    let wall_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    let (start, start_wall_ns) = START.get_or_init(|| (Instant::now(), wall_ns));
    let passed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Now { mono_ns: start_wall_ns.unsigned_abs().saturating_add(passed_ns), wall_ns }
}

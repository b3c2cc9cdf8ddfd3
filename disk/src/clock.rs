//! The one place where a clock is read.
//!
//! A simulation sets the clock of its thread; nothing else is then read.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use memtape_core::incident::Now;

thread_local! {
    /// Time set by a simulation.
    static SET: Cell<Option<Now>> = const { Cell::new(None) };
}

/// Returns the present time. The monotonic time starts at the Unix time of the process's first
/// reading, so that times of an earlier process can be placed on it. It goes on while the process
/// is stopped (`CLOCK_MONOTONIC`), and stands while the machine is suspended.
pub fn now() -> Now {
    static START: OnceLock<(Instant, i64)> = OnceLock::new();
    if let Some(now) = SET.get() {
        return now;
    }
    let wall_ns = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX));
    let (start, start_wall_ns) = START.get_or_init(|| (Instant::now(), wall_ns));
    let passed_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Now { mono_ns: start_wall_ns.unsigned_abs().saturating_add(passed_ns), wall_ns }
}

/// Sets the time of this thread, until it is set again.
pub fn set(now: Now) {
    SET.set(Some(now));
}

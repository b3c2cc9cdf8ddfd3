//! The one place of the agent where clocks are read.
//!
//! The agent's logic gets a [`Now`]; the threads that watch the node ask here. Timers (intervals,
//! backoff, deadlines) are tokio's.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Both clocks, read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Unix time.
    pub(crate) wall_ns: i64,
    /// CLOCK_MONOTONIC, the clock of the tapes.
    pub(crate) mono_ns: u64,
}

/// Reads the clocks.
pub(crate) fn now() -> Now {
    let wall = clock_gettime(ClockId::Realtime);
    let mono = clock_gettime(ClockId::Monotonic);
    Now {
        wall_ns: wall.tv_sec * 1_000_000_000 + wall.tv_nsec,
        mono_ns: u64::try_from(mono.tv_sec * 1_000_000_000 + mono.tv_nsec).unwrap_or_default(),
    }
}

/// The Unix time `wall_ns` on the clock of the starts of processes, in ticks since boot.
pub(crate) fn ticks_at(wall_ns: i64) -> u64 {
    let boot = clock_gettime(ClockId::Boottime);
    let since_ns = now().wall_ns.saturating_sub(wall_ns);
    let at_ns = (boot.tv_sec * 1_000_000_000 + boot.tv_nsec).saturating_sub(since_ns);
    u64::try_from(at_ns).unwrap_or(0) / (1_000_000_000 / rustix::param::clock_ticks_per_second())
}

/// Sleeps in short pieces while `is_wanted` holds, so that a stopped agent does not keep a thread.
pub(crate) fn sleep_while(is_wanted: impl Fn() -> bool, time: Duration) {
    let mut left = time;
    while !left.is_zero() && is_wanted() {
        let piece = left.min(Duration::from_millis(200));
        std::thread::sleep(piece);
        left -= piece;
    }
}

impl Now {
    /// The monotonic time `time` later, in nanoseconds.
    pub(crate) fn after_ns(self, time: Duration) -> u64 {
        self.mono_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time between two readings of the monotonic clock.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.mono_ns.saturating_sub(earlier.mono_ns))
    }
}

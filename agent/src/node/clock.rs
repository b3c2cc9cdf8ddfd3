//! The one place of the agent where clocks are read.
//!
//! Everything else gets a [`Now`]. Timers (intervals, backoff, deadlines) are tokio's.

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

//! Limits of captures, and refusals of requests.

use crate::capture::manifest::CaptureId;
use crate::limits::RANKS_PER_JOB_MAX;

/// Limits of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A manifest is closed this long after its request, in nanoseconds. Too short loses ranks
    /// whose snapshots are large; too long delays the diagnosis when a node is unreachable.
    pub deadline_ns: u64,
    /// Interval at which a silent node is asked again, in nanoseconds.
    pub retry_ns: u64,
    /// Least time between two captures that are not manual, in nanoseconds. A routine
    /// one ([`Reason::Baseline`]) keeps no other waiting.
    pub interval_ns_min: u64,
    /// Bytes that captures may store within [`Self::bytes_window_ns`] before captures that are not
    /// manual have to wait; urgent ones have twice as much. 0 is no limit.
    pub bytes_max: u64,
    /// Time over which stored bytes are forgotten evenly, in nanoseconds.
    pub bytes_window_ns: u64,
    /// Distance in steps from the earlier step T0 to T, if the tapes still cover T0.
    pub before_steps: u64,
    /// Ranks beyond this many are refused and counted.
    pub ranks_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline_ns: 30_000_000_000,
            retry_ns: 10_000_000_000,
            interval_ns_min: 60_000_000_000,
            bytes_max: 16 << 30,
            bytes_window_ns: 3_600_000_000_000,
            before_steps: 256,
            ranks_max: RANKS_PER_JOB_MAX as usize,
        }
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No rank is known.
    #[error("no rank is known yet: wait until the job's agents have reported")]
    NoRanks,
    /// The last capture was too recent.
    #[error("the last capture is too recent: ask again in {} s", wait_ns.div_ceil(1_000_000_000))]
    TooSoon {
        /// Time to wait, in nanoseconds.
        wait_ns: u64,
    },
    /// Captures have recently stored as many bytes as they may.
    #[error(
        "captures have stored {spent_bytes} bytes of late, which is as much as they may: the next \
         one is due in {} s, or ask for it by hand",
        wait_ns.div_ceil(1_000_000_000)
    )]
    OverBudget {
        /// Bytes that still count.
        spent_bytes: u64,
        /// Time to wait, in nanoseconds.
        wait_ns: u64,
    },
    /// Another capture, at another step, is in flight.
    #[error("capture {} at step {step} is in flight: ask again when it is closed", id.0)]
    Busy {
        /// The capture in flight.
        id: CaptureId,
        /// Step of the capture.
        step: u64,
    },
    /// No rank has finished that step.
    #[error("step {step} is not finished: the newest finished step of all ranks is {newest}")]
    NotReached {
        /// The step asked for.
        step: u64,
        /// The newest step that every living rank has finished.
        newest: u64,
    },
    /// No tape covers that step any more.
    #[error("step {step} is no longer on the tapes: the oldest covered step is {oldest}")]
    NotCovered {
        /// The step asked for.
        step: u64,
        /// The oldest step that some tape covers.
        oldest: u64,
    },
}

//! Collects the state of every rank at the same training step, and always comes to an end.
//!
//! Picture a group photo taken from films that everybody's camera keeps rolling: nobody has to
//! stand still, one only has to agree on *which* frame to develop. The machine picks the frame
//! (step T, and an earlier T0 to compare with), asks each node for it, and closes the album by
//! its deadline, with a list of who is missing.
//!
//! Invariants: one capture in flight per attempt at a job; every accepted request ends in exactly
//! one [`Manifest`]; no two aligned parts of it show different steps; a part with a body counts
//! only when the body is stored. It sends and stores nothing itself: the shell does what
//! [`Captures::poll`] says.

mod budget;
mod choose;
pub mod collective;
mod flight;
mod machine;
#[cfg(test)]
mod tests;
mod triggers;

use alloc::string::String;
use alloc::vec::Vec;

pub use choose::DEAD_REACH_STEPS;
pub use machine::{Captures, TAPES_PER_RANK_MAX};
pub use triggers::{TriggerLimits, Triggers};

/// What a capture may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A manifest is closed this long after its request, in nanoseconds. Too short loses ranks
    /// whose bodies are large; too long delays the diagnosis when a node is unreachable.
    pub deadline_ns: u64,
    /// A node that has not answered is asked again after this long, and again, in nanoseconds.
    pub retry_ns: u64,
    /// Least time between two captures that nobody asked for by hand, in nanoseconds. A routine
    /// one ([`Reason::Baseline`]) keeps no other waiting.
    pub interval_ns_min: u64,
    /// Bytes that captures may store within [`Self::bytes_window_ns`] before those that nobody
    /// asked for by hand have to wait; urgent ones have twice as much. 0 is no limit.
    pub bytes_max: u64,
    /// The time over which stored bytes are forgotten again, evenly, in nanoseconds.
    pub bytes_window_ns: u64,
    /// How many steps before T the earlier step T0 lies, if the tapes still cover it.
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
            ranks_max: 65_536,
        }
    }
}

/// Name of a capture (`cap-…`). The shell makes it up: uniqueness over restarts needs a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct CaptureId(pub String);

/// Why a capture was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The detector found growth on this rank.
    Growth {
        /// Global rank.
        rank: u32,
    },
    /// A request for memory failed for good on this rank.
    OutOfMemory {
        /// Global rank.
        rank: u32,
    },
    /// This rank's process died.
    Death {
        /// Global rank.
        rank: u32,
    },
    /// Allocations had to be retried on this rank.
    Retries {
        /// Global rank.
        rank: u32,
    },
    /// This rank holds nearly all of its device.
    Reserved {
        /// Global rank.
        rank: u32,
    },
    /// A person asked.
    Person,
    /// A restart is about to happen.
    Restart,
    /// A healthy state to compare with later.
    Baseline,
}

impl Reason {
    /// The name a user meets.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Growth { .. } => "growth",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Death { .. } => "death",
            Self::Retries { .. } => "retries",
            Self::Reserved { .. } => "reserved",
            Self::Person => "person",
            Self::Restart => "restart",
            Self::Baseline => "baseline",
        }
    }

    /// True for those that must not wait for [`Limits::interval_ns_min`].
    pub fn is_urgent(&self) -> bool {
        matches!(self, Self::Person | Self::OutOfMemory { .. } | Self::Death { .. } | Self::Restart)
    }
}

/// Why a request was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nobody to ask.
    #[error("no rank is known yet: wait until the job's agents have reported")]
    NoRanks,
    /// Too soon after the last one.
    #[error("the last capture is too recent: ask again in {} s", wait_ns.div_ceil(1_000_000_000))]
    TooSoon {
        /// Time to wait, in nanoseconds.
        wait_ns: u64,
    },
    /// What captures stored of late is as much as they may.
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
        /// Its step.
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

/// What became of one rank in a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// The state at exactly the step asked for.
    Aligned,
    /// The tape no longer covers the step; the body shows another, later one.
    Late,
    /// The rank has not finished the step; the body shows its last state.
    Behind,
    /// The process is dead, its last step is before the step asked for.
    Dead,
    /// The agent has no such tape, or cannot read it.
    NoTape,
    /// No answer in time.
    Unreachable,
}

impl Outcome {
    /// The name a user meets.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aligned => "aligned",
            Self::Late => "late",
            Self::Behind => "behind",
            Self::Dead => "dead",
            Self::NoTape => "no_tape",
            Self::Unreachable => "unreachable",
        }
    }
}

/// What an agent says about one tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// The step its body shows.
    pub step: u64,
    /// Unix time of that step's end, in nanoseconds.
    pub wall_ns: i64,
    /// How wrong that may be, in nanoseconds.
    pub wall_error_ns: u64,
    /// The process is dead, whatever the outcome.
    pub dead: bool,
    /// The step its `before` sums show; 0 when there are none.
    pub before_step: u64,
    /// Size of the body in bytes; 0 when none will come.
    pub body_bytes: u64,
    /// BLAKE3 of that body; none when it was not told.
    pub body_hash: Option<[u8; 32]>,
    /// One line on anything unusual; empty otherwise.
    pub detail: String,
}

/// What the shell must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a node's agent.
    Ask {
        /// Name of the node.
        node: String,
        /// Which capture.
        capture: CaptureId,
        /// Its tapes.
        tapes: Vec<String>,
        /// T; 0 means each rank's present state.
        step: u64,
        /// T0; 0 means none.
        before: u64,
        /// Time left until the manifest is closed, in nanoseconds.
        deadline_ns: u64,
    },
    /// A capture is over: store its manifest.
    Close(Manifest),
}

/// One rank's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Global rank.
    pub rank: u32,
    /// Tape it comes from.
    pub tape_id: String,
    /// Node it lies on.
    pub node: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The step its body shows.
    pub step: u64,
    /// Unix time of that step's end, in nanoseconds.
    pub wall_ns: i64,
    /// How wrong that may be, in nanoseconds.
    pub wall_error_ns: u64,
    /// The process was dead.
    pub dead: bool,
    /// The step its `before` sums show; 0 when there are none.
    pub before_step: u64,
    /// Size of the stored body in bytes.
    pub bytes: u64,
    /// BLAKE3 of the stored body; none when nothing is stored.
    pub hash: Option<[u8; 32]>,
    /// One line on anything unusual; empty otherwise.
    pub detail: String,
}

/// The result of one capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Which capture.
    pub id: CaptureId,
    /// Name of the job.
    pub job: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// Why it was taken.
    pub reason: Reason,
    /// T; 0 when each rank was asked for its present state.
    pub step: u64,
    /// T0; 0 when there is none.
    pub before_step: u64,
    /// When it was asked for, on the shell's monotonic clock, in nanoseconds.
    pub requested_ns: u64,
    /// When it was closed, on the same clock.
    pub closed_ns: u64,
    /// Every rank is aligned and stored.
    pub complete: bool,
    /// One for each rank, in order of ranks.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// Number of ranks whose stored body shows exactly T.
    pub fn aligned(&self) -> usize {
        self.parts.iter().filter(|part| part.outcome == Outcome::Aligned).count()
    }

    /// The ranks that are not aligned, each with what became of it.
    pub fn missing(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.outcome != Outcome::Aligned)
    }
}

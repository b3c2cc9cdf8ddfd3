//! What a capture collects: answers, parts, and the manifest that closes it.

use alloc::string::String;
use alloc::vec::Vec;

use crate::capture::outcome::Outcome;
use crate::capture::reason::Reason;

/// Name of a capture (`cap-…`). The shell makes it up: uniqueness over restarts needs a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct CaptureId(pub String);

/// What an agent says about one tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub outcome: Outcome,
    /// The step its snapshot shows.
    pub step: u64,
    /// Unix time of that step's end, in nanoseconds.
    pub wall_ns: i64,
    /// How wrong that may be, in nanoseconds.
    pub wall_error_ns: u64,
    /// The process is dead, whatever the outcome.
    pub dead: bool,
    /// The step its `before` sums show; 0 when there are none.
    pub before_step: u64,
    /// Size of the snapshot in bytes; 0 when none will come.
    pub snapshot_bytes: u64,
    /// BLAKE3 of that snapshot; `None` when the agent did not report it.
    pub snapshot_hash: Option<[u8; 32]>,
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
        /// The tape of the rank whose worker processes are sampled, too.
        sample_workers: Option<String>,
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
    /// The step its snapshot shows.
    pub step: u64,
    /// Unix time of that step's end, in nanoseconds.
    pub wall_ns: i64,
    /// How wrong that may be, in nanoseconds.
    pub wall_error_ns: u64,
    /// The process was dead.
    pub dead: bool,
    /// The step its `before` sums show; 0 when there are none.
    pub before_step: u64,
    /// Size of the stored snapshot in bytes.
    pub bytes: u64,
    /// BLAKE3 of the stored snapshot; none when nothing is stored.
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
    /// Number of ranks whose stored snapshot shows exactly T.
    pub fn aligned(&self) -> usize {
        self.parts.iter().filter(|part| part.outcome == Outcome::Aligned).count()
    }

    /// The ranks that are not aligned, each with what became of it.
    pub fn missing(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.outcome != Outcome::Aligned)
    }
}

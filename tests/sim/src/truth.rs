//! What really happened, to compare with what the coordinator says: every step of every tape, and
//! everything that was acknowledged to an agent or to a person.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::tape::mailbox::Remedy;

/// One tape as its rank wrote it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TapeTruth {
    /// Index of the node.
    pub(crate) node: usize,
    /// Bytes allocated at the end of each step; step 0 is the start.
    pub(crate) allocated: Vec<u64>,
    /// The process lives.
    pub(crate) is_alive: bool,
    /// The tape was lost with its node.
    pub(crate) is_lost: bool,
    /// It leaks.
    pub(crate) leaks: bool,
}

impl TapeTruth {
    /// Newest finished step.
    pub(crate) fn step(&self) -> u64 {
        self.allocated.len() as u64 - 1
    }
}

/// A step record as an agent sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// First step.
    pub(crate) first: u64,
    /// Last step.
    pub(crate) last: u64,
    /// Bytes allocated at its end.
    pub(crate) end_allocated: u64,
}

/// All that is known.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// By tape id.
    pub(crate) tapes: BTreeMap<String, TapeTruth>,
    /// Acknowledged step records, by tape id.
    pub(crate) rows: BTreeMap<String, Vec<Row>>,
    /// Snapshots with a receipt: capture and tape id.
    pub(crate) snapshots: Vec<(String, String)>,
    /// Captures that were taken as healthy states, of which not all are kept.
    pub(crate) baselines: BTreeSet<String>,
    /// Tapes whose end was acknowledged.
    pub(crate) ends: BTreeSet<String>,
    /// Captures by agents alone that were acknowledged, each with its tape.
    pub(crate) alone: BTreeSet<(String, String)>,
    /// Captures that were reported as taken, with the time of the request.
    pub(crate) accepted: BTreeMap<String, u64>,
    /// When the coordinator was started, in order.
    pub(crate) starts: Vec<u64>,
    /// Restart actions that were carried out.
    pub(crate) restarts: Vec<String>,
    /// What was done to the job.
    pub(crate) acts: ActsTruth,
}

/// What was done to a job on which the coordinator acts. A start of the job is named by its number,
/// from 1.
#[derive(Debug, Default)]
pub(crate) struct ActsTruth {
    /// Starts of which a target was asked for the next one.
    pub(crate) asked: Vec<u64>,
    /// Signals: the start, the rank and the time.
    pub(crate) signals: Vec<(u64, usize, u64)>,
    /// Starts that a restart ended.
    pub(crate) restarted: Vec<u64>,
    /// What ranks have done, and which.
    pub(crate) done: BTreeMap<Done, BTreeSet<usize>>,
    /// When ranks were asked for it first, and when they did it last.
    pub(crate) times: BTreeMap<Done, (u64, u64)>,
    /// When a stream, an agent or the coordinator was not there, from and to.
    pub(crate) disturbed: Vec<(u64, u64)>,
    /// When the coordinator was killed at its stage.
    pub(crate) killed_ns: Option<u64>,
}

/// Something that ranks were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Done {
    /// Of which start of the job.
    pub(crate) launch: u64,
    /// What.
    pub(crate) remedy: Remedy,
    /// After which step.
    pub(crate) step: u64,
}

impl Truth {
    /// True when the coordinator was restarted within this time.
    pub(crate) fn was_started_between(&self, from_ns: u64, to_ns: u64) -> bool {
        self.starts.iter().any(|at_ns| (from_ns + 1..=to_ns).contains(at_ns))
    }
}

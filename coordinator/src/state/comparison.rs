//! Which snapshots of a capture are compared for an incident, as data. `work/` loads and compares
//! them.

use memtape_core::capture::Part;
use memtape_core::detector::Growth;
use memtape_core::diagnosis::Context;
use memtape_core::incident::NotCompared;

/// Inputs of a comparison.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) incident: String,
    pub(crate) capture: String,
    pub(crate) growth: Growth,
    pub(crate) context: Context,
    pub(crate) snapshots: Result<ComparedSnapshots, NotCompared>,
    /// All parts of the capture, where the job stands still: the collectives of all ranks count.
    pub(crate) parts: Vec<Part>,
}

/// The snapshots of the suspect and of the peers that it is compared with.
#[derive(Debug)]
pub(crate) struct ComparedSnapshots {
    pub(crate) suspect: SnapshotRef,
    pub(crate) peers: Vec<SnapshotRef>,
}

/// The stored snapshot of a rank.
#[derive(Debug)]
pub(crate) struct SnapshotRef {
    pub(crate) rank: u32,
    pub(crate) hash: Option<blake3::Hash>,
}

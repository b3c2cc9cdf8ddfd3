//! Answers of the commands on clusters, which builds without clusters know as well.

use std::time::Duration;

use memtape_core::cluster::Identity;
use memtape_core::placement::Owner;

use crate::error::Result;

/// What a bucket shows of the cluster in it.
#[derive(Debug)]
pub struct ClusterFacts {
    /// The cluster; none where the prefix is empty.
    pub cluster: Option<Identity>,
    /// The owner of each shard, by its hint; none of a shard without an owner so far.
    pub owners: Vec<Option<Owner>>,
    /// Time from a request to its answer: the median of some.
    pub round_trip: Duration,
    /// Whether the bucket honours conditions.
    pub conditions: Result<()>,
}

/// Handling of snapshots that a store lacks, when it is moved.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MissingSnapshots {
    /// The folder is not marked as moved.
    Refuse,
    /// All else is moved.
    LeaveOut,
}

/// Result of a move: zeros, if it had ended before.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StoreMove {
    /// Files that are the same in the folder and in the shard.
    pub files: u64,
    /// Snapshots that are in the bucket.
    pub snapshots: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Bytes that this call copied.
    pub copied_bytes: u64,
    /// Snapshots that the store lacked, or had damaged, with the reason.
    pub missing: Vec<String>,
}

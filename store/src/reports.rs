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
    /// The owner of its shard, by the hint.
    pub owner: Option<Owner>,
    /// Time from a request to its answer: the median of some.
    pub round_trip: Duration,
    /// Whether the bucket honours conditions.
    pub conditions: Result<()>,
}

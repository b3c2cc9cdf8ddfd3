//! The shards of a cluster, and those that an answer lacks.

use memtape_core::traffic::RequestRates;
use serde::{Deserialize, Serialize};

/// Header of a backup: its shard and the number of shards, as in `1/4`.
pub const SHARD_HEADER: &str = "memtape-shard";

/// The shards whose owners answered, in order.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cluster {
    /// Each has a part of the jobs, by their names.
    pub shards: Vec<Shard>,
    /// The other ones.
    pub missing_shards: Vec<MissingShard>,
    /// Coordinators that wait to take over, as the one that answers has seen them: one that ended
    /// without a word is listed for half a minute more.
    pub waiting: Vec<WaitingCoordinator>,
    /// Number of further ones that wait, of 1,000 at most.
    pub waiting_left_out: u64,
    /// Why it is not known which coordinators wait now; empty where it is.
    pub waiting_unknown: String,
}

/// A coordinator that waits to take over.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WaitingCoordinator {
    /// Name of its process.
    pub name: String,
    /// URL that it will have as an owner; empty where it makes no sense.
    pub address: String,
    /// Version of its program.
    pub version: String,
    /// Time since its last sign of life was seen, in nanoseconds.
    pub sign_of_life_age_ns: u64,
}

/// A shard, as its owner says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Shard {
    /// Its number, from 0 on.
    pub shard: u16,
    /// URL of its owner; empty where the coordinator is in no cluster.
    pub owner: String,
    /// Name of its owner's process; empty where the coordinator is in no cluster.
    pub name: String,
    /// Number of the ownership, which grows with each; 0 where the coordinator is in no cluster.
    pub epoch: u64,
    /// Time since its owner renewed its sign of life, in nanoseconds; none where the coordinator is
    /// in no cluster.
    pub sign_of_life_age_ns: Option<u64>,
    /// Time since its owner's store got the oldest change or step record that is not durable yet,
    /// in nanoseconds; 0 where all are durable.
    pub lag_ns: u64,
    /// Requests of its owner to the bucket in the last minute; none in the first second, and where
    /// the coordinator has no bucket.
    pub requests: Option<RequestRates>,
    /// Why the URL of its owner does not lead to it, in a sentence; empty where it does.
    pub address_problem: String,
    /// Version of its owner's program.
    pub version: String,
    /// Since when this coordinator owns it, in nanoseconds of Unix time.
    pub owned_since_wall_ns: i64,
}

/// A shard whose part an answer lacks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct MissingShard {
    /// Its number.
    pub shard: u16,
    /// URL of its owner; empty where none is known.
    pub owner: String,
    /// Name of the process that said last that it owns the shard; empty where none is known.
    pub name: String,
    /// Number of its ownership; 0 where none is known.
    pub epoch: u64,
    /// Time since its sign of life was seen to change, in nanoseconds; none where it was not read.
    pub sign_of_life_age_ns: Option<u64>,
    /// Why, in a sentence.
    pub why: String,
}

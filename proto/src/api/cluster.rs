//! The shards of a cluster, and those that an answer lacks.

use serde::{Deserialize, Serialize};

/// The shards whose owners answered, in order.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cluster {
    /// Each has a part of the jobs, by their names.
    pub shards: Vec<Shard>,
    /// The other ones.
    pub missing_shards: Vec<MissingShard>,
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
    /// Why, in a sentence.
    pub why: String,
}

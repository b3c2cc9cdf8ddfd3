//! The nodes whose agents have connected.

use serde::{Deserialize, Serialize};

use super::cluster::MissingShard;
pub use crate::readings::{Gpu, Host};

/// All nodes.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Nodes {
    /// In the order of their names.
    pub nodes: Vec<Node>,
    /// Shards of the cluster whose nodes are not in the list.
    pub missing_shards: Vec<MissingShard>,
}

/// One node.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Node {
    /// Its name.
    pub node: String,
    /// Whether its agent is connected.
    pub connected: bool,
    /// Version of the agent.
    pub version: String,
    /// When the agent last reported, in nanoseconds of Unix time.
    pub last_report_wall_ns: i64,
    /// Its GPUs, as NVML says.
    pub gpus: Vec<Gpu>,
    /// Its memory.
    pub host: Host,
}

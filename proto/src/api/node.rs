//! The nodes whose agents have connected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All nodes.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Nodes {
    /// In the order of their names.
    pub nodes: Vec<Node>,
}

/// One node.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
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

/// One GPU.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// Its number on the node.
    pub index: u32,
    /// Its size.
    pub total_bytes: u64,
    /// Memory in use.
    pub used_bytes: u64,
    /// Free memory.
    pub free_bytes: u64,
    /// Processes that compute on it; null where unknown.
    pub processes: Option<u32>,
    /// Those of them that are ranks.
    pub ranks: Option<u32>,
}

/// The memory of a node, in bytes; null where it cannot be read.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Host {
    /// All of it.
    pub memory_total_bytes: Option<u64>,
    /// What programs may still take.
    pub memory_available_bytes: Option<u64>,
    /// What the agent's cgroup has in use.
    pub cgroup_bytes: Option<u64>,
    /// The limit of that cgroup.
    pub cgroup_limit_bytes: Option<u64>,
    /// Why NVML says nothing of the GPUs; empty where it does.
    pub nvml_missing: String,
}

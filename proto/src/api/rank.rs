//! The ranks of an attempt: what each does, where the bytes of its devices are, and what it takes
//! of its host. What is not known is null, never 0.

use memtape_core::identity::end::End;
use memtape_core::snapshot::ledger;
use memtape_core::tape::layout::Clock;
use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantArray};

use super::name::Named;
pub use crate::readings::{Cgroup, RankHost, Workers};

/// All ranks of an attempt.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ranks {
    /// Name of the job.
    pub job: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Ranks of the attempt, also those that were not asked for.
    pub count: u32,
    /// How many of all of them are alive.
    pub alive: u32,
    /// In order; those that were asked for.
    pub ranks: Vec<Rank>,
    /// What is not known of some of these ranks.
    pub unknown: Vec<Unknown>,
}

/// Why something is not known of some ranks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Unknown {
    /// What is not known.
    pub what: Named<UnknownPart>,
    /// The reason.
    pub why: String,
    /// The ranks.
    pub ranks: Vec<u32>,
}

/// What may not be known of a rank.
#[derive(
    Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "snake_case")]
pub enum UnknownPart {
    /// What the driver says of its device.
    Device,
    /// What it takes of its host.
    Host,
    /// The cause of its end.
    End,
}

/// One rank.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// What it does in the job, such as `pp0`; empty where unknown.
    pub role: String,
    /// Name of its node.
    pub node: String,
    /// Its number on the node.
    pub local_rank: u32,
    /// Its process id, as its agent sees it; 0 where unknown.
    pub pid: u32,
    /// Name of its tape.
    pub tape_id: String,
    /// Id of its Slurm job; empty where there is none, or it is not known.
    pub slurm_job: String,
    /// Name of its pod; empty as above.
    pub pod: String,
    /// UID of its pod; empty as above.
    pub pod_uid: String,
    /// How it is doing.
    pub state: Named<RankState>,
    /// Whether its process lives, as far as its agent has said lately.
    pub alive: bool,
    /// Last finished step, or turn: `clock` says which.
    pub step: u64,
    /// What its steps count.
    pub clock: Named<Clock>,
    /// End of that step, in nanoseconds of Unix time.
    pub step_wall_ns: i64,
    /// How its process ended; null while it lives.
    pub end: Option<Named<End>>,
    /// The same as a word that claims no more than is known: without an exit status a process that
    /// seems `killed` is `ended`. Empty while it lives.
    pub ended: String,
    /// More about the end.
    pub end_detail: String,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Resident memory of its process.
    pub rss_bytes: Option<u64>,
    /// Pinned memory on the host.
    pub pinned_bytes: Option<u64>,
    /// What it takes of its host.
    pub host: Option<RankHost>,
    /// Rate of the open incident that names it, of a device or its host; else growth of its
    /// per-step minimum over 256 steps, negative where it shrinks; none once the rank has ended.
    pub growth_bytes_per_step: Option<i64>,
    /// Events that did not fit on its tape.
    pub lost_events: u64,
    /// Steps that were overwritten before its agent read them.
    pub missed_steps: u64,
    /// What its recorder cannot record, and why.
    pub limitations: Vec<String>,
}

/// How a rank is doing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, EnumString, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum RankState {
    /// Too few steps are known to judge.
    Warming,
    /// Nothing grows.
    Healthy,
    /// A rise is being watched.
    Watching,
    /// It grows.
    Growing,
    /// It has finished no step for long, its peers have.
    Behind,
    /// It has finished no step for long, and is not behind most of the ranks.
    Stalled,
    /// Its agent reports, but not about it.
    Silent,
    /// Its agent does not report.
    Disconnected,
    /// Its process has ended.
    Ended,
    /// Its process has died: by a signal, by the kernel, or with another status than 0.
    Failed,
}

/// One device of a rank.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Device {
    /// Its number in the process.
    pub device: u8,
    /// UUID of the GPU; empty where unknown.
    pub uuid: String,
    /// Bytes in tensors now.
    pub allocated_bytes: u64,
    /// Bytes the allocator holds.
    pub reserved_bytes: u64,
    /// Most bytes in tensors since the process started.
    pub peak_allocated_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Requests that failed for good.
    pub ooms: u64,
    /// Failed `cudaMalloc`s, after which the allocator tried again.
    pub malloc_failures: u64,
    /// Size of the device; 0 where unknown.
    pub device_bytes: u64,
    /// Bytes the process holds on the device, as the driver says.
    pub process_bytes: Option<u64>,
    /// Bytes that were freed and are still in use on other streams.
    pub pending_free_bytes: Option<u64>,
    /// Processes that use the GPU.
    pub gpu_processes: Option<u32>,
    /// Where its bytes are.
    pub ledger: Ledger,
}

/// Where the bytes of a device are. The layers and the unaccounted bytes add up to the device.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ledger {
    /// Size of the device.
    pub device_bytes: Option<u64>,
    /// From the outermost to the innermost.
    pub layers: Vec<LedgerLayer>,
    /// Bytes in no known layer; negative where the layers say more than the device has.
    pub unaccounted_bytes: Option<i64>,
}

impl From<&ledger::Ledger> for Ledger {
    fn from(of: &ledger::Ledger) -> Self {
        let layer = |layer: &ledger::Layer| LedgerLayer {
            layer: layer.name.text().to_string(),
            bytes: layer.amount.bytes(),
        };
        Self {
            device_bytes: of.device_bytes,
            layers: of.layers.iter().map(layer).collect(),
            unaccounted_bytes: of.rest_bytes.and_then(|bytes| i64::try_from(bytes).ok()),
        }
    }
}

/// One layer of a ledger.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct LedgerLayer {
    /// Its name.
    pub layer: String,
    /// Its bytes; null where unknown, they are in the unaccounted ones then.
    pub bytes: Option<u64>,
}

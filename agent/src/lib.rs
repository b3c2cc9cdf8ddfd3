//! The agent: one per node. It reads the tapes of the ranks, the host's memory and the GPUs, tells
//! the coordinator what the ranks do, and rewinds tapes when the coordinator asks for a capture.
//!
//! The agent decides little: `core` interprets tapes, the coordinator judges growth. It trusts
//! nothing on a tape, pauses no rank, and works without a coordinator, without NVML and among files
//! that are no tapes.
//!
//! Read in this order: [`Config`], `agent.rs` (what follows from each event), `follow.rs` (its
//! loop), `supervisor.rs` (the agents of a process) and `run.rs` (its start); then the folders
//! below, each of which imports only folders above it.

mod config;
mod health;

/// Readings of the machine: memory, cgroups, processes, GPUs, clocks.
mod node {
    pub(crate) mod accounts;
    pub(crate) mod cgroup;
    pub(crate) mod clock;
    pub(crate) mod ends;
    pub(crate) mod fence;
    pub(crate) mod gpu_memory;
    pub(crate) mod host;
    pub(crate) mod machine;
    pub(crate) mod nvml;
    pub(crate) mod process;
    pub(crate) mod py_spy;
    pub(crate) mod workers;
    pub(crate) mod workload;
}

/// The tapes of this node: where they are, whether their processes live, which are deleted.
mod tapes {
    pub(crate) mod census;
    pub(crate) mod cleanup;
    pub(crate) mod death;
    pub(crate) mod divided;
    pub(crate) mod folders;
    pub(crate) mod known;
    pub(crate) mod liveness;
    pub(crate) mod openings;
    pub(crate) mod others;
    pub(crate) mod pods;
    pub(crate) mod quota;
    pub(crate) mod source;
}

/// The link to the coordinator: the stream, its messages, reports and acknowledgements.
mod link {
    pub(crate) mod backoff;
    pub(crate) mod channel;
    pub(crate) mod coordinators;
    pub(crate) mod deliveries;
    pub(crate) mod report;
    pub(crate) mod stream;
    pub(crate) mod upload;
    pub(crate) mod wire;
}

/// States of ranks: rewinding a tape, answering the coordinator, captures the agent initiates.
mod capture {
    pub(crate) mod agent_initiated;
    pub(crate) mod answers;
    pub(crate) mod rewind;
}

mod remedies;
mod spool;

mod agent;

mod follow;
mod run;
mod supervisor;

#[cfg(feature = "simulation")]
#[doc(hidden)]
#[path = "../tests/simulation/mod.rs"]
pub mod testing;

pub use config::Config;
pub use link::channel::AddressError;
pub use node::nvml::{GpuUse, gpu_use};
pub use run::{RunError, run};
pub use tapes::folders::{FolderError, check_above, make_folder};
pub use tapes::liveness::{Writer, writer};

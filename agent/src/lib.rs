//! The agent: one per node. It reads the tapes of the ranks, the host's memory and the GPUs, tells
//! the coordinator what the ranks do, and rewinds tapes when the coordinator asks for a capture.
//!
//! It decides little: what a tape says is core's business, what growth means the coordinator's.
//! It trusts nothing on a tape, pauses no rank, and lives on without a coordinator, without NVML
//! and among garbage.
//!
//! Read in this order: [`Config`], `agent.rs` (what follows from what) and `run.rs` (the loop on a
//! node), `tapes.rs` and `liveness.rs` (what there is), `report.rs` and `deliveries.rs` (what is
//! told), `capture.rs` and `rewind.rs`, `link.rs`, `wire.rs`; then what the agent sees of its node:
//! `shelf.rs`, and `node.rs` with `host.rs`, `cgroup.rs`, `process.rs`, `nvml.rs`.

mod config;

mod agent;

mod alone;

mod spool;

mod run;

mod shelf;

mod node;

mod tapes;

mod liveness;

mod report;

mod deliveries;

mod capture;

mod rewind;

mod cleanup;

mod link;

mod wire;

mod host;

mod cgroup;

mod process;

mod workers;

mod nvml;

mod clock;

#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulated;

pub use config::Config;
pub use nvml::{GpuUse, gpu_use};
pub use run::run;

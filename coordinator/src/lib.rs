//! The coordinator: one per cluster. Compares the ranks while they train, collects the state of
//! all of them at one step when one grows, names the line that keeps the memory, keeps the record
//! of it, and can ask the orchestrator for a restart.
//!
//! Read in this order: `run.rs` (start-up and end), `coordinator.rs` (the loop and its events),
//! `ingest/` (messages of agents), `state/` (the state in memory), memtape-store (the records on
//! disk), `work/` (slow work), `restart/` (restart targets), `http/` (the API and the page),
//! `telemetry/` (metrics). Every decision is in memtape-core; here it is carried out.

#![forbid(unsafe_code)]

/// The line about an option whose feature this build lacks.
macro_rules! not_built {
    ($what:literal) => {
        concat!(
            "this build has no ",
            $what,
            ": add `--features full` to the build, or take the wheel or the image"
        )
    };
}

mod access;
#[cfg_attr(not(feature = "cluster"), path = "no_cluster.rs")]
mod cluster;
mod config;
mod connections;
mod coordinator;
mod http;
mod ingest;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod members;
mod memory;
mod quota;
mod restart;
mod run;
pub mod source;
mod standing;
mod state;
mod step_rates;
#[cfg(feature = "cluster")]
mod tables;
mod telemetry;
mod work;

#[cfg(feature = "simulation")]
#[doc(hidden)]
#[path = "../tests/simulation/mod.rs"]
pub mod testing;

pub use config::Config;
pub use http::page::{PAGE_SCRIPT, PAGE_STYLE};
pub use restart::RestartConfig;
pub use run::run;
pub use state::counters::losses;

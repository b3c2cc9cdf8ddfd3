//! The coordinator: one per cluster. Compares the ranks while they train, collects the state of
//! all of them at one step when one grows, names the line that keeps the memory, keeps the record
//! of it, and can ask the orchestrator for a restart.
//!
//! Read in this order: `run.rs` (start-up and end), `coordinator.rs` (the loop and its events),
//! `ingest/` (what agents send), `state/` (what is known), `store/` (what is kept), `work/` (what
//! takes its time), `restart/` (who is asked for a restart), `http/` (the API and the page),
//! `telemetry/` (metrics).
//! Every decision is in memtape-core; here it is carried out.

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
mod clock;
mod config;
mod connections;
mod coordinator;
mod http;
mod ingest;
mod memory;
mod quota;
mod records;
mod restart;
mod run;
mod state;
mod store;
mod telemetry;
mod work;

/// The coordinator without a runtime, for simulations: no thread, no socket, no clock.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod testing {
    mod fuzzed_router;
    mod seen;
    mod simulated_coordinator;
    mod simulated_disk;

    pub use fuzzed_router::{Answered, Asked, FuzzedRouter, mistake_in_roles};
    pub use seen::{Action, Capture, Held, Incident, Part, RankSeen, Step};
    pub use simulated_coordinator::{Now, Receipt, SimulatedCoordinator};
    pub use simulated_disk::Disk;
}

pub use config::Config;
pub use http::page::{PAGE_STYLE, page_script};
pub use restart::RestartConfig;
pub use restart::webhook::Webhook;
pub use run::run;
pub use store::backup::container::{BackupContents, BackupHeader, BackupReader};
pub use store::backup::make::{WithSnapshots, backup_folder};
pub use store::backup::restore::{StoreRestore, Tokens, check_backup, restore_backup};
pub use store::error::Error as StoreError;
pub use store::recovery::check::{Finding, StoreCheck, check as check_store};
pub use store::recovery::rebuild::{StoreRebuild, rebuild as rebuild_store};
#[cfg(feature = "bench")]
pub use store::testing::bench::{BenchStore, Row, decode as decode_row, encode as encode_row};

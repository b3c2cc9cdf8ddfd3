//! The coordinator: one per cluster. Compares the ranks while they train, collects the state of
//! all of them at one step when one grows, names the line that keeps the memory, keeps the record
//! of it, and can ask the orchestrator for a restart.
//!
//! Read in this order: `run.rs` (start-up and end), `coordinator.rs` (the loop and its events),
//! `agents.rs`, `captures.rs`, `incidents.rs`, `restarts.rs` (what follows from each event),
//! `work.rs` (what takes its time),
//! `cluster.rs` (what is known), `store/` (what is kept), `grpc.rs` and `api.rs` (the two doors).
//! Every decision is in memtape-core; here it is carried out.

#![forbid(unsafe_code)]

mod admission;
mod agents;
mod api;
mod body;
mod captures;
mod circumstances;
mod clock;
mod cluster;
mod collectives;
mod config;
mod coordinator;
mod diagnosing;
mod grpc;
mod hooks;
mod ids;
mod incidents;
mod ledger;
mod losses;
mod metrics;
mod model;
mod page;
mod requests;
mod restarts;
mod restore;
mod run;
mod series;
mod server;
mod silence;
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulated;
mod solo;
mod store;
mod telemetry;
mod views;
mod wire;
mod work;

pub use config::{Config, RestartConfig, Webhook};
pub use run::run;
#[cfg(feature = "bench")]
pub use store::bench::{BenchStore, Row, decode as decode_row, encode as encode_row};
pub use store::check::{Finding, StoreCheck, check as check_store};
pub use store::rebuild::{StoreRebuild, rebuild as rebuild_store};

//! Collects the state of every rank at the same training step, and always comes to an end.
//!
//! [`Triggers`] notices when a capture is worth taking, [`Captures`] takes it: it picks step T and
//! an earlier step T0 to compare with, asks each node for its ranks, and closes the capture by its
//! deadline, with a list of the ranks that are missing.
//!
//! Invariants: one capture in flight per attempt at a job; every accepted request ends in exactly
//! one [`Manifest`]; no two aligned parts of it show different steps; a part with a snapshot counts
//! only when the snapshot is stored. It sends and stores nothing: the coordinator does what
//! [`Captures::poll`] says.

mod budget;
mod captures;
#[cfg(test)]
mod captures_tests;
mod choose;
pub mod collective;
mod flight;
mod manifest;
mod outcome;
mod reason;
mod request;
mod shown;
mod triggers;

pub use captures::Captures;
pub use choose::DEAD_REACH_STEPS;
pub use manifest::{Action, CaptureId, Manifest, Part};
pub use outcome::Outcome;
pub use reason::Reason;
pub use request::{Limits, Refusal};
pub use shown::shown;
pub use triggers::{TriggerLimits, Triggers};

//! The life of an incident: growth that the detector found, or a rank that failed, from the first
//! finding to its end.
//!
//! [`Incidents`] is one machine for all attempts. Findings, captures, diagnoses and what people do
//! (`thread.rs`, `thread_request.rs`) go in; effects come out: store this incident, request a
//! capture, diagnose it, consider a restart, a ticket or page. It decides which incident a finding
//! belongs to (`deduplication.rs`), when another capture is worth it, how urgent an incident is or
//! which other one reports the same cause, and why it is closed. Until its diagnosis, an incident
//! states only the detector's figures. What people ask about one is worded in `answers.rs`.
//!
//! It does not detect growth, take captures, read snapshots or decide about restarts, and it does
//! not know clocks or disks. The coordinator and the evaluation carry out its effects.

pub mod answers;
mod attempt;
mod deaths;
mod deduplication;
mod failure;
mod machine;
mod record;
pub mod standstill;
#[cfg(test)]
mod tests;
mod thread;
mod thread_request;
mod tracked;
mod upkeep;

pub use attempt::Attempt;
pub use failure::{Failure, FailureKind};
pub use machine::{Change, Effect, Incidents, Now, TRIES_MAX};
pub use record::{Closed, ClosedReason, Incident, NotCompared, Times};
pub use thread::{Acknowledged, Deed, Entry, Silence, Thread, Until};
pub use thread_request::{ThreadRefused, ThreadRequest};
pub use tracked::Tracked;

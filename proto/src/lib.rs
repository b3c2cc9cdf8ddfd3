//! The protocol of Memtape's programs: the messages between agents and coordinator, the types of
//! the HTTP API ([`api`]), and the codec of a rank's snapshot ([`snapshot`]).
//!
//! `proto/memtape/v1/memtape.proto` says what each message means, `proto/README.md` how the
//! protocol runs. A message of numbers and texts without rules is used everywhere as it is
//! ([`readings`]). Each type of `core` on the wire has one pair of functions here
//! ([`step_message`], [`step_record`]). All other messages are named only by the modules of agent
//! and coordinator that talk to the other side.

pub mod api;
mod census;
pub mod decoding;
pub mod readings;
pub mod remedies;
pub mod snapshot;
mod steps;
mod version;

pub use steps::{step_message, step_record};
pub use version::{OtherProtocol, PROTOCOL, Side, check_protocol};

/// The messages, as generated from `memtape.proto`.
#[allow(missing_docs)]
pub mod v1 {
    tonic::include_proto!("memtape.v1");
}

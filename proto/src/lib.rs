//! What Memtape's programs exchange: the messages between agents and coordinator, the types of the
//! HTTP API ([`api`]), and the codec of a rank's snapshot ([`snapshot`]).
//!
//! `proto/memtape/v1/memtape.proto` says what each message means, `proto/README.md` how the
//! protocol runs. Only the modules of agent and coordinator that talk to the other side name the
//! generated types; everything else uses `core`'s types.

pub mod api;
mod census;
pub mod decoding;
pub mod snapshot;
mod version;

pub use version::{OtherProtocol, PROTOCOL, Side, check_protocol};

/// The messages, as generated from `memtape.proto`.
#[allow(missing_docs)]
pub mod v1 {
    tonic::include_proto!("memtape.v1");
}

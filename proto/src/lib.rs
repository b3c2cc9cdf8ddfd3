//! The wire between agents and the coordinator: generated code and the constants of the protocol.
//!
//! The types of the HTTP API are in [`api`].
//!
//! What each message means stands in `proto/memtape/v1/memtape.proto`, the protocol's steps in
//! `proto/README.md`. Nothing here decides anything, and no other package but `wire.rs` of agent
//! and coordinator should name these types.

pub mod api;

/// Version 1 of the protocol, as generated from `memtape.proto`.
pub mod v1 {
    tonic::include_proto!("memtape.v1");
}

/// Version 1.0 as it was, for tests that speak as an old agent or an old coordinator.
#[cfg(feature = "frozen")]
pub mod frozen_1_0 {
    include!(concat!(env!("OUT_DIR"), "/frozen-1.0/memtape.v1.rs"));
}

/// The major version this code speaks, sent in `Hello` and `Welcome`: sides with different ones
/// refuse each other.
pub const PROTOCOL: u32 = 1;

/// The minor version this code speaks. 1 brought `SoloCapture` and `Report.spool`, 2 what ranks
/// take of their hosts, their roles, and what other code than PyTorch's allocator holds.
pub const PROTOCOL_MINOR: u32 = 2;

/// Largest `data` of an `UploadChunk`, in bytes: well under tonic's 4 MiB message limit.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

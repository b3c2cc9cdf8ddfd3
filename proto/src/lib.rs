//! The wire between agents and the coordinator: generated code and the constants of the protocol.
//!
//! What each message means stands in `proto/memtape/v1/memtape.proto`, the protocol's steps in
//! `proto/README.md`. Nothing here decides anything, and no other package but `wire.rs` of agent
//! and coordinator should name these types.

/// Version 1 of the protocol, as generated from `memtape.proto`.
pub mod v1 {
    tonic::include_proto!("memtape.v1");
}

/// The major version this code speaks, sent in `Hello` and `Welcome`: sides with different ones
/// refuse each other.
pub const PROTOCOL: u32 = 1;

/// The minor version this code speaks. 1 brought `SoloCapture` and `Report.spool`.
pub const PROTOCOL_MINOR: u32 = 1;

/// Largest `data` of an `UploadChunk`, in bytes: well under tonic's 4 MiB message limit.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

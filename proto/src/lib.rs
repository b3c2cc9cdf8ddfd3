//! What Memtape's programs exchange: the messages between agents and coordinator, the types of the
//! HTTP API ([`api`]), and the codec of a rank's snapshot ([`snapshot`]).
//!
//! `proto/memtape/v1/memtape.proto` says what each message means, `proto/README.md` how the
//! protocol runs; `proto/nvhcd/health_check.proto` is NVIDIA's. Only the modules of agent and
//! coordinator that talk to the other side name the generated types; everything else uses `core`'s
//! types.

pub mod api;
mod census;
pub mod decoding;
pub mod snapshot;

/// Version 1 of the protocol, as generated from `memtape.proto`.
#[allow(missing_docs)]
pub mod v1 {
    tonic::include_proto!("memtape.v1");
}

/// The health check of a node that NVIDIA's Resiliency Extension asks for, as generated from
/// `health_check.proto`.
#[allow(missing_docs)]
pub mod nvhcd {
    tonic::include_proto!("nvhcd");
}

/// What Memtape asks of a Ray cluster, as generated from `proto/ray/`. The services are there too,
/// for a stand-in in tests.
#[allow(missing_docs)]
pub mod ray {
    tonic::include_proto!("ray.rpc");

    /// The part that takes nodes away.
    pub mod autoscaler {
        tonic::include_proto!("ray.rpc.autoscaler");
    }
}

/// Version 1.0 as it was, for tests that speak as an old agent or an old coordinator.
#[cfg(feature = "frozen")]
#[allow(missing_docs)]
pub mod frozen_1_0 {
    include!(concat!(env!("OUT_DIR"), "/frozen-1.0/memtape.v1.rs"));
}

/// The major version this code speaks, sent in `Hello` and `Welcome`: sides with different ones
/// refuse each other.
pub const PROTOCOL: u32 = 1;

/// The minor version this code speaks. 1 brought `AgentCapture` and `Report.spool`; 2 the host
/// memory of ranks, roles, and the memory that other code than PyTorch's allocator holds; 3 the
/// census of lines; 4 samples of worker processes; 5 phases and annotations in snapshots; 6 the
/// owners of ranks, and tapes that were refused; 7 remedies.
pub const PROTOCOL_MINOR: u32 = 7;

//! Messages of agents: the gRPC service, the check of each message.

pub(crate) mod event;
pub(crate) mod frames;
pub(crate) mod grpc;
pub(crate) mod streams;
pub(crate) mod wire;

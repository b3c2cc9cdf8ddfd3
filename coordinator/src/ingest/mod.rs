//! What the agents send: the gRPC service, the check of each message, the admission of uploads.

pub(crate) mod admission;
pub(crate) mod event;
pub(crate) mod grpc;
pub(crate) mod progress;
pub(crate) mod streams;
pub(crate) mod upload_lines;
pub(crate) mod wire;

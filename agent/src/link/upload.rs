//! Sends the encoded snapshot of one rank to the coordinator. Uploads share the channel with the
//! stream, but not the stream.

use bytes::Bytes;
use tonic::Code;
use tonic::transport::Channel;

use crate::link::stream::reason;
use crate::link::wire::{self, Client};

/// The encoded snapshot of one rank for a capture.
#[derive(Clone, Debug)]
pub(crate) struct EncodedSnapshot {
    /// The encoded snapshot.
    pub(crate) bytes: Bytes,
    /// BLAKE3 hash of `bytes`.
    pub(crate) hash: blake3::Hash,
}

/// Why a snapshot was not stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UploadError {
    /// The try took longer than its time. Whether there is another one is up to the deadline of
    /// the capture.
    #[error("its deadline passed")]
    Late,
    /// The coordinator received other bytes.
    #[error("it arrived damaged")]
    Damaged,
    /// The connection failed, or the coordinator did.
    #[error("{0}")]
    Failed(String),
    /// The coordinator does not want it: another try would not help.
    #[error("{0}")]
    Refused(String),
}

impl UploadError {
    /// True when another try would not help.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

/// Sends one snapshot; returns when the coordinator has stored it.
/// The error says why it is not stored.
pub(crate) async fn upload(
    channel: Channel,
    capture_id: &str,
    tape_id: &str,
    snapshot: EncodedSnapshot,
) -> Result<(), UploadError> {
    let EncodedSnapshot { bytes, hash } = snapshot;
    let chunks = wire::chunks(capture_id.to_string(), tape_id.to_string(), bytes);
    let answer = Client::new(channel).upload(tokio_stream::iter(chunks)).await;
    match answer {
        Ok(receipt) if receipt.get_ref().snapshot_hash == hash.as_bytes().as_slice() => Ok(()),
        Ok(_) => Err(UploadError::Damaged),
        Err(status) => Err(match status.code() {
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented => UploadError::Refused(reason(&status)),
            _ => UploadError::Failed(reason(&status)),
        }),
    }
}

//! Turns a stored snapshot into PyTorch's pickle, for a download.
//!
//! The conversion is core's, as in `memtape export`. It runs on a thread that may block, a bounded
//! number at a time: a snapshot unpacks to many times its stored size. The pickle is not stored.

use std::sync::Arc;

use bytes::Bytes;
use memtape_core::limits::PICKLES_MADE_MAX;
use memtape_core::pickle::torch_snapshot;
use memtape_proto::snapshot::{self, Bounds, DecodeError};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::store::{Blobs, error};
use crate::work::tasks;

/// Makes pickles, in turn.
#[derive(Clone)]
pub(crate) struct Pickling {
    turns: Arc<Semaphore>,
}

/// Why there is no pickle of a snapshot.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotPickled {
    #[error(transparent)]
    Store(#[from] error::Error),
    #[error("the stored snapshot cannot be read: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("the conversion failed: {0}")]
    Failed(#[from] JoinError),
}

impl Pickling {
    /// Nothing is being made yet.
    pub(crate) fn new() -> Self {
        Self { turns: Arc::new(Semaphore::new(PICKLES_MADE_MAX)) }
    }

    /// The pickle of the snapshot with this hash.
    ///
    /// # Errors
    /// The snapshot is not in the store, or cannot be read.
    pub(crate) async fn pickle(
        &self,
        blobs: &Blobs,
        hash: blake3::Hash,
    ) -> Result<Bytes, NotPickled> {
        // Never closed, so that this cannot fail.
        let turn = self.turns.clone().acquire_owned().await;
        let stored = blobs.get(hash).await?;
        let made = tasks::blocking(move || {
            let snapshot = snapshot::decode(&stored, Bounds::default())?;
            drop(stored);
            let pickle = torch_snapshot(&snapshot);
            // Held until here also when the client has gone meanwhile.
            drop(turn);
            Ok::<_, DecodeError>(pickle)
        });
        Ok(Bytes::from(made.await??))
    }
}

//! Reads and decodes stored snapshots, one at a time for users and one for diagnoses.
//!
//! A snapshot comes from a training process. The memory for decoding is bounded (a part of
//! `memtape_core::capacity`), and taken for one snapshot at a time. Diagnoses have a turn of their
//! own, so that no requests of users delay them. A snapshot that is refused is counted.

use std::sync::Arc;

use memtape_core::capacity::Division;
use memtape_core::limits::TRACE_EVENTS_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::snapshot::{self, Bounds, DecodeError};
use tokio::sync::Semaphore;
use tokio::task::JoinError;

use crate::state::counters::{Counters, Loss};
use crate::work::blocking::blocking;
use memtape_store::Blobs;

/// The stored snapshots, decoded.
#[derive(Clone)]
pub(crate) struct Snapshots {
    blobs: Blobs,
    counters: Arc<Counters>,
    pub(crate) memory: Division,
    turn: Arc<Semaphore>,
}

/// Why a stored snapshot cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotRead {
    #[error(transparent)]
    Store(#[from] memtape_store::Error),
    #[error("the stored snapshot cannot be read: {0}")]
    Undecodable(#[from] DecodeError),
    #[error("the decoder failed: {0}")]
    Failed(#[from] JoinError),
}

impl Snapshots {
    /// The stored snapshots as they are.
    pub(crate) fn blobs(&self) -> &Blobs {
        &self.blobs
    }

    pub(crate) fn new(blobs: Blobs, counters: Arc<Counters>, memory: Division) -> Self {
        Self { blobs, counters, memory, turn: Arc::new(Semaphore::new(1)) }
    }

    /// The same snapshots, with a turn of their own.
    pub(crate) fn apart(&self) -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), ..self.clone() }
    }

    /// The bounds of decoding, by the memory.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            bytes_max: self.memory.snapshot_bytes_max(),
            decoded_bytes_max: self.memory.snapshot_decoded_bytes_max(),
            trace_events_max: TRACE_EVENTS_MAX,
        }
    }

    /// What `of` makes of the snapshot with this hash and the most bytes of memory that it takes,
    /// on a thread that may block, before the next snapshot is read.
    ///
    /// # Errors
    /// It is not in the store, or is refused.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        hash: blake3::Hash,
        bounds: Bounds,
        of: impl FnOnce(RankSnapshot, u64) -> T + Send + 'static,
    ) -> Result<T, NotRead> {
        // Never closed, so that this cannot fail.
        let turn = self.turn.clone().acquire_owned().await;
        let stored = self.blobs.get(hash).await?;
        let decoding = blocking(move || {
            let decoded = snapshot::decode_counted(&stored, bounds);
            drop(stored);
            let decoded = decoded.map(|(snapshot, bytes)| of(snapshot, bytes));
            // Held until here also when the client has left.
            drop(turn);
            decoded
        });
        let decoded = decoding.await?;
        if decoded.is_err() {
            self.counters.lose(Loss::BadSnapshot, 1);
        }
        Ok(decoded?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use memtape_core::limits::SNAPSHOT_BYTES_MAX;
    use memtape_store::Store;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn reads_of_users_delay_no_diagnosis() {
        let folder = tempfile::tempdir().unwrap();
        let (store, ..) = Store::open(folder.path()).unwrap();
        let encoded = snapshot::encode(RankSnapshot::default(), SNAPSHOT_BYTES_MAX).unwrap();
        let hash = blake3::hash(&encoded);
        store.blobs().put(hash, encoded.into()).await.unwrap();
        let counters = Arc::new(Counters::default());
        let of_users = Snapshots::new(store.blobs().clone(), counters, Division::of(None));
        let (bounds, slow) = (of_users.bounds(), of_users.clone());
        let (begun, begins) = tokio::sync::oneshot::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let slow = tokio::spawn(async move {
            let of = move |_, _| {
                begun.send(()).unwrap();
                ends.recv().is_err()
            };
            slow.read(hash, bounds, of).await.unwrap()
        });
        begins.await.unwrap();
        let next = of_users.read(hash, bounds, |_, _| ());
        assert!(timeout(Duration::from_millis(50), next).await.is_err(), "users wait");
        of_users.apart().read(hash, bounds, |_, _| ()).await.unwrap();
        drop(end);
        assert!(slow.await.unwrap());
        of_users.read(hash, bounds, |_, _| ()).await.unwrap();
    }
}

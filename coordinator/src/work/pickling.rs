//! Turns a stored snapshot into PyTorch's pickle, for a download.
//!
//! The conversion is core's, as in `memtape export`. It runs on a thread that may block, a bounded
//! number at a time: a snapshot unpacks to many times its stored size. The pickle is sent in parts
//! as it is written, and never whole in memory. When the client leaves, also while it waits in the
//! queue, no more is written.

use std::sync::Arc;
use std::time::Duration;

use memtape_core::limits::{PICKLE_SECONDS_MAX, PICKLES_MADE_MAX};
use memtape_core::pickle::torch_snapshot_in_parts;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use crate::state::counters::{Counters, Loss};
use crate::work::decoding::{NotRead, Snapshots};
use crate::work::parts::{Parts, parts};

/// Makes pickles, a bounded number at a time.
#[derive(Clone)]
pub(crate) struct Pickling {
    snapshots: Snapshots,
    counters: Arc<Counters>,
    turns: Arc<Semaphore>,
}

impl Pickling {
    /// Starts without any pickle in progress.
    pub(crate) fn new(snapshots: Snapshots, counters: Arc<Counters>) -> Self {
        Self { snapshots, counters, turns: Arc::new(Semaphore::new(PICKLES_MADE_MAX)) }
    }

    /// Begins the pickle of the snapshot with this hash.
    ///
    /// # Errors
    /// The snapshot is not in the store, or cannot be read.
    pub(crate) async fn pickle(&self, hash: blake3::Hash) -> Result<Parts, NotRead> {
        // Never closed, so that this cannot fail.
        let turn = self.turns.clone().acquire_owned().await;
        let bounds = self.snapshots.bounds();
        let snapshot = self.snapshots.read(hash, bounds, |snapshot, _| snapshot).await?;
        let (sender, parts) = parts();
        let (runtime, counters) = (Handle::current(), self.counters.clone());
        let ends = Instant::now() + Duration::from_secs(PICKLE_SECONDS_MAX);
        tokio::task::spawn_blocking(move || {
            let is_whole = torch_snapshot_in_parts(&snapshot, &mut |part| {
                // A client that reads too slowly shall not keep the turn.
                match runtime.block_on(timeout_at(ends, sender.send(part.into()))) {
                    Ok(sent) => sent.is_ok(),
                    Err(_) => {
                        counters.lose(Loss::SlowDownload, 1);
                        false
                    }
                }
            });
            if is_whole {
                sender.finish();
            }
            drop(turn);
        });
        Ok(parts)
    }
}

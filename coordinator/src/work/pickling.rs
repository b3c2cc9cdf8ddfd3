//! Turns a stored snapshot into PyTorch's pickle, for a download.
//!
//! The conversion is core's, as in `memtape export`. It runs on a thread that may block, a bounded
//! number at a time: a snapshot unpacks to many times its stored size. The pickle is sent in parts
//! as it is written, and never whole in memory. So a slow client keeps the turn: each caller has
//! one in the queue, and the time for which a client may be waited for is shared by the callers in
//! the queue. When the client leaves, also while it waits in the queue, no more is written.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bytes::Bytes;
use memtape_core::limits::{PICKLE_AWAITED_SECONDS_MAX, PICKLE_SECONDS_MAX, PICKLES_MADE_MAX};
use memtape_core::pickle::torch_snapshot_in_parts;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::state::counters::{Counters, Loss};
use crate::work::blocking;
use crate::work::decoding::{NotRead, Snapshots};
use crate::work::parts::{Parts, Sender, parts};

/// Interval between two checks of whether others wait for the turn.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Makes pickles, a bounded number at a time.
#[derive(Clone)]
pub(crate) struct Pickling {
    snapshots: Snapshots,
    counters: Arc<Counters>,
    turns: Arc<Semaphore>,
    waiting: Arc<Waiting>,
}

/// Number of callers who wait for a turn.
#[derive(Debug, Default)]
struct Waiting(AtomicUsize);

/// A caller who waits for a turn.
struct Waits<'a>(&'a Waiting);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

impl Pickling {
    /// Starts without any pickle in progress.
    pub(crate) fn new(snapshots: Snapshots, counters: Arc<Counters>) -> Self {
        let turns = Arc::new(Semaphore::new(PICKLES_MADE_MAX));
        Self { snapshots, counters, turns, waiting: Arc::default() }
    }

    /// Begins the pickle of the snapshot with this hash. `permits`, which include the caller's only
    /// one for a pickle, are kept until it ends.
    ///
    /// # Errors
    /// The snapshot is not in the store, or cannot be read.
    pub(crate) async fn pickle(
        &self,
        permits: impl Send + 'static,
        hash: blake3::Hash,
    ) -> Result<Parts, NotRead> {
        let waits = self.waiting.begin();
        // Never closed, so that this cannot fail.
        let turn = self.turns.clone().acquire_owned().await;
        drop(waits);
        let bounds = self.snapshots.bounds();
        let snapshot = self.snapshots.read(hash, bounds, |snapshot, _| snapshot).await?;
        let (sender, parts) = parts();
        let (runtime, counters, waiting) =
            (Handle::current(), self.counters.clone(), self.waiting.clone());
        let mut waited = Duration::ZERO;
        blocking::sending((permits, turn), move || {
            let is_whole = torch_snapshot_in_parts(&snapshot, &mut |part| match runtime
                .block_on(waiting.send(&sender, part.into(), &mut waited))
            {
                Some(is_taken) => is_taken,
                None => {
                    counters.lose(Loss::SlowDownload, 1);
                    false
                }
            });
            if is_whole {
                sender.finish();
            }
        });
        Ok(parts)
    }
}

impl Waiting {
    fn begin(&self) -> Waits<'_> {
        self.0.fetch_add(1, SeqCst);
        Waits(self)
    }

    /// Sends a part of a pickle whose client was waited for so long: whether the client took it,
    /// and none where the client reads too slowly to keep the turn.
    async fn send(&self, sender: &Sender, part: Bytes, waited: &mut Duration) -> Option<bool> {
        let mut sending = pin!(sender.send(part));
        loop {
            let max = match u32::try_from(self.0.load(SeqCst)).unwrap_or(u32::MAX) {
                0 => Duration::from_secs(PICKLE_SECONDS_MAX),
                callers => Duration::from_secs(PICKLE_AWAITED_SECONDS_MAX) / callers,
            };
            if *waited >= max {
                return None;
            }
            let begin = Instant::now();
            let sent = timeout(LOOK_EVERY, &mut sending).await;
            *waited += begin.elapsed();
            if let Ok(sent) = sent {
                return Some(sent.is_ok());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_keeps_the_turn_while_no_other_waits() {
        let (sender, parts) = parts();
        let (waiting, begin, mut waited) = (Waiting::default(), Instant::now(), Duration::ZERO);
        let mut send = async || waiting.send(&sender, "part".into(), &mut waited).await;
        assert_eq!(send().await, Some(true));
        let others = async {
            tokio::time::sleep(Duration::from_secs(PICKLE_AWAITED_SECONDS_MAX * 2)).await;
            let waits = waiting.begin();
            tokio::time::sleep(2 * LOOK_EVERY).await;
            waits
        };
        // The second part is not taken; it ends as soon as another caller waits.
        let (sent, waits) = tokio::join!(send(), others);
        let elapsed = begin.elapsed().as_secs();
        assert!(sent.is_none() && elapsed <= PICKLE_AWAITED_SECONDS_MAX * 2 + 2, "{elapsed}");
        // Nor does a client go on that takes one part after the other.
        assert_eq!(send().await, None);
        drop(waits);
        let send = async || waiting.send(&sender, "part".into(), &mut Duration::default()).await;
        assert_eq!(send().await, None, "it has a time without others, too");
        assert_eq!(begin.elapsed().as_secs() / PICKLE_SECONDS_MAX, 1);
        let (_four, begin) = ([(); 4].map(|()| waiting.begin()), Instant::now());
        assert_eq!(send().await, None);
        let shared = Duration::from_secs(PICKLE_AWAITED_SECONDS_MAX) / 4;
        assert!(begin.elapsed() <= shared + LOOK_EVERY, "{:?}", begin.elapsed());
        drop(parts);
        assert_eq!(send().await, Some(false));
    }
}

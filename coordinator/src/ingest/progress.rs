//! Minimum speed of uploads: an upload that reserves bytes and sends few is ended, because others
//! wait for these bytes.

use memtape_core::limits::{CHUNK_BYTES_MAX, UPLOAD_PART_SECONDS_MAX};
use tokio::time::{Duration, Instant};

/// Bytes that come in each part's time. An agent's chunk is as large.
const PART_BYTES: usize = CHUNK_BYTES_MAX;

/// Time for one part: enough for a link of 1 Mbit/s, or for one window of HTTP/2 each 300 ms. The
/// whole snapshot has a time of its own ([`memtape_core::limits::UPLOAD_SECONDS_MAX`]).
const PART_TIME: Duration = Duration::from_secs(UPLOAD_PART_SECONDS_MAX);

/// The snapshot of an upload comes too slowly.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the snapshot comes too slowly: {PART_BYTES} bytes took more than {PART_TIME:?}")]
pub(crate) struct TooSlow;

/// Received bytes of the present part, and its deadline.
#[derive(Debug)]
pub(crate) struct Progress {
    bytes: usize,
    ends: Instant,
}

impl Progress {
    /// Begins the first part.
    pub(crate) fn begin() -> Self {
        Self { bytes: 0, ends: Instant::now() + PART_TIME }
    }

    /// Time at which the upload ends unless more bytes have come.
    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    /// Adds bytes that came.
    ///
    /// # Errors
    /// The part is not complete, and its time has passed.
    pub(crate) fn add(&mut self, bytes: usize) -> Result<(), TooSlow> {
        let now = Instant::now();
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes >= PART_BYTES {
            // What is beyond counts for the next part; more than that is no credit.
            (self.bytes, self.ends) = (self.bytes % PART_BYTES, now + PART_TIME);
        }
        if now < self.ends { Ok(()) } else { Err(TooSlow) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    /// Sends chunks of this many bytes at this rate; the seconds until it is too slow.
    async fn lasts(chunk_bytes: usize, bytes_per_second: usize, whole: usize) -> Option<u64> {
        let (begin, mut progress) = (Instant::now(), Progress::begin());
        for _ in 0..whole / chunk_bytes {
            sleep(Duration::from_secs_f64(chunk_bytes as f64 / bytes_per_second as f64)).await;
            if progress.add(chunk_bytes).is_err() {
                return Some(begin.elapsed().as_secs());
            }
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_holds_room_brings_a_minimum() {
        let whole = 128 << 20;
        // A link of 10 Mbit/s, half of which others take.
        for chunk_bytes in [4 << 10, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX - 1] {
            assert_eq!(lasts(chunk_bytes, 625_000, whole).await, None, "{chunk_bytes}");
        }
        // A window of 32 KiB each 300 ms.
        assert_eq!(lasts(4 << 10, (32 << 10) * 10 / 3, whole).await, None);
        // A byte each second, and little all the time.
        assert_eq!(lasts(1, 1, 1000).await, Some(UPLOAD_PART_SECONDS_MAX));
        assert_eq!(lasts(100, 100_000, whole).await, Some(UPLOAD_PART_SECONDS_MAX));
        // What came at once is no credit for later.
        let mut progress = Progress::begin();
        assert_eq!(progress.add(100 << 20), Ok(()));
        sleep(PART_TIME).await;
        assert_eq!(progress.add(1), Err(TooSlow));
    }
}

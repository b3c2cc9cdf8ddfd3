//! Entries of PyTorch's trace tracker for a device that no report has used yet.
//!
//! The tracker speaks just before the report of the same event, under the same device mutex. It
//! adds to the report: the size asked for, the stream, the pool, and whether a free is deferred. So
//! there is one event on the tape for each thing that happens.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The part of PyTorch's `TraceEntry` that is the same in all versions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traced {
    /// `TraceEntry::Action`.
    pub(crate) action: u8,
    /// Device index.
    pub(crate) device: u8,
    /// Device address; for a failed request the device's free bytes.
    pub(crate) address: u64,
    /// Bytes asked for.
    pub(crate) size: u64,
    /// `cudaStream_t`.
    pub(crate) stream: u64,
    /// Memory pool; `None` in versions of PyTorch without it (before torch 2.8).
    pub(crate) pool: Option<(u64, u64)>,
}

/// The pool of [`Traces`] without a pool.
const POOL_UNKNOWN: (u64, u64) = (u64::MAX, 0);

/// The newest trace entries of one device. Guarded by that device's mutex.
#[derive(Default)]
pub(crate) struct Traces {
    /// Block that is being handed out, with the size asked for and the index of stream and pool.
    address: AtomicU64,
    requested: AtomicU64,
    stream_pool: AtomicU16,
    /// Block that is being taken back; 0 is none.
    freeing: AtomicU64,
    /// The block that is being taken back, if it is free already.
    freed: AtomicU64,
    /// The device's free bytes when a request failed.
    free_bytes: AtomicU64,
    /// Index of the last stream and pool (plus one: 0 is none yet), and both.
    last_index: AtomicU32,
    last_stream: AtomicU64,
    last_pool: [AtomicU64; 2],
}

impl Traces {
    /// Notes that a block is being handed out.
    pub(crate) fn hand_out(&self, entry: &Traced, stream_pool: u16) {
        self.requested.store(entry.size, Relaxed);
        self.stream_pool.store(stream_pool, Relaxed);
        self.address.store(entry.address, Relaxed);
    }

    /// Requested size, and stream and pool, of the block that is being handed out; `None` without
    /// an entry of the tracker.
    pub(crate) fn take_handed_out(&self, address: u64) -> Option<(u64, u16)> {
        let is_known = self.address.swap(0, Relaxed) == address;
        is_known.then(|| (self.requested.load(Relaxed), self.stream_pool.load(Relaxed)))
    }

    /// Notes that a block is being taken back.
    pub(crate) fn take_back(&self, address: u64) {
        self.freed.store(0, Relaxed);
        self.freeing.store(address, Relaxed);
    }

    /// Notes that a block became free. False when it is not the block being taken back: the free
    /// was deferred.
    pub(crate) fn set_freed(&self, address: u64) -> bool {
        let is_it = self.freeing.load(Relaxed) == address;
        if is_it {
            self.freed.store(address, Relaxed);
        }
        is_it
    }

    /// Whether the block that is being taken back is free now, or still in use by other streams. A
    /// block without an entry of the tracker counts as free: the tracker was attached after it.
    pub(crate) fn take_freed(&self, address: u64) -> bool {
        let is_known = self.freeing.swap(0, Relaxed) == address;
        let is_freed = self.freed.swap(0, Relaxed) == address;
        is_freed || !is_known
    }

    /// A request failed while the device had this many free bytes.
    pub(crate) fn set_free_bytes(&self, bytes: u64) {
        self.free_bytes.store(bytes, Relaxed);
    }

    /// The device's free bytes at the failed request; 0 when they are not known.
    pub(crate) fn take_free_bytes(&self) -> u64 {
        self.free_bytes.swap(0, Relaxed)
    }

    /// Index of the entry's stream and pool; `learn` returns the index of a new one.
    pub(crate) fn stream_pool(&self, entry: &Traced, learn: impl FnOnce() -> u16) -> u16 {
        let (first, second) = entry.pool.unwrap_or(POOL_UNKNOWN);
        let known = self.last_index.load(Relaxed);
        let is_same = self.last_stream.load(Relaxed) == entry.stream
            && self.last_pool[0].load(Relaxed) == first
            && self.last_pool[1].load(Relaxed) == second;
        if known != 0 && is_same {
            return (known - 1) as u16;
        }
        let index = learn();
        self.last_stream.store(entry.stream, Relaxed);
        self.last_pool[0].store(first, Relaxed);
        self.last_pool[1].store(second, Relaxed);
        self.last_index.store(u32::from(index) + 1, Relaxed);
        index
    }
}

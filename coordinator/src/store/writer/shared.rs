//! What the writer shares with the handles of the store: index, readers, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::store::blobs::local::Blobs;
use crate::store::catalogue::Catalogue;
use crate::store::clock::StoreClock;
use crate::store::disk::files::Held;
use crate::store::error::Result;
use crate::store::inventory::Inventory;
use crate::store::steps::packer::{OpenSteps, Reader};

/// What to do when a write is over.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) catalogue: Catalogue,
    pub(crate) reader: Reader,
    pub(crate) open: OpenSteps,
    pub(crate) steps_bytes_max: AtomicU64,
    pub(crate) blobs: Blobs,
    pub(crate) clock: StoreClock,
    pub(crate) health: Health,
    pub(crate) inventory: Inventory,
    /// Tells this store from others; empty when it cannot be read.
    pub(crate) id: String,
    /// Backups that are being made: no file of steps and no snapshot goes meanwhile.
    pub(crate) backups: AtomicU64,
    /// Behind the catalogue, so that it is given back last.
    pub(crate) lock: Box<dyn Held>,
    pub(crate) closed: Closed,
}

/// Says that everything before it in [`Shared`] has been dropped.
#[derive(Debug, Default)]
pub(crate) struct Closed(pub(crate) Arc<AtomicBool>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How the store is doing.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Groups of writes that were made durable.
    pub(crate) commits: AtomicU64,
    /// Writes that failed.
    pub(crate) failures: AtomicU64,
    /// Writes of step records that failed at first.
    pub(crate) step_failures: AtomicU64,
    /// Step records given up because too many waited in memory.
    pub(crate) steps_given_up: AtomicU64,
    /// Files of steps deleted because they were too old, or too much.
    pub(crate) steps_expired_by_age: AtomicU64,
    pub(crate) steps_expired_by_bytes: AtomicU64,
    /// Bytes of those.
    pub(crate) steps_expired_bytes: AtomicU64,
    /// Changes that wait for a journal that can be written again.
    pub(crate) waiting: AtomicU64,
    /// Changes that the thread of the store has not begun to write.
    pub(crate) queued: AtomicU64,
    /// Changes given up because more waited than can be kept.
    pub(crate) given_up: AtomicU64,
    /// Length of the journal.
    pub(crate) journal_bytes: AtomicU64,
    /// Files that vanished while they were in use, and were written again from memory.
    pub(crate) put_back: AtomicU64,
    /// 1 while the journal is gone, or cut, and could not be written again.
    pub(crate) journal_gone: AtomicU64,
    /// Snapshots that captures refer to, and that were gone at the start.
    pub(crate) snapshots_lost: AtomicU64,
    /// Jumps of the machine's wall clock.
    pub(crate) clock_jumps: AtomicU64,
    /// Time that all commits took, in nanoseconds.
    pub(crate) commit_ns: AtomicU64,
}

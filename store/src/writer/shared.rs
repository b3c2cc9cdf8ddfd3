//! State that the writer shares with the handles of the store: index, readers, counters.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::blobs::local::Blobs;
use crate::catalogue::Catalogue;
use crate::clock::StoreClock;
use crate::inventory::Inventory;
use crate::last_errors::LastErrors;
use crate::steps::packer::{OpenSteps, StepLimits};
use crate::steps::read::Reader;
use crate::writer::pending::Pending;
use memtape_core::placement::Proof;
use memtape_disk::files::Held;

/// Callback at the end of a write.
pub type Done = Box<dyn FnOnce(crate::error::Result<()>) + Send>;

/// Callback that gets the proof of ownership, or why there is none.
pub type Proved = Box<dyn FnOnce(crate::error::Result<Proof>) + Send>;

#[derive(Debug)]
pub(crate) struct Shared {
    pub catalogue: Catalogue,
    pub reader: Reader,
    pub open: OpenSteps,
    pub limits: Mutex<StepLimits>,
    pub blobs: Blobs,
    pub clock: StoreClock,
    pub health: Health,
    pub errors: LastErrors,
    pub pending: Pending,
    pub inventory: Inventory,
    /// Id of this store; empty when it cannot be read.
    pub id: String,
    /// Backups that are being made: no file of steps and no snapshot goes meanwhile.
    pub backups: AtomicU64,
    /// Lock of the folder. Declared after the catalogue, so that it is released last.
    pub lock: Arc<dyn Held>,
    pub closed: Closed,
}

/// Says that everything before it in [`Shared`] has been dropped.
#[derive(Debug, Default)]
pub(crate) struct Closed(pub Arc<AtomicBool>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Health of the store.
#[derive(Debug, Default)]
pub struct Health {
    /// Groups of writes that were made durable.
    pub commits: AtomicU64,
    /// Writes that failed.
    pub failures: AtomicU64,
    /// Writes of step records that failed at first.
    pub step_failures: AtomicU64,
    /// Step records refused because too many of their holder waited in memory.
    pub steps_given_up: AtomicU64,
    /// Files of steps deleted because of their age.
    pub steps_expired_by_age: AtomicU64,
    /// Files of steps deleted or shortened because of the bound of bytes.
    pub steps_expired_by_bytes: AtomicU64,
    /// Bytes of the expired steps.
    pub steps_expired_bytes: AtomicU64,
    /// Changes that wait for a journal that can be written again.
    pub waiting: AtomicU64,
    /// Changes that the thread of the store has not begun to write.
    pub queued: AtomicU64,
    /// Changes given up because more waited than can be kept.
    pub given_up: AtomicU64,
    /// Length of the journal.
    pub journal_bytes: AtomicU64,
    /// Files that vanished while they were in use, and were written again from memory.
    pub put_back: AtomicU64,
    /// Snapshots that captures refer to, and that were gone at the start.
    pub snapshots_lost: AtomicU64,
    /// Jumps of the machine's wall clock.
    pub clock_jumps: AtomicU64,
    /// Time that all commits took, in nanoseconds.
    pub commit_ns: AtomicU64,
}

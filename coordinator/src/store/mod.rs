//! The store: what the coordinator keeps over a restart.
//!
//! `journal/` has every change of a record, synced; `catalogue.rs` is the index over the records,
//! in sled; `clock.rs` measures ages; `inventory.rs` knows
//! which files there must be; `steps/` logs, packs and indexes step records; `blobs/` has
//! the snapshots of ranks.
//! The index can be lost at any time: `recovery/` builds it again from the others. `disk/` is all
//! that touches the operating system. `docs/store.md` has the files and their formats.
//!
//! One thread writes (`writer/`), in groups: all that waits is synced at once. The order of a
//! write is snapshot, journal, catalogue, acknowledgement. What is acknowledged is synced, steps
//! too. Nothing here runs on the async loop.

pub(crate) mod backup;
pub(crate) mod blobs;
pub(crate) mod catalogue;
pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod error;
pub(crate) mod handle;
pub(crate) mod inventory;
pub(crate) mod journal;
pub(crate) mod records;
pub(crate) mod recovery;
pub(crate) mod steps;
#[cfg(any(test, feature = "simulation", feature = "bench"))]
pub(crate) mod testing;
pub(crate) mod writer;

pub(crate) use blobs::local::Blobs;
pub(crate) use blobs::remote::is_snapshots_url;
pub(crate) use error::Result;
pub(crate) use handle::Store;
pub(crate) use encoding::{Changes, Loaded};
pub(crate) use steps::packer::Found;

//! The store: data that the coordinator keeps over a restart.
//!
//! `journal.rs` has every change of a record, synced; `catalogue.rs` is the index, in sled, filled
//! from the journal; `clock.rs` measures ages; `inventory.rs` knows which files there must be;
//! `steps/` logs, packs and indexes step records; `blobs/` has the snapshots of ranks; `records.rs`
//! has the types of records; `tables/` writes them as Parquet. The index can be lost at any time:
//! `recovery/` builds it again. memtape-disk is all that touches the operating system.
//! `docs/store.md` has the formats.
//!
//! One thread writes (`writer/`), in groups: all waiting writes are synced at once. The order of a
//! write is snapshot, journal, catalogue, acknowledgement. Acknowledged data is synced, steps too.
//! Nothing here runs on an async loop.

#![forbid(unsafe_code)]

mod backup;
mod blobs;
#[cfg(feature = "s3")]
pub mod bucket;
mod catalogue;
mod clock;
#[cfg_attr(not(feature = "cluster"), path = "no_cluster.rs")]
pub mod cluster;
#[cfg(feature = "s3")]
mod counting;
mod encoding;
mod error;
#[cfg(feature = "cluster")]
mod folder;
mod handle;
mod inventory;
mod journal;
mod last_errors;
pub mod records;
mod recovery;
pub mod reports;
mod steps;
mod tables;
#[cfg(test)]
mod tests;
mod writer;

pub use backup::make::{WithSnapshots, backup_folder};
pub use backup::manifest::{BackupContents, BackupHeader};
pub use backup::restore::{StoreRestore, Tokens, check_backup, restore_backup};
pub use blobs::local::{Blobs, Swept};
pub use blobs::reading::Reading;
pub use blobs::remote::is_snapshots_url;
pub use clock::{ClockRecord, StoreClock};
#[cfg(feature = "s3")]
pub use counting::Requests;
pub use encoding::{Changes, Loaded};
pub use error::{Error, Kind, Result};
pub use handle::{Store, Unready};
pub use inventory::{Loss, Part};
pub use last_errors::Written;
pub use recovery::check::{Finding, StoreCheck, check as check_store};
pub use recovery::opening::Recovery;
pub use recovery::rebuild::{StoreRebuild, rebuild as rebuild_store};
pub use steps::block;
pub use steps::newest::NewestRows;
pub use steps::packer::StepLimits;
pub use steps::read::Found;
pub use steps::segments::stretch;
#[cfg(feature = "cluster")]
pub use tables::publishing;
pub use tables::{TableRows, Tables, tables_page};
pub use writer::point::Point;
pub use writer::shared::{Done, Health, Proved};

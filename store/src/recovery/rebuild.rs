//! Builds the index of a store again, from the journal and the files of steps. The old one is kept
//! beside it. Lost data is no longer expected.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalogue::FOLDER;
use crate::error::{During, Error, Result};
use crate::inventory;
use crate::journal::{JOURNAL, PREVIOUS};
use crate::recovery::format;
use crate::recovery::opening::{self, WithoutJournal};
use memtape_disk::clock;
use memtape_disk::{files::Disk, real::RealDisk};

/// Result of a rebuild.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StoreRebuild {
    /// Records of the journal that are in the new index.
    pub records: u64,
    /// Blocks of steps that are.
    pub blocks: u64,
    /// Path of the old index; none when there was none.
    pub aside: Option<PathBuf>,
    /// Damaged places in the journal.
    pub journal_gaps: u64,
    /// Records from there that the journal's previous generation had.
    pub recovered: u64,
    /// Permanent losses, which are no longer expected.
    pub lost: Vec<String>,
}

/// Rebuilds the index of the store in a folder.
pub fn rebuild(folder: &Path) -> Result<StoreRebuild> {
    let is_there = |name: &str| folder.join(name).is_file();
    if ![JOURNAL, PREVIOUS, inventory::NAME].into_iter().any(is_there) {
        return Err(Error::missing(JOURNAL, folder));
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    rebuild_on(&disk).map_err(|error| error.at_start(folder))
}

fn rebuild_on(disk: &Arc<dyn Disk>) -> Result<StoreRebuild> {
    let (folder, shown) = (disk.folder(), disk.folder().display());
    let lock = disk.lock(format::LOCK).map_err(|error| opening::in_use(&**disk, error))?;
    format::settle(disk)?;
    let mut aside = None;
    if folder.join(FOLDER).is_dir() {
        let name = format!("{FOLDER}.before-rebuild-{}", clock::now().wall_ns);
        disk.rename(FOLDER, &name)
            .during(|| format!("the index in {shown} cannot be put aside"))?;
        aside = Some(folder.join(name));
    }
    let (parts, recovery) = opening::open_locked(disk, lock, WithoutJournal::GoOn)?;
    let lost = parts.inventory.lost(|expected| std::mem::take(&mut expected.lost.losses));
    let lost = lost.during(|| "the inventory cannot be written".to_string())?;
    parts.catalogue.flush().during(|| "the index cannot be synced".to_string())?;
    Ok(StoreRebuild {
        records: parts.live.len() as u64,
        blocks: recovery.caught_up,
        aside,
        journal_gaps: recovery.journal_gaps,
        recovered: recovery.recovered,
        lost: lost.iter().map(|loss| format!("{} {}", loss.part, loss.what())).collect(),
    })
}

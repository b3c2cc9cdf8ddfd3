//! Builds the index of a store again, from the journal and the files of steps. The old one is kept
//! beside it. What a damaged journal lost, and the old
//! index still has, goes into the journal first, as at a start of the coordinator.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::error::{During, Error, Result};
use crate::inventory;
use crate::journal::contents;
use crate::journal::file::Journal;
use crate::journal::merge::Merge;
use crate::recovery::format;
use crate::recovery::opening::{self, Recovery, WithoutJournal};
use memtape_disk::clock;
use memtape_disk::{files::Disk, real::RealDisk};

/// What was done.
#[derive(Clone, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StoreRebuild {
    /// Records of the journal that are in the new index.
    pub records: u64,
    /// Blocks of steps that are.
    pub blocks: u64,
    /// Where the old index lies; none when there was none.
    pub aside: Option<PathBuf>,
    /// Damaged places in the journal: what was there may still be in the old index.
    pub journal_gaps: u64,
    /// Records whose last change the journal had lost, and the old index had, with kind and id.
    pub journal_mended: Vec<String>,
    /// What is lost for good: from now on it is expected no more.
    pub lost: Vec<String>,
}

/// Rebuilds the index of the store in a folder.
pub fn rebuild(folder: &Path) -> Result<StoreRebuild> {
    if !folder.join("journal").is_file() && !folder.join(inventory::NAME).is_file() {
        return Err(Error::Missing { part: "journal", folder: folder.to_path_buf() });
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    rebuild_on(&disk).map_err(|error| error.at_start(folder))
}

fn rebuild_on(disk: &Arc<dyn Disk>) -> Result<StoreRebuild> {
    let (folder, shown) = (disk.folder(), disk.folder().display());
    let lock = disk.lock(opening::LOCK).map_err(|error| opening::in_use(&**disk, error))?;
    format::settle(disk)?;
    let gaps = match contents::read(&**disk, "journal") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        contents => contents?.damage.gaps,
    };
    let mut rebuilt = StoreRebuild { journal_gaps: gaps, ..StoreRebuild::default() };
    if folder.join("catalogue").is_dir() {
        rebuilt.journal_mended =
            mend(disk).during(|| format!("the journal in {shown} cannot be mended"))?;
        let aside = format!("catalogue.before-rebuild-{}", clock::now().wall_ns);
        disk.rename("catalogue", &aside)
            .during(|| format!("the index in {shown} cannot be put aside"))?;
        rebuilt.aside = Some(folder.join(aside));
    }
    let (parts, recovery) = opening::open_locked(disk, lock, WithoutJournal::GoOn)?;
    let lost = parts.inventory.forget_losses();
    let lost = lost.during(|| "the inventory cannot be written".to_string())?;
    rebuilt.lost = lost.iter().map(|loss| format!("{} {}", loss.part, loss.what())).collect();
    parts.catalogue.flush().during(|| "the index cannot be synced".to_string())?;
    rebuilt.records = recovery.restored;
    rebuilt.blocks = recovery.caught_up;
    Ok(rebuilt)
}

/// Writes into the journal what it lost and the old index has, and nothing else: a journal that
/// lost nothing is right. Returns what was written.
fn mend(disk: &Arc<dyn Disk>) -> Result<Vec<String>> {
    let catalogue = match Catalogue::open_as_it_is(&**disk, "catalogue") {
        Ok(catalogue) => catalogue,
        Err(why) if !why.is_damage() => return Err(why),
        // What a damaged index says is not certain.
        Err(_) => return Ok(Vec::new()),
    };
    let contents = match contents::read(&**disk, "journal") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => contents::Contents::default(),
        contents => contents?,
    };
    let Ok(merge) = Merge::of(&contents, &catalogue) else { return Ok(Vec::new()) };
    if !merge.is_mending || !merge.has_more() {
        return Ok(Vec::new());
    }
    let mended = merge.names();
    let (mut journal, contents) = Journal::open(disk, "journal")?;
    opening::mend(&mut journal, contents, merge, &mut Recovery::default())?;
    Ok(mended)
}

//! Makes the index of a store anew, from the journal and the files of steps. The old one is kept
//! beside it; nothing that cannot be made anew is deleted. What a damaged journal lost, and the old
//! index still has, goes into the journal first, as at a start of the coordinator.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::clock;
use crate::store::catalogue::{Catalogue, FULL, LOCKED};
use crate::store::disk::{files::Disk, real::RealDisk};
use crate::store::journal::contents;
use crate::store::journal::file::Journal;
use crate::store::journal::merge::Merge;
use crate::store::recovery::format::{self, Found};
use crate::store::recovery::opening::{self, Recovery};

/// What was done.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
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
}

/// Rebuilds the index of the store in a folder.
///
/// # Errors
/// One line: there is none, a coordinator has it, or it cannot be written.
pub fn rebuild(folder: &Path) -> anyhow::Result<StoreRebuild> {
    let shown = folder.display();
    if !folder.join("journal").is_file() {
        bail!("there is no journal in {shown}: name the coordinator's data folder");
    }
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    rebuild_on(&disk).map_err(|error| opening::say_full(&*disk, error))
}

fn rebuild_on(disk: &Arc<dyn Disk>) -> anyhow::Result<StoreRebuild> {
    let (folder, shown) = (disk.folder(), disk.folder().display());
    let lock = opening::lock(&**disk)?;
    let found = format::find(&**disk).with_context(|| format!("{shown} cannot be read"))?;
    match found {
        Found::Version(newer) if newer.version > format::VERSION => {
            bail!(format::too_new(&**disk, newer.version))
        }
        _ if !folder.join(crate::store::steps::segments::FOLDER).is_dir() => bail!(
            "the store in {shown} is of an older version, whose steps are in the index alone: \
             start the coordinator once, it brings the store up to date"
        ),
        _ => {}
    }
    let mut rebuilt = StoreRebuild::default();
    let (gaps, mended) =
        mend(disk).with_context(|| format!("the journal in {shown} cannot be mended"))?;
    if folder.join("catalogue").is_dir() {
        let aside = format!("catalogue.before-rebuild-{}", clock::now().wall_ns);
        disk.rename("catalogue", &aside)
            .with_context(|| format!("the index in {shown} cannot be put aside"))?;
        rebuilt.aside = Some(folder.join(aside));
    }
    let (parts, recovery) = opening::open_locked(disk, lock)?;
    parts.catalogue.flush().map_err(anyhow::Error::msg).context("the index cannot be synced")?;
    rebuilt.records = recovery.restored;
    rebuilt.blocks = recovery.caught_up;
    rebuilt.journal_gaps = recovery.journal_gaps.max(gaps);
    rebuilt.journal_mended = mended;
    Ok(rebuilt)
}

/// Brings into the journal what it lost and the old index has, and nothing else: a journal that
/// lost nothing is right. Answers its damaged places, and what is mended.
fn mend(disk: &Arc<dyn Disk>) -> anyhow::Result<(u64, Vec<String>)> {
    let contents = contents::read(&**disk, "journal")?;
    let gaps = contents.damage.gaps;
    if !disk.list("")?.iter().any(|entry| entry.name == "catalogue" && entry.is_folder) {
        return Ok((gaps, Vec::new()));
    }
    let catalogue = match Catalogue::open_as_it_is(&**disk, "catalogue") {
        Ok(catalogue) => catalogue,
        Err(why) if why == LOCKED || why.contains(FULL) => bail!(why),
        // It is damaged, and knows nothing for sure.
        Err(_) => return Ok((gaps, Vec::new())),
    };
    let Ok(merge) = Merge::of(&contents, &catalogue) else { return Ok((gaps, Vec::new())) };
    if !merge.is_mending || !merge.has_more() {
        return Ok((gaps, Vec::new()));
    }
    let mended = merge.names();
    let (mut journal, contents) = Journal::open(disk, "journal")?;
    opening::mend(&mut journal, contents, merge, &mut Recovery::default())?;
    Ok((gaps, mended))
}

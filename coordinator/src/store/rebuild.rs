//! Makes the index of a store anew, from the journal and the files of steps. The old one is kept
//! beside it; nothing that cannot be made anew is deleted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};

use super::disk::{Disk, RealDisk};
use super::format::{self, Found};
use super::recovery;
use crate::clock;

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
    let lock = recovery::lock(&*disk)?;
    let found = format::find(&*disk).with_context(|| format!("{shown} cannot be read"))?;
    match found {
        Found::Version(version) if version > format::VERSION => {
            bail!(format::too_new(&*disk, version))
        }
        _ if !folder.join(super::segments::FOLDER).is_dir() => bail!(
            "the store in {shown} is of an older version, whose steps are in the index alone: \
             start the coordinator once, it brings the store up to date"
        ),
        _ => {}
    }
    let mut rebuilt = StoreRebuild::default();
    if folder.join("catalogue").is_dir() {
        let aside = format!("catalogue.before-rebuild-{}", clock::now().wall_ns);
        disk.rename("catalogue", &aside)
            .with_context(|| format!("the index in {shown} cannot be put aside"))?;
        rebuilt.aside = Some(folder.join(aside));
    }
    let (parts, recovery) = recovery::open_locked(&disk, lock)?;
    parts.catalogue.flush().map_err(anyhow::Error::msg).context("the index cannot be synced")?;
    rebuilt.records = recovery.restored;
    rebuilt.blocks = recovery.caught_up;
    rebuilt.journal_gaps = recovery.journal_gaps;
    Ok(rebuilt)
}

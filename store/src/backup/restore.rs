//! Looks at backups, and makes stores of them.
//!
//! A backup is read to its end before anything is changed, and once more while it is restored. The
//! file `RESTORING` lies in the folder until all is durable: no coordinator takes such a folder.
//! The restored store has an id of its own, so that it can never pass for the other one. Tokens are
//! left out: one may have been revoked since.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use crate::backup::manifest::{self, BackupContents, DATA_BYTES};
use crate::blobs::local::FOLDER as BLOBS;
use crate::error::{During, Error, Result};
use crate::journal::{self, JOURNAL, Journal, PREVIOUS};
use crate::records::{Record as _, TokenRecord};
use crate::recovery::{format, opening};
use crate::steps::{log, segments};
use memtape_disk::files::{Disk, folder_of, remove_if_there, write_synced};
use memtape_disk::real::RealDisk;

/// Handling of the tokens in a backup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tokens {
    /// Tokens are left out: tokens revoked since the backup stay revoked.
    LeaveOut,
    /// Tokens are valid again, even if they were revoked since the backup.
    Keep,
}

/// Result of a restore.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct StoreRestore {
    /// Contents of the backup.
    #[serde(flatten)]
    pub contents: BackupContents,
    /// Tokens in it that were left out.
    pub tokens_left_out: u64,
}

/// Reads a backup to its end, and changes nothing.
///
/// # Errors
/// When it cannot be read, is damaged, or has no end.
pub fn check_backup(file: &Path) -> Result<BackupContents> {
    let shown = file.display();
    let mut opened = File::open(file).during(|| format!("the backup {shown} cannot be read"))?;
    manifest::read(&mut opened, &mut |_, _| Ok(()))
}

/// Makes a store of a backup, in a folder that is empty or not there.
///
/// # Errors
/// When the backup is not whole: then nothing was changed. When the folder is not empty, or cannot
/// be written.
pub fn restore_backup(file: &Path, folder: &Path, tokens: Tokens) -> Result<StoreRestore> {
    let shown = folder.display();
    check_backup(file)?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    disk.make_folder("").during(|| format!("the folder {shown} cannot be made"))?;
    if let Some(name) =
        format::first_in(&*disk).during(|| format!("the folder {shown} cannot be read"))?
    {
        return Err(Error::foreign(format!(
            "the folder {shown} holds {name:?}: name an empty folder"
        )));
    }
    let mut opened = File::open(file)?;
    restore_on(&disk, &mut opened, tokens)
        .during(|| format!("the store in {shown} cannot be restored"))
}

/// Makes a store of a backup, on an empty disk.
pub(crate) fn restore_on(
    disk: &Arc<dyn Disk>,
    backup: &mut dyn Read,
    tokens: Tokens,
) -> Result<StoreRestore> {
    write_synced(&**disk, format::RESTORING, b"")?;
    disk.sync_folder("")?;
    let _lock = disk.lock(format::LOCK).map_err(|error| opening::in_use(&**disk, error))?;
    for folder in [log::FOLDER, segments::FOLDER, BLOBS] {
        disk.make_folder(folder)?;
    }
    let contents =
        manifest::read(backup, &mut |name, data| Ok(restore_file(&**disk, name, data)?))?;
    let tokens_left_out = if tokens == Tokens::LeaveOut { leave_tokens_out(disk)? } else { 0 };
    let header = &contents.header;
    format::restored(&**disk, &header.store, header.snapshots_url.clone())?;
    for folder in [log::FOLDER, segments::FOLDER, BLOBS, ""] {
        disk.sync_folder(folder)?;
    }
    disk.remove(format::RESTORING)?;
    disk.sync_folder("")?;
    Ok(StoreRestore { contents, tokens_left_out })
}

/// Writes the journal without tokens, and returns their number.
fn leave_tokens_out(disk: &Arc<dyn Disk>) -> io::Result<u64> {
    let mut contents = journal::read(&**disk, JOURNAL)?;
    let before = contents.live.len();
    contents.live.retain(|key, _| key.first() != Some(&TokenRecord::KIND));
    Journal::begin(disk, JOURNAL, (contents.sequence, &contents.live), false)?;
    remove_if_there(&**disk, PREVIOUS)?;
    Ok((before - contents.live.len()) as u64)
}

fn restore_file(disk: &dyn Disk, name: &str, data: &mut dyn Read) -> io::Result<()> {
    disk.make_folder(folder_of(name))?;
    let file = disk.make(name)?;
    let (mut buffer, mut offset) = (vec![0; DATA_BYTES], 0);
    loop {
        match data.read(&mut buffer)? {
            0 => break,
            length => file.write_all_at(&buffer[..length], offset)?,
        }
        offset = file.len_bytes()?;
    }
    file.sync()?;
    disk.sync_folder(folder_of(name))
}

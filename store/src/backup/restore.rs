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

use crate::backup::container::{BackupContents, BackupReader, DATA_BYTES, JOURNAL, Piece};
use crate::blobs::local::FOLDER as BLOBS;
use crate::error::{During, Error, Result};
use crate::journal::file::Journal;
use crate::records::{Record as _, TokenRecord};
use crate::recovery::{format, opening};
use crate::steps::{log, segments};
use memtape_disk::files::{Disk, DiskFile, folder_of, write_synced};
use memtape_disk::real::RealDisk;
use memtape_disk::tree::Change;

/// What becomes of the tokens in a backup.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Tokens {
    /// They are left out: those that were revoked since the backup stay revoked.
    LeaveOut,
    /// They are valid again, those that were revoked since the backup, too.
    Keep,
}

/// What was restored.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct StoreRestore {
    /// What the backup holds.
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
    let mut reader = BackupReader::default();
    feed(&mut opened, |bytes| reader.check(bytes))?;
    reader.finish()
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
        return Err(Error::NotEmpty { folder: folder.to_path_buf(), name });
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
    let _lock = disk.lock(opening::LOCK).map_err(|error| opening::in_use(&**disk, error))?;
    for folder in [log::FOLDER, segments::FOLDER, BLOBS] {
        disk.make_folder(folder)?;
    }
    let mut reader = BackupReader::default();
    let mut file: Option<Restored> = None;
    feed(backup, |bytes| {
        reader.take(bytes, |piece| match piece {
            Piece::File(name) => {
                end(&**disk, file.take())?;
                disk.make_folder(folder_of(name))?;
                let made = disk.make(name)?;
                file = Some(Restored { name: name.to_string(), file: made, bytes: 0 });
                Ok(())
            }
            Piece::Data(data) => {
                if let Some(Restored { file, bytes, .. }) = &mut file {
                    file.write_all_at(data, *bytes)?;
                    *bytes += data.len() as u64;
                }
                Ok(())
            }
        })
    })?;
    end(&**disk, file)?;
    let contents = reader.finish()?;
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

/// Deletes all tokens, and says how many there were.
fn leave_tokens_out(disk: &Arc<dyn Disk>) -> io::Result<u64> {
    let (mut journal, contents) = Journal::open(disk, JOURNAL)?;
    let is_token = |key: &&Vec<u8>| key.first() == Some(&TokenRecord::KIND);
    let keys = contents.live.keys().filter(is_token).cloned();
    let gone: Vec<Change> = keys.map(|key| Change { key, value: None }).collect();
    if !gone.is_empty() {
        journal.append(gone.iter())?;
    }
    Ok(gone.len() as u64)
}

/// A file that is being restored.
struct Restored {
    name: String,
    file: Arc<dyn DiskFile>,
    bytes: u64,
}

fn end(disk: &dyn Disk, file: Option<Restored>) -> io::Result<()> {
    let Some(Restored { name, file, .. }) = file else { return Ok(()) };
    file.sync()?;
    disk.sync_folder(folder_of(&name))
}

fn feed(from: &mut dyn Read, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0; DATA_BYTES];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            length => take(&buffer[..length])?,
        }
    }
}

//! The one way to the file system: everything that a store reads, writes, syncs and locks.
//!
//! Files are named from the store's folder, with `/`. The real disk passes each call on; a
//! simulated one (`tests/disk`) keeps all in memory and can lose power. Data that is not synced may
//! be lost, and so may a new name until its folder is synced: the writer must sync both.

use std::fmt::Debug;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::tree::Tree;

/// The disk of a store.
pub trait Disk: Debug + Send + Sync {
    /// The store's folder, to name it to a person.
    fn folder(&self) -> &Path;

    /// Opens a file that is there, for reading only.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading and writing, and makes it when it is not there.
    fn make(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file or folder another name; a file of that name goes.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes a folder and its parents below the store's folder, unless they exist. Only the empty
    /// name makes the store's folder itself: one that is gone is not made again under a running
    /// store.
    fn make_folder(&self, name: &str) -> io::Result<()>;

    /// Lists a folder, in order of names.
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Locks the folder for this process until the answer is dropped.
    ///
    /// # Errors
    /// `ResourceBusy` when another process has it; the text is what that process wrote there.
    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>>;

    /// Opens the index in a folder, which opens its files itself.
    ///
    /// # Errors
    /// `ResourceBusy` when another process has it, `InvalidData` when it is damaged.
    fn tree(&self, folder: &str) -> io::Result<Arc<dyn Tree>>;

    /// True when nothing may wait, sleep or start a thread.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
    /// Length of the file, in bytes.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `out`; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of it, or fails with any part of it written. Refused unless a file allows it.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _ = (bytes, offset);
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Cuts it, or fills it up with zeros. Refused unless a file allows it.
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let _ = bytes;
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Makes its contents durable; `NotFound` when the file was removed. Nothing to do where
    /// nothing can be written.
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    /// True when whatever a new process reads is durable: no cache of a kernel is in between.
    fn is_durable_as_read(&self) -> bool {
        false
    }
}

/// A lock; dropping it gives it back.
pub trait Held: Debug + Send + Sync {
    /// Fails unless the locked folder is still at its path.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// Can another machine take the lock from this one? Then a proof costs a write.
    fn can_be_taken(&self) -> bool {
        false
    }

    /// Fails unless the lock was held at some time after the call began. Blocks.
    fn prove(&self) -> io::Result<()> {
        self.check()
    }
}

/// An entry of a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Entry {
    /// Name without the folder.
    pub name: String,
    /// True for a folder.
    pub is_folder: bool,
    /// Length of a file.
    pub bytes: u64,
}

/// The whole of a file.
pub fn read_all(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let length = file.len_bytes()?;
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Removes a file, if it is there.
pub fn remove_if_there(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes a file with this content, durable but for its name.
pub fn write_synced(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
    let file = disk.make(name)?;
    file.set_len(0)?;
    file.write_all_at(content, 0)?;
    file.sync()
}

/// Ends the name of a file that is being made.
pub const ASIDE: &str = ".new";

/// Gives a file this content, durably: afterwards it has the old one or the new one.
pub fn replace(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
    let aside = format!("{name}{ASIDE}");
    let replaced = write_synced(disk, &aside, content).and_then(|()| disk.rename(&aside, name));
    if replaced.is_err() {
        // The disk may be full: half a file is in the way.
        let _ = remove_if_there(disk, &aside);
    }
    replaced.and_then(|()| disk.sync_folder(folder_of(name)))
}

/// The folder that a name lies in.
pub fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The beginning of a file, read only.
#[derive(Clone, Debug)]
pub struct Prefix {
    /// The file.
    pub file: Arc<dyn DiskFile>,
    /// Number of bytes that count, from the start.
    pub bytes: u64,
}

impl DiskFile for Prefix {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.bytes.min(self.file.len_bytes()?))
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        match offset.saturating_add(out.len() as u64) <= self.bytes {
            true => self.file.read_exact_at(out, offset),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

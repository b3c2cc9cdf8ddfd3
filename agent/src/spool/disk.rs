//! The few things the spool does with a disk, and a folder that does them.
//!
//! Names are plain file names without folders. Nothing here knows what the bytes mean.

use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Where a spool lies.
pub(crate) trait Disk: Debug + Send {
    /// Names and sizes of all files, in any order.
    /// Fails, as every call here, with the errors of the disk.
    fn list(&mut self) -> io::Result<Vec<(String, u64)>>;

    /// Bytes of a file from `offset` on, at most `bytes_max`; fewer at its end.
    fn read(&mut self, name: &str, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Adds bytes to a file, which it makes if need be. After an error any part may be there.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Returns when a file, and its name, would survive a loss of power.
    fn sync(&mut self, name: &str) -> io::Result<()>;

    /// Gives a file these bytes, synced: afterwards it has the old ones or the new ones.
    fn replace(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

/// A folder that this agent has for itself.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Keeps others out for as long as it is open.
    _lock: File,
}

/// Locked by the agent that uses the folder.
const LOCK_NAME: &str = "lock";

/// Ending of a file that is being made.
const MAKING: &str = "making";

impl Folder {
    /// Makes the folder if need be, and takes it.
    /// Fails with the errors of the disk, and when another process has it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(path.join(LOCK_NAME))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::other("another agent uses it"))?;
        let folder = Self { path: path.to_path_buf(), _lock: lock };
        for entry in std::fs::read_dir(path)?.flatten() {
            if entry.path().extension().is_some_and(|ending| ending == MAKING) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(folder)
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl Disk for Folder {
    fn list(&mut self) -> io::Result<Vec<(String, u64)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name != LOCK_NAME && entry.file_type()?.is_file() {
                found.push((name, entry.metadata()?.len()));
            }
        }
        Ok(found)
    }

    fn read(&mut self, name: &str, offset: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.path.join(name))?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(bytes_max as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).append(true).mode(0o600);
        options.open(self.path.join(name))?.write_all(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        OpenOptions::new().append(true).open(self.path.join(name))?.sync_data()?;
        self.sync_folder()
    }

    fn replace(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let making = self.path.join(format!("{name}.{MAKING}"));
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(true).mode(0o600);
        let mut file = options.open(&making)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            let _ = std::fs::remove_file(&making); // the disk is full: make room at least
            return Err(error);
        }
        std::fs::rename(&making, self.path.join(name))?;
        self.sync_folder()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }
}

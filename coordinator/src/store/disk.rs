//! The one door to the file system: everything the store reads, writes, syncs and locks.
//!
//! Files are named from the store's folder, with `/`. The real disk passes each call on; a
//! simulated one (`simulated.rs`) keeps all in memory and can lose power. What is not synced may
//! be lost, and so may a new name until its folder is synced: whoever writes must see to both.

use std::fmt::Debug;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::catalogue::Tree;
use super::sled_tree::SledTree;

/// Where a store lies.
pub(crate) trait Disk: Debug + Send + Sync {
    /// The store's folder, to name it to a person.
    fn folder(&self) -> &Path;

    /// Opens a file that is there, for reading only.
    ///
    /// # Errors
    /// Those of the file system.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file for reading and writing, and makes it when it is not there.
    ///
    /// # Errors
    /// Those of the file system.
    fn make(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives a file or folder another name; a file of that name goes.
    ///
    /// # Errors
    /// Those of the file system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// Those of the file system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes a folder, and those above it, unless it is there.
    ///
    /// # Errors
    /// Those of the file system.
    fn make_folder(&self, name: &str) -> io::Result<()>;

    /// What lies in a folder, in order of names.
    ///
    /// # Errors
    /// Those of the file system.
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Those of the file system.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Locks the store for this process until the answer is dropped; or says who has it.
    ///
    /// # Errors
    /// Those of the file system.
    fn lock(&self, name: &str) -> io::Result<Result<Box<dyn Held>, String>>;

    /// Opens the index in a folder, which opens its files itself.
    ///
    /// # Errors
    /// One line: it is locked, or damaged.
    fn tree(&self, folder: &str) -> Result<Arc<dyn Tree>, String>;

    /// True when nothing may wait, sleep or start a thread.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// An open file.
pub(crate) trait DiskFile: Debug + Send + Sync {
    /// Its length.
    ///
    /// # Errors
    /// Those of the file system.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `out`; `UnexpectedEof` when the file ends before.
    ///
    /// # Errors
    /// Those of the file system.
    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of it, or fails with any part of it written.
    ///
    /// # Errors
    /// Those of the file system.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts it, or fills it up with zeros.
    ///
    /// # Errors
    /// Those of the file system.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes its contents durable.
    ///
    /// # Errors
    /// Those of the file system. What was written since the last success may then be lost, also
    /// when a later one succeeds.
    fn sync(&self) -> io::Result<()>;
}

/// A lock; dropping it gives it back.
pub(crate) trait Held: Debug + Send + Sync {}

/// What lies in a folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Entry {
    /// Without the folder.
    pub(crate) name: String,
    pub(crate) is_folder: bool,
    pub(crate) bytes: u64,
}

/// The whole of a file.
///
/// # Errors
/// Those of the file system.
pub(crate) fn read_all(disk: &dyn Disk, name: &str) -> io::Result<Vec<u8>> {
    let file = disk.open(name)?;
    let length = file.len_bytes()?;
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// The folder that a name lies in.
pub(crate) fn folder_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// A folder of the file system.
#[derive(Debug)]
pub(crate) struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Keeps others from writing, and writes nothing; or says who has it.
    pub(crate) fn lock_to_read(&self, name: &str) -> io::Result<Result<Option<File>, String>> {
        let mut file = match File::open(self.path(name)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Ok(None)),
            Err(error) => return Err(error),
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Ok(Some(file))),
            Err(TryLockError::WouldBlock) => Ok(Err(holder(&mut file))),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Disk for RealDisk {
    fn folder(&self) -> &Path {
        &self.folder
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(File::open(self.path(name))?)))
    }

    fn make(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        Ok(Arc::new(RealFile(options.open(self.path(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn make_folder(&self, name: &str) -> io::Result<()> {
        std::fs::create_dir_all(self.path(name))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.path(folder))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // It may be gone by now.
            let Ok(metadata) = entry.metadata() else { continue };
            entries.push(Entry { name, is_folder: metadata.is_dir(), bytes: metadata.len() });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.path(folder))?.sync_all()
    }

    fn lock(&self, name: &str) -> io::Result<Result<Box<dyn Held>, String>> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(self.path(name))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Ok(Err(holder(&mut file)));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // For a message to the next one who tries; nothing depends on it.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Ok(Box::new(RealLock { _file: file })))
    }

    fn tree(&self, folder: &str) -> Result<Arc<dyn Tree>, String> {
        Ok(Arc::new(SledTree::open(&self.path(folder))?))
    }
}

/// What the one who has the lock wrote into it.
fn holder(file: &mut File) -> String {
    let mut holder = String::new();
    let _ = file.read_to_string(&mut holder);
    holder.trim().to_string()
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// The kernel gives it back when the file is closed, also when the process dies.
#[derive(Debug)]
struct RealLock {
    _file: File,
}

impl Held for RealLock {}

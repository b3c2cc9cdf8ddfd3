//! The disk of a running coordinator: a folder of the file system.

use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::store::disk::files::{Disk, DiskFile, Entry, Held};
use crate::store::disk::sled_tree::SledTree;
use crate::store::disk::tree::Tree;
use crate::store::error::{During, Error, Result};

/// A folder of the file system.
#[derive(Debug)]
pub(crate) struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Keeps others from writing, and writes nothing. None when no process ever locked it.
    pub(crate) fn lock_to_read(&self, name: &str) -> Result<Option<Vec<File>>> {
        let mut held = Vec::new();
        for path in [self.folder.clone(), self.path(name)] {
            let file = match File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            file.try_lock_shared().map_err(|error| self.lock_error(error, name))?;
            held.push(file);
        }
        Ok(Some(held))
    }

    fn lock_error(&self, error: TryLockError, name: &str) -> Error {
        match error {
            TryLockError::WouldBlock => {
                // What the one who has it wrote into it.
                let holder = std::fs::read_to_string(self.path(name)).unwrap_or_default();
                let holder = holder.trim().to_string();
                Error::InUse { folder: self.folder.clone(), holder }
            }
            TryLockError::Error(error) => error.into(),
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

    fn lock(&self, name: &str) -> Result<Box<dyn Held>> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let shown = self.folder.display();
        // The folder itself: a file in it can be removed, and a new one would not be locked.
        let folder = File::open(&self.folder)
            .during(|| format!("the data folder {shown} cannot be read"))?;
        folder.try_lock().map_err(|error| self.lock_error(error, name))?;
        let mut file = options
            .open(self.path(name))
            .during(|| format!("the data folder {shown} cannot be written"))?;
        // Earlier versions lock this one alone.
        file.try_lock().map_err(|error| self.lock_error(error, name))?;
        // For a message to the next one who tries; nothing depends on it.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Box::new(RealLock { folder, _file: file, path: self.folder.clone() }))
    }

    fn tree(&self, folder: &str) -> Result<Arc<dyn Tree>> {
        Ok(Arc::new(SledTree::open(&self.path(folder))?))
    }
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
    folder: File,
    _file: File,
    path: PathBuf,
}

impl Held for RealLock {
    fn is_present(&self) -> bool {
        let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let there = std::fs::metadata(&self.path).map(id).ok();
        there.is_some() && there == self.folder.metadata().map(id).ok()
    }
}

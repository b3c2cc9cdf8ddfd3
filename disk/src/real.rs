//! A disk that is a folder of the file system.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::{Disk, DiskFile, Entry, Held};
use crate::sled_tree::SledTree;
use crate::tree::Tree;

/// A folder of the file system.
#[derive(Debug)]
pub struct RealDisk {
    folder: PathBuf,
}

impl RealDisk {
    /// A disk in this folder, which need not be there yet.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_path_buf() }
    }

    /// Keeps others from writing, and writes nothing. None when no process ever locked it.
    ///
    /// # Errors
    /// As [`Disk::lock`].
    pub fn lock_to_read(&self, name: &str) -> io::Result<Option<Vec<File>>> {
        let mut held = Vec::new();
        for path in [self.folder.clone(), self.path(name)] {
            let file = match File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            file.try_lock_shared().map_err(|error| self.lock_error(error, name))?;
            held.push(file);
        }
        Ok(Some(held))
    }

    fn lock_error(&self, error: TryLockError, name: &str) -> io::Error {
        match error {
            TryLockError::WouldBlock => {
                // The process that has it wrote this into it.
                let holder = std::fs::read_to_string(self.path(name)).unwrap_or_default();
                io::Error::new(io::ErrorKind::ResourceBusy, holder.trim().to_string())
            }
            TryLockError::Error(error) => error,
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
        Ok(Arc::new(RealFile(making().open(self.path(name))?)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path(name))
    }

    fn make_folder(&self, name: &str) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        if name.is_empty() {
            return builder.recursive(true).mode(0o700).create(&self.folder);
        }
        let mut path = self.folder.clone();
        for part in Path::new(name) {
            path.push(part);
            match builder.mode(0o700).create(&path) {
                Err(why) if why.kind() != io::ErrorKind::AlreadyExists => return Err(why),
                _ => {}
            }
        }
        Ok(())
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

    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>> {
        // The folder itself: a file in it can be removed, and a new one would not be locked.
        let folder = File::open(&self.folder)?;
        folder.try_lock().map_err(|error| self.lock_error(error, name))?;
        if folder.metadata().is_ok_and(|metadata| is_open_to_others(metadata.mode())) {
            let folder = self.folder.display();
            tracing::warn!("other users can read the data folder: chmod 700 {folder}");
        }
        let mut file = making().open(self.path(name))?;
        file.try_lock().map_err(|error| self.lock_error(error, name))?;
        // For a message to the next one who tries; nothing depends on it.
        let _ = file.set_len(0).and_then(|()| file.rewind());
        let _ = writeln!(file, "{}", std::process::id());
        Ok(Box::new(RealLock { folder, _file: file, path: self.folder.clone() }))
    }

    fn tree(&self, folder: &str) -> io::Result<Arc<dyn Tree>> {
        // sled makes files that all users can read; the folder keeps other users out.
        self.make_folder(folder)?;
        Ok(Arc::new(SledTree::open(&self.path(folder))?))
    }
}

/// Opens a file, or makes one for this user alone.
fn making() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options
}

/// Can users other than the owner reach the files in a folder of this mode?
fn is_open_to_others(mode: u32) -> bool {
    mode & 0o077 != 0
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
        self.0.sync_data()?;
        match self.0.metadata()?.nlink() {
            0 => Err(io::Error::new(io::ErrorKind::NotFound, "the open file was removed")),
            _ => Ok(()),
        }
    }
}

/// A lock that the kernel releases when the file is closed, also when the process dies.
#[derive(Debug)]
struct RealLock {
    folder: File,
    _file: File,
    path: PathBuf,
}

impl Held for RealLock {
    fn check(&self) -> io::Result<()> {
        let id = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let there = std::fs::metadata(&self.path).map(id);
        match there.is_ok_and(|there| self.folder.metadata().map(id).is_ok_and(|id| id == there)) {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::NotFound, "the data folder is gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_files_are_readable_by_this_user_alone() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("store");
        let disk = RealDisk::new(&folder);
        assert!(disk.make_folder("steps").is_err() && !folder.exists());
        ["", "steps", "steps"].iter().for_each(|of| disk.make_folder(of).unwrap());
        disk.make("steps/1").unwrap();
        let _lock = disk.lock("lock").unwrap();
        let _tree = disk.tree("catalogue").unwrap();
        let mode = |name: &str| std::fs::metadata(folder.join(name)).unwrap().mode() & 0o777;
        for name in ["", "steps", "catalogue"] {
            assert_eq!(mode(name), 0o700, "{name}");
        }
        for name in ["steps/1", "lock"] {
            assert_eq!(mode(name), 0o600, "{name}");
        }
    }

    #[test]
    fn a_folder_that_others_can_read_is_reported() {
        assert!(is_open_to_others(0o755) && is_open_to_others(0o40750));
        assert!(!is_open_to_others(0o40700));
    }
}

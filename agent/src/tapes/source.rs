//! Where tapes lie: what there is, opening one as what it is (the file of a less trusted process),
//! asking who holds its lock, deleting it.
//!
//! The agent knows a tape source by its trait alone. This one is folders; a simulation has
//! one of memory. A tape is read with `pread`, never mapped: a file that is cut short then gives
//! a short read and not a signal that kills the agent. It is kept open, so that it can be read
//! even after it was deleted. This file does not parse tapes.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memtape_core::limits::{FOLDER_ENTRIES_MAX, TAPE_BYTES_MAX};
use memtape_core::tape::read::{Source, TapeError};

use crate::tapes::liveness::{self, Writer};

/// Why a file is not used as a tape.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotATape {
    /// Opening it failed.
    #[error("it cannot be opened: {0}")]
    Closed(#[source] io::Error),
    /// Its size is unknown.
    #[error("it cannot be read")]
    Unreadable,
    /// A folder, a socket or the like.
    #[error("it is not a regular file")]
    NoFile,
    /// Its length in bytes.
    #[error("it is larger than a tape may be: {0} of {TAPE_BYTES_MAX} bytes")]
    TooLarge(u64),
    /// What is on it is no tape.
    #[error(transparent)]
    Content(#[from] TapeError),
    /// Another file is the same tape.
    #[error("it says it is the same tape as {}", .0.display())]
    Copy(PathBuf),
}

/// A file, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// Device that it is on.
    pub(crate) device: u64,
    /// Number on that device.
    pub(crate) inode: u64,
}

/// Size of a file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSize {
    /// Its length.
    pub(crate) len_bytes: u64,
    /// Memory it occupies, which is less where nothing was written.
    pub(crate) occupied_bytes: u64,
}

/// All that may be tapes.
pub(crate) trait TapeSource: Debug + Send {
    /// What lies there now, tapes or not.
    fn list(&mut self) -> Vec<(FileId, PathBuf)>;

    /// Opens one.
    /// The error says why it is no tape; it may become one.
    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape>;
}

/// An open file.
pub(crate) trait TapeFile: Debug + Send + Sync {
    /// Which.
    fn id(&self) -> FileId;

    /// Its present size; none when it is unknown.
    fn size(&self) -> Option<FileSize>;

    /// Copies words, as a [`Source`] does.
    fn read(&self, first_word: usize, out: &mut [u64]) -> bool;

    /// Who writes it.
    fn writer(&self) -> Writer;

    /// Deletes it, if it is still this one that lies at `path` and its lock is free.
    /// Fails with the errors of the file system, and when it is not.
    fn delete(&self, path: &Path) -> io::Result<()>;
}

/// The words of an open file, as many as there were when it was opened.
#[derive(Clone, Debug)]
pub(crate) struct TapeWords {
    file: Arc<dyn TapeFile>,
    len_bytes: u64,
}

/// TapeFolders of files.
#[derive(Debug)]
pub(crate) struct TapeFolders {
    dirs: Vec<PathBuf>,
    /// Those of which it was said that they cannot be searched.
    unreadable: BTreeSet<PathBuf>,
}

#[derive(Debug)]
struct DiskFile {
    file: File,
    id: FileId,
}

impl TapeWords {
    /// The words of a file of this length.
    pub(crate) fn new(file: Arc<dyn TapeFile>, len_bytes: u64) -> Self {
        Self { file, len_bytes }
    }
}

impl Source for TapeWords {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        self.file.read(first_word, out)
    }
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl TapeFolders {
    /// The files `*.tape` in these folders, not below them. They need not exist yet.
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs, unreadable: BTreeSet::new() }
    }

    /// Says once of a folder that it cannot be searched.
    fn tell(&mut self, dir: &Path, error: &io::Error) {
        if !self.unreadable.insert(dir.to_path_buf()) {
            return;
        }
        let path = dir.display();
        match error.kind() {
            // The first recorder makes it; but it may also be a slip of the pen.
            io::ErrorKind::NotFound => {
                tracing::info!("folder {path} is not there yet: no tapes until it is");
            }
            _ => tracing::warn!("folder {path} cannot be searched: {error}"),
        }
    }
}

impl TapeSource for TapeFolders {
    fn list(&mut self) -> Vec<(FileId, PathBuf)> {
        let mut found = Vec::new();
        for dir in self.dirs.clone() {
            let entries = match std::fs::read_dir(&dir) {
                Ok(entries) => entries,
                Err(error) => {
                    self.tell(&dir, &error);
                    continue;
                }
            };
            self.unreadable.remove(&dir);
            for entry in entries.take(FOLDER_ENTRIES_MAX).flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "tape") {
                    continue;
                }
                let Ok(metadata) = entry.metadata() else { continue };
                found.push((FileId::of(&metadata), path));
            }
        }
        found
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.map_err(NotATape::Closed)?;
        let metadata = file.metadata().map_err(|_| NotATape::Unreadable)?;
        if !metadata.is_file() {
            return Err(NotATape::NoFile);
        }
        if metadata.len() > TAPE_BYTES_MAX {
            return Err(NotATape::TooLarge(metadata.len()));
        }
        Ok(Arc::new(DiskFile { file, id: FileId::of(&metadata) }))
    }
}

impl TapeFile for DiskFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn size(&self) -> Option<FileSize> {
        let metadata = self.file.metadata().ok()?;
        let occupied_bytes = metadata.blocks().saturating_mul(512);
        Some(FileSize { len_bytes: metadata.len(), occupied_bytes })
    }

    fn read(&self, first_word: usize, out: &mut [u64]) -> bool {
        // Most reads are a few words of the header or of a lane's head.
        const SMALL_WORDS: usize = 64;
        if out.len() <= SMALL_WORDS {
            return self.read_by(&mut [0; SMALL_WORDS * 8], first_word, out);
        }
        const LARGE_WORDS: usize = 8192;
        self.read_by(&mut vec![0; LARGE_WORDS.min(out.len()) * 8], first_word, out)
    }

    fn writer(&self) -> Writer {
        liveness::writer(&self.file)
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        let metadata = std::fs::symlink_metadata(path)?;
        let is_dead = self.writer() == Writer::Gone;
        if FileId::of(&metadata) != self.id || !is_dead {
            return Err(io::Error::other("another file has taken its place, or it is in use"));
        }
        std::fs::remove_file(path)
    }
}

impl DiskFile {
    /// Reads in pieces of the buffer's size.
    fn read_by(&self, buffer: &mut [u8], first_word: usize, out: &mut [u64]) -> bool {
        let mut offset = (first_word as u64).saturating_mul(8);
        for piece in out.chunks_mut(buffer.len() / 8) {
            let bytes = &mut buffer[..piece.len() * 8];
            if self.file.read_exact_at(bytes, offset).is_err() {
                return false;
            }
            for (word, bytes) in piece.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *word = u64::from_le_bytes(*bytes);
            }
            offset = offset.saturating_add(bytes.len() as u64);
        }
        true
    }
}

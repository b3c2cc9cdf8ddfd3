//! Tape sources: list files with their owners, open a tape as the file of a less trusted process,
//! check its lock, delete it.
//!
//! The agent knows a tape source by its trait alone. This one is folders; a simulation has one of
//! memory. A tape is read with `pread`, never mapped: a file that is cut short then gives a short
//! read and not a signal that kills the agent. It is kept open, so that it can be read even after
//! it was deleted. A folder with very many files is read a part at a time, so that the cost of a
//! scan is bounded; other folders are read meanwhile. This file does not parse tapes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{File, Metadata, OpenOptions, ReadDir};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use memtape_core::limits::{FOLDER_ENTRIES_MAX, TAPE_BYTES_MAX, TAPES_PER_NODE_MAX};
use memtape_core::tape::read::{Source, TapeError};
use memtape_proto::readings::RefusedTapes;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, SeekFrom, openat, statat, unlinkat};

use crate::node::accounts::Account;
use crate::node::workload;
use crate::tapes::folders::{FolderError, check_folder, is_ours};
use crate::tapes::liveness::{self, Writer};
use crate::tapes::pods::Pod;
use crate::tapes::quota::{self, Held, Room, Standing, TapeKey};

/// Minimum files of a folder that are read in one scan, however many folders there are.
const FOLDER_ENTRIES_MIN: usize = 16;

/// Folders of pods of one namespace that are read; of more, each has its turn.
const PODS_PER_NAMESPACE_MAX: usize = 1024;

/// An empty folder of a pod is deleted when it has not been changed for this long, and the pod has
/// no process; where processes are not seen, after the second time.
const EMPTY_FOLDER_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
const UNSEEN_FOLDER_AGE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);

/// Time between two deletions of such folders: each looks at all processes.
const DELETION_INTERVAL: Duration = Duration::from_secs(3600);

/// Why a file is not used as a tape.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotATape {
    /// Opening it failed.
    #[error("it cannot be opened: {0}")]
    Closed(#[source] io::Error),
    /// The length of the file is unknown.
    #[error("it cannot be read")]
    Unreadable,
    /// A folder, a socket or the like.
    #[error("it is not a regular file")]
    NoFile,
    /// Length of the file in bytes.
    #[error("it is larger than a tape may be: {0} of {TAPE_BYTES_MAX} bytes")]
    TooLarge(u64),
    /// The content is no tape.
    #[error(transparent)]
    Content(#[from] TapeError),
    /// Another file is the same tape.
    #[error("it says it is the same tape as {0:?}")]
    Copy(PathBuf),
    /// The lock's holder is not the process that the tape names, is another user's, or not in the
    /// pod of the folder.
    #[error(
        "its lock is held by process {0}, which is not the one that it names, or not its pod's"
    )]
    WrongHolder(u32),
    /// The file lies in no folder of a pod, where each pod has one.
    #[error("it lies beside the folders of pods: mount the pod's own (deploy/helm/README.md)")]
    NoPod,
    /// The tape was made before the node was started.
    #[error("it was made before this node was started")]
    OtherBoot,
    /// Its job is in another shard of the cluster.
    #[error("its job is in shard {0} of the cluster")]
    OtherShard(u16),
    /// There are too many tapes.
    #[error(
        "there is no room for a tape of user {0}: {TAPES_PER_NODE_MAX} tapes are known; delete \
         those of dead processes"
    )]
    NoRoom(u32),
}

impl NotATape {
    /// Counts a tape that was refused.
    pub(crate) fn count(&self, refused: &mut RefusedTapes) {
        match self {
            Self::Copy(_) => refused.copies += 1,
            Self::WrongHolder(_) | Self::NoPod => refused.wrong_holder += 1,
            Self::OtherBoot => refused.other_boot += 1,
            Self::NoRoom(_) => refused.no_room += 1,
            // These are no tapes, or none yet.
            Self::Closed(_)
            | Self::Unreadable
            | Self::NoFile
            | Self::TooLarge(_)
            | Self::Content(_)
            // Its own shard counts it.
            | Self::OtherShard(_) => {}
        }
    }
}

/// Identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// Device of the file.
    pub(crate) device: u64,
    /// Number on that device.
    pub(crate) inode: u64,
}

/// Present state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileState {
    /// Length of the file, in bytes.
    pub(crate) len_bytes: u64,
    /// Memory it occupies, which is less where nothing was written.
    pub(crate) occupied_bytes: u64,
    /// Still in a folder.
    pub(crate) is_linked: bool,
}

/// A file that may be a tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Identity of the file.
    pub(crate) id: FileId,
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// The user who owns it.
    pub(crate) uid: u32,
    /// The pod in whose folder it lies.
    pub(crate) pod: Option<Arc<Pod>>,
}

/// One part of a listing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listing {
    /// Files that may be tapes.
    pub(crate) entries: Vec<Entry>,
    /// True if this part completes another listing of all files.
    pub(crate) is_whole: bool,
}

/// A source of files that may be tapes.
pub(crate) trait TapeSource: Debug + Send {
    /// Lists the next part of the files, tapes or not.
    fn list(&mut self) -> Listing;

    /// Opens a tape.
    /// The error says why the file is no tape; it may become one.
    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape>;

    /// Takes the tapes that are known now. Returns those to be given up for tapes of other agents.
    fn hold(&mut self, held: Vec<Held>) -> Vec<TapeKey> {
        drop(held);
        Vec::new()
    }

    /// Decides about one more tape beside these, the ones that are known now.
    fn room(&mut self, held: Vec<Held>, account: Account, standing: Standing) -> Room {
        quota::room(&held, account, standing)
    }
}

/// An open file.
pub(crate) trait TapeFile: Debug + Send + Sync {
    /// The file's id.
    fn id(&self) -> FileId;

    /// The user who owns it.
    fn uid(&self) -> u32;

    /// Unix time when the file was made; none where the file system does not say.
    fn made_wall_ns(&self) -> Option<i64>;

    /// Time since the file was last changed; none when unknown.
    fn unchanged_for(&self) -> Option<Duration>;

    /// Present state of the file; none when unknown.
    fn state(&self) -> Option<FileState>;

    /// Copies words, as a [`Source`] does.
    fn read(&self, first_word: usize, out: &mut [u64]) -> bool;

    /// The first written part of these words, as in [`Source`].
    fn written(&self, words: Range<usize>) -> Range<usize> {
        words
    }

    /// The writer of the tape.
    fn writer(&self) -> Writer;

    /// Writes one word of the tape, if the same file still lies at `path`.
    /// Fails with the errors of the file system, and when another file lies there.
    fn write(&self, path: &Path, word: usize, value: u64) -> io::Result<()>;

    /// Deletes the tape, if the same file still lies at `path` and its lock is free.
    /// Fails with the errors of the file system, and when one of the two is not so.
    fn delete(&self, path: &Path) -> io::Result<()>;
}

/// The words of an open file, with its length at the time of opening.
#[derive(Clone, Debug)]
pub(crate) struct TapeWords {
    file: Arc<dyn TapeFile>,
    len_bytes: u64,
}

/// Folders of files.
#[derive(Debug)]
pub(crate) struct TapeFolders {
    folders: BTreeMap<PathBuf, TapeFolder>,
    /// True where tapes lie in folders of pods, and nowhere else.
    has_pods: bool,
    /// Folders of pods found so far.
    pods_found: u64,
    /// Folders that were logged as not searchable.
    unreadable: BTreeSet<PathBuf>,
    /// When folders of pods were deleted last.
    deleted_at: Instant,
}

/// A folder, and the position of its listing.
#[derive(Debug, Default)]
struct TapeFolder {
    path: PathBuf,
    /// The pod whose folder it is, and the number of its finding.
    pod: Option<(Arc<Pod>, u64)>,
    reading: Option<ReadDir>,
    /// True if the present listing has found something.
    has_entries: bool,
    /// True if the last listing has found nothing.
    is_empty: bool,
    /// True if it was read to its end, while other folders were not.
    is_read: bool,
}

#[derive(Debug)]
struct DiskFile {
    file: File,
    id: FileId,
    uid: u32,
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

    fn written(&self, words: Range<usize>) -> Range<usize> {
        self.file.written(words)
    }
}

impl FileId {
    fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl Entry {
    /// Number of the owner where files are counted: the user; in a pod's folder the user there.
    pub(crate) fn account(&self) -> Account {
        self.pod.as_ref().map_or(self.uid.into(), |pod| pod.account_of(self.uid))
    }
}

impl TapeFolders {
    /// The files `*.tape` in these folders, or where pods have folders in them, in those; never
    /// below. The folders need not exist yet.
    pub(crate) fn new(dirs: Vec<PathBuf>, has_pods: bool) -> Self {
        let folder = |path: PathBuf| (path.clone(), TapeFolder { path, ..TapeFolder::default() });
        let folders = dirs.into_iter().map(folder).collect();
        let unreadable = BTreeSet::new();
        Self { folders, has_pods, pods_found: 0, unreadable, deleted_at: Instant::now() }
    }

    /// Adds the folder of a pod. Of a namespace with too many, the folder found first is dropped.
    fn add(&mut self, path: PathBuf, pod: Pod) {
        if self.folders.contains_key(&path) {
            return;
        }
        let found = self.folders.values().filter_map(|of| Some((&of.path, of.pod.as_ref()?)));
        let found: Vec<_> = found.filter(|(_, of)| of.0.account == pod.account).collect();
        let first = found.iter().min_by_key(|(_, of)| of.1).map(|(path, _)| (*path).clone());
        // Turns of such a namespace keep no listing from being whole.
        let is_read = found.len() >= PODS_PER_NAMESPACE_MAX;
        first.filter(|_| is_read).map(|first| self.folders.remove(&first));
        self.pods_found += 1;
        let pod = Some((Arc::new(pod), self.pods_found));
        let folder = TapeFolder { path: path.clone(), pod, is_read, ..TapeFolder::default() };
        self.folders.insert(path, folder);
    }
}

impl TapeFolder {
    /// Opens the folder, in which the tapes of one user are safe from another.
    ///
    /// # Errors
    /// A [`FolderError`].
    fn open(&self) -> Result<ReadDir, FolderError> {
        // All tapes in the folder of a pod are one owner's; the folder that it is in is checked.
        if self.pod.is_none() {
            check_folder(&self.path)?;
        }
        let closed = |source| FolderError::Closed { path: self.path.clone(), source };
        std::fs::read_dir(&self.path).map_err(closed)
    }

    /// The next files of the folder, at most `entries_max`, and the folders of pods in it.
    fn read(
        &mut self,
        entries_max: usize,
        found: &mut Vec<Entry>,
        pods: &mut Vec<(PathBuf, Pod)>,
    ) -> Result<(), FolderError> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => self.open()?,
        };
        for _ in 0..entries_max {
            let Some(entry) = reading.next() else {
                self.is_empty = !std::mem::take(&mut self.has_entries);
                self.is_read = true;
                return Ok(());
            };
            self.has_entries = true;
            // What cannot be read now is there in the next look, or gone.
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            let is_tape = path.extension().is_some_and(|extension| extension == "tape");
            // A pod makes folders of any name in its own: they are none.
            let pod = self.pod.as_ref().map(|(pod, _)| pod.clone());
            let of_name = |name: &OsStr| Pod::of_folder(name.to_str()?);
            let folder = of_name(&entry.file_name()).filter(|_| pod.is_none());
            if !is_tape && folder.is_none() {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            if let Some(folder) = folder.filter(|_| metadata.is_dir() && is_ours(&metadata)) {
                pods.push((path, folder));
            } else if is_tape {
                found.push(Entry { id: FileId::of(&metadata), path, uid: metadata.uid(), pod });
            }
        }
        self.reading = Some(reading);
        Ok(())
    }

    /// Deletes the folder of a pod that is not one of `used`, the pods with processes, once the
    /// folder is old and if it is empty.
    fn delete_old(&self, used: Option<&BTreeSet<String>>) {
        let Some((pod, _)) = self.pod.as_ref().filter(|_| self.is_empty) else { return };
        let age = || self.path.metadata().ok()?.modified().ok()?.elapsed().ok();
        let age_max = if used.is_some() { EMPTY_FOLDER_AGE_MAX } else { UNSEEN_FOLDER_AGE_MAX };
        let is_old = age().is_some_and(|age| age >= age_max);
        let is_used = used.is_some_and(|used| used.contains(&pod.workload.pod_uid));
        if is_old && !is_used && std::fs::remove_dir(&self.path).is_ok() {
            tracing::info!("folder {:?} of a pod is deleted: it was empty", self.path);
        }
    }
}

impl TapeSource for TapeFolders {
    fn list(&mut self) -> Listing {
        let (mut entries, mut pods) = (Vec::new(), Vec::new());
        let part = (FOLDER_ENTRIES_MAX / self.folders.len().max(1)).max(FOLDER_ENTRIES_MIN);
        self.folders.retain(|path, folder| match folder.read(part, &mut entries, &mut pods) {
            Ok(()) => {
                self.unreadable.remove(path);
                true
            }
            // That of a pod is found again while it is there.
            Err(_) if folder.pod.is_some() => false,
            Err(why) => {
                folder.is_read = true;
                if self.unreadable.insert(path.clone()) {
                    log_unreadable(&why);
                }
                true
            }
        });
        if self.has_pods && self.deleted_at.elapsed() >= DELETION_INTERVAL {
            self.deleted_at = Instant::now();
            let used = workload::pods("/".as_ref());
            self.folders.values().for_each(|folder| folder.delete_old(used.as_ref()));
        }
        let has_pods = self.has_pods;
        pods.into_iter().filter(|_| has_pods).for_each(|(path, pod)| self.add(path, pod));
        let is_whole = self.folders.values().all(|folder| folder.is_read);
        if is_whole {
            self.folders.values_mut().for_each(|folder| folder.is_read = false);
        }
        Listing { entries, is_whole }
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn TapeFile>, NotATape> {
        let folder = path.parent().and_then(|folder| self.folders.get(folder));
        if self.has_pods && folder.is_none_or(|folder| folder.pod.is_none()) {
            return Err(NotATape::NoPod);
        }
        let open = |path: &Path, flags| {
            let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
            file.map_err(NotATape::Closed)
        };
        // To open a device has effects: the kind first, of the same file.
        let named = open(path, libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)?;
        let metadata = named.metadata().map_err(|_| NotATape::Unreadable)?;
        if !metadata.is_file() {
            return Err(NotATape::NoFile);
        }
        let of_process = PathBuf::from(format!("/proc/self/fd/{}", named.as_raw_fd()));
        let file = open(&of_process, libc::O_NONBLOCK | libc::O_CLOEXEC)?;
        let metadata = file.metadata().map_err(|_| NotATape::Unreadable)?;
        if metadata.len() > TAPE_BYTES_MAX {
            return Err(NotATape::TooLarge(metadata.len()));
        }
        Ok(Arc::new(DiskFile { file, id: FileId::of(&metadata), uid: metadata.uid() }))
    }
}

fn log_unreadable(why: &FolderError) {
    match why {
        // The first recorder makes it, or the path is misspelled.
        FolderError::Closed { path, source } if source.kind() == io::ErrorKind::NotFound => {
            tracing::info!("folder {path:?} is not there yet: no tapes until it is");
        }
        _ => tracing::warn!("{why}"),
    }
}

impl TapeFile for DiskFile {
    fn id(&self) -> FileId {
        self.id
    }

    fn uid(&self) -> u32 {
        self.uid
    }

    fn made_wall_ns(&self) -> Option<i64> {
        let made = self.file.metadata().ok()?.created().ok()?;
        i64::try_from(made.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
    }

    fn unchanged_for(&self) -> Option<Duration> {
        self.file.metadata().ok()?.modified().ok()?.elapsed().ok()
    }

    fn state(&self) -> Option<FileState> {
        let metadata = self.file.metadata().ok()?;
        let occupied_bytes = metadata.blocks().saturating_mul(512);
        let is_linked = metadata.nlink() > 0;
        Some(FileState { len_bytes: metadata.len(), occupied_bytes, is_linked })
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

    fn written(&self, words: Range<usize>) -> Range<usize> {
        let end = words.end;
        let seek = |to| rustix::fs::seek(&self.file, to);
        let start = match seek(SeekFrom::Data(words.start as u64 * 8)) {
            Ok(at) => usize::try_from(at / 8).map_or(end, |word| word.min(end)),
            // Nothing was written from there on.
            Err(rustix::io::Errno::NXIO) => return end..end,
            // A file system without holes.
            Err(_) => return words,
        };
        let hole = seek(SeekFrom::Hole(start as u64 * 8)).unwrap_or(u64::MAX);
        start..usize::try_from(hole.div_ceil(8)).map_or(end, |word| word.min(end))
    }

    fn writer(&self) -> Writer {
        liveness::writer(&self.file)
    }

    fn write(&self, path: &Path, word: usize, value: u64) -> io::Result<()> {
        let (folder, name) = folder_of(path)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&folder, name, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        let is_this = FileId::of(&metadata) == self.id && metadata.uid() == self.uid;
        let at = word as u64 * 8;
        // Behind the end of a file that was cut short it would write a new page.
        if !is_this || metadata.len() < at + 8 {
            return Err(io::Error::other("another file has taken its place"));
        }
        file.write_all_at(&value.to_le_bytes(), at)
    }

    fn delete(&self, path: &Path) -> io::Result<()> {
        let (folder, name) = folder_of(path)?;
        let there = match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            // Another program has moved or deleted it: here it is gone.
            Err(rustix::io::Errno::NOENT) => return Ok(()),
            there => there?,
        };
        let is_this = FileId { device: there.st_dev, inode: there.st_ino } == self.id
            && there.st_uid == self.uid;
        if !is_this || self.writer() != Writer::Gone {
            return Err(io::Error::other("another file has taken its place, or it is in use"));
        }
        Ok(unlinkat(&folder, name, AtFlags::empty())?)
    }
}

/// The folder of a file, and the file's name in it: no part of the path can be exchanged
/// afterwards.
fn folder_of(path: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok((openat(CWD, folder, flags, Mode::empty())?, name))
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

#[cfg(test)]
mod tests;

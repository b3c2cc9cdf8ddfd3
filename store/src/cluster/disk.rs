//! The disk of a store that is a shard: files, folders and the index as rows of the shard.
//!
//! The shard is owned, or read at one point in time; then nothing can be written.
//!
//! A file is a row with its name, number and length, and rows with its contents in chunks, each
//! under the offset of its first byte. A change is one batch, so no crash shows half of one; what a
//! sync made durable is durable in the bucket. Batches become durable in their order: a later one
//! never without an earlier one. Contents of a removed file that is open go at the next start: a
//! row marks them until then. Reads in order read ahead. Calls block, and must not come from an
//! async loop.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use memtape_disk::files::{Disk, DiskFile, Entry, Held, folder_of};
use memtape_disk::tree::{Change, Tree};
use tokio::runtime::Handle;

use crate::cluster::reader::ShardReader;
use crate::cluster::shard::{Shard, ShardError, UNFLUSHED_BYTES_MAX};

/// Largest chunk, in bytes.
const CHUNK_BYTES: usize = 16 << 10;

/// Bytes read at once from a file that is read in order.
const AHEAD_BYTES: usize = 1 << 20;

/// Time after which a call fails while the bucket is away. What it wrote may still become durable.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bytes from which on a write waits for a sync: less than a shard holds before its writes wait.
const UNSYNCED_BYTES_MAX: u64 = UNFLUSHED_BYTES_MAX as u64 / 2;

/// Rows deleted in one batch. Where their keys are not known, the rows are read before.
const DELETED_MAX: usize = 512;

// First bytes of keys.
const NAME: u8 = b'n';
const CHUNK: u8 = b'd';
const REMOVED: u8 = b'o';
const TREE: u8 = b't';

/// A shard as a disk. Clones are handles of the same.
#[derive(Clone, Debug)]
pub(crate) struct ShardDisk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rows: Rows,
    /// To name it to a person.
    folder: PathBuf,
    runtime: Handle,
    names: Mutex<Names>,
    /// Bytes that were queued so far, and how many of them a sync made durable.
    queued_bytes: AtomicU64,
    synced_bytes: AtomicU64,
}

/// Where the rows are.
#[derive(Debug)]
enum Rows {
    Owned(Arc<Shard>),
    /// Nothing can be written.
    Read(Box<ShardReader>),
}

#[derive(Debug, Default)]
struct Names {
    /// A folder has no file.
    of: BTreeMap<String, Option<Arc<File>>>,
    /// Names by the numbers of their files: each write needs one.
    by_number: HashMap<u64, String>,
    /// Offsets of the chunks of files that this process made, which thus go without being read.
    chunks: HashMap<u64, Vec<u64>>,
    /// Number of the next file.
    next: u64,
}

/// The state of a file, shared by all who have it open.
#[derive(Debug)]
struct File {
    number: u64,
    bytes: AtomicU64,
    /// Counts changes of bytes that were there before.
    changes: AtomicU64,
}

impl ShardDisk {
    /// Reads the names of all files, and removes what removed files left. Blocks.
    pub(crate) fn open(shard: Arc<Shard>, runtime: Handle) -> io::Result<Self> {
        let folder = PathBuf::from(shard.name());
        let disk = Self::with_names(Rows::Owned(shard), folder, runtime)?;
        let mut left = Vec::new();
        disk.0.scan(&[REMOVED], &[REMOVED + 1], |key, _| {
            left.extend(key[1..].try_into().map(u64::from_be_bytes));
            ControlFlow::Continue(())
        })?;
        let next = left.last().map_or(0, |last| last + 1);
        let mut names = disk.0.names();
        names.next = names.next.max(next);
        drop(names);
        left.into_iter().try_for_each(|number| disk.0.delete_contents(number, None))?;
        Ok(disk)
    }

    /// The same at one point in time, for reading only. Blocks.
    pub(crate) fn read_only(reader: ShardReader, runtime: Handle) -> io::Result<Self> {
        let folder = PathBuf::from(reader.name());
        Self::with_names(Rows::Read(Box::new(reader)), folder, runtime)
    }

    fn with_names(rows: Rows, folder: PathBuf, runtime: Handle) -> io::Result<Self> {
        let (names, queued_bytes, synced_bytes) = Default::default();
        let inner = Inner { rows, folder, runtime, names, queued_bytes, synced_bytes };
        let disk = Self(Arc::new(inner));
        let (mut known, mut is_damaged) = (Names::default(), false);
        disk.0.scan(&[NAME], &[NAME + 1], |key, value| {
            let name = std::str::from_utf8(&key[1..]).map(str::to_string);
            match (name, file_of(value)) {
                (Ok(name), Some(file)) => {
                    known.next = known.next.max(file.as_ref().map_or(0, |file| file.number + 1));
                    known.insert(name, file);
                }
                _ => is_damaged = true,
            }
            ControlFlow::Continue(())
        })?;
        if is_damaged {
            return Err(io::Error::new(ErrorKind::InvalidData, "a name of a file makes no sense"));
        }
        *disk.0.names() = known;
        Ok(disk)
    }

    fn opened(&self, file: Arc<File>, can_write: bool) -> Arc<dyn DiskFile> {
        let (disk, window) = (self.0.clone(), Mutex::default());
        Arc::new(ShardFile { disk, file, can_write, window })
    }
}

impl Inner {
    fn names(&self) -> MutexGuard<'_, Names> {
        // A panic while it was held leaves whole names.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for work on the shard, for a limited time.
    fn wait<T>(&self, work: impl Future<Output = Result<T, ShardError>>) -> io::Result<T> {
        let within = async { tokio::time::timeout(PATIENCE, work).await };
        self.runtime.block_on(within).unwrap_or(Err(ShardError::Away)).map_err(error)
    }

    /// Queues a batch. Refuses it while too much is not durable: a batch whose outcome is unknown
    /// would leave other files in the shard than in memory.
    fn write(&self, changes: Vec<Change>) -> io::Result<()> {
        let Rows::Owned(shard) = &self.rows else {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        };
        let synced_bytes = self.synced_bytes.load(Relaxed);
        if self.queued_bytes.load(Relaxed).saturating_sub(synced_bytes) > UNSYNCED_BYTES_MAX {
            self.sync()?;
        }
        let sizes = changes.iter().map(|change| change.key.len() + size(change));
        let bytes = sizes.sum::<usize>() as u64;
        let queued = self.runtime.block_on(shard.write(changes));
        // Not before: a sync of another thread would count it, and not cover it.
        self.queued_bytes.fetch_add(bytes, AcqRel);
        queued.map(|_| ()).map_err(error)
    }

    /// Makes durable what this thread has written, and what others had queued before the call.
    fn sync(&self) -> io::Result<()> {
        let queued_bytes = self.queued_bytes.load(Acquire);
        if let Rows::Owned(shard) = &self.rows
            && queued_bytes > self.synced_bytes.load(Acquire)
        {
            self.wait(shard.settle())?;
            self.synced_bytes.fetch_max(queued_bytes, AcqRel);
        }
        Ok(())
    }

    fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> ControlFlow<()>,
    ) -> io::Result<()> {
        match &self.rows {
            Rows::Owned(shard) => self.wait(shard.scan(begin, end, visit)),
            Rows::Read(reader) => self.wait(reader.scan(begin, end, visit)),
        }
    }

    /// Deletes the contents of a file that has no name, and the mark that says so. Reads the
    /// offsets of its chunks if they are not known.
    fn delete_contents(&self, number: u64, mut known: Option<Vec<u64>>) -> io::Result<()> {
        loop {
            let offsets = match &mut known {
                Some(all) => all.split_off(all.len().saturating_sub(DELETED_MAX)),
                None => self.chunks_from(number, 0, DELETED_MAX)?,
            };
            let is_last = offsets.len() < DELETED_MAX;
            let mut changes = deleted(number, &offsets);
            if is_last {
                changes.push(Change { key: key(REMOVED, &number.to_be_bytes()), value: None });
            }
            self.write(changes)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// The offsets of a file's chunks from one on, at most `max`.
    fn chunks_from(&self, number: u64, offset: u64, max: usize) -> io::Result<Vec<u64>> {
        let mut offsets = Vec::new();
        self.scan(&chunk(number, offset), &chunk(number + 1, 0), |key, _| {
            offsets.extend(key.last_chunk().map(|at| u64::from_be_bytes(*at)));
            if offsets.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(offsets)
    }

    /// Bytes of a file in this range, as far as there are any.
    fn read(&self, file: &File, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        // The chunk with the first byte begins at most its length before.
        let begin = chunk(file.number, offset.saturating_sub(CHUNK_BYTES as u64 - 1));
        let end = offset.saturating_add(bytes as u64).min(file.bytes.load(Relaxed));
        let mut read = Vec::with_capacity(bytes.min(AHEAD_BYTES));
        self.scan(&begin, &chunk(file.number, end), |key, part| {
            let Some(at) = key.last_chunk().map(|at| u64::from_be_bytes(*at)) else {
                return ControlFlow::Break(());
            };
            let wanted = offset + read.len() as u64;
            let skipped = usize::try_from(wanted.saturating_sub(at)).unwrap_or(usize::MAX);
            // A gap before the chunk is damage: what is read ends there.
            if at > wanted {
                return ControlFlow::Break(());
            }
            read.extend_from_slice(part.get(skipped..).unwrap_or_default());
            ControlFlow::Continue(())
        })?;
        read.truncate(usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX));
        Ok(read)
    }
}

impl Disk for ShardDisk {
    fn folder(&self) -> &Path {
        &self.0.folder
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.0.names().of.get(name) {
            Some(Some(file)) => Ok(self.opened(file.clone(), false)),
            Some(None) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    fn make(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut names = self.0.names();
        match names.of.get(name) {
            Some(Some(file)) => return Ok(self.opened(file.clone(), true)),
            Some(None) => return Err(ErrorKind::IsADirectory.into()),
            None if !names.has(folder_of(name)) => return Err(ErrorKind::NotFound.into()),
            None => {}
        }
        let file = Arc::new(File::new(names.next, 0));
        self.0.write(vec![named(name, Some(&file))])?;
        names.next += 1;
        names.chunks.insert(file.number, Vec::new());
        names.insert(name.to_string(), Some(file.clone()));
        drop(names);
        Ok(self.opened(file, true))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut names = self.0.names();
        let kind = names.of.get(from).cloned().filter(|_| names.has(folder_of(to)));
        let kind = kind.ok_or(ErrorKind::NotFound)?;
        if from == to {
            return Ok(());
        }
        let within = format!("{from}/");
        let mut moved = vec![(from.to_string(), to.to_string(), kind)];
        for (name, kind) in names.of.range(within.clone()..) {
            let Some(rest) = name.strip_prefix(&within) else { break };
            moved.push((name.clone(), format!("{to}/{rest}"), kind.clone()));
        }
        let replaced = names.of.get(to).cloned().flatten();
        let mut changes: Vec<Change> = replaced.iter().map(|file| removed(file)).collect();
        for (from, to, kind) in &moved {
            changes.push(Change { key: name_key(from), value: None });
            changes.push(named(to, kind.as_deref()));
        }
        self.0.write(changes)?;
        for (from, to, kind) in moved {
            names.remove(&from);
            names.insert(to, kind);
        }
        replaced.map_or(Ok(()), |file| self.0.let_go(file, names))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut names = self.0.names();
        let file = match names.of.get(name) {
            Some(Some(file)) => file.clone(),
            Some(None) => return Err(ErrorKind::IsADirectory.into()),
            None => return Err(ErrorKind::NotFound.into()),
        };
        self.0.write(vec![Change { key: name_key(name), value: None }, removed(&file)])?;
        names.remove(name);
        self.0.let_go(file, names)
    }

    fn make_folder(&self, name: &str) -> io::Result<()> {
        let mut names = self.0.names();
        let ends = name.match_indices('/').map(|(end, _)| end).chain([name.len()]);
        let parts = ends.map(|end| &name[..end]).filter(|part| !part.is_empty());
        let new: Vec<&str> = parts.filter(|part| !names.of.contains_key(*part)).collect();
        if !new.is_empty() {
            self.0.write(new.iter().map(|part| named(part, None)).collect())?;
        }
        names.of.extend(new.into_iter().map(|part| (part.to_string(), None)));
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let names = self.0.names();
        if !names.has(folder) {
            return Err(ErrorKind::NotFound.into());
        }
        let within = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let all = names.of.range(within.clone()..);
        let all = all.map_while(|(name, kind)| Some((name.strip_prefix(&within)?, kind)));
        let entry = |(name, kind): (&str, &Option<Arc<File>>)| Entry {
            name: name.to_string(),
            is_folder: kind.is_none(),
            bytes: kind.as_ref().map_or(0, |file| file.bytes.load(Relaxed)),
        };
        Ok(all.filter(|(name, _)| !name.contains('/')).map(entry).collect())
    }

    fn sync_folder(&self, _: &str) -> io::Result<()> {
        self.0.sync()
    }

    fn lock(&self, _: &str) -> io::Result<Box<dyn Held>> {
        match &self.0.rows {
            Rows::Owned(shard) => {
                Ok(Box::new(Owned { disk: self.0.clone(), shard: shard.clone() }))
            }
            Rows::Read(_) => Err(ErrorKind::ReadOnlyFilesystem.into()),
        }
    }

    fn tree(&self, folder: &str) -> io::Result<Arc<dyn Tree>> {
        self.make_folder(folder)?;
        Ok(Arc::new(ShardTree(self.0.clone())))
    }
}

impl Inner {
    /// Deletes the contents of a removed file, unless it is open: then at the next start.
    fn let_go(&self, file: Arc<File>, mut names: MutexGuard<'_, Names>) -> io::Result<()> {
        let known = names.chunks.remove(&file.number);
        drop(names);
        match Arc::into_inner(file) {
            Some(file) => self.delete_contents(file.number, known),
            None => Ok(()),
        }
    }
}

impl Names {
    fn insert(&mut self, name: String, file: Option<Arc<File>>) {
        self.remove(&name);
        self.by_number.extend(file.as_ref().map(|file| (file.number, name.clone())));
        self.of.insert(name, file);
    }

    fn remove(&mut self, name: &str) {
        if let Some(Some(file)) = self.of.remove(name) {
            self.by_number.remove(&file.number);
        }
    }

    fn has(&self, folder: &str) -> bool {
        folder.is_empty() || self.of.get(folder).is_some_and(Option::is_none)
    }
}

impl File {
    fn new(number: u64, bytes: u64) -> Self {
        Self { number, bytes: AtomicU64::new(bytes), changes: AtomicU64::new(0) }
    }
}

/// An open file.
#[derive(Debug)]
struct ShardFile {
    disk: Arc<Inner>,
    file: Arc<File>,
    can_write: bool,
    window: Mutex<Window>,
}

/// Bytes that were read last.
#[derive(Debug, Default)]
struct Window {
    begin: u64,
    bytes: Vec<u8>,
    /// Changes of the file before.
    changes: u64,
    /// End of the last read.
    next: u64,
}

impl ShardFile {
    /// Replaces all bytes from an offset on.
    fn replace_from(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if !self.can_write {
            return Err(ErrorKind::ReadOnlyFilesystem.into());
        }
        let mut names = self.disk.names();
        let (file, length) = (&self.file, self.file.bytes.load(Relaxed));
        let mut changes = Vec::new();
        if offset < length {
            // The chunk with the first byte that goes is cut.
            let begin = offset - offset.min(CHUNK_BYTES as u64 - 1);
            let number = file.number;
            let mut kept = None;
            self.disk.scan(&chunk(number, begin), &chunk(number, offset), |key, part| {
                kept = Some((key.to_vec(), part.clone()));
                ControlFlow::Continue(())
            })?;
            if let Some((key, part)) = kept
                && let Some(at) = key.last_chunk().map(|at| u64::from_be_bytes(*at))
            {
                let left = usize::try_from(offset - at).unwrap_or(usize::MAX).min(part.len());
                changes.push(Change { key, value: Some(part[..left].to_vec()) });
            }
            changes.extend(match names.chunks.get(&number) {
                Some(all) => deleted(number, all.iter().filter(|at| **at >= offset)),
                None => deleted(number, &self.disk.chunks_from(number, offset, usize::MAX)?),
            });
        }
        let zeros = vec![0; usize::try_from(offset.saturating_sub(length)).unwrap_or(0)];
        let (mut at, mut offsets) = (offset.min(length), Vec::new());
        for part in zeros.chunks(CHUNK_BYTES).chain(bytes.chunks(CHUNK_BYTES)) {
            changes.push(Change { key: chunk(file.number, at), value: Some(part.to_vec()) });
            offsets.push(at);
            at += part.len() as u64;
        }
        // A file that was removed has none.
        if let Some(name) = names.by_number.get(&file.number) {
            changes.push(named(name, Some(&File::new(file.number, at))));
        }
        self.disk.write(changes)?;
        if let Some(all) = names.chunks.get_mut(&file.number) {
            all.truncate(all.partition_point(|at| *at < offset));
            all.extend(offsets);
        }
        file.bytes.store(at, Relaxed);
        if offset < length {
            file.changes.fetch_add(1, Relaxed);
        }
        Ok(())
    }
}

impl DiskFile for ShardFile {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.bytes.load(Relaxed))
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = self.file.changes.load(Relaxed);
        let is_in = |window: &Window| {
            let at = usize::try_from(offset.checked_sub(window.begin)?).ok()?;
            (window.changes == changes).then_some(())?;
            Some(at..at.checked_add(out.len()).filter(|end| *end <= window.bytes.len())?)
        };
        let range = match is_in(&window) {
            Some(range) => range,
            None => {
                let ahead = if window.next == offset { AHEAD_BYTES } else { 0 };
                window.bytes = self.disk.read(&self.file, offset, out.len().max(ahead))?;
                (window.begin, window.changes) = (offset, changes);
                0..out.len()
            }
        };
        let read = window.bytes.get(range).ok_or(ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(read);
        window.next = offset + out.len() as u64;
        Ok(())
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        let length = self.file.bytes.load(Relaxed);
        let behind = usize::try_from(length.saturating_sub(end)).map_err(io::Error::other)?;
        if behind == 0 {
            return self.replace_from(offset, bytes);
        }
        let rest = self.disk.read(&self.file, end, behind)?;
        self.replace_from(offset, &[bytes, &rest].concat())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.replace_from(bytes, &[])
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()?;
        match self.disk.names().by_number.contains_key(&self.file.number) {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::NotFound, "the open file was removed")),
        }
    }

    fn is_durable_as_read(&self) -> bool {
        true
    }
}

/// The ownership of the shard, in place of a lock.
#[derive(Debug)]
struct Owned {
    disk: Arc<Inner>,
    shard: Arc<Shard>,
}

impl Held for Owned {
    fn check(&self) -> io::Result<()> {
        self.shard.durable().now().end.map_or(Ok(()), |end| Err(error(end)))
    }

    fn can_be_taken(&self) -> bool {
        true
    }

    fn prove(&self) -> io::Result<()> {
        self.disk.wait(self.shard.prove())
    }
}

/// The index, as rows of the shard.
#[derive(Debug)]
struct ShardTree(Arc<Inner>);

impl Tree for ShardTree {
    fn apply(&self, batch: &[&Change]) -> io::Result<()> {
        let row =
            |change: &&Change| Change { key: key(TREE, &change.key), value: change.value.clone() };
        self.0.write(batch.iter().map(row).collect())
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        self.0.scan(&key(TREE, from), &key(TREE, to), |key, value| match visit(&key[1..], value) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn len_bytes(&self) -> u64 {
        0
    }
}

fn size(change: &Change) -> usize {
    change.value.as_ref().map_or(0, Vec::len)
}

fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
    [&[kind], rest].concat()
}

fn name_key(name: &str) -> Vec<u8> {
    key(NAME, name.as_bytes())
}

fn chunk(number: u64, offset: u64) -> Vec<u8> {
    [&[CHUNK], number.to_be_bytes().as_slice(), &offset.to_be_bytes()].concat()
}

/// The deletions of chunks.
fn deleted<'a>(number: u64, offsets: impl IntoIterator<Item = &'a u64>) -> Vec<Change> {
    let gone = |at: &u64| Change { key: chunk(number, *at), value: None };
    offsets.into_iter().map(gone).collect()
}

/// The row of a name: a file's number and length, or nothing for a folder.
fn named(name: &str, file: Option<&File>) -> Change {
    let value = file.map_or_else(Vec::new, |file| {
        [file.number.to_be_bytes(), file.bytes.load(Relaxed).to_be_bytes()].concat()
    });
    Change { key: name_key(name), value: Some(value) }
}

/// The file of such a row; none where the row makes no sense.
fn file_of(value: &[u8]) -> Option<Option<Arc<File>>> {
    if value.is_empty() {
        return Some(None);
    }
    let (number, bytes) = value.split_first_chunk()?;
    let bytes = u64::from_be_bytes(bytes.try_into().ok()?);
    Some(Some(Arc::new(File::new(u64::from_be_bytes(*number), bytes))))
}

/// The mark of a file whose contents are to go.
fn removed(file: &File) -> Change {
    Change { key: key(REMOVED, &file.number.to_be_bytes()), value: Some(Vec::new()) }
}

fn error(why: ShardError) -> io::Error {
    let kind = match why {
        ShardError::Taken => ErrorKind::ResourceBusy,
        ShardError::Away => ErrorKind::TimedOut,
        ShardError::Closed => ErrorKind::BrokenPipe,
        ShardError::Damaged | ShardError::Clock => ErrorKind::InvalidData,
    };
    io::Error::new(kind, why.to_string())
}

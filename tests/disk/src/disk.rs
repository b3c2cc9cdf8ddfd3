//! A disk in memory that fails as disks do, for simulations: seeded, so that it fails again.
//!
//! Each file has what programs see and what is durable; each folder likewise for its
//! names. Writes become durable at a sync. At a power loss the rest gets there wholly, in part,
//! in sectors out of order, or not at all. What a failed sync should have written never gets there
//! by a later one: the kernel has thrown it away. The index may come back as of any earlier
//! moment, empty or unreadable, because sled may; so what is tested is that nothing rests on it.
//!
//! A crash ends the life of everything that was opened before: old handles only fail.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_disk::files::{Disk, DiskFile, Entry, Held, folder_of};
use memtape_disk::tree::{Change, Tree};

use crate::files::{Inode, Names, SimulatedTree};
use fastrand::Rng;

/// A disk, shared by all clones.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    inner: Arc<Mutex<Inner>>,
}

/// How many times something happened.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Calls that change something: where a crash can fall.
    pub operations: u64,
    /// Syncs of files and folders.
    pub syncs: u64,
    /// Crashes of the machine.
    pub power_losses: u64,
    /// Crashes of the process alone.
    pub kills: u64,
    /// Times that the index came back older, empty or unreadable.
    pub index_losses: u64,
    /// Calls that failed on request, or for want of room.
    pub failures: u64,
}

#[derive(Debug)]
struct Inner {
    rng: Rng,
    names: Names,
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    trees: BTreeMap<String, SimulatedTree>,
    /// Crashes so far; handles from before one are dead.
    generation: u64,
    locked: BTreeSet<String>,
    room_bytes: Option<u64>,
    failing_writes: u64,
    failing_syncs: u64,
    /// Every call fails.
    is_failing: bool,
    /// Operations until a crash; whether the power goes, or only the process.
    crash_after: Option<(u64, bool)>,
    counts: Counts,
}

impl SimulatedDisk {
    /// An empty disk that fails as this seed says.
    pub fn new(seed: u64) -> Self {
        let inner = Inner {
            rng: Rng::with_seed(seed),
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 0,
            trees: BTreeMap::new(),
            generation: 0,
            locked: BTreeSet::new(),
            room_bytes: None,
            failing_writes: 0,
            failing_syncs: 0,
            is_failing: false,
            crash_after: None,
            counts: Counts::default(),
        };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// The machine is gone, with what was not synced. Everything opened before is dead.
    pub fn power_loss(&self) {
        self.lock_inner().crash(true);
    }

    /// The process is gone; what it wrote stays. Everything opened before is dead.
    pub fn kill(&self) {
        self.lock_inner().crash(false);
    }

    /// Orders a power loss, or a kill, in the middle of the operation this number of calls from
    /// now; none takes it back.
    pub fn crash_after(&self, operations: Option<u64>, is_power_loss: bool) {
        self.lock_inner().crash_after = operations.map(|operations| (operations, is_power_loss));
    }

    /// Limits the bytes of all files together; none is no limit.
    pub fn set_room(&self, bytes: Option<u64>) {
        self.lock_inner().room_bytes = bytes;
    }

    /// The next `count` writes fail, with any part of them written.
    pub fn fail_writes(&self, count: u64) {
        self.lock_inner().failing_writes = count;
    }

    /// The next `count` syncs fail, and what they should have written is lost at a power loss.
    pub fn fail_syncs(&self, count: u64) {
        self.lock_inner().failing_syncs = count;
    }

    /// Every call fails from now on, or no more.
    pub fn set_failing(&self, is_failing: bool) {
        self.lock_inner().is_failing = is_failing;
    }

    /// Adds durable bytes to a file, as an earlier process may have left them.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let disk = self.process();
        let put = disk.make(name).and_then(|file| {
            file.write_all_at(bytes, file.len_bytes()?)?;
            file.sync()?;
            disk.sync_folder(folder_of(name))
        });
        assert!(put.is_ok(), "{name} is put on a disk that works: {put:?}");
    }

    /// Changes one durable byte of a file; false when there is none.
    pub fn flip(&self, name: &str, offset: u64, mask: u8) -> bool {
        let mut inner = self.lock_inner();
        let Some(inode) = inner.names.file(name) else { return false };
        inner.inodes.get_mut(&inode).is_some_and(|inode| inode.flip(offset, mask))
    }

    /// All files with their lengths.
    pub fn files(&self) -> Vec<(String, u64)> {
        let inner = self.lock_inner();
        let length = |inode: u64| inner.inodes.get(&inode).map_or(0, Inode::len_bytes);
        inner.names.files().map(|(name, inode)| (name.to_string(), length(inode))).collect()
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.lock_inner().used_bytes()
    }

    /// Crashes so far: those at once, and those in the middle of an operation.
    pub fn crashes(&self) -> u64 {
        let counts = self.counts();
        counts.kills + counts.power_losses
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.lock_inner().counts
    }

    /// The disk as a process sees it that starts now.
    pub fn process(&self) -> Arc<dyn Disk> {
        let generation = self.lock_inner().generation;
        Arc::new(Process { inner: self.inner.clone(), generation })
    }

    fn lock_inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn crash(&mut self, is_power_loss: bool) {
        self.generation += 1;
        self.locked.clear();
        self.crash_after = None;
        for tree in self.trees.values_mut() {
            self.counts.index_losses += u64::from(tree.crash(&mut self.rng));
        }
        if !is_power_loss {
            self.counts.kills += 1;
            return;
        }
        self.counts.power_losses += 1;
        self.names.lose_power(&mut self.rng);
        let known: BTreeSet<u64> = self.names.inodes().collect();
        self.inodes.retain(|number, _| known.contains(number));
        for inode in self.inodes.values_mut() {
            inode.lose_power(&mut self.rng);
        }
    }

    fn used_bytes(&self) -> u64 {
        let files = self.names.files();
        files.filter_map(|(_, inode)| self.inodes.get(&inode)).map(Inode::len_bytes).sum()
    }

    /// Before every call that changes something: the crash that was ordered may come now.
    fn count(&mut self) -> io::Result<()> {
        self.counts.operations += 1;
        if let Some((left, is_power_loss)) = self.crash_after.as_mut() {
            if *left == 0 {
                let is_power_loss = *is_power_loss;
                self.crash(is_power_loss);
                return Err(dead());
            }
            *left -= 1;
        }
        Ok(())
    }

    fn fail(&mut self, error: io::Error) -> io::Result<()> {
        self.counts.failures += 1;
        Err(error)
    }

    /// Writes, as far as there is room and no order to fail.
    fn write(&mut self, number: u64, bytes: &[u8], offset: u64) -> io::Result<()> {
        let length = self.inodes.get(&number).map_or(0, Inode::len_bytes);
        let more_bytes = (offset + bytes.len() as u64).saturating_sub(length);
        let used_bytes = if self.room_bytes.is_some() { self.used_bytes() } else { 0 };
        let is_full = self.room_bytes.is_some_and(|room| more_bytes + used_bytes > room);
        let is_failing = self.failing_writes > 0;
        self.failing_writes = self.failing_writes.saturating_sub(1);
        let is_crashing = self.crash_after.is_some_and(|(left, _)| left == 0);
        let is_whole = !(is_full || is_failing || is_crashing);
        let mut count = if is_whole { bytes.len() } else { self.rng.usize(..bytes.len() + 1) };
        if is_full {
            let room = self.room_bytes.unwrap_or(0).saturating_sub(used_bytes);
            let free = room + length.saturating_sub(offset);
            count = count.min(usize::try_from(free).unwrap_or(count));
        }
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.write(&bytes[..count], offset);
        }
        self.count()?;
        match (is_failing, is_full) {
            (true, _) => self.fail(broken()),
            (_, true) => self.fail(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        }
    }

    fn sync(&mut self, number: u64) -> io::Result<()> {
        self.counts.syncs += 1;
        self.count()?;
        let is_failing = self.failing_syncs > 0;
        self.failing_syncs = self.failing_syncs.saturating_sub(1);
        if let Some(inode) = self.inodes.get_mut(&number) {
            inode.sync(is_failing);
        }
        if is_failing { self.fail(broken()) } else { Ok(()) }
    }
}

/// The disk as one process sees it, until that process is gone.
#[derive(Clone, Debug)]
struct Process {
    inner: Arc<Mutex<Inner>>,
    generation: u64,
}

impl Process {
    fn alive(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match (inner.generation == self.generation, inner.is_failing) {
            (false, _) => Err(dead()),
            (true, true) => Err(broken()),
            (true, false) => Ok(inner),
        }
    }

    fn file(&self, inode: u64) -> Arc<dyn DiskFile> {
        Arc::new(SimulatedFile { process: self.clone(), inode })
    }
}

impl Disk for Process {
    fn folder(&self) -> &Path {
        Path::new("simulated")
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.alive()?.names.file(name);
        inode.map(|inode| self.file(inode)).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn make(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut inner = self.alive()?;
        if let Some(inode) = inner.names.file(name) {
            return Ok(self.file(inode));
        }
        inner.count()?;
        let inode = inner.next_inode;
        inner.names.make_file(name, inode)?;
        inner.next_inode += 1;
        inner.inodes.insert(inode, Inode::default());
        Ok(self.file(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count()?;
        if let Some(tree) = inner.trees.remove(from) {
            inner.trees.insert(to.to_string(), tree);
            return Ok(());
        }
        inner.names.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count()?;
        inner.names.remove(name)
    }

    fn make_folder(&self, name: &str) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.count()?;
        inner.names.make_folder(name);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let inner = self.alive()?;
        if inner.trees.contains_key(folder) {
            return Ok(Vec::new());
        }
        let length = |inode: u64| inner.inodes.get(&inode).map_or(0, Inode::len_bytes);
        inner.names.list(folder, length)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let mut inner = self.alive()?;
        inner.counts.syncs += 1;
        inner.count()?;
        if inner.failing_syncs > 0 {
            inner.failing_syncs -= 1;
            return inner.fail(broken());
        }
        inner.names.sync(folder);
        let known: BTreeSet<u64> = inner.names.inodes().collect();
        inner.inodes.retain(|number, _| known.contains(number));
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn Held>> {
        let mut inner = self.alive()?;
        if !inner.locked.insert(name.to_string()) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "of the simulation"));
        }
        Ok(Box::new(SimulatedLock { process: self.clone(), name: name.to_string() }))
    }

    fn tree(&self, folder: &str) -> io::Result<Arc<dyn Tree>> {
        let mut inner = self.alive()?;
        let tree = inner.trees.entry(folder.to_string()).or_default();
        if tree.is_broken() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is damaged"));
        }
        Ok(Arc::new(OpenTree { process: self.clone(), folder: folder.to_string() }))
    }

    fn is_simulated(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct SimulatedLock {
    process: Process,
    name: String,
}

impl Held for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        // After a crash the lock may be another's.
        if let Ok(mut inner) = self.process.alive() {
            inner.locked.remove(&self.name);
        }
    }
}

#[derive(Debug)]
struct SimulatedFile {
    process: Process,
    inode: u64,
}

impl SimulatedFile {
    fn with<T>(&self, call: impl FnOnce(&mut Inode) -> T) -> io::Result<T> {
        let mut inner = self.process.alive()?;
        inner.inodes.get_mut(&self.inode).map(call).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl DiskFile for SimulatedFile {
    fn len_bytes(&self) -> io::Result<u64> {
        self.with(|inode| inode.len_bytes())
    }

    fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let is_read = self.with(|inode| inode.read(out, offset))?;
        if is_read { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.process.alive()?.write(self.inode, bytes, offset)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.process.alive()?.count()?;
        self.with(|inode| inode.set_len(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.process.alive()?.sync(self.inode)
    }
}

#[derive(Debug)]
struct OpenTree {
    process: Process,
    folder: String,
}

impl OpenTree {
    fn with<T>(&self, call: impl FnOnce(&mut SimulatedTree) -> T) -> io::Result<T> {
        let mut inner = self.process.alive()?;
        inner.trees.get_mut(&self.folder).map(call).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Tree for OpenTree {
    fn apply(&self, batch: &[&Change]) -> io::Result<()> {
        self.process.alive().and_then(|mut inner| inner.count())?;
        self.with(|tree| tree.apply(batch))
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> io::Result<()> {
        self.with(|tree| {
            let entries = tree.live().range(from.to_vec()..to.to_vec());
            for (key, value) in entries {
                if !visit(key, value) {
                    break;
                }
            }
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|_| ())
    }

    fn len_bytes(&self) -> u64 {
        self.with(|tree| tree.live().iter().map(|(key, value)| key.len() + value.len()).sum())
            .map_or(0, |bytes: usize| bytes as u64)
    }
}

fn dead() -> io::Error {
    io::Error::other("the simulated process is gone")
}

fn broken() -> io::Error {
    io::Error::other("the simulated disk failed")
}

// Used by `Names`, which knows no errors of its own.
pub(crate) fn not_there(name: &str) -> io::Error {
    let folder = folder_of(name);
    io::Error::new(io::ErrorKind::NotFound, format!("{name} is not there (in {folder:?})"))
}

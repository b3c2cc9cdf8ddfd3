//! Snapshots of captures, each under its own BLAKE3 hash, beside the catalogue.
//!
//! A snapshot is written aside, synced, renamed, and its folder synced, before anything refers to
//! it. A crash leaves at most a snapshot that nothing refers to; the sweep at the next start
//! removes it. Snapshots with the same content are one, so the uses of each are counted: from
//! before it is written until the last part that refers to it is forgotten. Then it waits for the
//! store's writer to remove it, and the same content, sent again meanwhile, keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::blobs::reading::{Reading, Source};
use crate::blobs::remote::Remote;
use crate::error::{Error, Kind, Result};
use crate::last_errors::{LastErrors, Written};
use memtape_disk::files::{Disk, folder_of, read_all, write_synced};

/// Folder of the snapshots. Existing stores have this name.
pub(crate) const FOLDER: &str = "bodies";

/// The snapshots.
#[derive(Clone, Debug)]
pub struct Blobs {
    disk: Arc<dyn Disk>,
    /// Remote store for new snapshots, if there is one. Older ones stay in the folder.
    remote: Arc<OnceLock<Remote>>,
    uses: Arc<SharedUses>,
    pub(crate) errors: LastErrors,
}

#[derive(Debug, Default)]
struct SharedUses {
    all: Mutex<AllUses>,
    /// Wakes uploads that wait for the end of a removal of the same content.
    removal_ended: Notify,
}

/// Uses of each snapshot.
#[derive(Debug, Default)]
struct AllUses {
    of: BTreeMap<[u8; 32], Uses>,
    /// Blobs that may have no use any more.
    released: BTreeSet<[u8; 32]>,
    /// Bytes of all snapshots in use.
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Parts that refer to it, and uploads that are about to.
    count: u32,
    bytes: u64,
    /// True while a removal may be carried out; a new upload of the same content waits.
    is_going: bool,
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Swept {
    /// Snapshots that are kept.
    pub kept: u64,
    /// Snapshots that nothing referred to.
    pub removed: u64,
    /// Snapshots that are referred to, and are gone.
    pub lost: u64,
}

impl Blobs {
    /// Snapshots on the store's disk, whose folder must be there.
    pub fn new(disk: &Arc<dyn Disk>) -> Self {
        let errors = LastErrors::new(disk.folder());
        Self { disk: disk.clone(), remote: Arc::default(), uses: Arc::default(), errors }
    }

    /// Sends new snapshots to the remote store from now on.
    pub fn move_to(&self, remote: Remote) {
        // It is set once, before anything is stored.
        let _ = self.remote.set(remote);
    }

    /// Stores a snapshot; returns when it is durable. It then counts as used once: by the part that
    /// will refer to it, or else it must be [released](Self::release).
    pub async fn put(&self, hash: blake3::Hash, snapshot: Bytes) -> Result<()> {
        loop {
            let mut removal_ended = std::pin::pin!(self.uses.removal_ended.notified());
            removal_ended.as_mut().enable();
            if self.retain(hash, snapshot.len() as u64) {
                break;
            }
            removal_ended.await;
        }
        // Also when this future is dropped.
        let mut used = Used { blobs: self, hash: Some(hash) };
        let stored = if let Some(remote) = self.remote.get() {
            remote.put(hash, snapshot).await
        } else {
            let disk = self.disk.clone();
            blocking(&*self.disk, move || put(&*disk, hash, &snapshot)).await.map_err(Error::from)
        };
        self.errors.note(Written::Snapshots, &stored);
        stored?;
        used.hash = None;
        Ok(())
    }

    /// Counts one more use of a snapshot; false while it is being removed.
    pub fn retain(&self, hash: blake3::Hash, bytes: u64) -> bool {
        let mut all = self.uses.lock();
        let all = &mut *all;
        let uses = all.of.entry(*hash.as_bytes()).or_default();
        if uses.is_going {
            return false;
        }
        uses.count += 1;
        all.bytes = all.bytes + bytes - uses.bytes;
        uses.bytes = bytes;
        true
    }

    /// Removes one use. At zero uses the writer removes the snapshot in its next iteration.
    pub fn release(&self, hash: blake3::Hash) {
        let mut all = self.uses.lock();
        let Some(uses) = all.of.get_mut(hash.as_bytes()) else { return };
        uses.count = uses.count.saturating_sub(1);
        if uses.count == 0 {
            all.released.insert(*hash.as_bytes());
        }
    }

    /// Removes the blobs that have no use any more; true when there were any. What is not removed
    /// from a remote store for certain is released again later. Blocks.
    pub fn remove_released(&self) -> bool {
        let (mut any, mut elsewhere) = (false, Vec::new());
        while let Some(hash) = self.next_released() {
            any = true;
            // A file that cannot be removed is swept at the next start.
            let is_here = self.disk.remove(&name(hash)).is_ok();
            if is_here || self.remote.get().is_none() {
                self.uses.end_removal(hash, true);
            } else {
                elsewhere.push(hash);
            }
        }
        if let (Some(remote), [_, ..]) = (self.remote.get(), elsewhere.as_slice()) {
            // Without the disk, which a removal would hold open.
            let uses = self.uses.clone();
            remote.remove(elsewhere, move |hash, is_removed| uses.end_removal(hash, is_removed));
        }
        any
    }

    fn next_released(&self) -> Option<blake3::Hash> {
        let mut all = self.uses.lock();
        while let Some(hash) = all.released.pop_first() {
            // It may be in use again.
            if let Some(uses) = all.of.get_mut(&hash).filter(|uses| uses.count == 0) {
                uses.is_going = true;
                return Some(blake3::Hash::from_bytes(hash));
            }
        }
        None
    }

    /// Bytes of all snapshots in use.
    pub fn used_bytes(&self) -> u64 {
        self.uses.lock().bytes
    }

    /// Reads a snapshot and checks its hash.
    pub async fn get(&self, hash: blake3::Hash) -> Result<Bytes> {
        let mut reading = self.read(hash).await?;
        let mut snapshot = BytesMut::with_capacity(usize::try_from(reading.bytes()).unwrap_or(0));
        while let Some(part) = reading.next().await? {
            snapshot.extend_from_slice(&part);
        }
        Ok(snapshot.freeze())
    }

    /// Begins to read a snapshot in parts.
    pub async fn read(&self, hash: blake3::Hash) -> Result<Reading> {
        if let Some(remote) = self.remote.get()
            && let Some((objects, bytes)) = remote.read(hash).await?
        {
            return Ok(Reading::new(Source::Remote(objects), bytes, hash));
        }
        let (disk, path) = (self.disk.clone(), name(hash));
        let opened = blocking(&*self.disk, move || {
            let file = disk.open(&path)?;
            let bytes = file.len_bytes()?;
            Ok((file, bytes))
        });
        match opened.await {
            Ok((file, bytes)) => {
                let source = Source::Disk { disk: self.disk.clone(), file, offset: 0 };
                Ok(Reading::new(source, bytes, hash))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes every snapshot that is not in use; the store's writer removes those of the remote
    /// store, so that the same content, sent again meanwhile, is kept. Only while no snapshot is
    /// being stored.
    pub async fn sweep(&self) -> Swept {
        let blobs = self.clone();
        let mut lost: BTreeSet<[u8; 32]> = self.uses.lock().of.keys().copied().collect();
        let here = blocking(&*self.disk, move || Ok(blobs.sweep_folder())).await;
        let (mut swept, found) = here.unwrap_or_default();
        let is_all_seen = self.sweep_remote(&mut swept, &mut lost).await;
        lost.retain(|hash| !found.contains(hash));
        swept.lost = if is_all_seen { lost.len() as u64 } else { 0 };
        swept
    }

    /// Removes snapshots that the remote has from `lost`; false when the remote cannot be listed.
    async fn sweep_remote(&self, swept: &mut Swept, lost: &mut BTreeSet<[u8; 32]>) -> bool {
        let Some(remote) = self.remote.get() else { return true };
        let found = match remote.list().await {
            Ok(found) => found,
            Err(why) => {
                tracing::warn!("the store of snapshots cannot be listed, and is not swept: {why}");
                return false;
            }
        };
        let mut all = self.uses.lock();
        for hash in found {
            if all.of.contains_key(hash.as_bytes()) {
                lost.remove(hash.as_bytes());
                swept.kept += 1;
            } else {
                swept.removed += 1;
                all.of.insert(*hash.as_bytes(), Uses::default());
                all.released.insert(*hash.as_bytes());
            }
        }
        true
    }

    /// And all that are kept.
    fn sweep_folder(&self) -> (Swept, BTreeSet<[u8; 32]>) {
        let (mut swept, mut found) = (Swept::default(), BTreeSet::new());
        for (name, hash, _) in list(&*self.disk) {
            if let Some(hash) =
                hash.filter(|hash| self.uses.lock().of.contains_key(hash.as_bytes()))
            {
                swept.kept += 1;
                found.insert(*hash.as_bytes());
            } else if self.disk.remove(&name).is_ok() {
                swept.removed += 1;
            }
        }
        (swept, found)
    }
}

impl SharedUses {
    fn lock(&self) -> MutexGuard<'_, AllUses> {
        // A panic while it was held leaves whole numbers.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a snapshot that was removed, or releases it again.
    fn end_removal(&self, hash: blake3::Hash, is_removed: bool) {
        let mut all = self.lock();
        if is_removed {
            let bytes = all.of.remove(hash.as_bytes()).map_or(0, |uses| uses.bytes);
            all.bytes = all.bytes.saturating_sub(bytes);
        } else if let Some(uses) = all.of.get_mut(hash.as_bytes()) {
            uses.is_going = false;
            all.released.insert(*hash.as_bytes());
        }
        drop(all);
        self.removal_ended.notify_waiters();
    }
}

/// Runs blocking work on a separate thread, or on this one without a runtime, or in simulated time.
pub(crate) async fn blocking<T: Send + 'static>(
    disk: &dyn Disk,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    match Handle::try_current() {
        Ok(runtime) if !disk.is_simulated() => {
            runtime.spawn_blocking(work).await.map_err(io::Error::other)?
        }
        _ => work(),
    }
}

fn gone() -> Error {
    Error::new(Kind::Gone, "the stored snapshot is gone")
}

/// The error that a stored snapshot does not match its hash.
pub(super) fn damaged(hash: blake3::Hash) -> Error {
    Error::new(Kind::Damaged, format!("the stored snapshot {hash} is damaged"))
}

/// A use that is released, unless it was taken over.
struct Used<'a> {
    blobs: &'a Blobs,
    hash: Option<blake3::Hash>,
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if let Some(hash) = self.hash {
            self.blobs.release(hash);
        }
    }
}

/// A snapshot's name: in folders by the first letters of its hash.
pub(crate) fn name(hash: blake3::Hash) -> String {
    let hash = hash.to_hex();
    format!("{FOLDER}/{}/{hash}", &hash[..2])
}

/// Every file with its name and size; a temporary file of a process that died has no hash.
pub(crate) fn list(disk: &dyn Disk) -> Vec<(String, Option<blake3::Hash>, u64)> {
    let mut found = Vec::new();
    for folder in disk.list(FOLDER).unwrap_or_default() {
        let folder = format!("{FOLDER}/{}", folder.name);
        for file in disk.list(&folder).unwrap_or_default() {
            let hash = blake3::Hash::from_hex(&file.name).ok();
            found.push((format!("{folder}/{}", file.name), hash, file.bytes));
        }
    }
    found
}

fn put(disk: &dyn Disk, hash: blake3::Hash, snapshot: &[u8]) -> io::Result<()> {
    /// Two uploads of the same content do not write into one file.
    static STAGED: AtomicU64 = AtomicU64::new(0);
    let path = name(hash);
    let folder = folder_of(&path);
    if read_all(disk, &path).is_ok_and(|known| blake3::hash(&known) == hash) {
        // The upload that put it there may not have synced the folder yet.
        return disk.sync_folder(folder);
    }
    disk.make_folder(folder)?;
    disk.sync_folder(FOLDER)?;
    let aside = format!("{path}#{}", STAGED.fetch_add(1, Ordering::Relaxed));
    let put = write_synced(disk, &aside, snapshot).and_then(|()| {
        disk.rename(&aside, &path)?;
        disk.sync_folder(folder)
    });
    if put.is_err() {
        // It is not there when the folder could not be synced; else it is in the way.
        let _ = disk.remove(&aside);
    }
    put
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blobs::reading::PART_BYTES;
    use memtape_disk::real::RealDisk;

    fn open(folder: &std::path::Path) -> Blobs {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
        disk.make_folder("bodies").unwrap();
        Blobs::new(&disk)
    }

    #[tokio::test]
    async fn snapshots_are_kept_by_content_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path());
        let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
        let (hash_one, hash_two) = (blake3::hash(&one), blake3::hash(&two));
        blobs.put(hash_one, one.clone()).await.unwrap();
        blobs.put(hash_two, two.clone()).await.unwrap();
        assert_eq!((blobs.get(hash_one).await.unwrap(), blobs.used_bytes()), (one.clone(), 6));
        let name = hash_one.to_hex();
        let folder = dir.path().join("bodies").join(&name[..2]);
        std::fs::write(folder.join(format!("{name}#1")), "on").unwrap();
        // The next process knows the first one only.
        let blobs = open(dir.path());
        assert!(blobs.retain(hash_one, 3));
        assert_eq!(blobs.sweep().await, Swept { kept: 1, removed: 2, lost: 0 });
        assert_eq!(
            blobs.get(hash_two).await.unwrap_err().to_string(),
            "the stored snapshot is gone"
        );
        std::fs::write(folder.join(name.as_str()), "0ne").unwrap();
        assert_eq!(blobs.get(hash_one).await.unwrap_err().kind, Kind::Damaged);
        // Sent again it is mended.
        blobs.put(hash_one, one.clone()).await.unwrap();
        assert_eq!(blobs.get(hash_one).await.unwrap(), one);
    }

    /// The parts of a snapshot until the end or an error.
    async fn parts(blobs: &Blobs, hash: blake3::Hash) -> (Vec<Bytes>, Result<()>) {
        let mut reading = blobs.read(hash).await.unwrap();
        let mut parts = Vec::new();
        loop {
            match reading.next().await {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => return (parts, Ok(())),
                Err(why) => return (parts, Err(why)),
            }
        }
    }

    #[tokio::test]
    async fn a_damaged_snapshot_is_never_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path());
        for bytes in [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let content: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
            let hash = blake3::hash(&content);
            blobs.put(hash, content.clone().into()).await.unwrap();
            assert_eq!(blobs.read(hash).await.unwrap().bytes(), bytes as u64);
            let (read, ended) = parts(&blobs, hash).await;
            assert!(read.iter().all(|part| part.len() <= PART_BYTES));
            assert_eq!((read.concat(), ended.is_ok()), (content.clone(), true));
            for at in [0, bytes / 2, bytes.saturating_sub(1)].into_iter().filter(|_| bytes > 0) {
                let mut damaged = content.clone();
                damaged[at] ^= 1;
                std::fs::write(dir.path().join(name(hash)), &damaged).unwrap();
                let (read, ended) = parts(&blobs, hash).await;
                assert_eq!(ended.unwrap_err().kind, Kind::Damaged, "{bytes} {at}");
                assert!(read.concat().len() < bytes, "{bytes} {at}: all of it was given out");
            }
        }
        assert!(blobs.read(blake3::hash(b"none")).await.is_err_and(|why| why.kind == Kind::Gone));
    }

    #[tokio::test]
    async fn a_snapshot_stays_as_long_as_it_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = open(dir.path());
        let snapshot = Bytes::from_static(b"snapshot");
        let hash = blake3::hash(&snapshot);
        blobs.put(hash, snapshot.clone()).await.unwrap();
        blobs.put(hash, snapshot.clone()).await.unwrap();
        blobs.release(hash);
        assert!(!blobs.remove_released());
        assert_eq!(blobs.get(hash).await.unwrap(), snapshot);
        blobs.release(hash);
        // Before it is removed the same content comes again.
        blobs.put(hash, snapshot.clone()).await.unwrap();
        assert!(!blobs.remove_released());
        assert_eq!(blobs.get(hash).await.unwrap(), snapshot);
        // While it is being removed the same content waits.
        blobs.release(hash);
        assert_eq!(blobs.next_released(), Some(hash));
        let mut again = std::pin::pin!(blobs.put(hash, snapshot.clone()));
        let soon = std::time::Duration::from_millis(5);
        assert!(tokio::time::timeout(soon, again.as_mut()).await.is_err());
        // The removal is not confirmed: the content that waits is kept.
        blobs.uses.end_removal(hash, false);
        again.await.unwrap();
        assert!(!blobs.remove_released());
        assert_eq!((blobs.get(hash).await.unwrap(), blobs.used_bytes()), (snapshot, 8));
        blobs.release(hash);
        assert!(blobs.remove_released());
        assert!(blobs.get(hash).await.is_err());
        assert_eq!(blobs.used_bytes(), 0);
    }
}

//! Bodies of captures, each under its own BLAKE3 hash, beside the catalogue.
//!
//! A body is written aside, synced, renamed, and its folder synced, all by `object_store`, before
//! anything refers to it. A crash leaves at most a body that nothing refers to; the sweep at the
//! next start removes it. Bodies with the same content are one, so the uses of each are counted:
//! from before it is written until the last part that refers to it is forgotten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Location;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio_stream::StreamExt;

/// The bodies.
#[derive(Clone, Debug)]
pub(crate) struct Blobs {
    objects: Arc<dyn ObjectStore>,
    folder: PathBuf,
    uses: Arc<Mutex<BTreeMap<[u8; 32], Uses>>>,
}

/// Who needs a body.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// Parts that refer to it, and uploads that are about to.
    count: u32,
    bytes: u64,
    /// It is being removed; a new upload of the same content waits.
    is_going: bool,
}

/// How long such an upload waits before it looks again.
const GOING: Duration = Duration::from_millis(10);

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Swept {
    /// Bodies that are kept, and their bytes.
    pub(crate) kept: u64,
    pub(crate) kept_bytes: u64,
    /// Bodies that nothing referred to.
    pub(crate) removed: u64,
}

impl Blobs {
    /// Bodies below this folder, which must be there.
    ///
    /// # Errors
    /// When the folder cannot be used.
    pub(crate) fn new(folder: &Path) -> object_store::Result<Self> {
        let objects = LocalFileSystem::new_with_prefix(folder)?.with_fsync(true);
        Ok(Self { objects: Arc::new(objects), folder: folder.to_path_buf(), uses: Arc::default() })
    }

    /// Stores a body; returns when it is durable. It then counts as used once: by the part that
    /// will refer to it, or else it must be [released](Self::release).
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn put(&self, hash: blake3::Hash, body: Bytes) -> object_store::Result<()> {
        while !self.retain(hash, body.len() as u64) {
            tokio::time::sleep(GOING).await;
        }
        let location = location(hash);
        if let Ok(known) = self.objects.head(&location).await
            && known.size == body.len() as u64
        {
            return Ok(());
        }
        let put = self.objects.put(&location, body.into()).await.map(|_| ());
        if put.is_err() {
            self.release(hash);
        }
        put
    }

    /// Counts one more use of a body; false while it is being removed.
    pub(crate) fn retain(&self, hash: blake3::Hash, bytes: u64) -> bool {
        let mut uses = self.lock();
        let uses = uses.entry(*hash.as_bytes()).or_default();
        if !uses.is_going {
            uses.count += 1;
            uses.bytes = bytes;
        }
        !uses.is_going
    }

    /// Counts one use less; without any, the body is removed in the background. What cannot be
    /// removed is swept at the next start.
    pub(crate) fn release(&self, hash: blake3::Hash) {
        let mut all = self.lock();
        let Some(uses) = all.get_mut(hash.as_bytes()) else { return };
        uses.count = uses.count.saturating_sub(1);
        if uses.count > 0 || uses.is_going {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            all.remove(hash.as_bytes());
            return;
        };
        uses.is_going = true;
        let blobs = self.clone();
        runtime.spawn(async move {
            let _ = blobs.objects.delete(&location(hash)).await;
            blobs.lock().remove(hash.as_bytes());
        });
    }

    /// Bytes of all bodies in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.lock().values().map(|uses| uses.bytes).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Uses>> {
        // A panic while it was held leaves whole numbers.
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a body and checks that it is the one it is called.
    ///
    /// # Errors
    /// One line: it is not there, or it is damaged.
    pub(crate) async fn get(&self, hash: blake3::Hash) -> Result<Bytes, String> {
        let got = self.objects.get(&location(hash)).await.map_err(one_line)?;
        let body = got.bytes().await.map_err(one_line)?;
        if blake3::hash(&body) != hash {
            return Err(format!("the stored body {hash} is damaged"));
        }
        Ok(body)
    }

    /// Removes every body that is not in use. Only while no body is being stored.
    pub(crate) async fn sweep(&self) -> Swept {
        let mut swept = Swept { removed: self.remove_staged(), ..Swept::default() };
        let mut objects = self.objects.list(None);
        while let Some(object) = objects.next().await {
            let Ok(object) = object else { continue };
            let hash =
                object.location.filename().and_then(|name| blake3::Hash::from_hex(name).ok());
            if hash.is_some_and(|hash| self.lock().contains_key(hash.as_bytes())) {
                swept.kept += 1;
                swept.kept_bytes += object.size;
            } else if self.objects.delete(&object.location).await.is_ok() {
                swept.removed += 1;
            }
        }
        swept
    }
}

impl Blobs {
    /// Removes what was being written aside when a process died; `list` does not show it.
    fn remove_staged(&self) -> u64 {
        let folders = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok());
        let staged = files.flatten().flatten().map(|file| file.path()).filter(|path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().contains('#'))
        });
        staged.filter(|path| std::fs::remove_file(path).is_ok()).count() as u64
    }
}

fn location(hash: blake3::Hash) -> Location {
    let name = hash.to_hex();
    Location::from_iter([&name[..2], name.as_str()])
}

fn one_line(error: object_store::Error) -> String {
    match error {
        object_store::Error::NotFound { .. } => "the stored body is gone".to_string(),
        error => error.to_string().lines().next().unwrap_or_default().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_are_kept_by_content_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path()).unwrap();
        let (one, two) = (Bytes::from_static(b"one"), Bytes::from_static(b"two"));
        let (hash_one, hash_two) = (blake3::hash(&one), blake3::hash(&two));
        blobs.put(hash_one, one.clone()).await.unwrap();
        blobs.put(hash_two, two.clone()).await.unwrap();
        assert_eq!((blobs.get(hash_one).await.unwrap(), blobs.used_bytes()), (one, 6));
        let name = hash_one.to_hex();
        let folder = dir.path().join(&name[..2]);
        std::fs::write(folder.join(format!("{name}#1")), "on").unwrap();
        // The next process knows the first one only.
        let blobs = Blobs::new(dir.path()).unwrap();
        assert!(blobs.retain(hash_one, 3));
        assert_eq!(blobs.sweep().await, Swept { kept: 1, kept_bytes: 3, removed: 2 });
        assert_eq!(blobs.get(hash_two).await.unwrap_err(), "the stored body is gone");
        std::fs::write(folder.join(name.as_str()), "0ne").unwrap();
        assert!(blobs.get(hash_one).await.unwrap_err().contains("damaged"));
    }

    #[tokio::test]
    async fn a_body_stays_as_long_as_somebody_uses_it() {
        let dir = tempfile::tempdir().unwrap();
        let blobs = Blobs::new(dir.path()).unwrap();
        let body = Bytes::from_static(b"body");
        let hash = blake3::hash(&body);
        blobs.put(hash, body.clone()).await.unwrap();
        blobs.put(hash, body.clone()).await.unwrap();
        blobs.release(hash);
        assert_eq!(blobs.get(hash).await.unwrap(), body);
        blobs.release(hash);
        // The removal is under way; the same content, sent again, is not lost to it.
        blobs.put(hash, body.clone()).await.unwrap();
        tokio::time::sleep(GOING * 5).await;
        assert_eq!(blobs.get(hash).await.unwrap(), body);
        blobs.release(hash);
        while blobs.used_bytes() > 0 {
            tokio::time::sleep(GOING).await;
        }
        assert!(blobs.get(hash).await.is_err());
    }
}

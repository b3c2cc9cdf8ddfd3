//! sled, kept on a short leash.
//!
//! What is known about sled 0.34: `flush` is not an fsync, values from 128 KiB on are never
//! synced, a damaged tail can open as an empty database, a damaged page can panic. So every call
//! is guarded against panics, and values are small, batches too. No other file knows sled.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::catalogue::{LOCKED, Tree};
use super::journal::Change;

/// sled's page cache. It is a hint to sled, and counts bytes on disk.
const CACHE_BYTES: u64 = 64 << 20;

/// sled writes its buffers in the background this often.
const FLUSH_EVERY_MS: u64 = 500;

/// sled's words when another process, or another handle, has the catalogue.
const SLED_LOCKED: &str = "could not acquire lock";

/// An open sled.
#[derive(Debug)]
pub(crate) struct SledTree {
    tree: sled::Db,
    path: PathBuf,
}

impl SledTree {
    /// Opens or makes one.
    ///
    /// # Errors
    /// [`LOCKED`], or what is wrong with it.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS));
        let tree = guarded(|| config.open());
        let is_locked = |why: &String| why.contains(SLED_LOCKED);
        let tree = tree.map_err(|why| if is_locked(&why) { LOCKED.to_string() } else { why })?;
        Ok(Self { tree, path: path.to_path_buf() })
    }
}

impl Tree for SledTree {
    fn apply(&self, batch: &[&Change]) -> Result<(), String> {
        let mut writes = sled::Batch::default();
        for change in batch {
            match &change.value {
                Some(value) => writes.insert(change.key.as_slice(), value.as_slice()),
                None => writes.remove(change.key.as_slice()),
            }
        }
        guarded(|| self.tree.apply_batch(writes))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        guarded(|| Ok(self.tree.get(key)?.map(|value| value.to_vec())))
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), String> {
        guarded(|| {
            for entry in self.tree.range(from..to) {
                let (key, value) = entry?;
                if !visit(&key, &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// sled's own flush leaves the kernel's cache unsynced; an fsync of its log acts on the file,
    /// whoever has it open.
    fn flush(&self) -> Result<(), String> {
        guarded(|| self.tree.flush())?;
        let log = File::open(self.path.join("db")).and_then(|log| log.sync_data());
        log.map_err(|error| error.to_string())
    }

    fn len_bytes(&self) -> u64 {
        guarded(|| self.tree.size_on_disk()).unwrap_or(0)
    }
}

/// Calls sled; a panic becomes an error.
fn guarded<T>(call: impl FnOnce() -> sled::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string().lines().next().unwrap_or_default().to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Err(format!("sled panicked: {}", text.lines().next().unwrap_or_default()))
        }
    }
}

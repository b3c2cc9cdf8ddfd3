//! sled, kept on a short leash: the index that the coordinator is served from.
//!
//! What is known about sled 0.34: `flush` is not an fsync, values from 128 KiB on are never
//! synced, a damaged tail can open as an empty database, a damaged page can panic. So every call
//! is guarded against panics, values are small, batches too, and what must not be lost is compared
//! with the journal at every start. Nothing outside of this folder knows sled.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::journal::Change;

/// sled's page cache. It is a hint to sled, and counts bytes on disk.
const CACHE_BYTES: u64 = 64 << 20;

/// sled writes its buffers in the background this often.
const FLUSH_EVERY_MS: u64 = 500;

/// Entries in one batch. Larger ones cost sled gigabytes of memory.
const BATCH_MAX: usize = 512;

/// sled's words when another process, or another handle, has the catalogue.
const LOCKED: &str = "could not acquire lock";

const LOCKED_TRIES: u32 = 30;
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// First byte of the keys of packed steps.
pub(crate) const STEPS_PREFIX: u8 = b's';

/// Where the number of the last journal change that arrived here is kept.
const SEQUENCE_KEY: &[u8] = b"m-sequence";

/// The open catalogue.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue {
    tree: sled::Db,
    path: PathBuf,
}

/// How the catalogue was had.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Opened {
    /// As it was.
    Whole,
    /// Without its snapshot, which was damaged; nothing is lost.
    WithoutSnapshot(String),
    /// Empty, because it was damaged. The damaged one lies beside it under this name.
    Anew(String, PathBuf),
}

impl Catalogue {
    /// Opens or makes a catalogue, whatever state it is in.
    ///
    /// # Errors
    /// Those of the file system, when not even a new one can be made.
    pub(crate) fn open(path: &Path, wall_ns: i64) -> io::Result<(Self, Opened)> {
        let mut opened = Self::try_open(path);
        // sled's own threads may outlive its handle for a moment.
        for _ in 0..LOCKED_TRIES {
            if opened.as_ref().is_err_and(|why| why.contains(LOCKED)) {
                std::thread::sleep(LOCKED_PAUSE);
                opened = Self::try_open(path);
            }
        }
        let why = match opened {
            Ok(catalogue) => return Ok((catalogue, Opened::Whole)),
            // No damage, and no reason to put anything aside.
            Err(why) if why.contains(LOCKED) => {
                return Err(io::Error::other("another process has it open"));
            }
            Err(why) => why,
        };
        if path.join("db").metadata().is_ok_and(|db| db.len() > 0) && move_snapshots(path, wall_ns)?
        {
            // sled makes the snapshot anew from its log.
            if let Ok(catalogue) = Self::try_open(path) {
                return Ok((catalogue, Opened::WithoutSnapshot(why)));
            }
        }
        let aside = path.with_extension(format!("damaged-{wall_ns}"));
        std::fs::rename(path, &aside)?;
        let catalogue = Self::try_open(path).map_err(io::Error::other)?;
        Ok((catalogue, Opened::Anew(why, aside)))
    }

    /// Opens it, and reads all records: a damaged page shows itself only when it is read. Steps
    /// are left out, as they are many, and can be lost.
    fn try_open(path: &Path) -> Result<Self, String> {
        let config = sled::Config::new()
            .path(path)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(Some(FLUSH_EVERY_MS));
        let tree = guarded(|| config.open())?;
        let catalogue = Self { tree, path: path.to_path_buf() };
        let (before, after) = ([STEPS_PREFIX], [STEPS_PREFIX + 1]);
        guarded(|| {
            let records = catalogue.tree.range(..before).chain(catalogue.tree.range(after..));
            records.into_iter().try_for_each(|entry| entry.map(|_| ()))
        })?;
        Ok(catalogue)
    }

    /// Number of the last journal change that arrived here.
    pub(crate) fn sequence(&self) -> Result<u64, String> {
        let value = self.get(SEQUENCE_KEY)?;
        let number = value.and_then(|value| value.as_slice().try_into().ok());
        Ok(number.map_or(0, u64::from_le_bytes))
    }

    /// Applies changes, and with the last of them the number of the journal.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
        sequence: u64,
    ) -> Result<(), String> {
        let numbered =
            Change { key: SEQUENCE_KEY.to_vec(), value: Some(sequence.to_le_bytes().to_vec()) };
        let changes = changes.map(|change| -> &Change { change });
        self.write(changes.chain(std::iter::once(&numbered)))
    }

    /// Applies changes that no journal knows.
    pub(crate) fn write<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
    ) -> Result<(), String> {
        let mut changes = changes.peekable();
        while changes.peek().is_some() {
            let mut batch = sled::Batch::default();
            for change in changes.by_ref().take(BATCH_MAX) {
                match &change.value {
                    Some(value) => batch.insert(change.key.as_slice(), value.as_slice()),
                    None => batch.remove(change.key.as_slice()),
                }
            }
            guarded(|| self.tree.apply_batch(batch))?;
        }
        Ok(())
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        guarded(|| Ok(self.tree.get(key)?.map(|value| value.to_vec())))
    }

    /// Shows every key with this prefix, in order, until `visit` answers false.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), String> {
        guarded(|| {
            for entry in self.tree.scan_prefix(prefix) {
                let (key, value) = entry?;
                if !visit(&key, &value) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Shows every key of a range, in order, until `visit` answers false.
    pub(crate) fn scan_range(
        &self,
        from: &[u8],
        to: &[u8],
        mut visit: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), String> {
        guarded(|| {
            for key in self.tree.range(from..to).keys() {
                if !visit(&key?) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Makes everything durable. sled's own flush leaves the kernel's cache unsynced; an fsync of
    /// its log acts on the file, whoever has it open.
    pub(crate) fn flush(&self) -> Result<(), String> {
        guarded(|| self.tree.flush())?;
        let log = File::open(self.path.join("db")).and_then(|log| log.sync_data());
        log.map_err(|error| error.to_string())
    }

    /// Bytes on disk; 0 when sled cannot say.
    pub(crate) fn len_bytes(&self) -> u64 {
        guarded(|| self.tree.size_on_disk()).unwrap_or(0)
    }
}

/// Moves damaged snapshots out of sled's sight; false when there are none.
fn move_snapshots(path: &Path, wall_ns: i64) -> io::Result<bool> {
    let mut any = false;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("snap.") {
            let aside = format!("damaged-{wall_ns}-{}", name.to_string_lossy());
            std::fs::rename(entry.path(), path.join(aside))?;
            any = true;
        }
    }
    Ok(any)
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

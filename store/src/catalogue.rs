//! The catalogue: the index that the coordinator is served from.
//!
//! It may come back older, empty or not at all: what must not be lost is compared with the
//! journal at every start. Keys are ordered bytes; the first one tells the kind.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Result};
use memtape_disk::files::{Disk, Entry};
use memtape_disk::tree::Change;
use memtape_disk::tree::Tree;

/// Entries in one batch. Larger ones cost sled gigabytes of memory.
const BATCH_MAX: usize = 512;

const LOCKED_TRIES: u32 = 30;
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// First byte of the keys of the index of the steps.
pub(crate) const STEPS_PREFIX: u8 = b's';

/// Where the number of the last journal change that arrived here is kept.
const SEQUENCE_KEY: &[u8] = b"m-sequence";

/// Behind every key.
const KEYS_END: [u8; 1] = [0xff];

/// The open catalogue.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue {
    tree: Arc<dyn Tree>,
    /// It could not be written, as after a full disk: sled then refuses everything until it is
    /// opened again. It is neither asked nor written any more; the next start mends it.
    is_behind: Arc<AtomicBool>,
}

/// How the catalogue was had.
#[derive(Debug)]
pub(crate) enum Opened {
    /// As it was.
    Whole,
    /// Without its snapshot, which was damaged; nothing is lost.
    WithoutSnapshot(Error),
    /// Empty, because it was damaged. The damaged one lies beside it under this name.
    Rebuilt(Error, String),
}

impl Catalogue {
    /// Opens or makes a catalogue, whatever state it is in.
    pub(crate) fn open(disk: &dyn Disk, folder: &str, wall_ns: i64) -> Result<(Self, Opened)> {
        let mut opened = Self::open_as_it_is(disk, folder);
        // sled's own threads may outlive its handle for a moment.
        for _ in 0..LOCKED_TRIES {
            if matches!(opened, Err(Error::Locked(_))) && !disk.is_simulated() {
                std::thread::sleep(LOCKED_PAUSE);
                opened = Self::open_as_it_is(disk, folder);
            }
        }
        let why = match opened {
            Ok(catalogue) => return Ok((catalogue, Opened::Whole)),
            Err(why) if !why.is_damage() => return Err(why),
            Err(why) => why,
        };
        if move_snapshots(disk, folder, wall_ns)? {
            // sled makes the snapshot again from its log.
            match Self::open_as_it_is(disk, folder) {
                Ok(catalogue) => return Ok((catalogue, Opened::WithoutSnapshot(why))),
                Err(why) if why.is_full() => return Err(why),
                Err(_) => {}
            }
        }
        let aside = format!("{folder}.damaged-{wall_ns}");
        disk.rename(folder, &aside)?;
        Ok((Self::open_as_it_is(disk, folder)?, Opened::Rebuilt(why, aside)))
    }

    /// Opens it, and reads all records: a damaged page shows itself only when it is read. The
    /// index of the steps is left out, as it is large; it is looked at by itself.
    pub(crate) fn open_as_it_is(disk: &dyn Disk, folder: &str) -> Result<Self> {
        let catalogue = Self { tree: disk.tree(folder)?, is_behind: Arc::default() };
        catalogue.tree.scan(&[], &[STEPS_PREFIX], &mut |_, _| true)?;
        catalogue.tree.scan(&[STEPS_PREFIX + 1], &KEYS_END, &mut |_, _| true)?;
        Ok(catalogue)
    }

    /// Number of the last journal change that arrived here.
    pub(crate) fn sequence(&self) -> Result<u64> {
        let value = self.get(SEQUENCE_KEY)?;
        let number = value.and_then(|value| value.as_slice().try_into().ok());
        Ok(number.map_or(0, u64::from_le_bytes))
    }

    /// Applies changes, and with the last of them the number of the journal.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl Iterator<Item = &'a Change>,
        sequence: u64,
    ) -> Result<()> {
        let numbered =
            Change { key: SEQUENCE_KEY.to_vec(), value: Some(sequence.to_le_bytes().to_vec()) };
        let changes = changes.map(|change| -> &Change { change });
        self.write(changes.chain(std::iter::once(&numbered)))
    }

    /// Applies changes that no journal knows; nothing when it is behind.
    pub(crate) fn write<'a>(&self, changes: impl Iterator<Item = &'a Change>) -> Result<()> {
        let mut changes = changes.peekable();
        while changes.peek().is_some() && !self.is_behind() {
            let batch: Vec<&Change> = changes.by_ref().take(BATCH_MAX).collect();
            let applied = self.tree.apply(&batch);
            self.is_behind.store(applied.is_err(), Ordering::Relaxed);
            applied?;
        }
        Ok(())
    }

    /// True when a write failed, and so until the next start.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind.load(Ordering::Relaxed)
    }

    fn asked(&self) -> Result<&dyn Tree> {
        match self.is_behind() {
            true => Err(Error::IndexBehind),
            false => Ok(&*self.tree),
        }
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let (mut found, end) = (None, [key, &[0]].concat());
        self.scan_range(key, &end, |_, value| {
            found = Some(value.to_vec());
            false
        })?;
        Ok(found)
    }

    /// Shows every entry whose key has this prefix, in order, until `visit` answers false.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        Ok(self.asked()?.scan(prefix, &KEYS_END, &mut |key, value| {
            key.starts_with(prefix) && visit(key, value)
        })?)
    }

    /// Shows every entry of a range of keys, in order, until `visit` answers false.
    pub(crate) fn scan_range(
        &self,
        from: &[u8],
        to: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<()> {
        Ok(self.asked()?.scan(from, to, &mut visit)?)
    }

    /// All records: everything but the index of the steps and what the catalogue needs for itself.
    pub(crate) fn records(&self) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut records = BTreeMap::new();
        for kind in (b'a'..=b'z').filter(|&kind| kind != STEPS_PREFIX && kind != b'm') {
            self.scan(&[kind], |key, value| {
                records.insert(key.to_vec(), value.to_vec());
                true
            })?;
        }
        Ok(records)
    }

    /// Makes everything durable, unless it is behind.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.is_behind() {
            return Ok(());
        }
        let flushed = self.tree.flush();
        // It is unknown whether earlier writes arrived.
        self.is_behind.fetch_or(flushed.is_err(), Ordering::Relaxed);
        Ok(flushed?)
    }

    /// Bytes on disk; 0 when sled cannot say.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.tree.len_bytes()
    }
}

/// Moves damaged snapshots out of sled's sight; false when there are none.
fn move_snapshots(disk: &dyn Disk, folder: &str, wall_ns: i64) -> io::Result<bool> {
    let entries = disk.list(folder)?;
    // Without a log there is nothing to make a snapshot from.
    if !entries.iter().any(|entry| entry.name == "db" && entry.bytes > 0) {
        return Ok(false);
    }
    let mut any = false;
    for Entry { name, .. } in entries.iter().filter(|entry| entry.name.starts_with("snap.")) {
        let aside = format!("{folder}/damaged-{wall_ns}-{name}");
        disk.rename(&format!("{folder}/{name}"), &aside)?;
        any = true;
    }
    Ok(any)
}

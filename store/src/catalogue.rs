//! The catalogue: the index over the store's contents, in sled.
//!
//! Its records are copies of the journal's: it is filled from the journal at every start, and never
//! compared with it. The index of the steps is brought up to date (`steps/index.rs`). It may come
//! back older, empty or damaged, and nothing is lost by that. Keys are ordered bytes; the first one
//! tells the kind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::journal::Live;
use memtape_disk::files::Disk;
use memtape_disk::tree::Change;
use memtape_disk::tree::Tree;

/// Entries in one batch. Larger ones cost sled gigabytes of memory.
const BATCH_MAX: usize = 512;

const LOCKED_TRIES: u32 = 30;
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// Folder of the catalogue.
pub(crate) const FOLDER: &str = "catalogue";

/// First byte of the keys of the index of the steps.
pub(crate) const STEPS_PREFIX: u8 = b's';

/// Behind every key.
const KEYS_END: [u8; 1] = [0xff];

/// The open catalogue.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue {
    tree: Arc<dyn Tree>,
    /// True after a failed write, as on a full disk: sled then refuses everything until it is
    /// opened again. The catalogue is neither read nor written until the next start.
    is_behind: Arc<AtomicBool>,
}

impl Catalogue {
    /// Opens or makes a catalogue with these records. A damaged one is put aside; then the reason
    /// and its path are returned.
    pub(crate) fn open(
        disk: &dyn Disk,
        live: &Live,
        wall_ns: i64,
    ) -> Result<(Self, Option<String>)> {
        let mut opened = Self::open_filled(disk, live);
        // sled's own threads may outlive its handle for a moment.
        for _ in 0..LOCKED_TRIES {
            if opened.as_ref().is_err_and(|why| why.kind == Kind::Locked) && !disk.is_simulated() {
                std::thread::sleep(LOCKED_PAUSE);
                opened = Self::open_filled(disk, live);
            }
        }
        match opened {
            Ok(catalogue) => Ok((catalogue, None)),
            Err(why) if matches!(why.kind, Kind::Locked | Kind::Full) => Err(why),
            Err(why) => {
                let aside = format!("{FOLDER}.damaged-{wall_ns}");
                disk.rename(FOLDER, &aside)?;
                let aside = disk.folder().join(aside);
                let why = format!("{why}; the damaged one is kept at {}", aside.display());
                Ok((Self::open_filled(disk, live)?, Some(why)))
            }
        }
    }

    fn open_filled(disk: &dyn Disk, live: &Live) -> Result<Self> {
        let catalogue = Self { tree: disk.tree(FOLDER)?, is_behind: Arc::default() };
        let mut changes = Vec::new();
        for key in catalogue.records()?.into_keys().filter(|key| !live.contains_key(key)) {
            changes.push(Change { key, value: None });
        }
        let put = |(key, value): (&Vec<u8>, &Vec<u8>)| Change {
            key: key.clone(),
            value: Some(value.clone()),
        };
        changes.extend(live.iter().map(put));
        catalogue.write(changes.iter())?;
        Ok(catalogue)
    }

    /// Applies changes; nothing when it is behind.
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
            true => Err(Error::io("it could not be written, and is not used until the next start")),
            false => Ok(&*self.tree),
        }
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

    /// All records, without the index of the steps and the catalogue's own entries.
    pub(crate) fn records(&self) -> Result<Live> {
        let mut records = Live::new();
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

    /// Bytes on disk; 0 when unknown.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.tree.len_bytes()
    }
}

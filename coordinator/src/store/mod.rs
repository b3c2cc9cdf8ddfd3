//! The store: journal, catalogue, step records and bodies behind one handle.
//!
//! Picture a notary's office: every deed is first entered in the bound book (the journal, synced),
//! then filed in the cabinet (the catalogue, sled), where one finds things; the long rolls of
//! parchment (bodies) lie in the cellar under the seal they bear (their hash), and the daily
//! ledgers (steps) stand on shelves by date. If the cabinet burns, book and ledgers tell what was
//! in it.
//!
//! One thread writes, in groups: all that waits is synced at once. Nothing here runs on the async
//! loop. Order of writes: body, journal, catalogue, then whoever waits is told. What is told to be
//! durable is synced, steps as well. `docs/store.md` has the files and their formats.

#[cfg(feature = "bench")]
pub(crate) mod bench;
mod blobs;
mod catalogue;
pub(crate) mod check;
#[cfg(test)]
mod damage;
mod disk;
mod format;
mod frames;
#[cfg(test)]
mod full;
#[cfg(test)]
mod gaps;
mod index;
mod journal;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod lives;
mod merge;
mod packing;
#[cfg(any(test, feature = "simulation"))]
mod platter;
pub(crate) mod rebuild;
mod recovery;
mod remote;
#[cfg(test)]
mod remote_tests;
mod rows;
mod segments;
#[cfg(any(test, feature = "simulation"))]
pub(crate) mod simulated;
mod sled_tree;
mod steps;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::Context;

use crate::records::{
    ActionRecord, AttemptRecord, CaptureRecord, IncidentRecord, PartRecord, RankRecord, Record,
    SeriesKey, StepRow,
};
pub(crate) use blobs::Blobs;
use catalogue::Catalogue;
use disk::{Disk, Held, RealDisk};
use journal::Change;
pub(crate) use recovery::Recovery;
use steps::{OpenSteps, Reader};
use writer::{Job, Writer};

/// What to do when a write is over.
pub(crate) type Done = Box<dyn FnOnce(Result<(), String>) + Send>;

/// Records longer than this are compressed.
const COMPRESS_BYTES_MIN: usize = 1024;

/// A record is at most this large, not compressed; larger is damage.
const RECORD_BYTES_MAX: usize = 8 << 20;

/// A handle on the store. When the last one is gone, what is open is packed and all is closed.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    jobs: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    /// In the place of the thread, in a simulation.
    #[cfg(any(test, feature = "simulation", feature = "bench"))]
    turns: Option<Turns>,
}

/// A writer that works when it is called.
#[cfg(any(test, feature = "simulation", feature = "bench"))]
#[derive(Clone)]
struct Turns(Arc<std::sync::Mutex<(Writer, mpsc::Receiver<Job>)>>);

#[cfg(any(test, feature = "simulation", feature = "bench"))]
impl std::fmt::Debug for Turns {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Turns")
    }
}

#[derive(Debug)]
struct Shared {
    catalogue: Catalogue,
    reader: Reader,
    open: OpenSteps,
    steps_bytes_max: AtomicU64,
    blobs: Blobs,
    health: Health,
    /// Behind the catalogue, so that it is given back last.
    _lock: Box<dyn Held>,
    closed: Closed,
}

/// Says that everything before it in [`Shared`] has been dropped.
#[derive(Debug, Default)]
struct Closed(Arc<AtomicBool>);

impl Drop for Closed {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// How the store is doing.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Groups of writes that were made durable.
    pub(crate) commits: AtomicU64,
    /// Writes that failed.
    pub(crate) failures: AtomicU64,
    /// Writes of step records that failed at first.
    pub(crate) step_failures: AtomicU64,
    /// Step records given up because too many waited in memory.
    pub(crate) steps_given_up: AtomicU64,
    /// Files of steps deleted because they were too old, or too much.
    pub(crate) steps_expired_by_age: AtomicU64,
    pub(crate) steps_expired_by_bytes: AtomicU64,
    /// Bytes of those.
    pub(crate) steps_expired_bytes: AtomicU64,
    /// Changes that wait for a journal that can be written again.
    pub(crate) waiting: AtomicU64,
    /// Changes given up because more waited than can be kept.
    pub(crate) given_up: AtomicU64,
    /// Length of the journal.
    pub(crate) journal_bytes: AtomicU64,
    /// Time that all commits took, in nanoseconds.
    pub(crate) commit_ns: AtomicU64,
}

/// Everything an earlier process left.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) attempts: Vec<AttemptRecord>,
    pub(crate) ranks: Vec<RankRecord>,
    pub(crate) captures: Vec<CaptureRecord>,
    pub(crate) parts: Vec<PartRecord>,
    pub(crate) incidents: Vec<IncidentRecord>,
    pub(crate) actions: Vec<ActionRecord>,
    /// Records that could not be read.
    pub(crate) unreadable: u64,
}

/// Changes that belong together.
#[derive(Debug, Default)]
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    /// Writes a record.
    pub(crate) fn put<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: Some(encode(record)) });
    }

    /// Deletes a record.
    pub(crate) fn delete<R: Record>(&mut self, record: &R) {
        self.0.push(Change { key: record.full_key(), value: None });
    }

    /// True when there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Store {
    /// Opens or makes a store and reads its records. Blocks.
    ///
    /// # Errors
    /// One line that names the folder and what to do.
    pub(crate) fn open(folder: &Path) -> anyhow::Result<(Self, Loaded, Recovery)> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
        let (writer, loaded, recovery) = open_parts(&disk)?;
        let shared = writer.shared().clone();
        let jobs = writer::start(writer).context("the store's thread cannot be started")?;
        let store = Self {
            jobs,
            shared,
            #[cfg(any(test, feature = "simulation", feature = "bench"))]
            turns: None,
        };
        Ok((store, loaded, recovery))
    }

    /// Opens or makes a store on a simulated disk. It has no thread: whoever holds it calls
    /// [`Self::turn`].
    ///
    /// # Errors
    /// As [`Self::open`], and whatever the disk was told to.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn open_simulated(
        disk: &simulated::SimulatedDisk,
    ) -> anyhow::Result<(Self, Loaded, Recovery)> {
        Self::open_in_turns(&disk.process())
    }

    /// Opens or makes a store without a thread.
    #[cfg(any(test, feature = "simulation", feature = "bench"))]
    fn open_in_turns(disk: &Arc<dyn Disk>) -> anyhow::Result<(Self, Loaded, Recovery)> {
        let (writer, loaded, recovery) = open_parts(disk)?;
        let shared = writer.shared().clone();
        let (jobs, receiver) = mpsc::channel();
        let turns = Turns(Arc::new(std::sync::Mutex::new((writer, receiver))));
        Ok((Self { jobs, shared, turns: Some(turns) }, loaded, recovery))
    }

    /// Does all that waits, in this thread, and calls every `done`; says whether anything did.
    /// Only for a simulated store, and not from a `done`.
    #[cfg(any(test, feature = "simulation", feature = "bench"))]
    pub(crate) fn turn(&self) -> bool {
        let Some(Turns(turns)) = &self.turns else { return false };
        let mut turns = turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (writer, jobs) = &mut *turns;
        writer.turn(jobs)
    }

    /// From now on new bodies go to an S3-compatible store, of which the `AWS_…` variables tell the
    /// rest. Before anything is stored.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) async fn keep_bodies_at(&self, url: &str) -> anyhow::Result<()> {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let settings: Vec<(String, String)> = std::env::vars_os().filter_map(text).collect();
        self.keep_bodies_with(url, settings).await
    }

    async fn keep_bodies_with(
        &self,
        url: &str,
        settings: Vec<(String, String)>,
    ) -> anyhow::Result<()> {
        let disk = &*self.shared.reader.disk;
        let format = format::read(disk).context("the store's file FORMAT cannot be read")?;
        let remote = remote::Remote::connect(url, &format.id, settings).await?;
        format::set_bodies_url(disk, url).context("the store's file FORMAT cannot be written")?;
        self.shared.blobs.move_to(remote);
        Ok(())
    }

    /// Writes changes; `done` is called from another thread when they are durable. When they
    /// cannot be written now they are kept and tried again, and `done` is called then.
    pub(crate) fn write(&self, changes: Changes, done: Done) {
        self.send(Job::Write { changes: changes.0, done, is_kept: true });
    }

    /// Writes changes that somebody waits for; a failure is said at once, and nothing is kept.
    pub(crate) fn try_write(&self, changes: Changes, done: Done) {
        self.send(Job::Write { changes: changes.0, done, is_kept: false });
    }

    /// Takes finished steps; `done` is called when they survive the death of this process.
    pub(crate) fn steps(&self, batch: Vec<(SeriesKey, Vec<StepRow>)>, done: Done) {
        self.send(Job::Steps { batch, done });
    }

    /// Deletes the steps of an attempt that was seen in this stretch of time.
    pub(crate) fn forget_steps(&self, serial: u32, from_wall_ns: i64, to_wall_ns: i64) {
        self.send(Job::Forget { serial, from_wall_ns, to_wall_ns });
    }

    /// Steps may have so many bytes on disk, give or take one file: the oldest go first.
    pub(crate) fn set_steps_bytes_max(&self, bytes: u64) {
        self.shared.steps_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of the packed steps on disk.
    pub(crate) fn steps_bytes(&self) -> u64 {
        self.shared.reader.table.bytes()
    }

    /// True when the index could not be written: it is mended at the next start, and until then
    /// steps are read from their files.
    pub(crate) fn is_index_behind(&self) -> bool {
        self.shared.catalogue.is_behind()
    }

    /// Blocks of steps that turned out to be damaged when they were read, and how often a series
    /// was read without its index because the catalogue is damaged.
    pub(crate) fn damaged_reads(&self) -> (u64, u64) {
        let open = &self.shared.open;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&open.damaged_blocks), load(&open.without_index))
    }

    /// Deletes all steps from before this moment, an hour or so at a time.
    pub(crate) fn expire_steps(&self, before_wall_ns: i64) {
        self.send(Job::Expire { before_wall_ns });
    }

    /// Gives this handle back. The answer tells whether it was the last one and all is closed, so
    /// that another coordinator can have the folder.
    pub(crate) fn closed(self) -> impl Fn() -> bool {
        let closed = self.shared.closed.0.clone();
        move || closed.load(Ordering::Acquire)
    }

    /// Packs and syncs everything; `done` is called when that is so.
    pub(crate) fn flush(&self, done: Done) {
        self.send(Job::Flush { done });
    }

    /// The records of a series, in order of steps. Blocks; ask from a blocking thread.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn series(
        &self,
        key: SeriesKey,
        from_wall_ns: i64,
        to_wall_ns: i64,
    ) -> Result<Vec<StepRow>, String> {
        // One stretch more on either side: clocks of different readings may differ.
        let first = segments::stretch(from_wall_ns).saturating_sub(1);
        let last = segments::stretch(to_wall_ns).saturating_add(1);
        steps::read(&self.shared.reader, &self.shared.open, key, first..=last)
    }

    /// The bodies.
    pub(crate) fn blobs(&self) -> &Blobs {
        &self.shared.blobs
    }

    /// How it is doing.
    pub(crate) fn health(&self) -> &Health {
        &self.shared.health
    }

    /// Bytes of the catalogue on disk. Blocks.
    pub(crate) fn catalogue_bytes(&self) -> u64 {
        self.shared.catalogue.len_bytes()
    }

    fn send(&self, job: Job) {
        // The thread ends only when all handles are gone, or when it panicked; then `done` is
        // dropped, and whoever waits sees that.
        if self.jobs.send(job).is_err() {
            self.shared.health.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// True when bodies could be kept at this URL.
pub(crate) fn is_bodies_url(url: &str) -> bool {
    remote::parse(url).is_some()
}

fn open_parts(disk: &Arc<dyn Disk>) -> anyhow::Result<(Writer, Loaded, Recovery)> {
    let (parts, recovery) = recovery::open(disk)?;
    let records = recovery::records(&parts.catalogue)
        .map_err(anyhow::Error::msg)
        .with_context(|| format!("the catalogue in {} cannot be read", disk.folder().display()))?;
    let loaded = load(&records);
    if loaded.unreadable > 0 {
        tracing::error!(records = loaded.unreadable, "records of the store make no sense");
    }
    let health = Health::default();
    health.journal_bytes.store(parts.journal.len_bytes(), Ordering::Relaxed);
    let shared = Arc::new(Shared {
        reader: Reader {
            disk: disk.clone(),
            catalogue: parts.catalogue.clone(),
            table: parts.steps.table().clone(),
        },
        catalogue: parts.catalogue,
        open: parts.open,
        steps_bytes_max: AtomicU64::new(u64::MAX),
        blobs: parts.blobs,
        health,
        _lock: parts.lock,
        closed: Closed::default(),
    });
    let mut writer = Writer::new(parts.journal, parts.steps, shared);
    if recovery.log_gaps > 0 {
        writer.pack_now();
    }
    Ok((writer, loaded, recovery))
}

/// A record as bytes: a first byte that tells the form, then JSON, compressed when it is long.
fn encode<R: Record>(record: &R) -> Vec<u8> {
    // Records are plain structs with string keys; their JSON cannot fail.
    let json = serde_json::to_vec(record).unwrap_or_default();
    if json.len() >= COMPRESS_BYTES_MIN
        && let Ok(packed) = zstd::bulk::compress(&json, 3)
    {
        return [vec![1], packed].concat();
    }
    [vec![0], json].concat()
}

fn decode<R: Record>(bytes: &[u8]) -> Option<R> {
    match bytes.split_first()? {
        (0, json) => serde_json::from_slice(json).ok(),
        (1, packed) => {
            let json = zstd::bulk::decompress(packed, RECORD_BYTES_MAX).ok()?;
            serde_json::from_slice(&json).ok()
        }
        _ => None,
    }
}

fn load(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Loaded {
    fn take<R: Record>(into: &mut Vec<R>, value: &[u8]) -> bool {
        decode(value).map(|record| into.push(record)).is_some()
    }
    let mut loaded = Loaded::default();
    for (key, value) in records {
        let is_taken = match key.first().copied() {
            Some(AttemptRecord::KIND) => take(&mut loaded.attempts, value),
            Some(RankRecord::KIND) => take(&mut loaded.ranks, value),
            Some(CaptureRecord::KIND) => take(&mut loaded.captures, value),
            Some(PartRecord::KIND) => take(&mut loaded.parts, value),
            Some(IncidentRecord::KIND) => take(&mut loaded.incidents, value),
            Some(ActionRecord::KIND) => take(&mut loaded.actions, value),
            // Kinds of a newer version are left alone.
            _ => true,
        };
        loaded.unreadable += u64::from(!is_taken);
    }
    loaded
}

//! The handle on the store: the interface for the coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};

use memtape_core::limits::CHANGES_QUEUED_MAX;
use memtape_core::placement::Proof;

use crate::backup::make::{self, WithSnapshots};
use crate::blobs::environment;
use crate::blobs::local::{Blobs, blocking};
use crate::blobs::remote::Remote;
#[cfg(feature = "cluster")]
use crate::bucket::Bucket;
use crate::clock::{ClockWatch, StoreClock};
#[cfg(feature = "cluster")]
use crate::cluster::{disk::ShardDisk, shard::Shard};
use crate::encoding::{Changes, Loaded, load};
use crate::error::{During, Error, Kind, Result};
use crate::inventory::Loss;
use crate::last_errors::Written;
use crate::records::{SeriesKey, Source, StepRecord};
use crate::recovery::{format, format::Whose, opening, opening::Recovery};
use crate::steps::block::Columns;
use crate::steps::newest::{NewestRows, newest};
use crate::steps::packer::StepLimits;
use crate::steps::read::{self, Found, Reader};
use crate::steps::segments;
use crate::steps::sweep::{Take, newest_first, sweep};
use crate::writer::pending::Pending;
use crate::writer::point::{Pin, Point, Taken};
use crate::writer::shared::{Closed, Done, Health, Proved, Shared};
use crate::writer::thread::{self, Job, Writer};
use crate::writer::turns::Turns;
use memtape_disk::clock;
use memtape_disk::files::{Disk, Held};
use memtape_disk::real::RealDisk;
#[cfg(feature = "cluster")]
use tokio::runtime::Handle;

/// A handle on the store. When the last handle is gone, open steps are packed and all files closed.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) shared: Arc<Shared>,
    /// Replaces the thread in a simulation.
    pub(crate) turns: Option<Turns>,
}

/// Why nothing can be made durable.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Unready {
    /// The data folder is gone, or was replaced by another one.
    #[error(
        "the data folder is gone, or another one is in its place: put it back, or restart the \
         coordinator if it is a copy"
    )]
    FolderGone,
    /// The last writes of these kinds failed; a line of each says why.
    #[error("{}", .0.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("; "))]
    Failing(Vec<(Written, String)>),
    /// Changes come faster than the disk takes them.
    #[error("{0} changes wait for the journal: they come faster than the disk takes them")]
    Behind(u64),
}

impl Store {
    /// Looks whether there is a store in a folder.
    ///
    /// # Errors
    /// There is none.
    pub fn expect(folder: &Path) -> Result<()> {
        match format::whose(&RealDisk::new(folder)) {
            Ok(Whose::Ours) => Ok(()),
            _ => Err(Error::foreign(format!(
                "there is no store in {}, and --expect-store expects one: look where the folder \
                 went, restore a backup, or start once without the option",
                folder.display()
            ))),
        }
    }

    /// Opens or makes a store and reads its records. Blocks.
    pub fn open(folder: &Path) -> Result<(Self, Loaded, Recovery)> {
        Self::open_on(&(Arc::new(RealDisk::new(folder)) as Arc<dyn Disk>))
    }

    /// Opens or makes the store of a shard. Blocks, and not on an async loop: the shard's runtime
    /// goes on until the store is closed.
    ///
    /// # Errors
    /// As [`Self::open`]; the bucket is away, or the shard was taken.
    #[cfg(feature = "cluster")]
    pub fn open_shard(shard: Arc<Shard>, runtime: Handle) -> Result<(Self, Loaded, Recovery)> {
        let shown = shard.name().to_string();
        let disk = ShardDisk::open(shard, runtime).during(|| format!("{shown} cannot be read"))?;
        Self::open_on(&(Arc::new(disk) as Arc<dyn Disk>))
    }

    /// As [`Self::open`], on this disk.
    pub(crate) fn open_on(disk: &Arc<dyn Disk>) -> Result<(Self, Loaded, Recovery)> {
        let (writer, loaded, recovery) = open_parts(disk)?;
        let shared = writer.shared().clone();
        let jobs =
            thread::start(writer).during(|| "the store's thread cannot be started".to_string())?;
        Ok((Self { jobs, shared, turns: None }, loaded, recovery))
    }

    /// Opens or makes a store without a thread: its holder calls [`Self::turn`] to run the writer.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in_turns(disk: &Arc<dyn Disk>) -> Result<(Self, Loaded, Recovery)> {
        let (writer, loaded, recovery) = open_parts(disk)?;
        let shared = writer.shared().clone();
        let (turns, jobs) = Turns::of(writer);
        Ok((Self { jobs, shared, turns: Some(turns) }, loaded, recovery))
    }

    /// Does all waiting work in this thread, and calls every `done`; true if there was any. Only
    /// for a store without a thread, and not from a `done`.
    pub fn turn(&self) -> bool {
        self.turns.as_ref().is_some_and(Turns::turn)
    }

    /// Keeps new snapshots in an S3-compatible store from now on, configured by the `AWS_…`
    /// variables. Must be called before anything is stored.
    pub async fn keep_snapshots_at(&self, url: &str) -> Result<()> {
        let settings = environment();
        self.keep_snapshots_with(url, settings).await
    }

    /// Keeps new snapshots below the prefix of a cluster, as [`Self::keep_snapshots_at`]. The
    /// requests count as those of this bucket.
    ///
    /// # Errors
    /// As [`Self::keep_snapshots_at`].
    #[cfg(feature = "cluster")]
    pub async fn keep_snapshots_beside(&self, url: &str, bucket: &Bucket) -> Result<()> {
        self.keep_snapshots_counted(url, environment(), bucket).await
    }

    /// As [`Self::keep_snapshots_beside`], with these `AWS_…` variables.
    #[cfg(feature = "cluster")]
    pub(crate) async fn keep_snapshots_counted(
        &self,
        url: &str,
        settings: Vec<(String, String)>,
        bucket: &Bucket,
    ) -> Result<()> {
        let requests = bucket.requests().cloned().unwrap_or_default();
        let whose = self.owner_and_lock();
        let remote = Remote::connect_counted(url, whose, settings, &requests).await?;
        self.keep_snapshots_in(url, remote).await
    }

    /// As [`Self::keep_snapshots_at`], with these `AWS_…` variables.
    pub async fn keep_snapshots_with(
        &self,
        url: &str,
        settings: Vec<(String, String)>,
    ) -> Result<()> {
        let remote = Remote::connect(url, self.owner_and_lock(), settings).await?;
        self.keep_snapshots_in(url, remote).await
    }

    /// Id of the store, and its lock, without which it removes no snapshot.
    fn owner_and_lock(&self) -> (&str, Option<Weak<dyn Held>>) {
        (self.id(), Some(Arc::downgrade(&self.shared.lock)))
    }

    async fn keep_snapshots_in(&self, url: &str, remote: Remote) -> Result<()> {
        let (disk, noted) = (self.shared.reader.disk.clone(), url.to_string());
        let set =
            blocking(&*self.shared.reader.disk, move || format::set_snapshots_url(&*disk, &noted));
        set.await.during(|| "the store's file FORMAT cannot be written".to_string())?;
        self.shared.blobs.move_to(remote);
        Ok(())
    }

    /// Writes changes; `done` is called from another thread when they are durable. When they
    /// cannot be written now they are kept and tried again, and `done` is called then.
    pub fn write(&self, changes: Changes, done: Done) {
        let (changes, done) = (changes.into_inner(), self.shared.pending.note(done));
        self.send(Job::Write { changes, done, is_kept: true });
    }

    /// Writes changes for a caller that waits; a failure is reported at once, and nothing is kept.
    pub fn try_write(&self, changes: Changes, done: Done) {
        let (changes, done) = (changes.into_inner(), self.shared.pending.note(done));
        self.send(Job::Write { changes, done, is_kept: false });
    }

    /// Takes finished steps; `done` is called when they survive the death of this process.
    pub fn steps(&self, batch: Vec<(Source, Vec<StepRecord>)>, done: Done) {
        self.send(Job::Steps { batch, done: self.shared.pending.note(done) });
    }

    /// Proves that this process still owns the store; `proved` is called from another thread. A
    /// request that rests on the proof asks it, right before it begins, whether it still holds.
    pub fn prove(&self, proved: Proved) {
        self.send(Job::Prove { proved });
    }

    /// Proves the same without the writer: checks the lock of the folder once. None where another
    /// machine could own the store.
    pub fn prove_at_once(&self) -> Option<Result<Proof>> {
        let proof = Proof::new(clock::now().mono_ns);
        let lock = &self.shared.lock;
        (!lock.can_be_taken()).then(|| lock.prove().map(|()| proof).map_err(Error::from))
    }

    /// Deletes the steps of an attempt.
    pub fn forget_steps(&self, serial: u32) {
        self.send(Job::Forget { serial });
    }

    /// Limits the steps on disk, from the next packing on, which is due within a minute. Of bytes,
    /// the holder that has most gives up its oldest blocks first.
    pub fn limit_steps(&self, limits: StepLimits) {
        *self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// Why nothing can be made durable now; none while it can. Blocks.
    pub fn unready(&self) -> Option<Unready> {
        if self.shared.lock.check().is_err() {
            return Some(Unready::FolderGone);
        }
        let mut failing = self.shared.errors.failing();
        failing.retain(|(what, _)| *what != Written::Upkeep);
        if !failing.is_empty() {
            return Some(Unready::Failing(failing));
        }
        let queued = self.shared.health.queued.load(Ordering::Relaxed);
        (queued > CHANGES_QUEUED_MAX).then_some(Unready::Behind(queued))
    }

    /// Time since the store got the oldest change or step record that is not durable yet, in
    /// nanoseconds; 0 where all are.
    pub fn undurable_age_ns(&self) -> u64 {
        self.shared.pending.age_ns()
    }

    /// Tells this store from others.
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Losses found, until a rebuild forgets them.
    pub fn losses(&self) -> Vec<Loss> {
        self.shared.inventory.expected().lost.losses
    }

    /// Says how many snapshots that captures refer to are gone.
    pub fn snapshots_lost(&self, count: u64) {
        self.shared.health.snapshots_lost.store(count, Ordering::Relaxed);
        if count > 0 {
            tracing::error!(
                "{count} snapshots of captures are gone; memtape store check names them"
            );
        }
    }

    /// Bytes of the packed steps on disk.
    pub fn steps_bytes(&self) -> u64 {
        self.shared.reader.table.bytes()
    }

    /// True when the index could not be written: it is mended at the next start, and until then
    /// steps are read from their files.
    pub fn is_index_behind(&self) -> bool {
        self.shared.catalogue.is_behind()
    }

    /// Blocks of steps that turned out to be damaged when they were read, and how often a series
    /// was read without its index because the catalogue is damaged.
    pub fn damaged_reads(&self) -> (u64, u64) {
        let open = &self.shared.open;
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&open.damaged_blocks), load(&open.without_index))
    }

    /// The clock on which ages are measured.
    pub fn clock(&self) -> StoreClock {
        self.shared.clock
    }

    /// Gives this handle back. The returned function tells whether the store is closed, so that
    /// another coordinator can have the folder.
    pub fn closed(self) -> impl Fn() -> bool {
        let closed = self.shared.closed.0.clone();
        move || closed.load(Ordering::Acquire)
    }

    /// Packs and syncs everything; `done` is called when that is so.
    pub fn flush(&self, done: Done) {
        self.send(Job::Flush { done });
    }

    /// Takes a point for a backup: everything that was acknowledged until now is in it. `taken` is
    /// called from another thread. No file of steps and no snapshot is deleted while it is kept.
    ///
    /// # Errors
    /// While another one is kept.
    pub fn point(&self, taken: Taken) -> Result<()> {
        let is_made = || Error::new(Kind::Locked, "another backup is being made: wait for it");
        let pin = Pin::new(&self.shared).ok_or_else(is_made)?;
        self.send(Job::Point { pin, taken });
        Ok(())
    }

    /// Makes a backup of a point. Blocks, also for as long as `out` waits.
    pub fn back_up(&self, point: &Point, with: WithSnapshots, out: &mut dyn Write) -> Result<()> {
        make::write(&*self.shared.reader.disk, point, with, out)
    }

    /// The records of a series, in order of steps. Blocks; ask from a blocking thread.
    pub fn series(&self, key: SeriesKey) -> Result<Vec<StepRecord>> {
        read::read(&self.shared.reader, &self.shared.open, key, None)
    }

    /// Hands over the same records a block at a time: in no order, and some of them twice, until
    /// `take` wants no more. Blocks.
    pub fn series_each(
        &self,
        key: SeriesKey,
        take: &mut dyn FnMut(Found) -> ControlFlow<()>,
    ) -> Result<()> {
        read::read_each(&self.shared.reader, &self.shared.open, key, None, take)
    }

    /// Records of a series that were packed in these time buckets, or are not packed yet. Blocks.
    pub fn series_within(&self, key: SeriesKey, stretches: &[u32]) -> Result<Vec<StepRecord>> {
        read::read(&self.shared.reader, &self.shared.open, key, Some(stretches))
    }

    /// The newest records of these series of one attempt, each in order of steps. Blocks; makes
    /// few and large reads, whatever the number of series.
    pub fn newest(
        &self,
        keys: &BTreeSet<SeriesKey>,
        bounds: NewestRows,
    ) -> Result<BTreeMap<SeriesKey, Vec<StepRecord>>> {
        newest((&self.shared.reader, &self.shared.open), keys, bounds)
    }

    /// Hands over the records of these series of one attempt, which are in order, until `take`
    /// wants no more, in few and large reads: the newest time first, each part in the order in
    /// which it was reported. Some come twice. Numbers in other columns than these may be 0.
    /// Blocks.
    ///
    /// # Errors
    /// The disk could not be read, or those of `take`.
    pub fn newest_first(
        &self,
        keys: &[SeriesKey],
        columns: &Columns,
        take: &mut Take<'_>,
    ) -> Result<()> {
        let from = (&self.shared.reader, &self.shared.open);
        newest_first(from, keys, columns, take).map(|_| ())
    }

    /// Hands over the records of these series of one attempt, until `take` wants no more, each
    /// once, in few and large reads ([`sweep`]). Blocks.
    pub(crate) fn sweep(
        &self,
        keys: &BTreeSet<SeriesKey>,
        pause: &mut dyn FnMut() -> Result<()>,
        take: &mut Take<'_>,
    ) -> Result<usize> {
        sweep((&self.shared.reader, &self.shared.open), keys, pause, take)
    }

    /// The snapshots.
    pub fn blobs(&self) -> &Blobs {
        &self.shared.blobs
    }

    /// Health of the store.
    pub fn health(&self) -> &Health {
        &self.shared.health
    }

    /// Bytes of the catalogue on disk. Blocks.
    pub fn catalogue_bytes(&self) -> u64 {
        self.shared.catalogue.len_bytes()
    }

    fn send(&self, job: Job) {
        self.shared.health.queued.fetch_add(job.sizes().0, Ordering::Relaxed);
        // The thread ends only when all handles are gone, or when it panicked; then `done` is
        // dropped, which its receiver sees.
        if self.jobs.send(job).is_err() {
            self.shared.health.failures.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn open_parts(disk: &Arc<dyn Disk>) -> Result<(Writer, Loaded, Recovery)> {
    let (parts, recovery) = opening::open(disk)?;
    let mut loaded = load(&parts.live);
    loaded.changes_lost = parts.inventory.expected().lost.changes;
    if loaded.unreadable > 0 {
        tracing::error!(records = loaded.unreadable, "records of the store make no sense");
    }
    let now = clock::now();
    let newest = segments::newest(&parts.steps.table().lock());
    let noted_ns = loaded.clock.as_ref().map(|known| known.store_ns);
    let clock = StoreClock::go_on(now, newest.map(segments::begin_ns).max(noted_ns));
    let mut watch = ClockWatch::new(clock, now, loaded.clock.clone());
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
        limits: Mutex::default(),
        errors: parts.blobs.errors.clone(),
        pending: Pending::default(),
        blobs: parts.blobs,
        clock,
        health,
        id: format::read(&**disk).map(|format| format.id).unwrap_or_default(),
        inventory: parts.inventory,
        backups: AtomicU64::new(0),
        lock: Arc::from(parts.lock),
        closed: Closed::default(),
    });
    let set_back = watch.set_back(now);
    let mut writer = Writer::new(parts.journal, parts.steps, shared, watch);
    set_back.into_iter().for_each(|jump| writer.jumped(jump));
    if recovery.log_gaps > 0 {
        writer.pack_now();
    }
    Ok((writer, loaded, recovery))
}

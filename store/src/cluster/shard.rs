//! A shard that this process owns: a database of SlateDB in the bucket.
//!
//! The process that opened the database last owns the shard: SlateDB's fence refuses every write of
//! an earlier owner. The writer epoch that SlateDB counts is the epoch of the ownership; a row of
//! our own in each batch holds it beside the data, and must agree. One watch reports what is
//! durable. Each ownership has a circuit breaker, which is cut when the ownership ends. Reads do
//! not prove ownership: an earlier owner that has not heard of a new one answers them from memory.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use memtape_disk::tree::Change;
use object_store::path::Path;
use slatedb::config::{
    CompactorOptions, DurabilityLevel, FlushOptions, FlushType, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, ScanOptions,
};
use slatedb::{CloseReason, Db, DbReadOps, DbStatus, ErrorKind, Settings, WriteBatch};
use tokio::sync::watch;

use crate::bucket::Bucket;
use crate::cluster::breaker::Breaker;
use crate::cluster::cache::TableCache;
use crate::cluster::ticks::{self, Ticks};

/// Time after which rows are put into the bucket that no sync asked for.
const FLUSH_EVERY: Duration = Duration::from_secs(5);

/// Interval at which an owner finds out that the shard was taken from it. Until then it can put
/// objects of rows in the way of the new owner's fence, and the new owner passes them one by one.
const MANIFEST_POLL_EVERY: Duration = Duration::from_secs(1);

/// Interval of the search for work of compaction. It bounds what a busy shard stores: within it, no
/// more tables are written than [`TABLES_MAX`].
const COMPACT_EVERY: Duration = Duration::from_secs(5);

/// Tables in the first level from which on writes wait for compaction.
const TABLES_MAX: usize = 32;

/// Interval and least age of what is removed from the bucket. The age is the margin for clocks of
/// machines that differ.
const COLLECT_EVERY: Duration = Duration::from_secs(300);
const COLLECT_AGE: Duration = Duration::from_secs(24 * 3600);

/// Bytes of rows in memory from which on they are written to a table of their own.
const TABLE_BYTES: usize = 4 << 20;

/// Bytes of rows in memory from which on writes wait.
pub(crate) const UNFLUSHED_BYTES_MAX: usize = 32 << 20;

/// Bytes of a table that one request reads, at least: a request costs time whatever it reads. Of
/// longer reads, this number of requests is under way at once.
const READ_AHEAD_BYTES: usize = 256 << 10;
const READS_AHEAD: usize = 4;

/// Key of the row with the epoch, which every batch writes. No kind of record has this byte.
pub(crate) const EPOCH_KEY: &[u8] = b"\0epoch";

/// Number of a shard within its cluster.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ShardId(pub u16);

impl ShardId {
    /// The folder of its database.
    pub(crate) fn path(self, bucket: &Bucket) -> Path {
        bucket.prefix.clone().join("shards").join(format!("{:04}", self.0))
    }

    /// Number and bucket, to name the shard to a person.
    pub(crate) fn name(self, bucket: &Bucket) -> String {
        format!("shard {} of {}", self.0, bucket.url)
    }

    /// Where snapshots of its captures are kept.
    pub fn snapshots_url(self, bucket: &Bucket) -> String {
        format!("{}/snapshots/{:04}", bucket.url, self.0)
    }

    /// The prefix of these snapshots.
    pub(crate) fn snapshots(self, bucket: &Bucket) -> Bucket {
        let prefix = bucket.prefix.clone().join("snapshots").join(format!("{:04}", self.0));
        Bucket { prefix, url: self.snapshots_url(bucket).into(), ..bucket.clone() }
    }
}

/// Number of an ownership of a shard: greater than that of every earlier one. 0 before the first.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Epoch(pub u64);

/// Number of a batch within a shard. Grows with every batch.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct Position(pub u64);

/// Why a shard cannot be owned, read or written.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ShardError {
    /// Another process opened the shard.
    #[error("another coordinator owns the shard")]
    Taken,
    /// The bucket did not answer in time.
    #[error("the bucket does not answer")]
    Away,
    /// This handle gave the shard up.
    #[error("the shard was given up")]
    Closed,
    /// Data in the bucket makes no sense.
    #[error("data of the shard is damaged, or of another version")]
    Damaged,
    /// Something in the shard is newer than the clock that was set by what was read before.
    #[error(
        "the shard has rows of a later time than this coordinator could begin with: set the clocks \
         of all coordinators"
    )]
    Clock,
}

/// What of a shard is durable.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Durable {
    /// All batches up to this one. Durable batches stay so when the ownership has ended.
    pub upto: Position,
    /// Why nothing more becomes durable.
    pub end: Option<ShardError>,
}

/// An owned shard. Its requests end with it.
pub struct Shard {
    db: Db,
    epoch: Epoch,
    breaker: Breaker,
    /// To name it to a person.
    name: String,
}

impl Shard {
    /// Takes a shard, from its owner if it has one. When this returns, every batch that an earlier
    /// owner saw as durable can be read, no earlier owner can make anything durable any more, and
    /// the row of the new epoch is durable. `seen` is the newest epoch that the caller knows:
    /// another one in the bucket is an error, so that two callers do not take the shard from each
    /// other. Without it, the shard is taken in any case.
    ///
    /// # Errors
    /// `Taken`, `Damaged`, `Clock`, and `Away` after `patience`: nothing of this attempt goes on
    /// then.
    pub async fn take(
        bucket: &Bucket,
        shard: ShardId,
        mut seen: Option<Epoch>,
        patience: Duration,
    ) -> Result<Self, ShardError> {
        let opening = async {
            match Self::open(bucket, shard, &mut seen).await {
                // Of two that make a shard at once, one finds the other's first file in its place.
                // An earlier owner whose clock is ahead writes no more since the first try.
                Err(ShardError::Damaged | ShardError::Clock) => {
                    Self::open(bucket, shard, &mut seen).await
                }
                opened => opened,
            }
        };
        within(patience, opening).await
    }

    /// Tries once. `seen` becomes the epoch of the try, also where that fails later.
    async fn open(
        bucket: &Bucket,
        shard: ShardId,
        seen: &mut Option<Epoch>,
    ) -> Result<Self, ShardError> {
        let breaker = Breaker::new(bucket.objects.clone());
        let failing = breaker.cut_on_drop();
        let (ticks, objects) = (Arc::new(Ticks::new()), Arc::new(breaker.clone()));
        let newest = ticks::newest_ms(shard.path(bucket), objects.clone(), bucket.seed).await;
        if let Some(newest_ms) = newest.map_err(|error| of(&error))? {
            ticks.follow(newest_ms);
        }
        let mut builder = Db::builder(shard.path(bucket), objects)
            .with_settings(settings())
            .with_system_clock(ticks.clone())
            .with_db_cache(Arc::<TableCache>::default(), 0);
        if let Some(Epoch(seen)) = *seen {
            builder = builder.with_expected_epoch(seen);
        }
        if let Some(seed) = bucket.seed {
            builder = builder.with_seed(seed);
        }
        let db = builder.build().await.map_err(|error| of(&error))?;
        let epoch = Epoch(db.status().current_manifest.writer_epoch());
        *seen = seen.and(Some(epoch));
        let owned = Self { db, epoch, breaker, name: shard.name(bucket) };
        let newest = owned.db.get_key_value(EPOCH_KEY).await.map_err(|error| of(&error))?;
        if let Some(row) = newest {
            let before = row.value.as_ref().try_into().map(u64::from_be_bytes);
            if before.map_or(true, |before| before >= epoch.0) {
                return Err(ShardError::Damaged);
            }
            ticks.follow(row.create_ts);
        }
        owned.prove().await?;
        failing.disarm();
        Ok(owned)
    }

    /// Number and bucket, to name the shard to a person.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The epoch of this ownership.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Queues a batch: all of it or nothing, in the order of calls. Reads of this owner see it, and
    /// it is not durable yet. Of the same key the last change counts. Waits while too many bytes
    /// are not written.
    ///
    /// # Errors
    /// The ownership has ended.
    pub async fn write(
        &self,
        changes: impl IntoIterator<Item = Change>,
    ) -> Result<Position, ShardError> {
        let mut batch = WriteBatch::new();
        batch.put(EPOCH_KEY, self.epoch.0.to_be_bytes());
        for Change { key, value } in changes {
            match value {
                Some(value) => batch.put_bytes(key.into(), value.into()),
                None => batch.delete(key),
            }
        }
        let written = self.db.write(batch).await.map_err(|error| of(&error))?;
        Ok(Position(written.seqnum()))
    }

    /// Makes durable what was queued before. Asks the bucket for nothing where nothing was.
    ///
    /// # Errors
    /// The ownership has ended. Waits without end while the bucket is away.
    pub async fn settle(&self) -> Result<(), ShardError> {
        self.db.flush().await.map_err(|error| of(&error))
    }

    /// Proves that this ownership had the shard at some time after the call began: writes a batch
    /// through the fence.
    ///
    /// # Errors
    /// As [`Self::settle`].
    pub async fn prove(&self) -> Result<(), ShardError> {
        self.write([]).await?;
        self.settle().await
    }

    /// What is durable, and its changes.
    pub fn durable(&self) -> DurableWatch {
        DurableWatch(self.db.subscribe())
    }

    /// Visits the rows from `begin` until before `end`, in order of keys, at one point in time: all
    /// that this owner wrote, also what is not durable yet.
    ///
    /// # Errors
    /// The ownership has ended, or a row is damaged. Waits without end while the bucket is away.
    pub async fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> ControlFlow<()>,
    ) -> Result<(), ShardError> {
        visit_rows(&self.db, (begin, end), visit).await
    }

    /// Writes all rows to tables, so that the next owner replays none, and gives the shard up.
    /// Nothing of this ownership goes on, also after an error.
    ///
    /// # Errors
    /// `Taken`; `Away` after `patience`.
    pub async fn close(self, patience: Duration) -> Result<(), ShardError> {
        let closing = async {
            let tables = FlushOptions { flush_type: FlushType::MemTable };
            self.db.flush_with_options(tables).await.map_err(|error| of(&error))?;
            self.db.close().await.map_err(|error| of(&error))
        };
        within(patience, closing).await
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { db: _, epoch, breaker, name } = self;
        let mut shown = to.debug_struct("Shard");
        shown
            .field("name", name)
            .field("epoch", epoch)
            .field("breaker", breaker)
            .finish_non_exhaustive()
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.breaker.cut();
    }
}

/// Tells what becomes durable.
#[derive(Clone, Debug)]
pub struct DurableWatch(watch::Receiver<DbStatus>);

impl DurableWatch {
    /// What is durable now.
    pub fn now(&self) -> Durable {
        let status = self.0.borrow();
        let upto = Position(status.durable_seq);
        Durable { upto, end: status.close_reason.map(ended) }
    }

    /// Waits until nothing more becomes durable, also when that was so before the call.
    pub async fn ended(&mut self) -> ShardError {
        let mut durable = self.now();
        loop {
            if let Some(end) = durable.end {
                return end;
            }
            durable = self.changed().await;
        }
    }

    /// Waits for a change. The last one has an end.
    pub async fn changed(&mut self) -> Durable {
        let is_gone = self.0.changed().await.is_err();
        let durable = self.now();
        let end = durable.end.or(is_gone.then_some(ShardError::Closed));
        Durable { end, ..durable }
    }
}

/// Visits the rows of a range, in order of keys, at one point in time.
pub(super) async fn visit_rows(
    db: &(impl DbReadOps + Sync),
    (begin, end): (&[u8], &[u8]),
    mut visit: impl FnMut(&[u8], &Bytes) -> ControlFlow<()>,
) -> Result<(), ShardError> {
    // SlateDB panics at an empty range.
    if begin >= end {
        return Ok(());
    }
    let options = ScanOptions {
        durability_filter: DurabilityLevel::Memory,
        read_ahead_bytes: READ_AHEAD_BYTES,
        max_fetch_tasks: READS_AHEAD,
        cache_blocks: true,
        ..Default::default()
    };
    let mut rows = db.scan_with_options(begin..end, &options).await.map_err(|error| of(&error))?;
    while let Some(row) = rows.next().await.map_err(|error| of(&error))? {
        if visit(&row.key, &row.value).is_break() {
            break;
        }
    }
    Ok(())
}

pub(super) async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, ShardError>>,
) -> Result<T, ShardError> {
    tokio::time::timeout(patience, work).await.unwrap_or(Err(ShardError::Away))
}

fn ended(reason: CloseReason) -> ShardError {
    match reason {
        CloseReason::Fenced => ShardError::Taken,
        // A breaker that was cut, or a task of SlateDB that failed: this handle is of no more use.
        _ => ShardError::Closed,
    }
}

pub(super) fn of(error: &slatedb::Error) -> ShardError {
    match error.kind() {
        ErrorKind::Closed(reason) => ended(reason),
        ErrorKind::Unavailable => ShardError::Away,
        // The one kind of invalid request that does not depend on this file.
        ErrorKind::Invalid => ShardError::Clock,
        // The kinds that are left would be mistakes of this file.
        _ => ShardError::Damaged,
    }
}

/// The settings of every shard. None of them can be configured: a fence object that is removed
/// loses acknowledged rows.
fn settings() -> Settings {
    let directory = GarbageCollectorDirectoryOptions {
        interval: Some(COLLECT_EVERY),
        min_age: COLLECT_AGE,
        dry_run: false,
    };
    Settings {
        flush_interval: Some(FLUSH_EVERY),
        manifest_poll_interval: MANIFEST_POLL_EVERY,
        l0_sst_size_bytes: TABLE_BYTES,
        l0_max_ssts: TABLES_MAX,
        l0_max_ssts_per_key: TABLES_MAX,
        max_unflushed_bytes: UNFLUSHED_BYTES_MAX,
        compactor_options: Some(CompactorOptions {
            poll_interval: COMPACT_EVERY,
            ..CompactorOptions::default()
        }),
        garbage_collector_options: Some(GarbageCollectorOptions {
            manifest_options: Some(directory),
            wal_options: Some(directory),
            compacted_options: Some(directory),
            compactions_options: Some(directory),
            wal_fence_options: None,
            ..GarbageCollectorOptions::default()
        }),
        // Retries have no bound: a bounded number of them closes the database for good.
        object_store_max_retries: None,
        ..Settings::default()
    }
}

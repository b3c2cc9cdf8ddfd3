//! The stores, each as its users would use it for this: Memtape packs; sled and redb have a key
//! for each record, in the order in which it is asked for, and the record in the same small code.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::Context;
use memtape_disk::clock::{self, Now};
use memtape_disk::{files::Disk, real::RealDisk};
use memtape_store::records::{SeriesKey, StepRecord};
use memtape_store::{Store, block, stretch};
use redb::{Database, TableDefinition};

use crate::rows::{RANKS, Row};
use crate::times;

/// Rows by rank.
type Group = Vec<(u32, Vec<Row>)>;

/// What is measured.
pub(crate) trait Peer: Sized {
    fn open(folder: &Path, wall_ns: i64) -> anyhow::Result<Self>;

    /// Everything is durable when it returns.
    fn write(&self, wall_ns: i64, group: Group) -> anyhow::Result<()>;

    fn flush(&self) -> anyhow::Result<()>;

    /// The rows of a rank from `first` to before `end`, in order.
    fn window(&self, rank: u32, first: u64, end: u64) -> anyhow::Result<Vec<Row>>;

    /// Reads the rows of all ranks, as an area of all steps does; returns their number.
    fn all(&self) -> anyhow::Result<u64>;
}

/// The very store, on the real disk, without its thread, at times that are set.
pub(crate) struct Memtape(pub(crate) Store);

fn series(rank: u32) -> SeriesKey {
    SeriesKey { serial: 1, rank, device: 0 }
}

fn set(wall_ns: i64) {
    clock::set(Now { mono_ns: wall_ns.unsigned_abs(), wall_ns });
}

impl Peer for Memtape {
    fn open(folder: &Path, wall_ns: i64) -> anyhow::Result<Self> {
        set(wall_ns);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
        Ok(Self(Store::open_in_turns(&disk)?.0))
    }

    fn write(&self, wall_ns: i64, group: Group) -> anyhow::Result<()> {
        set(wall_ns);
        let rows = |rows: Vec<Row>| rows.into_iter().map(StepRecord::from_numbers).collect();
        let of = |rank| (series(rank), (1, 1));
        let batch = group.into_iter().map(|(rank, numbers)| (of(rank), rows(numbers)));
        let (sender, done) = channel();
        self.0.steps(batch.collect(), Box::new(move |result| drop(sender.send(result))));
        self.0.turn();
        Ok(done.recv().context("the store is gone")??)
    }

    fn flush(&self) -> anyhow::Result<()> {
        let (sender, done) = channel();
        self.0.flush(Box::new(move |result| drop(sender.send(result))));
        self.0.turn();
        Ok(done.recv().context("the store is gone")??)
    }

    fn window(&self, rank: u32, first: u64, end: u64) -> anyhow::Result<Vec<Row>> {
        let (from_ns, to_ns) = times(first, end);
        // Time goes on as the wall clock says, here. What is packed is packed a minute late.
        let within: Vec<u32> = (stretch(from_ns)..=stretch(to_ns) + 1).collect();
        let rows = self.0.series_within(series(rank), &within)?;
        let is_within = |row: &Row| (from_ns..to_ns).contains(&(row[2] as i64));
        Ok(rows.iter().map(|row| row.to_numbers()).filter(is_within).collect())
    }

    fn all(&self) -> anyhow::Result<u64> {
        let keys: Vec<SeriesKey> = (0..RANKS).map(series).collect();
        let mut read = 0;
        self.0.newest_first(&keys, &block::ALL_COLUMNS, &mut |_, rows| {
            read += rows.len() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(read)
    }
}

/// A row as bytes, for a store that keeps one value for each.
fn encode_row(row: Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    block::put_rows(&mut bytes, &[StepRecord::from_numbers(row)]);
    bytes
}

/// The row in those bytes; none when they are damaged.
fn decode_row(mut bytes: &[u8]) -> Option<Row> {
    block::take_rows(&mut bytes)?.first().map(|row| row.to_numbers())
}

pub(crate) struct Sled {
    tree: sled::Db,
    log: PathBuf,
}

/// Larger batches cost sled gigabytes of memory.
const SLED_BATCH_MAX: usize = 512;

fn key(rank: u32, step: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&rank.to_be_bytes());
    key[4..].copy_from_slice(&step.to_be_bytes());
    key
}

impl Peer for Sled {
    fn open(folder: &Path, _: i64) -> anyhow::Result<Self> {
        let config = sled::Config::new().path(folder).cache_capacity(64 << 20);
        Ok(Self { tree: config.open()?, log: folder.join("db") })
    }

    fn write(&self, _: i64, group: Group) -> anyhow::Result<()> {
        let rows = group.iter().flat_map(|(rank, rows)| rows.iter().map(move |row| (*rank, row)));
        let rows: Vec<(u32, &Row)> = rows.collect();
        for rows in rows.chunks(SLED_BATCH_MAX) {
            let mut batch = sled::Batch::default();
            for (rank, row) in rows {
                batch.insert(&key(*rank, row[1]), encode_row(**row));
            }
            self.tree.apply_batch(batch)?;
        }
        self.flush()
    }

    /// sled's own leaves the kernel's cache unsynced.
    fn flush(&self) -> anyhow::Result<()> {
        self.tree.flush()?;
        Ok(File::open(&self.log)?.sync_data()?)
    }

    fn window(&self, rank: u32, first: u64, end: u64) -> anyhow::Result<Vec<Row>> {
        let found = self.tree.range(key(rank, first)..key(rank, end));
        found.map(|entry| decode_row(&entry?.1).context("a damaged row")).collect()
    }

    fn all(&self) -> anyhow::Result<u64> {
        let mut read = 0;
        for entry in self.tree.iter() {
            decode_row(&entry?.1).context("a damaged row")?;
            read += 1;
        }
        Ok(read)
    }
}

pub(crate) struct Redb(Database);

const ROWS: TableDefinition<'_, (u32, u64), &[u8]> = TableDefinition::new("rows");

impl Peer for Redb {
    fn open(folder: &Path, _: i64) -> anyhow::Result<Self> {
        let cache_bytes = 64 << 20;
        let path = folder.join("rows.redb");
        Ok(Self(Database::builder().set_cache_size(cache_bytes).create(path)?))
    }

    fn write(&self, _: i64, group: Group) -> anyhow::Result<()> {
        let transaction = self.0.begin_write()?;
        {
            let mut table = transaction.open_table(ROWS)?;
            for (rank, rows) in &group {
                for row in rows {
                    table.insert((*rank, row[1]), encode_row(*row).as_slice())?;
                }
            }
        }
        Ok(transaction.commit()?)
    }

    fn flush(&self) -> anyhow::Result<()> {
        Ok(())
    }

    fn window(&self, rank: u32, first: u64, end: u64) -> anyhow::Result<Vec<Row>> {
        use redb::ReadableDatabase;
        let table = self.0.begin_read()?.open_table(ROWS)?;
        let found = table.range((rank, first)..(rank, end))?;
        found.map(|entry| decode_row(entry?.1.value()).context("a damaged row")).collect()
    }

    fn all(&self) -> anyhow::Result<u64> {
        use redb::{ReadableDatabase, ReadableTable};
        let (table, mut read) = (self.0.begin_read()?.open_table(ROWS)?, 0);
        for entry in table.iter()? {
            decode_row(entry?.1.value()).context("a damaged row")?;
            read += 1;
        }
        Ok(read)
    }
}

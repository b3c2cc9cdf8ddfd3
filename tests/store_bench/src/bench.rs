//! The store as its benchmark uses it: rows as plain numbers, a clock that is set, and
//! every write durable when it returns. It is the very store, on the real disk, without its thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;

use anyhow::Context;

use memtape_disk::clock::{self, Now};
use memtape_disk::{files::Disk, real::RealDisk};
use memtape_store::records::{SeriesKey, StepRecord};
use memtape_store::{Store, block, stretch};

/// The numbers of one row: first and last step, wall time, bytes and counts.
pub(crate) type Row = [u64; block::COLUMNS];

/// An open store.
#[derive(Debug)]
pub(crate) struct BenchStore {
    store: Store,
}

impl BenchStore {
    /// Opens or makes one, at this time.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn open(folder: &Path, wall_ns: i64) -> anyhow::Result<Self> {
        set(wall_ns);
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
        let (store, _, _) = Store::open_in_turns(&disk)?;
        Ok(Self { store })
    }

    /// Takes rows of each rank, at this time; they are durable when it returns. Packs what is due.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn write(&self, wall_ns: i64, batch: Vec<(u32, Vec<Row>)>) -> anyhow::Result<()> {
        set(wall_ns);
        let rows = |rows: Vec<Row>| rows.into_iter().map(StepRecord::from_numbers).collect();
        let batch = batch.into_iter().map(|(rank, numbers)| (series(rank), rows(numbers)));
        let (sender, done) = channel();
        self.store.steps(batch.collect(), Box::new(move |result| drop(sender.send(result))));
        self.store.turn();
        Ok(done.recv().context("the store is gone")??)
    }

    /// Packs and syncs all that is left.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn flush(&self) -> anyhow::Result<()> {
        let (sender, done) = channel();
        self.store.flush(Box::new(move |result| drop(sender.send(result))));
        self.store.turn();
        Ok(done.recv().context("the store is gone")??)
    }

    /// The rows of a rank within this time.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn window(&self, rank: u32, from_ns: i64, to_ns: i64) -> anyhow::Result<Vec<Row>> {
        // Time goes on as the wall clock says, here. What is packed is packed a minute late.
        let within: Vec<u32> = (stretch(from_ns)..=stretch(to_ns) + 1).collect();
        let rows = self.store.series_within(series(rank), &within)?;
        let is_within = |row: &Row| (from_ns..to_ns).contains(&(row[2] as i64));
        Ok(rows.iter().map(|row| row.to_numbers()).filter(is_within).collect())
    }
}

/// A row as bytes, for a store that keeps one value for each.
pub(crate) fn encode(row: Row) -> Vec<u8> {
    let mut bytes = Vec::new();
    block::put_rows(&mut bytes, &[StepRecord::from_numbers(row)]);
    bytes
}

/// The row in those bytes; none when they are damaged.
pub(crate) fn decode(mut bytes: &[u8]) -> Option<Row> {
    block::take_rows(&mut bytes)?.first().map(|row| row.to_numbers())
}

fn series(rank: u32) -> SeriesKey {
    SeriesKey { serial: 1, rank, device: 0 }
}

fn set(wall_ns: i64) {
    clock::set(Now { mono_ns: wall_ns.unsigned_abs(), wall_ns });
}

//! The newest records of an attempt, read for all its series at once: those that each series has,
//! in reads that do not grow with the number of series. A seed that fails is printed.

use std::collections::BTreeSet;
use std::sync::mpsc::channel;
use std::time::Duration;

use fastrand::Rng;
use memtape_bucket::Server;
use memtape_disk::clock::{self, Now};
use memtape_simulated_disk::SimulatedDisk;
use tokio::runtime::Runtime;

use crate::bucket::Bucket;
use crate::cluster::shard::{Shard, ShardId};
use crate::handle::Store;
use crate::records::{SeriesKey, StepRecord};
use crate::steps::newest::NewestRows;
use crate::steps::packer::StepLimits;
use crate::tests::fixtures::{answer, close, flush, row};

/// Time for taking a shard.
const PATIENCE: Duration = Duration::from_secs(60);

const SEEDS: u64 = 300;
const MINUTE_NS: i64 = 60_000_000_000;

fn key(serial: u32, rank: u32) -> SeriesKey {
    SeriesKey { serial, rank, device: 0 }
}

/// Appends a record to each of these series.
fn append(store: &Store, series: impl IntoIterator<Item = SeriesKey>, step: u64) {
    let (sender, done) = channel();
    let batch = series.into_iter().map(|key| ((key, (u64::from(key.rank), 1)), vec![row(step)]));
    store.steps(batch.collect(), Box::new(move |result| sender.send(result).unwrap()));
    store.turn();
    answer(&done).unwrap();
}

fn begin(disk: &SimulatedDisk, now: Now) -> Store {
    clock::set(now);
    Store::open_in_turns(&disk.process()).unwrap().0
}

/// Series that report at some steps and not at others, packings, restarts, and files that give up
/// blocks; then all are read with these bounds.
fn check(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let disk = SimulatedDisk::new(seed);
    let mut now = Now { mono_ns: 1 << 60, wall_ns: 1 << 60 };
    let mut store = begin(&disk, now);
    let all: BTreeSet<SeriesKey> = (0..6).map(|rank| key(1, rank)).collect();
    for step in 1..rng.u64(2..80) {
        let part = rng.u32(1..=6);
        append(&store, all.iter().copied().filter(|of| of.rank % part == 0), step);
        append(&store, [key(2, 0)], step);
        now.mono_ns += (rng.i64(0..3) * MINUTE_NS).unsigned_abs();
        now.wall_ns = i64::try_from(now.mono_ns).unwrap();
        clock::set(now);
        match rng.u32(0..12) {
            0..3 => flush(&store),
            3 => {
                drop(store);
                disk.kill();
                store = begin(&disk, now);
            }
            4 => {
                let limits = StepLimits { bytes_max: rng.u64(1..4096), ..StepLimits::default() };
                store.limit_steps(limits);
                flush(&store);
                store.limit_steps(StepLimits::default());
            }
            _ => {}
        }
    }
    let rows_max = [1, 3, 20, usize::MAX][rng.usize(0..4)];
    let stretches_max = [1, 2, 5, usize::MAX][rng.usize(0..4)];
    let bounds = NewestRows { rows_max, stretches_max };
    let found = store.newest(&all, bounds).unwrap();
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), all);
    for (key, rows) in found {
        let whole = store.series(key).unwrap();
        let expected = whole.len().min(rows_max);
        let is_enough = match stretches_max {
            usize::MAX => rows.len() == expected,
            _ => rows.len() <= expected && rows.is_empty() == whole.is_empty(),
        };
        assert!(is_enough, "seed {seed}: {bounds:?}: {} of {}", rows.len(), whole.len());
        let (all, of) = (steps(&whole), steps(&rows));
        assert!(all.ends_with(&of), "seed {seed}: {bounds:?}: {of:?} of {all:?}");
    }
}

fn steps(rows: &[StepRecord]) -> Vec<u64> {
    rows.iter().map(|row| row.last_step).collect()
}

#[test]
fn the_newest_records_of_all_series_are_those_of_each() {
    (0..SEEDS).for_each(check);
}

/// One request for each series would keep a large job unwatched for minutes.
#[test]
fn the_newest_records_of_many_series_take_few_requests() {
    const RANKS: u32 = 1024;
    let runtime = Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = runtime.block_on(Server::start());
    let bucket = Bucket::with_few_retries("s3://bucket/c", server.settings("a")).unwrap();
    let open = || {
        let shard = runtime.block_on(Shard::take(&bucket, ShardId(0), None, PATIENCE));
        Store::open_shard(shard.unwrap().into(), runtime.handle().clone()).unwrap().0
    };
    let all: BTreeSet<SeriesKey> = (0..RANKS).map(|rank| key(1, rank)).collect();
    let store = open();
    for step in 1..=8 {
        append(&store, all.iter().copied(), step);
        if step % 2 == 0 {
            flush(&store);
        }
    }
    close(store);
    let store = open();
    let before = server.requests();
    let bounds = NewestRows { rows_max: 3, stretches_max: 72 };
    let found = store.newest(&all, bounds).unwrap();
    let requests = server.requests() - before;
    assert!(found.values().all(|rows| steps(rows) == [6, 7, 8]));
    assert!(requests < u64::from(RANKS) / 16, "{requests} requests");
}

//! Records of an attempt, the newest or all, read for all its series at once: those that each
//! series has, in reads that do not grow with the number of series. A seed that fails is printed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fastrand::Rng;
use memtape_bucket::Server;
use memtape_disk::clock::{self, Now};
use memtape_disk::files::Disk;
use memtape_simulated_disk::SimulatedDisk;
use tokio::runtime::Runtime;

use crate::bucket::Bucket;
use crate::cluster::disk::ShardDisk;
use crate::cluster::shard::{Shard, ShardId};
use crate::handle::Store;
use crate::records::{SeriesKey, Source, StepRecord};
use crate::steps::block::ALL_COLUMNS;
use crate::steps::newest::NewestRows;
use crate::steps::packer::StepLimits;
use crate::steps::read::put_in_order;
use crate::steps::sweep::{GROUP_SERIES, RUNS_MAX, StepRuns};
use crate::tests::fixtures::{answer, flush, row};

/// Time for taking a shard.
const PATIENCE: Duration = Duration::from_secs(60);

const SEEDS: u64 = 300;
/// Records of a series that are packed at once.
const ROWS: u64 = 24;

const MINUTE_NS: i64 = 60_000_000_000;

fn key(serial: u32, rank: u32) -> SeriesKey {
    SeriesKey { serial, rank, device: 0 }
}

/// Appends this record to each of these series.
fn append(store: &Store, series: impl IntoIterator<Item = SeriesKey>, row: StepRecord) {
    let batch = series.into_iter().map(|key| ((key, (u64::from(key.rank), 1)), vec![row]));
    append_all(store, batch.collect());
}

/// A record of these steps.
fn window(first_step: u64, last_step: u64) -> StepRecord {
    StepRecord { first_step, last_step, ..row(0) }
}

fn append_all(store: &Store, batch: Vec<(Source, Vec<StepRecord>)>) {
    let (sender, done) = channel();
    store.steps(batch, Box::new(move |result| sender.send(result).unwrap()));
    store.turn();
    answer(&done).unwrap();
}

fn begin(disk: &SimulatedDisk, now: Now) -> Store {
    clock::set(now);
    Store::open_in_turns(&disk.process()).unwrap().0
}

/// All records that a table has, in order.
fn swept(store: &Store, keys: &BTreeSet<SeriesKey>) -> BTreeMap<SeriesKey, Vec<StepRecord>> {
    let mut found = BTreeMap::<SeriesKey, Vec<StepRecord>>::new();
    let taken = store.sweep(keys, &mut || Ok(()), &mut |key, older| {
        found.entry(key).or_default().extend(older);
        Ok(ControlFlow::Continue(()))
    });
    assert_eq!(taken.unwrap(), keys.len());
    found.values_mut().for_each(|rows| rows.sort_by_key(|row| row.last_step));
    found
}

/// All records that an area is made of, in order, each once.
fn newest_first(store: &Store, keys: &BTreeSet<SeriesKey>) -> BTreeMap<SeriesKey, Vec<StepRecord>> {
    let mut found = BTreeMap::<SeriesKey, Vec<StepRecord>>::new();
    let keys: Vec<SeriesKey> = keys.iter().copied().collect();
    let read = store.newest_first(&keys, &ALL_COLUMNS, &mut |key, part| {
        found.entry(key).or_default().extend(part);
        Ok(ControlFlow::Continue(()))
    });
    read.unwrap();
    found.values_mut().for_each(put_in_order);
    found
}

/// Series that report at some steps and not at others, steps that are sent again, packings,
/// restarts, and files that give up blocks; then all are read.
fn check(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let disk = SimulatedDisk::new(seed);
    let mut now = Now { mono_ns: 1 << 60, wall_ns: 1 << 60 };
    let mut store = begin(&disk, now);
    let all: BTreeSet<SeriesKey> = (0..6).map(|rank| key(1, rank)).collect();
    let mut is_any_again = false;
    let length = rng.u64(1..4);
    let row = |number: u64| window(number * length + 1 - length, number * length);
    for step in 1..rng.u64(2..80) {
        let part = rng.u32(1..=6);
        append(&store, all.iter().copied().filter(|of| of.rank % part == 0), row(step));
        append(&store, [key(2, 0)], row(step));
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
            5 => {
                // As an agent does that got no answer, and may end before all is sent again.
                let begin = rng.u64(1..=step);
                let again = begin..=rng.u64(begin..=step);
                is_any_again = true;
                again.for_each(|step| append(&store, [key(1, rng.u32(0..6))], row(step)));
            }
            _ => {}
        }
    }
    let rows_max = [1, 3, 20, usize::MAX][rng.usize(0..4)];
    let stretches_max = [1, 2, 5, usize::MAX][rng.usize(0..4)];
    let bounds = NewestRows { rows_max, stretches_max };
    let found = store.newest(&all, bounds).unwrap();
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), all);
    let mut swept = swept(&store, &all);
    assert_eq!(newest_first(&store, &all), swept, "seed {seed}");
    for (key, rows) in found {
        let whole = store.series(key).unwrap();
        assert_eq!(swept.remove(&key).unwrap_or_default(), whole, "seed {seed}: {key:?}");
        if is_any_again {
            // The newest records may be older steps then.
            continue;
        }
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
fn the_records_of_all_series_are_those_of_each() {
    (0..SEEDS).for_each(check);
}

/// A record that a block cannot shorten.
fn random_row(rng: &mut Rng, step: u64) -> StepRecord {
    let [peak_allocated, end_allocated, floor_reserved, peak_reserved, end_reserved] =
        std::array::from_fn(|_| rng.u64(..));
    StepRecord {
        peak_allocated,
        end_allocated,
        floor_reserved,
        peak_reserved,
        end_reserved,
        ..row(step)
    }
}

/// A request for each series would keep a large job unwatched for minutes, and tables would take
/// hours.
#[test]
fn the_records_of_many_series_take_few_requests() {
    const RANKS: u32 = 1024;
    const PACKINGS: u64 = 12;
    let runtime = Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = runtime.block_on(Server::start());
    let bucket = Bucket::with_few_retries("s3://bucket/c", server.settings("a")).unwrap();
    let mut now = Now { mono_ns: 1 << 60, wall_ns: 1 << 60 };
    clock::set(now);
    let take = || runtime.block_on(Shard::take(&bucket, ShardId(0), None, PATIENCE)).unwrap();
    let begin = || {
        let disk = ShardDisk::open(take().into(), runtime.handle().clone()).unwrap();
        let disk: Arc<dyn Disk> = Arc::new(disk);
        Store::open_in_turns(&disk).unwrap().0
    };
    let all: BTreeSet<SeriesKey> = (0..RANKS).map(|rank| key(1, rank)).collect();
    let mut rng = Rng::with_seed(1);
    let store = begin();
    for packing in 0..PACKINGS {
        now.mono_ns += MINUTE_NS.unsigned_abs();
        now.wall_ns += MINUTE_NS;
        clock::set(now);
        let batch = all.iter().map(|of| {
            let steps = packing * ROWS + 1..=(packing + 1) * ROWS;
            ((*of, (0, 1)), steps.map(|step| random_row(&mut rng, step)).collect())
        });
        append_all(&store, batch.collect());
        flush(&store);
    }
    // A start reads the newest file of steps: this begins the next one.
    now.mono_ns += 2 * 60 * MINUTE_NS.unsigned_abs();
    now.wall_ns += 2 * 60 * MINUTE_NS;
    clock::set(now);
    append(&store, [key(2, 0)], row(1));
    flush(&store);
    drop(store);
    // A start reads what is not in tables: the merged file is in tables after this.
    runtime.block_on(take().close(PATIENCE)).unwrap();

    let store = begin();
    let before = server.requests();
    let bounds = NewestRows { rows_max: 3, stretches_max: 72 };
    let found = store.newest(&all, bounds).unwrap();
    let requests = server.requests() - before;
    let newest = PACKINGS * ROWS;
    assert!(found.values().all(|rows| steps(rows) == [newest - 2, newest - 1, newest]));
    assert!(0 < requests && requests < u64::from(RANKS) / 16, "{requests} requests for the newest");
    drop(store);

    let store = begin();
    let before = server.requests();
    let found = swept(&store, &all);
    let requests = server.requests() - before;
    assert_eq!(found.len(), all.len());
    assert!(found.values().all(|rows| rows.len() as u64 == newest));
    let blocks = u64::from(RANKS) * PACKINGS;
    assert!(0 < requests && requests < blocks / 16, "{requests} requests for all");
    drop(store);

    let store = begin();
    let before = server.requests();
    let found = newest_first(&store, &all);
    let requests = server.requests() - before;
    assert!(found.values().all(|rows| rows.len() as u64 == newest));
    assert!(0 < requests && requests < blocks / 16, "{requests} requests for an area");
}

#[test]
fn a_step_is_new_once_whatever_the_order() {
    for seed in 0..2000 {
        let mut rng = Rng::with_seed(seed);
        let (mut runs, mut known) = (StepRuns::default(), BTreeSet::new());
        let length = rng.u64(1..4);
        for _ in 0..rng.u64(1..60) {
            let last = length * rng.u64(1..30);
            let is_new = runs.add(&window(last + 1 - length, last));
            assert_eq!(is_new, known.insert(last), "seed {seed}: {last}, {runs:?}");
        }
        let steps: u64 = runs.0.iter().map(|(first, last)| last + 1 - first).sum();
        assert_eq!(steps, known.len() as u64 * length, "seed {seed}: {runs:?}");
    }
}

#[test]
fn the_newest_runs_are_forgotten_first() {
    let mut runs = StepRuns::default();
    let steps = 2..=2 * RUNS_MAX as u64 + 2;
    steps.step_by(2).for_each(|step| assert!(runs.add(&window(step, step))));
    assert_eq!(runs.0.len(), RUNS_MAX);
    assert!(!runs.add(&window(2, 2)));
    assert!(!runs.add(&window(2 * RUNS_MAX as u64, 2 * RUNS_MAX as u64)));
    let extremes = [window(u64::MAX, u64::MAX), window(9, 0), window(0, u64::MAX)];
    let mut runs = StepRuns::default();
    assert_eq!(extremes.map(|row| runs.add(&row)), [true, true, false]);
}

#[test]
fn a_sweep_ends_where_no_more_is_wanted() {
    const RANKS: u32 = GROUP_SERIES as u32 + 10;
    let disk = SimulatedDisk::new(1);
    let mut now = Now { mono_ns: 1 << 60, wall_ns: 1 << 60 };
    let store = begin(&disk, now);
    let all: BTreeSet<SeriesKey> = (0..RANKS).map(|rank| key(1, rank)).collect();
    // Three blocks of each series in a time bucket, and one in the next.
    for step in 1..=4 {
        append(&store, all.iter().copied(), row(step));
        flush(&store);
        if step == 3 {
            now.mono_ns += 5 * MINUTE_NS.unsigned_abs();
            now.wall_ns += 5 * MINUTE_NS;
            clock::set(now);
        }
    }
    let swept = |wanted: usize| {
        let (mut taken, read) = (Vec::new(), Cell::new(0));
        let mut pause = || {
            read.set(read.get() + 1);
            Ok(())
        };
        let whole = store.sweep(&all, &mut pause, &mut |key, rows| {
            if taken.len() >= wanted {
                return Ok(ControlFlow::Break(()));
            }
            taken.extend(rows.iter().map(|row| (key.rank, row.last_step, read.get())));
            Ok(ControlFlow::Continue(()))
        });
        (whole.unwrap(), taken)
    };
    let group = GROUP_SERIES;
    let (whole, taken) = swept(group + 1);
    assert_eq!((whole, taken.len()), (0, group + 1));
    assert!(taken[..group].iter().all(|(_, step, _)| *step == 4), "the newest first");
    let mut read = taken.iter().zip(1..);
    assert!(read.all(|(of, count)| of.2 == count), "a block is handed over as it is read");
    assert_eq!(swept(4 * group + 1).0, group);
    assert_eq!(swept(usize::MAX).0, all.len());
}

#[test]
fn a_record_within_newer_ones_is_left_out() {
    let mut runs = StepRuns::default();
    let records = [window(5, 7), window(5, 10), window(6, 9), window(1, 4), window(11, 11)];
    assert_eq!(records.map(|row| runs.add(&row)), [true, true, false, true, true]);
    assert_eq!(runs.0, BTreeMap::from([(1, 11)]));
}

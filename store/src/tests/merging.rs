//! Files of steps whose blocks are merged when they are finished: every record stays as it was, in
//! a fraction of the blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::channel;

use fastrand::Rng;
use memtape_disk::clock::{self, Now};
use memtape_simulated_disk::SimulatedDisk;

use crate::handle::Store;
use crate::records::{SeriesKey, StepRecord};
use crate::recovery::check::{check_simulated, look_at_simulated};
use crate::steps::segments;
use crate::tests::fixtures::{answer, flush, row};

const SEEDS: u64 = 60;
const MINUTE_NS: i64 = 60_000_000_000;

/// Minutes of a file, and of a time bucket.
const FILE_MINUTES: u64 = 60;
const BUCKET_MINUTES: u64 = 5;

/// Steps of a minute.
const STEPS: u64 = 3;

type Known = BTreeMap<SeriesKey, Vec<StepRecord>>;

/// Numbers of the files whose blocks are merged: the files that are begun have even ones.
pub(crate) fn merged_files(disk: &SimulatedDisk) -> Vec<u32> {
    let numbers = segments::list(&*disk.process()).unwrap().into_keys();
    numbers.filter(|number| number % 2 == 1).collect()
}

fn begin(disk: &SimulatedDisk) -> Store {
    Store::open_in_turns(&disk.process()).unwrap().0
}

fn at(minute: u64) {
    let passed_ns = minute as i64 * MINUTE_NS;
    let wall_ns = (1 << 60) / MINUTE_NS / BUCKET_MINUTES as i64 * BUCKET_MINUTES as i64 * MINUTE_NS
        + passed_ns;
    clock::set(Now { mono_ns: wall_ns as u64, wall_ns });
}

/// Takes the steps of a minute of these series, and packs them.
fn minute(store: &Store, minute: u64, series: &[SeriesKey], known: &mut Known) {
    at(minute);
    let steps = minute * STEPS + 1..=(minute + 1) * STEPS;
    let rows: Vec<StepRecord> = steps.map(row).collect();
    let batch = series.iter().map(|key| ((*key, (u64::from(key.rank), 1)), rows.clone())).collect();
    store.steps(batch, Box::new(|taken| taken.unwrap()));
    store.turn();
    flush(store);
    for key in series {
        known.entry(*key).or_default().extend_from_slice(&rows);
    }
}

fn check(store: &Store, known: &Known, when: &str) {
    for (key, rows) in known {
        assert_eq!(store.series(*key).unwrap(), *rows, "{when}: {key:?}");
    }
}

fn series(serial: u32, ranks: u32) -> Vec<SeriesKey> {
    (0..ranks).map(|rank| SeriesKey { serial, rank, device: 0 }).collect()
}

#[test]
fn a_finished_file_has_one_block_of_each_series_and_time_bucket() {
    const RANKS: u32 = 40;
    let disk = SimulatedDisk::new(1);
    at(0);
    let (store, all, mut known) = (begin(&disk), series(1, RANKS), Known::new());
    let blocks = || look_at_simulated(&disk).unwrap().blocks;
    for now in 0..FILE_MINUTES {
        minute(&store, now, &all, &mut known);
    }
    assert!(merged_files(&disk).is_empty(), "it is not finished");
    assert_eq!(blocks(), u64::from(RANKS) * FILE_MINUTES);
    minute(&store, FILE_MINUTES, &all, &mut known);
    while store.turn() {}
    assert_eq!(merged_files(&disk), [1]);
    assert_eq!(blocks(), u64::from(RANKS) * (FILE_MINUTES / BUCKET_MINUTES + 1));
    check(&store, &known, "merged");
    drop(store);
    assert_eq!(check_simulated(&disk), []);
    check(&begin(&disk), &known, "opened again");
}

/// Attempts are forgotten at any time, and the store is killed at any call of the disk.
#[test]
fn what_is_merged_is_what_was_there() {
    let mut merged = BTreeSet::new();
    for seed in 0..SEEDS {
        let mut rng = Rng::with_seed(seed);
        let disk = SimulatedDisk::new(seed);
        at(0);
        let (mut store, mut known) = (begin(&disk), Known::new());
        let mut serials = vec![1, 2, 3];
        for now in 0..rng.u64(FILE_MINUTES..4 * FILE_MINUTES) {
            let all: Vec<SeriesKey> =
                serials.iter().flat_map(|serial| series(*serial, rng.u32(0..4))).collect();
            minute(&store, now, &all, &mut known);
            match rng.u32(0..40) {
                0 if serials.len() > 1 => {
                    let serial = serials.swap_remove(rng.usize(..serials.len()));
                    store.forget_steps(serial);
                    known.retain(|key, _| key.serial != serial);
                    store.turn();
                }
                1..6 => {
                    disk.crash_after(Some(rng.u64(0..30)), rng.bool());
                    store.turn();
                    drop(store);
                    disk.crash_after(None, false);
                    disk.power_loss();
                    store = begin(&disk);
                    check(&store, &known, &format!("seed {seed}, minute {now}"));
                }
                _ => {}
            }
            merged.extend(merged_files(&disk).into_iter().map(|number| (seed, number)));
        }
        check(&store, &known, &format!("seed {seed}"));
        let found = check_simulated(&disk);
        assert_eq!(found, [], "seed {seed}");
    }
    assert!(merged.len() as u64 > SEEDS, "{} files", merged.len());
}

/// A backup holds a merging up: what is forgotten meanwhile is not in the new file.
#[test]
fn what_is_forgotten_during_a_merging_stays_so() {
    let disk = SimulatedDisk::new(1);
    at(0);
    let (store, mut known) = (begin(&disk), Known::new());
    let (kept, gone) = (series(1, 3), series(2, 3));
    let both: Vec<SeriesKey> = kept.iter().chain(&gone).copied().collect();
    for now in 0..FILE_MINUTES {
        minute(&store, now, &both, &mut known);
    }
    let (sender, point) = channel();
    store.point(Box::new(move |taken| sender.send(taken.unwrap()).unwrap())).unwrap();
    store.turn();
    let point = answer(&point);
    minute(&store, FILE_MINUTES, &kept, &mut known);
    store.forget_steps(2);
    while store.turn() {}
    known.retain(|key, _| key.serial != 2);
    assert!(merged_files(&disk).is_empty(), "a file of the backup went");
    drop(point);
    minute(&store, FILE_MINUTES + 1, &kept, &mut known);
    while store.turn() {}
    assert_eq!(merged_files(&disk), [1]);
    check(&store, &known, "merged");
    for key in gone {
        assert_eq!(store.series(key).unwrap(), []);
    }
}

/// Where a power loss takes the index, it is made of the files: what was forgotten stays so.
#[test]
fn nothing_forgotten_comes_back_with_a_new_index() {
    let mut losses = 0;
    for seed in 0..10 {
        let disk = SimulatedDisk::new(seed);
        at(0);
        let (store, mut known) = (begin(&disk), Known::new());
        let (kept, gone) = (series(1, 3), series(2, 3));
        let both: Vec<SeriesKey> = kept.iter().chain(&gone).copied().collect();
        for now in 0..FILE_MINUTES / 2 {
            minute(&store, now, &both, &mut known);
        }
        store.forget_steps(2);
        store.turn();
        known.retain(|key, _| key.serial != 2);
        for now in FILE_MINUTES / 2..=FILE_MINUTES {
            minute(&store, now, &kept, &mut known);
        }
        while store.turn() {}
        assert_eq!(merged_files(&disk), [1]);
        drop(store);
        disk.power_loss();
        let store = begin(&disk);
        losses += disk.counts().index_losses;
        check(&store, &known, &format!("seed {seed}"));
        for key in gone {
            assert_eq!(store.series(key).unwrap(), [], "seed {seed}");
        }
    }
    assert!(losses > 0, "nothing was tried");
}

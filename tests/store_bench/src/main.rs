//! Step records of a training cluster, kept by Memtape, by a plain sled with a key for each
//! record, and by redb: the same rows, in the same order, durable after every group.
//!
//! With `history FOLDER RANKS STEPS` it writes the store of one job instead.
//!
//! Prints one JSON object of figures. Each store is a folder of its own on the same disk; its
//! bytes are those that the file system has given it.

mod history;
mod rows;
mod stores;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Map, Value, json};

use rows::{GROUP_STEPS, RANKS, STEP_NS, group, wall_ns};
use stores::{Memtape, Peer, Redb, Sled};

/// Rows that are written, unless the first argument says otherwise.
const RECORDS: u64 = 2_000_000;

/// A question: the steps of one rank of ten minutes.
const WINDOW_STEPS: u64 = 600;

/// Questions asked; the median counts.
const WINDOWS: u64 = 401;

/// Times a store is opened; the median counts.
const REOPENINGS: usize = 5;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, folder, ranks, steps] = arguments.as_slice()
        && command == "history"
    {
        return history::write(Path::new(folder), ranks.parse()?, steps.parse()?);
    }
    let records = match std::env::args().nth(1) {
        Some(text) => text.parse().context("the first argument is a number of records")?,
        None => RECORDS,
    };
    let steps = (records / u64::from(RANKS)).max(2 * WINDOW_STEPS) / GROUP_STEPS * GROUP_STEPS;
    // Beside the build, so that it is no file system in memory.
    let place = tempfile::tempdir_in("target").context("run it in the repository")?;
    let mut figures = Map::new();
    figures.insert("records".to_string(), json!(steps * u64::from(RANKS)));
    figures.insert("series".to_string(), json!(RANKS));
    let checked = measure::<Memtape>("memtape", place.path(), steps, &mut figures)?;
    ensure!(measure::<Sled>("sled", place.path(), steps, &mut figures)? == checked);
    ensure!(measure::<Redb>("redb", place.path(), steps, &mut figures)? == checked);
    println!("{}", json!({ "figures": figures }));
    Ok(())
}

/// Writes, closes, opens and asks; answers a sum over all that was asked for, the same for all.
fn measure<P: Peer>(
    name: &str,
    place: &Path,
    steps: u64,
    figures: &mut Map<String, Value>,
) -> anyhow::Result<u64> {
    let folder = place.join(name);
    std::fs::create_dir(&folder)?;
    let mut put = |key: &str, value: f64| {
        figures.entry(key).or_insert_with(|| json!({}))[name] =
            json!((value * 1000.0).round() / 1000.0);
    };
    let store = P::open(&folder, wall_ns(0))?;
    let mut took = Duration::ZERO;
    for first in (1..=steps).step_by(GROUP_STEPS as usize) {
        // Made outside of the measured time.
        let rows = group(first);
        let begun = Instant::now();
        store.write(wall_ns(first + GROUP_STEPS), rows)?;
        took += begun.elapsed();
    }
    let begun = Instant::now();
    store.flush()?;
    drop(store);
    took += begun.elapsed();
    let records = (steps * u64::from(RANKS)) as f64;
    put("records_per_s", (records / took.as_secs_f64()).round());
    put("bytes_per_record", bytes(&folder)? as f64 / records);
    let mut times = Vec::new();
    for _ in 0..REOPENINGS {
        let begun = Instant::now();
        drop(P::open(&folder, wall_ns(steps + 1))?);
        times.push(begun.elapsed());
    }
    put("reopen_ms", median(times).as_secs_f64() * 1e3);
    let store = P::open(&folder, wall_ns(steps + 1))?;
    let (mut times, mut sum) = (Vec::new(), 0_u64);
    for number in 0..WINDOWS {
        let rank = (number * 7919 % u64::from(RANKS)) as u32;
        let first = 1 + number * 104_729 % (steps - WINDOW_STEPS);
        let begun = Instant::now();
        let rows = store.window(rank, first, first + WINDOW_STEPS)?;
        times.push(begun.elapsed());
        ensure!(rows.len() as u64 == WINDOW_STEPS, "{name}: {} rows", rows.len());
        sum = rows.iter().flatten().fold(sum, |sum, &number| sum.wrapping_mul(31) ^ number);
    }
    put("window_us", median(times).as_secs_f64() * 1e6);
    let begun = Instant::now();
    let read = store.all()?;
    put("all_records_per_s", (read as f64 / begun.elapsed().as_secs_f64()).round());
    ensure!(read as f64 == records, "{name}: {read} of {records} rows");
    Ok(sum)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// What the file system has given to the files in a folder.
fn bytes(folder: &Path) -> anyhow::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        sum += if metadata.is_dir() { bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(sum)
}

/// The times at which a range of steps begins and ends.
fn times(first: u64, end: u64) -> (i64, i64) {
    (wall_ns(first) - STEP_NS / 2, wall_ns(end) - STEP_NS / 2)
}

//! A process that writes to a store is killed at any moment, again and again, and another looks:
//! what was acknowledged to it is there. `MEMTAPE_STORE_KILLS` says how often, and
//! `MEMTAPE_STORE_SEED` when.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;

use crate::encoding::Changes;
use crate::records::{SeriesKey, snapshot_of};
use crate::recovery::check::check;
use crate::tests::fixtures::{at_once, flush, incident, number, part, reopen, row, when_closed};
use crate::writer::shared::Done;
use fastrand::Rng;

const KILLS: u64 = 24;
const KEYS: u64 = 40;
const SERIES: u64 = 4;

/// The name of the test, as its own binary knows it.
const TEST: &str = "tests::kill::what_was_acknowledged_survives_kills";

/// Where the child process writes, from which step on, and which of the processes it is.
const FOLDER: &str = "MEMTAPE_STORE_CHILD";
const BEGIN: &str = "MEMTAPE_STORE_CHILD_BEGIN";
const CHILD: &str = "MEMTAPE_STORE_CHILD_NUMBER";

/// What was acknowledged to the killed processes.
#[derive(Debug, Default)]
struct Acknowledged {
    /// Newest version of each record, and of the references to snapshots.
    records: BTreeMap<u64, u64>,
    snapshots: BTreeMap<u64, u64>,
    /// By series; steps are taken in order, without gaps.
    steps: BTreeMap<u64, u64>,
    count: u64,
}

fn series(number: u64) -> SeriesKey {
    SeriesKey { serial: 1, rank: number as u32, device: 0 }
}

fn snapshot(version: u64) -> Bytes {
    Bytes::from(version.to_le_bytes().repeat(40 + version as usize % 4000))
}

/// The process that is killed: this test, run again with [`FOLDER`] set.
fn write_until_killed(folder: &Path) -> ! {
    let (store, _) = reopen(folder);
    let mut step = number(BEGIN).unwrap();
    // A record can be durable whose step is not: the next process comes to that step again.
    let versions = number(CHILD).unwrap() << 32;
    let mut rng = Rng::with_seed(step);
    let said = |line: String| -> Done {
        Box::new(move |result| {
            result.unwrap();
            // One write, so that no line is torn.
            std::io::stdout().lock().write_all(format!("@{line}\n").as_bytes()).unwrap();
        })
    };
    loop {
        step += 1;
        let (version, key) = (versions + step, rng.usize(..KEYS as usize) as u64);
        match rng.usize(..8) {
            0 => {
                let snapshot = snapshot(version);
                let hash = blake3::hash(&snapshot);
                at_once(store.blobs().put(hash, snapshot)).unwrap();
                let changes = Changes::of(&part(key, version, hash));
                store.write(changes, said(format!("b {key} {version}")));
            }
            1 => store.flush(Box::new(|result| result.unwrap())),
            _ => {
                let mut record = incident(&format!("inc-{key}"), &"x".repeat(step as usize % 900));
                record.growth.last_step = version;
                store.write(Changes::of(&record), said(format!("r {key} {version}")));
            }
        }
        let batch = (0..SERIES).map(|number| ((series(number), (1, 1)), vec![row(step)])).collect();
        store.steps(batch, said(format!("s 0 {step}")));
        std::thread::sleep(Duration::from_micros(rng.usize(..3000) as u64));
    }
}

impl Acknowledged {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [kind, key, version] = words.as_slice() else { panic!("{line:?}") };
        let (key, version): (u64, u64) = (key.parse().unwrap(), version.parse().unwrap());
        let into = match *kind {
            "r" => &mut self.records,
            "b" => &mut self.snapshots,
            _ => &mut self.steps,
        };
        // The same thread tells of all, in order, but newest is newest.
        let newest = into.entry(key).or_insert(0);
        *newest = version.max(*newest);
        self.count += 1;
    }

    /// Everything is there, as new as it was acknowledged or newer. Answers the newest number.
    fn check(&self, folder: &Path) -> u64 {
        let (store, loaded) = reopen(folder);
        assert_eq!(loaded.unreadable, 0);
        for (key, version) in &self.records {
            let id = format!("inc-{key}");
            let found = loaded.incidents.iter().find(|incident| incident.id == id);
            assert!(found.unwrap().growth.last_step >= *version, "{id} is older than {version}");
        }
        for (key, version) in &self.snapshots {
            let part = loaded.parts.iter().find(|part| u64::from(part.rank) == *key).unwrap();
            assert!(part.bytes >= *version, "part {key} is older than {version}");
            let found = at_once(store.blobs().get(snapshot_of(part).unwrap())).unwrap();
            assert_eq!(found, snapshot(part.bytes));
        }
        let newest = self.steps.get(&0).copied().unwrap_or(0);
        let mut last = newest;
        for number in 0..SERIES {
            let rows = store.series(series(number)).unwrap();
            assert!(rows.iter().all(|found| *found == row(found.last_step)));
            let steps: Vec<u64> = rows.iter().map(|row| row.last_step).collect();
            let acknowledged = steps.iter().filter(|step| **step <= newest).count();
            assert_eq!(acknowledged as u64, newest, "steps of series {number}");
            last = steps.last().copied().unwrap_or(0).max(last);
        }
        flush(&store);
        let is_closed = store.closed();
        while !is_closed() {
            std::thread::sleep(Duration::from_millis(1));
        }
        last
    }
}

#[test]
fn what_was_acknowledged_survives_kills() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        write_until_killed(Path::new(&folder));
    }
    let kills = number("MEMTAPE_STORE_KILLS").unwrap_or(KILLS);
    let seed = number("MEMTAPE_STORE_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("MEMTAPE_STORE_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let mut acknowledged = Acknowledged::default();
    let (mut begin, mut findings) = (0, 0);
    for child_number in 0..kills {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(FOLDER, &folder)
            .env(BEGIN, begin.to_string())
            .env(CHILD, child_number.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, heard) = channel();
        let reader = std::thread::spawn(move || {
            // Ends with the child.
            for line in lines.map_while(Result::ok).filter(|line| line.starts_with('@')) {
                let _ = sender.send(line[1..].to_string());
            }
        });
        // From the first word on: before it there is nothing to lose.
        let first = heard.recv_timeout(Duration::from_secs(60)).unwrap();
        std::thread::sleep(Duration::from_micros(rng.usize(..120_000) as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        reader.join().unwrap();
        std::iter::once(first).chain(heard.try_iter()).for_each(|line| acknowledged.note(&line));
        // Read without the help of a start everything is whole, but for the index.
        let found = when_closed(|| check(&folder)).unwrap().findings;
        findings += u64::from(!found.is_empty());
        begin = acknowledged.check(&folder);
        // From here on all that was found counts as acknowledged.
        acknowledged.steps.insert(0, begin);
        assert_eq!(when_closed(|| check(&folder)).unwrap().findings, [], "seed {seed}");
    }
    let count = acknowledged.count;
    println!("{kills} kills, {count} acknowledgements, none lost; check found {findings} behind");
    assert!(count > kills, "hardly anything was acknowledged");
}

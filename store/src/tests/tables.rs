//! The tables of a store, read again.

#[path = "../../../tape/tests/golden_files/mod.rs"]
mod golden_files;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use memtape_core::detector::{Growth, Layer};
use memtape_core::diagnosis::{Class, Diagnosis, diagnose};
use memtape_core::identity::end::End;
use memtape_core::incident::{Failure, FailureKind};
use memtape_core::placement::JobsShard;
use memtape_core::snapshot::{Frame, RankSnapshot};
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::record::Field;
use tempfile::tempdir;

use crate::error::Error;
use crate::handle::Store;
use crate::records::{AttemptRecord, IncidentRecord, RankRecord, SeriesKey, Totals};
use crate::tables::{TableRows, Tables, tables_page};
use crate::tests::fixtures::{
    SERIES, answer, close, error_line, flush, incident, reopen, row, steps, write,
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/tables.md");

/// More rows than a group has, and more records than are read at once.
const STEPS: u64 = 70_000;

const ALONE: JobsShard = JobsShard { shard: 0, shards: 1 };

/// Writes the tables of a store without shards.
fn export(store: &Store, aside: &Path, folder: &Path) -> TableRows {
    let mut tables = Tables::in_folder(aside).unwrap();
    tables.add(store, ALONE, u64::MAX, &mut || Ok(())).unwrap();
    tables.end_in(aside, folder).unwrap()
}

#[test]
fn the_page_has_the_columns_of_every_table() {
    golden_files::check(Path::new(PAGE), &tables_page(), "cargo xtask docs --reference");
}

/// The rows of a table: name of the column, value.
fn read(folder: &Path, table: &str) -> Vec<BTreeMap<String, Field>> {
    rows(File::open(folder.join(table).with_extension("parquet")).unwrap())
}

/// The same, of a file.
pub(super) fn rows(file: impl ChunkReader + 'static) -> Vec<BTreeMap<String, Field>> {
    let reader = SerializedFileReader::new(file).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
    let columns = |(name, field): (&String, &Field)| (name.clone(), field.clone());
    rows.map(|row| row.get_column_iter().map(columns).collect()).collect()
}

fn text(text: &str) -> Field {
    Field::Str(text.to_string())
}

#[test]
fn every_record_is_a_row() {
    let (data, folder, aside) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let (store, _) = reopen(data.path());
    let leak = Diagnosis {
        class: Class::Leak,
        culprit: Some(Frame { file: "train.py".into(), line: 36, function: "step".into() }),
        ..diagnose(&Growth::default(), &RankSnapshot::default(), &[])
    };
    write(&store, |changes| {
        changes.put(&AttemptRecord {
            serial: 1,
            job: "llm".into(),
            started_wall_ns: -1_500,
            ..AttemptRecord::default()
        });
        changes.put(&RankRecord {
            serial: SERIES.serial,
            rank: SERIES.rank,
            end: Some(End::Killed),
            end_wall_ns: 2_000_000,
            exit_status: Some(-9),
            devices: vec![Totals { device_bytes: u64::MAX >> 1, ..Totals::default() }],
            device_uuids: vec!["GPU-1".into()],
            ..RankRecord::default()
        });
        let of = incident("inc-1", "llm");
        changes.put(&IncidentRecord { diagnosis: Some(Box::new(leak)), ..of.clone() });
        changes.put(&IncidentRecord { id: "inc-2".into(), ..of });
    });
    steps(&store, 1..STEPS + 1);
    close(store);
    let (store, _) = reopen(data.path());
    // As an agent does that got no answer.
    steps(&store, STEPS / 2..STEPS + 1);
    let rows = export(&store, aside.path(), folder.path());
    let (attempts, ranks, devices, incidents) = (1, 1, 1, 2);
    let expected =
        TableRows { attempts, ranks, devices, steps: STEPS, incidents, ..TableRows::default() };
    assert_eq!(rows, expected);

    let [attempt] = &read(folder.path(), "attempts")[..] else { panic!("one attempt") };
    assert_eq!((&attempt["job"], &attempt["attempt_serial"]), (&text("llm"), &Field::ULong(1)));
    let (started, ended) = (&attempt["started"], &attempt["ended"]);
    assert_eq!((started, ended), (&Field::TimestampMicros(-2), &Field::Null));
    let [rank] = &read(folder.path(), "ranks")[..] else { panic!("one rank") };
    assert_eq!((&rank["end"], &rank["exit_status"]), (&text("killed"), &Field::Long(-9)));
    assert_eq!((&rank["ended"], &rank["node"]), (&Field::TimestampMicros(2_000), &Field::Null));
    let [device] = &read(folder.path(), "devices")[..] else { panic!("one device") };
    assert_eq!(device["size_bytes"], Field::ULong(u64::MAX >> 1));
    assert_eq!(device["uuid"], text("GPU-1"));
    let incidents = read(folder.path(), "incidents");
    assert_eq!(
        (&incidents[0]["file"], &incidents[0]["line"]),
        (&text("train.py"), &Field::ULong(36))
    );
    assert_eq!((&incidents[0]["class"], &incidents[1]["line"]), (&text("leak"), &Field::Null));
    assert!(read(folder.path(), "actions").is_empty());
    // What is newest comes first.
    let steps = read(folder.path(), "steps");
    let numbers = steps.iter().map(|row| row["last_step"].clone());
    let half = STEPS / 2;
    assert!(numbers.eq((half..=STEPS).chain(1..half).map(Field::ULong)));
}

#[test]
fn exports_at_once_replace_whole_tables() {
    let (data, folder) = (tempdir().unwrap(), tempdir().unwrap());
    let (store, _) = reopen(data.path());
    attempt(&store, 1, "llm");
    steps_of(&store, 1, 0..3);
    let aside = [tempdir().unwrap(), tempdir().unwrap()];
    export(&store, aside[0].path(), folder.path());
    std::thread::scope(|scope| {
        for aside in &aside {
            scope.spawn(|| export(&store, aside.path(), folder.path()));
        }
    });
    assert_eq!(read(folder.path(), "steps").len(), 3);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6);
    assert_eq!(std::fs::read_dir(aside[0].path()).unwrap().count(), 0);
}

/// So are the fields that a failure or a condition does not have.
#[test]
fn what_is_not_known_is_null() {
    let (data, folder, aside) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let (store, _) = reopen(data.path());
    let (rank, device, step, wall_ns, ranks, exit_status) = (2, 0, 50, 1, 8, None);
    let kind = FailureKind::OutOfMemory;
    let failure = Some(Failure { rank, device, step, wall_ns, ranks, kind, exit_status });
    let standstill = Growth { layer: Layer::Progress, grown_bytes: 7, ..Growth::default() };
    write(&store, |changes| {
        changes.put(&AttemptRecord { serial: 1, ..AttemptRecord::default() });
        changes.put(&RankRecord { serial: 1, ..RankRecord::default() });
        changes.put(&incident("inc-0", "llm"));
        changes.put(&IncidentRecord { failure, ..incident("inc-1", "llm") });
        changes.put(&IncidentRecord { growth: standstill, ..incident("inc-2", "llm") });
    });
    export(&store, aside.path(), folder.path());
    let check = |table: &str, row: usize, names: &[&str]| {
        let row = &read(folder.path(), table)[row];
        names.iter().for_each(|name| assert_eq!(row[*name], Field::Null, "{table}: {name}"));
    };
    check("attempts", 0, &["ranks", "started"]);
    check("ranks", 0, &["started"]);
    let figures = ["bytes_per_step", "grown_bytes"];
    check("incidents", 1, &figures);
    check("incidents", 1, &["layer", "scope", "onset_step", "opened"]);
    check("incidents", 2, &figures);
    check("incidents", 2, &["device"]);
    let incidents = read(folder.path(), "incidents");
    assert_eq!(incidents[0]["grown_bytes"], Field::ULong(0));
    assert_eq!(incidents[2]["layer"], text("progress"));
}

/// Writes an attempt with one rank of this serial, and an incident about it.
fn attempt(store: &Store, serial: u32, job: &str) {
    write(store, |changes| {
        let devices = vec![Totals::default()];
        changes.put(&AttemptRecord { serial, job: job.into(), ..AttemptRecord::default() });
        changes.put(&RankRecord { serial, devices, ..RankRecord::default() });
        changes.put(&IncidentRecord { serial, ..incident(&format!("inc-{job}"), job) });
    });
}

/// Writes steps of such an attempt.
fn steps_of(store: &Store, serial: u32, steps: std::ops::Range<u64>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let series = SeriesKey { serial, rank: 0, device: 0 };
    let batch = vec![((series, (1, 1)), steps.map(row).collect())];
    store.steps(batch, Box::new(move |result| sender.send(result).unwrap()));
    answer(&receiver).unwrap();
}

#[test]
fn attempts_of_two_shards_are_told_apart() {
    let (folder, aside) = (tempdir().unwrap(), tempdir().unwrap());
    let mut tables = Tables::in_folder(aside.path()).unwrap();
    for (shard, job) in [(0, "alpha"), (1, "beta")] {
        let data = tempdir().unwrap();
        let (store, _) = reopen(data.path());
        for serial in [1, 2] {
            attempt(&store, serial, &format!("{job}-{serial}"));
        }
        steps_of(&store, 2, 0..3);
        tables.add(&store, JobsShard { shard, shards: 2 }, u64::MAX, &mut || Ok(())).unwrap();
        close(store);
    }
    tables.end_in(aside.path(), folder.path()).unwrap();
    for table in ["attempts", "incidents"] {
        let jobs = read(folder.path(), table).into_iter();
        let mut jobs: Vec<_> =
            jobs.map(|row| (row["attempt_serial"].to_string(), row["job"].to_string())).collect();
        jobs.sort();
        let expected = [("2", "alpha-1"), ("3", "beta-1"), ("4", "alpha-2"), ("5", "beta-2")];
        let expected = expected.map(|(serial, job)| (serial.into(), format!("\"{job}\"")));
        assert_eq!(jobs, expected, "{table}");
    }
    for (table, serials) in [("ranks", "2435"), ("devices", "2435"), ("steps", "444555")] {
        let rows = read(folder.path(), table).into_iter();
        let found: String = rows.map(|row| row["attempt_serial"].to_string()).collect();
        assert_eq!(found, serials, "{table}");
    }
}

/// A series may have thousands of blocks: a coordinator that has to end does not wait for them.
#[test]
fn tables_end_within_a_series() {
    let (data, aside) = (tempdir().unwrap(), tempdir().unwrap());
    let (store, _) = reopen(data.path());
    attempt(&store, 1, "job");
    for step in 0..20 {
        steps_of(&store, 1, step..step + 1);
        flush(&store);
    }
    let mut pauses = 0;
    let mut tables = Tables::in_folder(aside.path()).unwrap();
    let stopped = tables.add(&store, ALONE, u64::MAX, &mut || {
        pauses += 1;
        if pauses < 10 { Ok(()) } else { Err(Error::io("it has to end")) }
    });
    assert_eq!((error_line(stopped).as_str(), pauses), ("it has to end", 10));
}

#[test]
fn a_full_table_leaves_out_the_steps_of_the_oldest_attempts() {
    let (data, folder, aside) = (tempdir().unwrap(), tempdir().unwrap(), tempdir().unwrap());
    let (store, _) = reopen(data.path());
    for serial in [1, 2, 3] {
        attempt(&store, serial, &format!("job-{serial}"));
        // One group is written when it is full.
        steps_of(&store, serial, 0..STEPS);
    }
    let mut tables = Tables::in_folder(aside.path()).unwrap();
    tables.add(&store, ALONE, 1000, &mut || Ok(())).unwrap();
    let rows = tables.end_in(aside.path(), folder.path()).unwrap();
    assert_eq!((rows.attempts, rows.steps, rows.series_left_out), (3, STEPS, 2));
    assert!(
        read(folder.path(), "steps").iter().all(|row| row["attempt_serial"] == Field::ULong(3))
    );
}

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
use memtape_core::snapshot::{Frame, RankSnapshot};
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use tempfile::tempdir;

use crate::records::{AttemptRecord, IncidentRecord, RankRecord, Totals};
use crate::tables::{TableRows, tables_page, write_tables};
use crate::tests::fixtures::{SERIES, close, incident, reopen, steps, write};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/tables.md");

/// More rows than a group has.
const STEPS: u64 = 70_000;

#[test]
fn the_page_has_the_columns_of_every_table() {
    golden_files::check(Path::new(PAGE), &tables_page(), "cargo xtask docs --reference");
}

/// The rows of a table: name of the column, value.
fn read(folder: &Path, table: &str) -> Vec<BTreeMap<String, Field>> {
    let file = File::open(folder.join(table).with_extension("parquet")).unwrap();
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
    let (store, loaded) = reopen(data.path());
    let export = |aside: &Path| write_tables(&store, &loaded, aside, folder.path()).unwrap();
    let rows = export(aside.path());
    let expected =
        TableRows { attempts: 1, ranks: 1, devices: 1, steps: STEPS, incidents: 2, actions: 0 };
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
    let steps = read(folder.path(), "steps");
    let numbers = steps.iter().map(|row| row["last_step"].clone());
    assert!(numbers.eq((1..=STEPS).map(Field::ULong)));
    // Later exports take the place of the first, also two at once, and nothing is left beside it.
    let other = tempdir().unwrap();
    std::thread::scope(|scope| {
        for aside in [&aside, &other] {
            scope.spawn(|| export(aside.path()));
        }
    });
    assert_eq!(read(folder.path(), "steps"), steps);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 6);
    assert_eq!(std::fs::read_dir(aside.path()).unwrap().count(), 0);
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
    close(store);
    let (store, loaded) = reopen(data.path());
    write_tables(&store, &loaded, aside.path(), folder.path()).unwrap();
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

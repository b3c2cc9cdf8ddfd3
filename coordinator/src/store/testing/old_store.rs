//! A store that commit b715533 wrote (format 2) opens with everything that was in it. How it was
//! made is in `tests/data/b715533/README.md`.

use std::path::{Path, PathBuf};

use memtape_core::detector::Growth;
use memtape_core::incident::Page;

use crate::records::{ActionRecord, CaptureRecord, IncidentRecord, SeriesKey, StepRecord};
use crate::store::handle::Store;
use crate::store::records::encoding::{Changes, Loaded};
use crate::store::records::migration::FORMAT;
use crate::store::recovery::check::check;
use crate::store::recovery::opening::Recovery;
use crate::store::testing::fixtures::{at_once, close, flush, recover, reopen, when_closed, write};

/// Largest file of the test data.
const FILE_BYTES_MAX: usize = 1 << 20;

/// Decompresses a folder of the test data.
fn unpack(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            unpack(&entry, &to.join(entry.file_name().unwrap()));
        } else {
            let bytes = zstd::bulk::decompress(&std::fs::read(&entry).unwrap(), FILE_BYTES_MAX);
            std::fs::write(to.join(entry.file_stem().unwrap()), bytes.unwrap()).unwrap();
        }
    }
}

fn old_store() -> (tempfile::TempDir, PathBuf) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/b715533/store");
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    unpack(&data, &folder);
    (dir, folder)
}

fn incident(record: &IncidentRecord) -> String {
    let (IncidentRecord { id, job, .. }, Growth { rank, scope, layer, .. }) =
        (record, record.growth);
    let (scope, layer, class) = (scope.as_str(), layer.as_str(), record.class().as_str());
    let closed_why = record.closed.map(|closed| closed.reason.to_string()).unwrap_or_default();
    let culprit = record.diagnosis.as_ref().and_then(|known| known.culprit.as_ref());
    let culprit = culprit.map(|frame| format!("{}:{}", frame.file, frame.line));
    let [culprit, capture] = [culprit, record.capture_id.clone()].map(Option::unwrap_or_default);
    let state = if record.is_open() { "open" } else { "closed" };
    format!("{id} {job} {rank} {scope} {layer} {class} {state} {capture} {culprit} {closed_why}")
}

fn capture(record: &CaptureRecord) -> String {
    let CaptureRecord { id, job, reason, step, complete, .. } = record;
    let (reason, state) = (reason.as_str(), if record.is_closed() { "closed" } else { "open" });
    format!("{id} {job} {reason} {step} {state} {complete}")
}

fn action(record: &ActionRecord) -> String {
    let ActionRecord { id, incident_id, kind, decision, dry_run, lifecycle, .. } = record;
    let outcome = &lifecycle.outcome;
    format!("{id} {incident_id} {kind} {decision} {dry_run} {outcome}")
}

const INCIDENTS: [&str; 4] = [
    "inc-0v6r7hf over 1 one_rank allocated leak closed cap-0v6r7hg /app/train.py:36 \
     the attempt is over",
    "inc-0v6r7hx ended 0 one_rank allocated leak closed cap-0v6r7hy /app/train.py:36 \
     the growth ended at step 163",
    "inc-0v6r7ja open 1 one_rank allocated leak open cap-0v6r7jb /app/train.py:36 ",
    "inc-0v6r7jm unknown 0 one_rank allocated unknown open cap-0v6r7wn  ",
];

const CAPTURES: [&str; 8] = [
    "cap-0k3f9a2-0123456789-alone over death 3 closed false",
    "cap-0v6r7hg over growth 152 closed true",
    "cap-0v6r7hy ended growth 152 closed true",
    "cap-0v6r7jb open growth 152 closed true",
    "cap-0v6r7jn unknown growth 152 closed false",
    "cap-0v6r7wn unknown growth 152 closed false",
    "cap-0v6r80f open baseline 301 closed false",
    "cap-0v6r8sd open restart 571 open false",
];

const ACTIONS: [&str; 8] = [
    "act-0v6r7hh inc-0v6r7hf command would restart true not run: dry run",
    "act-0v6r7hz inc-0v6r7hx command would restart true not run: dry run",
    "act-0v6r7jc inc-0v6r7ja command restart false done",
    "act-0v6r7k9 inc-0v6r7ja command nothing false ",
    "act-0v6r7w1 inc-0v6r7jm command nothing false ",
    "act-0v6r83x inc-0v6r7ja command restart false done",
    "act-0v6r89k inc-0v6r7ja command nothing false ",
    "act-0v6r8se inc-0v6r7ja command restart false waiting for capture cap-0v6r8sd",
];

/// Every record is there, and says what it said.
fn check_records(loaded: &Loaded) {
    assert_eq!(loaded.unreadable, 0);
    assert_eq!(loaded.incidents.iter().map(incident).collect::<Vec<_>>(), INCIDENTS);
    assert_eq!(loaded.captures.iter().map(capture).collect::<Vec<_>>(), CAPTURES);
    assert_eq!(loaded.actions.iter().map(action).collect::<Vec<_>>(), ACTIONS);
    let attempts = loaded.attempts.iter().map(|attempt| attempt.job.as_str());
    assert_eq!(attempts.collect::<Vec<_>>(), ["over", "ended", "open", "unknown"]);
    assert_eq!((loaded.ranks.len(), loaded.parts.len()), (8, 15));
    let open = loaded.incidents.iter().find(|incident| incident.job == "open").unwrap();
    let known = open.diagnosis.as_ref().unwrap();
    assert_eq!((known.evidence.len(), known.suspects.len(), known.stack.len()), (5, 1, 2));
    // Besides the other classes the list holds the class itself.
    assert_eq!((known.histogram.buckets.len(), known.alternatives.len()), (26, 1 + 3));
    assert_eq!((&open.page, known.restart.answer.helps()), (&Page::Paged, Some(true)));
}

/// Every step and every snapshot is there.
fn check_steps_and_snapshots(store: &Store, loaded: &Loaded) {
    let open = loaded.attempts.iter().find(|attempt| attempt.job == "open").unwrap();
    for (rank, leaked_bytes) in [(0, 0), (1, 2 << 20)] {
        let key = SeriesKey { serial: open.serial, rank, device: 0 };
        let rows = store.series(key).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.last_step).collect::<Vec<_>>(),
            (1..=572).collect::<Vec<_>>()
        );
        let floor = |step: u64| (512 << 20) + step.saturating_sub(100) * leaked_bytes;
        let is_right = |row: &StepRecord| row.floor_allocated == floor(row.last_step);
        assert!(rows.iter().all(is_right), "rank {rank}");
    }
    let hashes: Vec<_> = loaded.parts.iter().filter_map(|part| part.hash()).collect();
    assert_eq!(hashes.len(), 7);
    for hash in hashes {
        assert!(!at_once(store.blobs().get(hash)).unwrap().is_empty());
    }
}

#[test]
fn everything_in_a_store_of_b715533_is_read() {
    let (_dir, folder) = old_store();
    assert_eq!(check(&folder).unwrap().findings, []);
    let (store, loaded, recovery) = recover(&folder);
    assert_eq!(recovery, Recovery { migrated: Some(2), ..Recovery::default() });
    check_records(&loaded);
    check_steps_and_snapshots(&store, &loaded);
    // Half of the records are written again, with today's version.
    let rewrite = |changes: &mut Changes| {
        loaded.incidents.iter().step_by(2).for_each(|record| changes.put(record));
        loaded.captures.iter().step_by(2).for_each(|record| changes.put(record));
        loaded.actions.iter().step_by(2).for_each(|record| changes.put(record));
    };
    write(&store, rewrite);
    flush(&store);
    close(store);
    let format = std::fs::read_to_string(folder.join("FORMAT")).unwrap();
    assert!(format.starts_with(&format!("{{\"version\":{FORMAT},")), "{format}");
    assert!(format.contains("29026712b083890a0c82fb6d4048a6a2"), "the store's id stays: {format}");
    assert_eq!(when_closed(|| check(&folder)).unwrap().findings, []);
    let (store, loaded) = reopen(&folder);
    check_records(&loaded);
    check_steps_and_snapshots(&store, &loaded);
    close(store);
}

//! The store as a whole: what was written is there after any end and any damage.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use memtape_core::census::{Census, LineCensus, LineId};
use memtape_core::limits::{CENSUSES_RECORDED_BYTES_MAX, CHANGES_QUEUED_MAX, STEPS_WAITING_MAX};
use memtape_core::snapshot::Held;
use memtape_disk::clock::{self, Now};
use memtape_simulated_disk::SimulatedDisk;

use crate::encoding::Changes;
use crate::error::{Kind, Result};
use crate::handle::{Store, Unready};
use crate::last_errors::Written;
use crate::records::{PartRecord, RankRecord};
use crate::recovery::opening::Recovery;
use crate::steps::packer::StepLimits;
use crate::tests::fixtures::{
    SERIES, answer, at_once, change, close, copy, error_line, flush, incident, read_steps, recover,
    reopen, row, steps, write,
};

/// Fills a store, copies its folder while it is open (as a SIGKILL leaves it),
/// damages the copy, opens it, and tells what is there.
fn check(damage: fn(&Path), expected_steps: std::ops::Range<u64>) -> Recovery {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, _) = Store::open(&dir.path().join("live")).unwrap();
    for number in 0..50 {
        write(&store, |changes| changes.put(&incident(&format!("inc-{number}"), "first")));
    }
    write(&store, |changes| {
        changes.put(&incident("inc-7", "second"));
        changes.delete(&incident("inc-8", ""));
        changes.put(&PartRecord { capture: "cap-1".into(), rank: 2, ..Default::default() });
    });
    steps(&store, 0..1000);
    flush(&store);
    steps(&store, 1000..1500);
    let copied = dir.path().join("copied");
    copy(&dir.path().join("live"), &copied);
    damage(&copied);
    for _ in 0..2 {
        let (store, loaded) = reopen(&copied);
        assert_eq!((loaded.incidents.len(), loaded.parts.len(), loaded.unreadable), (49, 1, 0));
        let seventh = loaded.incidents.iter().find(|incident| incident.id == "inc-7").unwrap();
        assert_eq!(seventh.job, "second");
        assert_eq!(read_steps(&store), expected_steps.clone().collect::<Vec<_>>());
        // It can be written, too.
        write(&store, |changes| changes.put(&incident("inc-7", "second")));
    }
    copy(&dir.path().join("live"), &dir.path().join("again"));
    damage(&dir.path().join("again"));
    recover(&dir.path().join("again")).2
}

#[test]
fn a_folder_is_proved_without_its_writer() {
    let store = Store::open_in_turns(&SimulatedDisk::new(1).process()).unwrap().0;
    // The writer has no turn.
    assert!(store.prove_at_once().unwrap().is_ok());
}

#[test]
fn a_killed_store_has_everything() {
    let recovery = check(|_| {}, 0..1500);
    assert_eq!(recovery, Recovery::default());
}

#[test]
fn the_censuses_of_a_rank_are_short_when_they_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, _) = Store::open(dir.path()).unwrap();
    let cohorts = (0..512).map(|step| (step, Held { bytes: step, count: 1 })).collect();
    let line = LineCensus { cohorts, ..LineCensus::default() };
    let lines = (1..=32).map(|id| (LineId(id), line.clone())).collect();
    let census = Census { step: 1000, lines, ..Census::default() };
    let short = Census { lines: [(LineId(1), line)].into(), ..census.clone() };
    for (rank, censuses) in [(0, vec![census.clone(); 4]), (1, vec![short.clone()])] {
        write(&store, |changes| {
            changes.put(&RankRecord { rank, censuses, ..RankRecord::default() });
        });
    }
    close(store);
    let (_, loaded) = reopen(dir.path());
    let [long, other] = &loaded.ranks[..] else { panic!("{:?}", loaded.ranks) };
    let bytes: usize = long.censuses.iter().map(Census::bytes).sum();
    assert!((1024..CENSUSES_RECORDED_BYTES_MAX + 1024).contains(&bytes), "{bytes}");
    let held = |of: &Census| {
        let of_lines = of.lines.values().map(LineCensus::held);
        of_lines.fold(of.other_lines, Held::plus)
    };
    assert!(long.censuses.iter().all(|of| held(of) == held(&census)), "lines are added up");
    assert_eq!(other.censuses, [short]);
}

#[test]
fn a_removed_catalogue_comes_back_from_the_journal() {
    let removed = |folder: &Path| std::fs::remove_dir_all(folder.join("catalogue")).unwrap();
    assert!(check(removed, 0..1500).caught_up > 0);
}

#[test]
fn flipped_bytes_anywhere_in_the_catalogue_lose_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    let (store, _, _) = Store::open(&live).unwrap();
    for number in 0..20 {
        write(&store, |changes| changes.put(&incident(&format!("inc-{number}"), "kept")));
    }
    flush(&store);
    let length = std::fs::metadata(live.join("catalogue/db")).unwrap().len();
    for (number, at) in (0..length).step_by((length / 16).max(1) as usize).enumerate() {
        let copied = dir.path().join(number.to_string());
        copy(&live, &copied);
        change(&copied.join("catalogue/db"), |bytes| {
            let end = bytes.len().min(at as usize + 64);
            bytes[at as usize..end].iter_mut().for_each(|byte| *byte ^= 0xff);
        });
        let (store, loaded) = reopen(&copied);
        assert_eq!(loaded.incidents.len(), 20, "flipped at {at} of {length}");
        close(store);
        std::fs::remove_dir_all(&copied).unwrap();
    }
}

#[test]
fn steps_are_forgotten_and_expire() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, _) = Store::open(dir.path()).unwrap();
    steps(&store, 0..1200);
    flush(&store);
    steps(&store, 1200..1300);
    assert_eq!(read_steps(&store).len(), 1300);
    store.forget_steps(SERIES.serial + 1);
    flush(&store);
    assert_eq!(read_steps(&store).len(), 1300);
    store.forget_steps(SERIES.serial);
    flush(&store);
    assert_eq!(read_steps(&store), Vec::<u64>::new());
    steps(&store, 0..10);
    flush(&store);
    let limit = |age_ns_max| store.limit_steps(StepLimits { age_ns_max, ..Default::default() });
    limit(3_600_000_000_000);
    flush(&store);
    assert_eq!(read_steps(&store).len(), 10);
    // Whatever is not from the future.
    limit(-3_600_000_000_000);
    flush(&store);
    assert_eq!(read_steps(&store), Vec::<u64>::new());
}

#[test]
fn a_full_disk_is_reported_and_vital_changes_wait() {
    clock::set(Now { mono_ns: 1 << 60, wall_ns: 1 << 60 });
    let disk = SimulatedDisk::new(1);
    let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
    disk.set_room(Some(disk.used_bytes()));
    let (sender, receiver) = channel();
    let kept = sender.clone();
    let changes = Changes::of(&incident("inc-1", "kept"));
    store.write(changes, Box::new(move |result| kept.send(("kept", result)).unwrap()));
    for _ in 0..3 {
        let changes = Changes::of(&incident("inc-2", "awaited"));
        let sender = sender.clone();
        store.try_write(changes, Box::new(move |result| sender.send(("awaited", result)).unwrap()));
        store.turn();
        let (who, result) = receiver.try_recv().unwrap();
        assert_eq!((who, result.unwrap_err().kind), ("awaited", Kind::Full));
    }
    assert_eq!(store.health().waiting.load(Ordering::Relaxed), 1);
    assert!(matches!(store.unready(), Some(Unready::Failing(of)) if of[0].0 == Written::Records));
    assert_eq!(store.health().given_up.load(Ordering::Relaxed), 0);
    assert!(store.health().failures.load(Ordering::Relaxed) >= 3);
    // Steps can be read; their acknowledgement waits for the disk, and for the record before them.
    let batch = vec![((SERIES, (1, 1)), (0..10).map(row).collect())];
    store.steps(batch, Box::new(move |result| sender.send(("steps", result)).unwrap()));
    store.turn();
    assert_eq!(read_steps(&store).len(), 10);
    assert!(matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
    disk.set_room(None);
    clock::set(Now { mono_ns: 1 << 61, wall_ns: 1 << 60 });
    while store.turn() {}
    let answered: Vec<_> = receiver.try_iter().map(|(who, result)| (who, result.is_ok())).collect();
    assert_eq!((answered, store.unready()), (vec![("kept", true), ("steps", true)], None));
}

/// A sync takes tens of milliseconds in a bucket, and a job that begins sends both for each rank.
#[test]
fn records_and_steps_that_wait_together_have_one_sync_each() {
    clock::set(Now { mono_ns: 1 << 60, wall_ns: 1 << 60 });
    let disk = SimulatedDisk::new(1);
    let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
    store.turn();
    let before = disk.counts().syncs;
    let (sender, receiver) = channel();
    for number in 0..50 {
        let (recorded, stepped) = (sender.clone(), sender.clone());
        let record = incident(&format!("inc-{number}"), "one of many");
        store.write(Changes::of(&record), Box::new(move |result| recorded.send(result).unwrap()));
        let batch = vec![((SERIES, (1, 1)), vec![row(number)])];
        store.steps(batch, Box::new(move |result| stepped.send(result).unwrap()));
    }
    store.turn();
    let answered: Vec<_> = receiver.try_iter().collect();
    assert_eq!((answered.len(), answered.iter().all(Result::is_ok)), (100, true));
    assert_eq!(disk.counts().syncs - before, 2);
}

#[test]
fn a_store_belongs_to_one_coordinator() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, _, _) = Store::open(dir.path()).unwrap();
    let line = error_line(Store::open(dir.path()));
    assert!(line.contains("in use by another coordinator") && !line.contains('\n'), "{line}");
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let line = error_line(Store::open(&file));
    assert!(line.contains("is a file: name a folder") && !line.contains('\n'), "{line}");
}

/// No record changes: steps, or a snapshot, that cannot be written say so, and why, in one line.
#[test]
fn a_full_disk_is_not_ready_whatever_is_written() {
    let mono_ns = 1 << 60;
    clock::set(Now { mono_ns, wall_ns: 1 << 60 });
    let disk = SimulatedDisk::new(1);
    let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
    let unready = || store.unready().map(|why| why.to_string()).unwrap_or_default();
    disk.set_room(Some(disk.used_bytes()));
    store.steps(vec![((SERIES, (1, 1)), (0..10).map(row).collect())], Box::new(|_| {}));
    store.turn();
    assert!(unready().starts_with("step records cannot be written: "), "{}", unready());
    // It lasts as long as the disk is full, and no longer.
    clock::set(Now { mono_ns: mono_ns + 90_000_000_000, wall_ns: 1 << 60 });
    store.turn();
    assert!(unready().contains("cannot be written") && !unready().contains('\n'));
    disk.set_room(None);
    clock::set(Now { mono_ns: mono_ns + 200_000_000_000, wall_ns: 1 << 60 });
    store.turn();
    assert_eq!(unready(), "");
    disk.set_room(Some(disk.used_bytes()));
    let put = || {
        let snapshot = bytes::Bytes::from_static(b"a snapshot");
        at_once(store.blobs().put(blake3::hash(&snapshot), snapshot))
    };
    assert!(put().is_err() && unready().starts_with("snapshots"), "{}", unready());
    // An entry of the audit is refused, and then nothing is written.
    store.try_write(Changes::of(&incident("inc-0", "refused")), Box::new(|_| {}));
    store.turn();
    assert!(unready().starts_with("records"), "{}", unready());
    store.write(Changes::default(), Box::new(|_| {}));
    store.turn();
    assert!(unready().starts_with("records"), "{}", unready());
    disk.set_room(None);
    store.try_write(Changes::of(&incident("inc-0", "written")), Box::new(|_| {}));
    store.turn();
    assert!(put().is_ok() && unready().is_empty());
}

/// The log has a line when a kind begins to fail, and one when it works again.
#[test]
fn all_kinds_that_fail_are_named_and_each_is_logged_once() {
    let disk = SimulatedDisk::new(1);
    let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = tracing_subscriber::fmt().with_ansi(false);
    let lines = lines.with_writer(Arc::new(log.reopen().unwrap())).finish();
    let _logged = tracing::subscriber::set_default(lines);
    let write_all = |seconds: u64| {
        clock::set(Now { mono_ns: (1 << 60) + seconds * 1_000_000_000, wall_ns: 1 << 60 });
        store.try_write(Changes::of(&incident("inc-0", "refused")), Box::new(|_| {}));
        store.steps(vec![((SERIES, (1, 1)), (0..10).map(row).collect())], Box::new(|_| {}));
        let put = store.blobs().put(blake3::hash(b"a snapshot"), b"a snapshot".as_slice().into());
        drop(at_once(put));
        store.turn();
        store.unready().map(|why| why.to_string()).unwrap_or_default()
    };
    disk.set_room(Some(disk.used_bytes()));
    let unready = (0..30).fold(String::new(), |_, step| write_all(step));
    for kind in ["records and", "; step records", "; snapshots"] {
        assert!(format!("; {unready}").contains(kind), "{unready}");
    }
    assert!(unready.len() < 400 && !unready.contains('\n'), "{unready}");
    disk.set_room(None);
    assert_eq!(write_all(90), "");
    let lines = std::fs::read_to_string(log.path()).unwrap();
    let count = |text: &str| lines.lines().filter(|line| line.contains(text)).count();
    let room = format!("make room in {}", store.shared.reader.disk.folder().display());
    assert_eq!(
        (count("ERROR"), count(&room), count("written again, after ")),
        (3, 3, 3),
        "{lines}"
    );
    assert!(lines.contains("the audit can be written again, after 30 failures"), "{lines}");
}

/// Rows of a node are packed before they are too many; while the disk is full, the holder that has
/// most waits.
#[test]
fn a_flood_of_steps_has_none_of_other_holders_refused() {
    const ROWS: u64 = 8192;
    clock::set(Now { mono_ns: 1 << 60, wall_ns: 1 << 60 });
    let disk = SimulatedDisk::new(1);
    let (store, _, _) = Store::open_in_turns(&disk.process()).unwrap();
    let (sender, refused) = channel();
    let report = |holder, rows| {
        let (sender, rows) = (sender.clone(), vec![row(1); rows as usize]);
        let refuse = move |result: Result<()>| result.or_else(|_| sender.send(holder)).unwrap();
        store.steps(vec![((SERIES, holder), rows)], Box::new(refuse));
        store.turn();
    };
    let flood = || {
        for _ in 0..=STEPS_WAITING_MAX / ROWS {
            for of in [(1, 1), (1, 2), (2, 1)] {
                report(of, if of == (1, 1) { ROWS } else { 10 });
            }
        }
        refused.try_iter().collect::<Vec<_>>()
    };
    assert_eq!(flood(), []);
    disk.set_room(Some(disk.used_bytes()));
    let of_flood = flood();
    assert!(of_flood.len() > 100 && of_flood.iter().all(|of| *of == (1, 1)), "{of_flood:?}");
    let given_up = store.health().steps_given_up.load(Ordering::Relaxed);
    assert_eq!(given_up, of_flood.len() as u64 * ROWS);
    disk.set_room(None);
    clock::set(Now { mono_ns: 1 << 61, wall_ns: 1 << 60 });
    store.turn();
    assert_eq!((flood(), store.unready()), (vec![], None));
}

/// A disk that does not keep up: what comes after the changes that wait says so, and is ready again
/// when they are written.
#[test]
fn a_store_with_too_many_changes_queued_is_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _, _) = Store::open(dir.path()).unwrap();
    let (begun, writer) = channel();
    let (resume, resumed) = channel::<()>();
    let done = Box::new(move |_| {
        begun.send(()).unwrap();
        let _ = resumed.recv_timeout(Duration::from_secs(60));
    });
    store.write(Changes::of(&incident("inc-0", "train")), done);
    answer(&writer);
    assert_eq!(store.unready(), None);
    for number in 0..=CHANGES_QUEUED_MAX {
        store.write(Changes::of(&incident(&format!("inc-{number}"), "train")), Box::new(|_| {}));
    }
    assert!(
        matches!(store.unready(), Some(Unready::Behind(queued)) if queued > CHANGES_QUEUED_MAX)
    );
    resume.send(()).unwrap();
    flush(&store);
    assert_eq!(store.unready(), None);
}

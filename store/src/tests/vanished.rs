//! Files that vanish, or lose their end: the check, the next start and a running store say which,
//! and what is lost; what can be written again is.

use std::fs::{remove_dir_all, remove_file, rename};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::channel;

use crate::encoding::{Changes, Loaded};
use crate::error::{Kind, Result};
use crate::handle::{Store, Unready};
use crate::recovery::check::Finding;
use crate::recovery::opening::Recovery;
use crate::recovery::rebuild::rebuild;
use crate::tests::damage::findings;
use crate::tests::fixtures::{
    SERIES, change, copy, error_line, flush, incident, incidents, read_steps, row, steps,
};
use memtape_disk::clock::{self, Now};
use memtape_disk::{files::Disk, real::RealDisk};

const INCIDENTS: usize = 20;
const SECOND_NS: u64 = 1_000_000_000;

fn later(seconds: u64) {
    let now = clock::now();
    let mono_ns = now.mono_ns + seconds * SECOND_NS;
    clock::set(Now { mono_ns, wall_ns: now.wall_ns + (seconds * SECOND_NS) as i64 });
}

fn open(folder: &Path) -> Result<(Store, Loaded, Recovery)> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(folder));
    Store::open_in_turns(&disk)
}

/// Steps 0 to 99 are packed, 100 to 149 in the log, as after a kill.
fn make(folder: &Path) {
    clock::set(Now { mono_ns: 1 << 60, wall_ns: 1 << 60 });
    let (store, _, _) = open(folder).unwrap();
    incidents(&store, 0..INCIDENTS / 2);
    steps(&store, 0..100);
    flush(&store);
    incidents(&store, INCIDENTS / 2..INCIDENTS);
    steps(&store, 100..125);
    later(1);
    steps(&store, 125..150);
}

/// The only file of a folder that has anything in it.
fn only(folder: &Path) -> std::path::PathBuf {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files = files.filter(|path| std::fs::metadata(path).unwrap().len() > 0);
    let only = files.next().unwrap();
    assert_eq!(files.next(), None);
    only
}

fn half(path: &Path) {
    change(path, |bytes| bytes.truncate(bytes.len() / 2));
}

type Vanish = fn(&Path);

/// What vanishes, what the check says first, and which steps are there after the next start.
const VANISHED: [(&str, Vanish, &str, std::ops::Range<u64>); 5] = [
    (
        "rows gone",
        |at| remove_dir_all(at.join("rows")).unwrap(),
        "rows/000000000001.log is gone: 50 steps are lost",
        0..100,
    ),
    (
        "log cut",
        |at| change(&only(&at.join("rows")), |bytes| bytes.truncate(bytes.len() - 1)),
        "rows/000000000001.log was cut from",
        0..125,
    ),
    (
        "steps gone",
        |at| remove_file(only(&at.join("steps"))).unwrap(),
        "steps/00000000.seg is gone: 100 steps are lost",
        100..150,
    ),
    ("steps cut", |at| half(&only(&at.join("steps"))), "steps/00000000.seg was cut from", 100..150),
    (
        "inventory gone",
        |at| remove_file(at.join("inventory")).unwrap(),
        "inventory is gone",
        0..150,
    ),
];

fn line(Finding { part, what, remedy }: &Finding) -> String {
    format!("{part} {what}: {remedy}")
}

#[test]
fn every_file_that_vanished_is_named_and_what_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    assert_eq!(findings(&whole), []);
    for (name, vanish, said, left) in VANISHED {
        let folder = dir.path().join(name);
        copy(&whole, &folder);
        vanish(&folder);
        let found = findings(&folder);
        let lines: Vec<String> = found.iter().map(line).collect();
        println!("{name}: {lines:#?}");
        assert!(lines[0].starts_with(said), "{name}: {lines:?}");
        let (store, loaded, recovery) = open(&folder).unwrap();
        assert_eq!(loaded.incidents.len(), INCIDENTS, "{name}");
        assert_eq!(read_steps(&store), left.collect::<Vec<_>>(), "{name}");
        assert_eq!((recovery.losses.len(), store.losses().len()), (1, 1), "{name}");
        flush(&store);
        drop(store);
        // It is known until a person has read it.
        let found = findings(&folder);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert_eq!(rebuild(&folder).unwrap().lost.len(), 1);
        assert_eq!(findings(&folder), [], "{name}");
    }
}

#[test]
fn a_file_that_is_put_back_is_no_loss_any_more() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, folder) = (dir.path().join("whole"), dir.path().join("store"));
    make(&whole);
    copy(&whole, &folder);
    remove_dir_all(folder.join("rows")).unwrap();
    let (store, _, _) = open(&folder).unwrap();
    assert_eq!(store.losses().len(), 1);
    drop(store);
    copy(&whole.join("rows"), &folder.join("rows"));
    let (store, _, _) = open(&folder).unwrap();
    assert_eq!((read_steps(&store), store.losses().len()), ((0..150).collect(), 0));
}

#[test]
fn a_journal_that_is_gone_for_good_is_a_persons_decision() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    remove_file(dir.path().join("journal")).unwrap();
    let found = findings(dir.path());
    println!("{:#?}", found.iter().map(line).collect::<Vec<_>>());
    assert_eq!(found[0].what, "ends at change 0 of 20: 20 changes of records are lost");
    for _ in 0..2 {
        let failed = open(dir.path());
        assert!(failed.as_ref().is_err_and(|why| why.kind == Kind::Damaged));
        let line = error_line(failed);
        assert!(line.contains("20 acknowledged changes"), "{line}");
        assert!(line.contains("memtape store rebuild") && !line.contains('\n'), "{line}");
    }
    let rebuilt = rebuild(dir.path()).unwrap();
    assert_eq!((rebuilt.records, rebuilt.lost.len()), (0, 1));
    assert_eq!(findings(dir.path()), []);
    let (store, loaded, _) = open(dir.path()).unwrap();
    // The numbers of attempts that were lost are not given again: their steps are there.
    assert_eq!((loaded.incidents.len(), loaded.changes_lost), (0, 20));
    assert_eq!(read_steps(&store), (0..150).collect::<Vec<_>>());
}

#[test]
fn a_journal_that_lost_its_end_says_how_many_changes() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    half(&whole.join("journal"));
    let found = findings(&whole);
    println!("{}", line(&found[0]));
    assert!(found[0].what.ends_with("changes of records are lost"), "{found:?}");
    let (_, loaded, recovery) = open(&whole).unwrap();
    let lost = INCIDENTS - loaded.incidents.len();
    assert!(lost > 0 && recovery.losses[0].changes() == lost as u64);
    assert_eq!(loaded.changes_lost, lost as u64);
}

/// What a start found is in the previous generation of the journal, and so is what was lost of it.
#[test]
fn a_journal_that_is_gone_comes_back_as_the_last_start_found_it() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let (store, _, _) = open(dir.path()).unwrap();
    incidents(&store, INCIDENTS..INCIDENTS + 3);
    drop(store);
    remove_file(dir.path().join("journal")).unwrap();
    let found = findings(dir.path());
    assert_eq!(found[0].what, "ends at change 20 of 23: 3 changes of records are lost");
    let (_, loaded, recovery) = open(dir.path()).unwrap();
    assert_eq!((loaded.incidents.len(), recovery.losses[0].changes()), (INCIDENTS, 3));
}

/// Ways to go, and how many of two acknowledgements come in the end.
const GONE: [(Vanish, usize); 3] = [
    (|at| remove_dir_all(at).unwrap(), 0),
    (|at| rename(at, at.with_extension("moved")).unwrap(), 0),
    (
        |at| {
            remove_file(at.join("journal")).and_then(|()| remove_dir_all(at.join("rows"))).unwrap()
        },
        2,
    ),
];

#[test]
fn nothing_is_acknowledged_that_is_not_in_the_folder() {
    for (vanish, in_the_end) in GONE {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("store");
        make(&folder);
        let (store, _, _) = open(&folder).unwrap();
        vanish(&folder);
        let (sender, answers) = channel();
        let done = || {
            let sender = sender.clone();
            Box::new(move |result: Result<()>| assert!(result.is_ok() && sender.send(()).is_ok()))
        };
        store.write(Changes::of(&incident("inc-gone", "kept")), done());
        store.steps(vec![((SERIES, (1, 1)), (150..160).map(row).collect())], done());
        for expected in [0, in_the_end] {
            store.turn();
            assert_eq!(answers.try_iter().count(), expected);
            later(70);
        }
        if rename(folder.with_extension("moved"), &folder).is_err() {
            continue;
        }
        // The same folder is back: no restart is needed, and nothing is lost.
        for _ in 0..2 {
            store.turn();
            later(11);
        }
        assert_eq!((store.unready(), answers.try_iter().count()), (None, 2));
        steps(&store, 160..170);
        flush(&store);
        drop(store);
        assert_eq!(findings(&folder), []);
        let (store, loaded, _) = open(&folder).unwrap();
        assert_eq!(loaded.incidents.len(), INCIDENTS + 1);
        assert_eq!(read_steps(&store), (0..170).collect::<Vec<_>>());
    }
}

/// What is in memory is written again; what is not is lost, and said.
#[test]
fn a_running_store_notices() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let (store, _, _) = open(dir.path()).unwrap();
    steps(&store, 150..160);
    let look = || {
        later(11);
        while store.turn() {}
    };
    remove_dir_all(dir.path().join("rows")).unwrap();
    ["journal", "inventory"].iter().for_each(|of| remove_file(dir.path().join(of)).unwrap());
    incidents(&store, INCIDENTS..INCIDENTS + 1);
    look();
    let put_back = || store.health().put_back.load(Relaxed);
    assert!(put_back() >= 2 && store.losses().is_empty(), "{}", put_back());
    assert_eq!(store.unready(), None);
    // Cut in place: the catalogue has it all.
    change(&dir.path().join("journal"), |bytes| bytes.truncate(10));
    look();
    remove_file(only(&dir.path().join("steps"))).unwrap();
    let before = put_back();
    look();
    let losses = store.losses();
    println!("{} {}", losses[0].part, losses[0].what());
    assert!(losses.len() == 1 && losses[0].what().starts_with("is gone"), "{losses:?}");
    look();
    assert_eq!((put_back(), store.losses().len()), (before, 1));
    // New steps go into a file that is there.
    steps(&store, 160..170);
    flush(&store);
    drop(store);
    let (store, loaded, _) = open(dir.path()).unwrap();
    assert_eq!(loaded.incidents.len(), INCIDENTS + 1);
    assert_eq!(read_steps(&store), (160..170).collect::<Vec<_>>());
    Store::expect(dir.path()).unwrap();
    remove_dir_all(dir.path()).unwrap();
    assert_eq!(store.unready(), Some(Unready::FolderGone));
    let line = error_line(Store::expect(dir.path()));
    assert!(line.contains("restore a backup") && !line.contains('\n'), "{line}");
}

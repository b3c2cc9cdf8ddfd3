//! Damage to every part of a store: `check` says what is wrong and changes nothing, the store
//! opens by itself with all that was acknowledged, and `check` has nothing to say any more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::error::Kind;
use crate::handle::Store;
use crate::records::PartRecord;
use crate::recovery::check::{Finding, check};
use crate::recovery::format;
use crate::recovery::rebuild::rebuild;
use crate::tests::fixtures::{
    self, at_once, change, close, copy, error_line, flush, incident, incidents, read_steps, reopen,
    steps, when_closed, write,
};

const INCIDENTS: usize = 60;

fn snapshot() -> (blake3::Hash, Bytes) {
    let snapshot = Bytes::from(vec![7; 3000]);
    (blake3::hash(&snapshot), snapshot)
}

fn part() -> PartRecord {
    let (hash, snapshot) = snapshot();
    fixtures::part(2, snapshot.len() as u64, hash)
}

/// A store with something in every part, closed; and opened once more, so that sled has made its
/// snapshot.
fn make(folder: &Path) {
    let (store, _) = reopen(folder);
    incidents(&store, 0..INCIDENTS);
    let (hash, snapshot) = snapshot();
    at_once(store.blobs().put(hash, snapshot)).unwrap();
    write(&store, |changes| changes.put(&part()));
    for begin in [0, 500] {
        steps(&store, begin..begin + 500);
        flush(&store);
    }
    close(store);
    let (store, _) = reopen(folder);
    close(store);
}

/// Everything is there, and can be written.
fn look(folder: &Path, is_damaged: impl Fn(u64) -> bool) {
    let (store, loaded) = reopen(folder);
    assert_eq!((loaded.incidents.len(), loaded.unreadable), (INCIDENTS, 0));
    assert_eq!(loaded.parts, [part()]);
    let expected: Vec<u64> = (0..1000).filter(|step| !is_damaged(*step)).collect();
    assert_eq!(read_steps(&store), expected);
    write(&store, |changes| changes.put(&incident("inc-1", "kept")));
    flush(&store);
    close(store);
}

fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                let bytes = std::fs::read(&entry).unwrap();
                found.insert(entry, bytes);
            }
        }
    }
    found
}

/// The findings; nothing was changed to have them.
pub(crate) fn findings(folder: &Path) -> Vec<Finding> {
    let before = contents(folder);
    let found = when_closed(|| check(folder)).unwrap().findings;
    assert!(contents(folder) == before, "check changed something");
    for Finding { part, what, remedy } in &found {
        assert!(!format!("{part}{what}{remedy}").contains('\n'));
    }
    found
}

fn flip(path: &Path, at: usize, count: usize) {
    change(path, |bytes| bytes[at..at + count].iter_mut().for_each(|byte| *byte ^= 0x41));
}

fn named(folder: &Path, begin: &str) -> PathBuf {
    let mut found: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(begin));
    found.sort();
    found.pop().unwrap_or_else(|| panic!("no {begin} in {}", folder.display()))
}

type Damage = fn(&Path);

/// What is damaged, how, and which part a finding is about. None is about the index, which each
/// start fills again.
const DAMAGES: [(&str, Damage, &str); 14] = [
    ("log of sled cut", |at| change(&db(at), |db| db.truncate(3000)), ""),
    ("log of sled nearly gone", |at| change(&db(at), |db| db.truncate(100)), ""),
    (
        "log of sled garbage",
        |at| {
            ["db", "conf"].iter().for_each(|name| {
                change(&at.join("catalogue").join(name), |bytes| bytes.fill(0xa5));
            })
        },
        "",
    ),
    ("bytes of sled flipped", |at| flip(&db(at), 2000, 64), ""),
    ("page of sled zeroed", |at| change(&db(at), |db| db[4096..8192].fill(0)), ""),
    ("snapshot of sled flipped", |at| flip(&named(&at.join("catalogue"), "snap."), 9, 4), ""),
    (
        "snapshot of sled cut",
        |at| change(&named(&at.join("catalogue"), "snap."), |snap| snap.truncate(snap.len() / 2)),
        "",
    ),
    (
        "snapshot of sled gone",
        |at| std::fs::remove_file(named(&at.join("catalogue"), "snap.")).unwrap(),
        "",
    ),
    ("sled gone", |at| std::fs::remove_dir_all(at.join("catalogue")).unwrap(), ""),
    ("journal torn", |at| change(&at.join("journal"), |all| all.extend(b"MTJ1\x09")), "journal"),
    ("journal flipped", |at| flip(&at.join("journal"), 40, 1), "journal"),
    ("journal gone", |at| std::fs::remove_file(at.join("journal")).unwrap(), "journal"),
    ("version flipped", |at| flip(&at.join("FORMAT"), 0, 4), "FORMAT"),
    (
        "steps torn",
        |at| change(&named(&at.join("steps"), "0"), |all| all.extend(b"MTJ1\x09")),
        "steps",
    ),
];

fn db(folder: &Path) -> PathBuf {
    folder.join("catalogue/db")
}

#[test]
fn damage_is_named_and_repaired_without_a_loss() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    assert_eq!(findings(&whole), []);
    for (name, damage, part) in DAMAGES {
        let folder = dir.path().join(name);
        copy(&whole, &folder);
        damage(&folder);
        let found = findings(&folder);
        let is_named = found.iter().any(|finding| finding.part.starts_with(part));
        assert!(is_named || (part.is_empty() && found.is_empty()), "{name}: {found:?}");
        look(&folder, |_| false);
        assert_eq!(findings(&folder), [], "{name}");
    }
}

#[test]
fn the_index_is_built_again_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    flip(&db(&whole), 2000, 64);
    let rebuilt = when_closed(|| rebuild(&whole)).unwrap();
    assert_eq!((rebuilt.records, rebuilt.journal_gaps), (INCIDENTS as u64 + 1, 0));
    assert!(rebuilt.blocks > 0 && rebuilt.aside.unwrap().join("db").is_file());
    assert_eq!(findings(&whole), []);
    look(&whole, |_| false);
    let line = error_line(rebuild(dir.path()));
    assert!(line.contains("no journal") && !line.contains('\n'), "{line}");
}

#[test]
fn damage_to_a_primary_file_is_named_and_costs_only_the_damaged_records() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    // A snapshot.
    let folder = dir.path().join("snapshot");
    copy(&whole, &folder);
    let (hash, bytes) = snapshot();
    let path = folder.join(crate::blobs::local::name(hash));
    flip(&path, 5, 1);
    let found = findings(&folder);
    assert!(found.len() == 1 && found[0].what.contains("is not what its name says"), "{found:?}");
    let (store, _) = reopen(&folder);
    assert!(at_once(store.blobs().get(hash)).is_err_and(|why| why.kind == Kind::Damaged));
    at_once(store.blobs().put(hash, bytes)).unwrap();
    close(store);
    assert_eq!(findings(&folder), []);
    std::fs::remove_file(path).unwrap();
    let found = findings(&folder);
    assert!(found.len() == 1 && found[0].what.contains("is missing"), "{found:?}");
    // A block of steps.
    let folder = dir.path().join("steps");
    copy(&whole, &folder);
    flip(&named(&folder.join("steps"), "0"), 40, 1);
    let found = findings(&folder);
    assert!(found.iter().any(|finding| finding.part.starts_with("steps/")), "{found:?}");
    look(&folder, |step| step < 500);
    assert_eq!(findings(&folder), []);
}

#[test]
fn a_lost_format_file_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    std::fs::remove_file(dir.path().join("FORMAT")).unwrap();
    let found = findings(dir.path());
    assert!(found.iter().any(|finding| finding.part == "FORMAT"), "{found:?}");
    look(dir.path(), |_| false);
    assert_eq!(findings(dir.path()), []);
}

#[test]
fn a_store_of_another_version_is_left_alone() {
    for version in [format::VERSION - 1, format::VERSION + 1] {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        let other = format!("{{\"version\":{version},\"other\":1}}");
        std::fs::write(dir.path().join("FORMAT"), other).unwrap();
        let before = contents(dir.path());
        for line in [
            error_line(Store::open(dir.path())),
            error_line(check(dir.path())),
            error_line(rebuild(dir.path())),
        ] {
            assert!(line.contains(&format!("has format {version}")), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
        let mut after = contents(dir.path());
        // A process that tries writes its pid into the lock.
        after.insert(dir.path().join("lock"), before[&dir.path().join("lock")].clone());
        assert!(after == before);
    }
}

#[test]
fn a_store_in_use_is_not_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    flush(&store);
    for line in [error_line(check(dir.path())), error_line(rebuild(dir.path()))] {
        assert!(line.contains("in use") && !line.contains('\n'), "{line}");
    }
    close(store);
    assert_eq!(findings(dir.path()), []);
}

#[test]
fn a_folder_with_foreign_files_is_not_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let no_store = |folder: &Path| {
        let line = error_line(check(folder));
        assert!(line.starts_with("there is no store in") && !line.contains('\n'), "{line}");
    };
    no_store(&dir.path().join("nowhere"));
    let folder = dir.path().join("etc");
    std::fs::create_dir(&folder).unwrap();
    no_store(&folder);
    for (name, is_folder) in [("hosts", false), ("journal", true), ("catalogue", false)] {
        let path = folder.join(name);
        if is_folder {
            std::fs::create_dir(&path).unwrap()
        } else {
            std::fs::write(&path, "").unwrap()
        }
    }
    std::fs::write(folder.join(".hidden"), "").unwrap();
    no_store(&folder);
    let before = contents(&folder);
    let line = error_line(Store::open(&folder));
    assert!(
        line.contains("holds \"catalogue\"") && line.contains("name an empty folder"),
        "{line}"
    );
    assert!(!line.contains('\n'), "{line}");
    assert!(contents(&folder) == before && !folder.join("bodies").exists());
    // What file systems and shells leave there is allowed, and what a first start leaves.
    let folder = dir.path().join("mine");
    for name in ["lost+found", ".cache", "bodies"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    let (store, _) = reopen(&folder);
    close(store);
    // And beside a store there may be anything.
    std::fs::write(folder.join("hosts"), "").unwrap();
    let (store, _) = reopen(&folder);
    close(store);
    assert_eq!(findings(&folder), []);
}

//! One damaged place in the journal: the whole catalogue tells what was there, at a start and at a
//! rebuild alike, and `check` says so before.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::encoding::Loaded;
use crate::journal::file::Journal;
use crate::journal::merge::Merge;
use crate::recovery::check::{Finding, check};
use crate::recovery::rebuild::rebuild;
use crate::tests::fixtures::close;
use crate::tests::fixtures::number;
use crate::tests::fixtures::{copy, flush, incident, reopen, when_closed, write};
use fastrand::Rng;
use memtape_disk::tree::Change;
use memtape_disk::{files::Disk, real::RealDisk};

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// Histories that are damaged at random.
const ROUNDS: u64 = 150;

/// Every record of this journal is shorter than what is compressed, so that it can be found.
fn make(folder: &Path) {
    let (store, _) = reopen(folder);
    let put = |id: &str, sentence: &str| {
        write(&store, |changes| changes.put(&incident(id, sentence)));
    };
    put("inc-1", "is open");
    put("inc-2", "is to be deleted");
    put("inc-3", "stays");
    put("inc-1", "is closed");
    write(&store, |changes| changes.delete(&incident("inc-2", "")));
    put("inc-3", "still stays");
    put("inc-4", "came last");
    flush(&store);
    close(store);
}

/// Flips a byte where the journal has this text last.
fn flip(folder: &Path, text: &str) {
    let path = folder.join("journal");
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

fn sentences(loaded: &Loaded) -> Vec<(&str, &str)> {
    loaded.incidents.iter().map(|one| (one.id.as_str(), one.job.as_str())).collect()
}

const EXPECTED: [(&str, &str); 3] =
    [("inc-1", "is closed"), ("inc-3", "still stays"), ("inc-4", "came last")];

/// Where the byte is flipped.
const DAMAGES: [(&str, &str); 4] = [
    ("a newer version", "is closed"),
    ("a deletion", "inc-2"),
    ("the last record", "came last"),
    ("an older version", "is open"),
];

fn findings(folder: &Path) -> Vec<Finding> {
    when_closed(|| check(folder)).unwrap().findings
}

/// Two starts, so that what the first one wrote is read, too.
fn look(folder: &Path, name: &str) {
    for _ in 0..2 {
        let (store, loaded) = reopen(folder);
        assert_eq!(sentences(&loaded), EXPECTED, "{name}");
        close(store);
        assert_eq!(findings(folder), [], "{name}");
    }
}

/// Shows a store with a damaged journal for each place; afterwards all of it is there.
fn check_each_damage(mend: impl Fn(&str, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    make(&whole);
    for (name, text) in DAMAGES {
        let folder = dir.path().join(name);
        copy(&whole, &folder);
        flip(&folder, text);
        mend(name, &folder);
        look(&folder, name);
    }
}

#[test]
fn the_catalogue_has_what_the_journal_lost() {
    check_each_damage(|name, folder| {
        let found = findings(folder);
        assert!(found.iter().any(|finding| finding.part == "journal"), "{name}: {found:?}");
        for Finding { part, what, remedy } in &found {
            assert!(remedy.starts_with("start the coordinator"), "{name}: {part} {what}: {remedy}");
        }
    });
}

#[test]
fn a_rebuild_keeps_what_only_the_catalogue_has() {
    check_each_damage(|name, folder| {
        let mended = when_closed(|| rebuild(folder)).unwrap().journal_mended;
        let expected = match name {
            "an older version" => &[][..],
            "a newer version" => &["incident inc-1"],
            "a deletion" => &["incident inc-2"],
            _ => &["incident inc-4"],
        };
        assert_eq!(mended, expected, "{name}");
    });
}

/// A journal that is whole is right, whatever the catalogue says.
#[test]
fn a_whole_journal_wins() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let older = dir.path().join("older");
    copy(&dir.path().join("catalogue"), &older);
    let (store, _) = reopen(dir.path());
    write(&store, |changes| changes.put(&incident("inc-1", "is open again")));
    write(&store, |changes| changes.put(&incident("inc-2", "is back")));
    close(store);
    std::fs::remove_dir_all(dir.path().join("catalogue")).unwrap();
    std::fs::rename(older, dir.path().join("catalogue")).unwrap();
    let (store, loaded) = reopen(dir.path());
    let expected = [("inc-1", "is open again"), ("inc-2", "is back")];
    assert_eq!(sentences(&loaded)[..2], expected);
    close(store);
}

/// Any damage to a journal of any history, and a catalogue that stopped anywhere: what the merge
/// makes of them is the truth, unless a change is lost that the catalogue has not heard of; and
/// then the journal says nothing older than it would alone.
#[test]
fn a_merge_of_any_history_is_the_truth() {
    let seed = number("MEMTAPE_STORE_SEED").unwrap_or(1);
    println!("MEMTAPE_STORE_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let (mut damaged, mut mended) = (0, 0);
    for round in 0..ROUNDS {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()));
        let (mut journal, _) = Journal::open(&disk, "journal").unwrap();
        // Journals begin with any number.
        journal.rewrite(rng.usize(..3) as u64 * 100, std::iter::empty()).unwrap();
        let begin = journal.sequence();
        let mut states = vec![Records::new()];
        let mut ends = vec![0];
        for version in 0..1 + rng.usize(..12) {
            let key = vec![b'i', b'0' + rng.usize(..4) as u8];
            let value = (rng.usize(..3) > 0).then(|| version.to_string().into_bytes());
            let mut state = states.last().unwrap().clone();
            match &value {
                Some(value) => drop(state.insert(key.clone(), value.clone())),
                None => drop(state.remove(&key)),
            }
            states.push(state);
            journal.append([Change { key, value }].iter()).unwrap();
            ends.push(journal.len_bytes() as usize);
        }
        let mut bytes = std::fs::read(dir.path().join("journal")).unwrap();
        let mut lost = Vec::new();
        for _ in 0..rng.usize(..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = !bytes[at];
            lost.push(ends.iter().filter(|end| **end <= at).count());
        }
        std::fs::write(dir.path().join("journal"), bytes).unwrap();
        let (_, contents) = Journal::open(&disk, "journal").unwrap();
        let arrived = rng.usize(..states.len());
        let mut merged = contents.live.clone();
        let number = begin + arrived as u64;
        let mut merge = Merge::compare(&contents, states[arrived].clone(), number);
        damaged += u64::from(!lost.is_empty());
        mended += u64::from(merge.overrules());
        merge.mend(&mut merged);
        let (truth, round) = (states.last().unwrap(), format!("round {round}: {lost:?} {arrived}"));
        // A byte that is flipped twice is none.
        if lost.iter().all(|lost| *lost <= arrived) {
            assert_eq!(merged, *truth, "{round}");
        }
        for (key, value) in &contents.live {
            let Some(merged) = merged.get(key) else { continue };
            let version = |value: &[u8]| String::from_utf8_lossy(value).parse::<u32>().unwrap();
            assert!(version(merged) >= version(value), "{round}");
        }
    }
    assert!(damaged > ROUNDS / 2 && mended > ROUNDS / 20, "{damaged} damaged, {mended} mended");
}

//! A store on a real file system of a few megabytes that is full. Such a file system needs a mount
//! namespace of one's own; where that cannot be had, the test says so.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::encoding::Changes;
use crate::error::{Error, Kind, Result};
use crate::handle::{Store, Unready};
use crate::last_errors::Written;
use crate::recovery::check::check;
use crate::tests::fixtures::{
    answer, close, error_line, flush, incident, read_steps, reopen, steps, write,
};

/// Size of the file system, of a file that is deleted to make room again, and of one that is
/// deleted before the last start, which writes all records again.
const DISK: &str = "28m";
const FILLER_BYTES: usize = 3 << 20;
const RESERVE_BYTES: usize = 16 << 20;

/// The file system's folder, and what the child process does there; set for child processes only.
const FOLDER: &str = "MEMTAPE_STORE_FULL";
const PART: &str = "MEMTAPE_STORE_FULL_PART";

/// The name of the test, as its own binary knows it.
const TEST: &str = "tests::full_disk::a_real_full_disk_loses_nothing";

/// File for the next process: how many records were written.
const WRITTEN: &str = "written";

/// A record that does not compress.
fn large(number: usize) -> crate::records::IncidentRecord {
    let noise: Vec<String> = (0..400)
        .map(|line| blake3::hash(format!("{number} {line}").as_bytes()).to_string())
        .collect();
    incident(&format!("inc-{number}"), &noise.concat())
}

fn try_write(store: &Store, number: usize) -> Result<()> {
    let (sender, receiver) = channel();
    store.try_write(
        Changes::of(&large(number)),
        Box::new(move |result| sender.send(result).unwrap()),
    );
    answer(&receiver)
}

/// Fills the disk while the store writes, then makes room.
fn fill(folder: &Path) {
    let filler = folder.join("filler");
    std::fs::write(&filler, vec![1; FILLER_BYTES]).unwrap();
    std::fs::write(folder.join("reserve"), vec![1; RESERVE_BYTES]).unwrap();
    let folder = folder.join("store");
    let (store, _) = reopen(&folder);
    let mut written = 0;
    let why: Error = loop {
        match try_write(&store, written) {
            Ok(()) => written += 1,
            Err(why) => break why,
        }
    };
    assert!(why.kind == Kind::Full && written > 0, "{written}: {why:?}");
    // What must not be lost waits; what a caller waits for is refused.
    let (sender, kept) = channel();
    store.write(Changes::of(&large(100_000)), Box::new(move |result| sender.send(result).unwrap()));
    assert!(try_write(&store, 100_001).is_err());
    assert_eq!(store.health().waiting.load(Ordering::Relaxed), 1);
    assert!(kept.try_recv().is_err());
    assert!(matches!(store.unready(), Some(Unready::Failing(of)) if of[0].0 == Written::Records));
    // With room again all goes on by itself.
    std::fs::remove_file(filler).unwrap();
    kept.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    steps(&store, 0..50);
    // sled refuses everything after such an error, until it is opened again: the index may be
    // behind, and steps are read without it.
    flush(&store);
    assert_eq!(read_steps(&store).len(), 50);
    write(&store, |changes| changes.put(&incident("inc-last", "written")));
    assert_eq!(store.unready(), None);
    close(store);
    // After such an error sled may not give its files back before the process ends.
    std::fs::write(folder.with_file_name(WRITTEN), written.to_string()).unwrap();
}

/// A store that is opened on the full disk is refused, and nothing is renamed.
fn refuse(folder: &Path) {
    let filler = folder.join("filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
    let folder = folder.join("store");
    let names = || {
        let names = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<BTreeSet<_>>()
    };
    let before = names();
    let line = error_line(Store::open(&folder));
    assert!(line.contains("is full: make room, then start again"), "{line}");
    assert!(line.contains(&folder.display().to_string()) && !line.contains('\n'), "{line}");
    // A catalogue that is put aside for damaged would be one that is lost.
    assert_eq!(names(), before);
    println!("{line}");
    std::fs::remove_file(filler).unwrap();
}

/// The store opens with all that was acknowledged.
fn open_again(folder: &Path) {
    std::fs::remove_file(folder.join("reserve")).unwrap();
    let written: usize = std::fs::read_to_string(folder.join(WRITTEN)).unwrap().parse().unwrap();
    let folder = folder.join("store");
    let (store, loaded) = reopen(&folder);
    // The one that was refused may not have been counted as written.
    assert_eq!(loaded.incidents.len(), written + 2);
    assert!((0..written).chain([100_000]).all(|number| {
        let record = large(number);
        loaded.incidents.contains(&record)
    }));
    assert_eq!(read_steps(&store).len(), 50);
    flush(&store);
    close(store);
    assert_eq!(check(&folder).unwrap().findings, []);
    println!("full after {written} records");
}

#[test]
fn a_real_full_disk_loses_nothing() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return match std::env::var(PART).as_deref() {
            Ok("fill") => fill(Path::new(&folder)),
            Ok("refuse") => refuse(Path::new(&folder)),
            Ok("open_again") => open_again(Path::new(&folder)),
            other => panic!("{PART} is {other:?}"),
        };
    }
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "mount -t tmpfs -o size={DISK} memtape \"$0\" || exit 42; \
         for part in fill refuse open_again; do \
         {PART}=$part timeout 120 \"$@\" --exact {TEST} --nocapture --test-threads=1 || exit 1; \
         done"
    );
    let run = |namespaces: &[&str]| {
        Command::new("unshare")
            .args(namespaces)
            .args(["sh", "-c", &script])
            .arg(dir.path())
            .arg(std::env::current_exe().unwrap())
            .env(FOLDER, dir.path())
            .output()
    };
    let can = |namespaces: &[&str]| {
        let mount = ["sh", "-c", "mount -t tmpfs -o size=1m memtape \"$0\""];
        let mut tried = Command::new("unshare");
        let tried = tried.args(namespaces).args(mount).arg(dir.path()).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let Some(way) = ways.into_iter().find(|way| can(way)) else {
        println!("NOT TRIED: no file system can be mounted here");
        return;
    };
    let output = run(way).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("full after"), "{said}\n{complained}");
    assert!(is_empty(dir.path()), "the file system was another's");
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

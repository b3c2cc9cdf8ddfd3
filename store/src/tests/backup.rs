//! Backups of a store in use, and what is made of them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, mpsc::channel};
use std::time::Instant;

use bytes::Bytes;

use crate::backup::make::{WithSnapshots, backup_folder};
use crate::backup::restore::{Tokens, check_backup, restore_backup};
use crate::error::{Kind, Result};
use crate::handle::Store;
use crate::records::{PartRecord, TokenRecord, snapshot_of};
use crate::recovery::check::check;
use crate::recovery::format;
use crate::recovery::rebuild::rebuild;
use crate::steps::packer::StepLimits;
use crate::tests::fixtures::{
    SERIES, at_once, close, error_line, flush, incident, read_steps, reopen, row, steps, write,
};
use crate::writer::point::Point;

/// Steps of one acknowledgement under load.
const STEPS: u64 = 50;

fn snapshot(number: u32) -> Bytes {
    Bytes::from(vec![number as u8; 30_000 + number as usize])
}

/// Stores a snapshot and the reference to it.
fn capture(store: &Store, number: u32) {
    let snapshot = snapshot(number);
    let hash = blake3::hash(&snapshot);
    at_once(store.blobs().put(hash, snapshot.clone())).unwrap();
    write(store, |changes| {
        changes.put(&PartRecord {
            capture: "cap-1".to_string(),
            rank: number,
            bytes: snapshot.len() as u64,
            hash: Some(*hash.as_bytes()),
            ..Default::default()
        });
    });
}

/// Calls again and again, and counts what was acknowledged.
fn load(
    store: &Store,
    (acknowledged, is_over): (&Arc<AtomicU64>, &Arc<AtomicBool>),
    each: u64,
    call: fn(&Store, u64),
) -> std::thread::JoinHandle<()> {
    let (store, acknowledged, is_over) = (store.clone(), acknowledged.clone(), is_over.clone());
    std::thread::spawn(move || {
        while !is_over.load(SeqCst) {
            call(&store, acknowledged.load(SeqCst));
            acknowledged.fetch_add(each, SeqCst);
        }
    })
}

fn wait_for(count: &AtomicU64, least: u64) {
    while count.load(SeqCst) < least {
        std::thread::yield_now();
    }
}

fn point(store: &Store) -> Result<Point> {
    let (sender, taken) = channel();
    store.point(Box::new(move |point| sender.send(point).unwrap()))?;
    taken.recv().unwrap()
}

fn back_up(store: &Store, point: &Point, file: &Path) {
    let mut file = std::fs::File::create(file).unwrap();
    store.back_up(point, WithSnapshots::Yes, &mut file).unwrap();
}

/// A closed store with something in every part, and its backup.
fn make(dir: &Path) -> (std::path::PathBuf, Vec<u8>) {
    let folder = dir.join("store");
    let (store, _) = reopen(&folder);
    write(&store, |changes| changes.put(&incident("inc-1", "kept")));
    capture(&store, 1);
    capture(&store, 2);
    steps(&store, 0..500);
    flush(&store);
    steps(&store, 500..510);
    let file = dir.join("a.backup");
    back_up(&store, &point(&store).unwrap(), &file);
    close(store);
    let bytes = std::fs::read(&file).unwrap();
    (file, bytes)
}

#[test]
fn a_backup_under_load_has_everything_that_was_acknowledged_before() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(&dir.path().join("store"));
    (0..40).for_each(|number| capture(&store, number));
    let (records, rows) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let threads = [
        load(&store, (&records, &is_over), 1, |store, number| {
            write(store, |changes| changes.put(&incident(&format!("inc-{number}"), "load")));
        }),
        load(&store, (&rows, &is_over), STEPS, |store, first| steps(store, first..first + STEPS)),
    ];
    wait_for(&records, 200);
    wait_for(&rows, 20 * STEPS);
    flush(&store);
    wait_for(&rows, rows.load(SeqCst) + 4 * STEPS);
    let before = (records.load(SeqCst), rows.load(SeqCst));
    let file = dir.path().join("a.backup");
    let begun = Instant::now();
    let taken = point(&store).unwrap();
    // What comes behind the point is packed, and its log goes, before a byte is read.
    wait_for(&rows, before.1 + 8 * STEPS);
    flush(&store);
    back_up(&store, &taken, &file);
    drop(taken);
    let took = begun.elapsed();
    is_over.store(true, SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let in_all = (records.load(SeqCst), rows.load(SeqCst));
    close(store);

    let restored = dir.path().join("restored");
    let contents = restore_backup(&file, &restored, Tokens::LeaveOut).unwrap().contents;
    assert_eq!((contents.snapshots, contents.missing.len()), (40, 0));
    let (store, loaded) = reopen(&restored);
    let mut found: Vec<u64> =
        loaded.incidents.iter().map(|of| of.id["inc-".len()..].parse().unwrap()).collect();
    found.sort_unstable();
    // All before the point, and of what came at the same time a beginning.
    assert!(found.len() as u64 >= before.0 && found == (0..found.len() as u64).collect::<Vec<_>>());
    let read = store.series(SERIES).unwrap();
    assert!(read.len() as u64 >= before.1);
    assert!(read.iter().zip(0..).all(|(found, step)| *found == row(step)));
    for part in &loaded.parts {
        let stored = at_once(store.blobs().get(snapshot_of(part).unwrap())).unwrap();
        assert_eq!(stored, snapshot(part.rank));
    }
    println!(
        "before the backup: {} records, {} steps, 40 snapshots; at its end: {} and {}; \
         restored: {} records, {} steps, {} snapshots; {} bytes in {took:?}",
        before.0,
        before.1,
        in_all.0,
        in_all.1,
        found.len(),
        read.len(),
        loaded.parts.len(),
        contents.bytes,
    );
    flush(&store);
    close(store);
    restored_is_another(dir.path());
}

/// The restored store is whole, and never passes for the store that it was.
fn restored_is_another(dir: &Path) {
    let restored = dir.join("restored");
    assert_eq!(check(&restored).unwrap().findings, []);
    let format = |folder: &str| {
        let disk = memtape_disk::real::RealDisk::new(&dir.join(folder));
        format::read(&disk).unwrap()
    };
    assert_ne!(format("store").id, format("restored").id);
    assert_eq!(format("restored").restored_from, Some(format("store").id));
}

#[test]
fn a_backup_that_is_cut_or_damaged_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (_, bytes) = make(dir.path());
    let (file, folder) = (dir.path().join("bad"), dir.path().join("restored"));
    let refused = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let line = error_line(restore_backup(&file, &folder, Tokens::LeaveOut));
        assert!(line.contains("nothing was changed") && !line.contains('\n'), "{line}");
        assert!(!folder.exists() && check_backup(&file).is_err());
    };
    for length in (0..bytes.len()).step_by(bytes.len() / 97).chain([bytes.len() - 1]) {
        refused(&bytes[..length]);
    }
    // Zeros may lie between two files, where they are not read.
    for at in (0..bytes.len()).step_by(bytes.len() / 97).filter(|at| bytes[*at] != 0) {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        refused(&flipped);
    }
}

#[test]
fn a_folder_that_is_not_empty_or_half_restored_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = make(dir.path());
    let folder = dir.path().join("restored");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("mine"), "").unwrap();
    let line = error_line(restore_backup(&file, &folder, Tokens::LeaveOut));
    assert!(line.contains("holds \"mine\": name an empty folder"), "{line}");
    let line = error_line(restore_backup(&file, &dir.path().join("store"), Tokens::LeaveOut));
    assert!(line.contains("name an empty folder"), "{line}");
    std::fs::remove_file(folder.join("mine")).unwrap();
    std::fs::create_dir(folder.join("lost+found")).unwrap();
    restore_backup(&file, &folder, Tokens::LeaveOut).unwrap();
    // As a restore leaves it that is killed.
    std::fs::write(folder.join(format::RESTORING), "").unwrap();
    for line in [
        error_line(Store::open(&folder)),
        error_line(check(&folder)),
        error_line(rebuild(&folder)),
        error_line(backup_folder(&folder, WithSnapshots::Yes, &mut Vec::new())),
    ] {
        assert!(line.contains("did not end") && !line.contains('\n'), "{line}");
    }
}

#[test]
fn what_a_backup_needs_stays_and_what_is_lost_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("store");
    let (store, _) = reopen(&folder);
    (1..=3).for_each(|number| capture(&store, number));
    steps(&store, 0..100);
    flush(&store);
    let taken = point(&store).unwrap();
    assert!(point(&store).is_err_and(|why| why.kind == Kind::Locked));
    // Too much, all of it; and a snapshot that no part needs any more.
    store.limit_steps(StepLimits { age_ns_max: -1, bytes_max: 0 });
    store.blobs().release(blake3::hash(&snapshot(1)));
    flush(&store);
    std::fs::remove_file(folder.join(crate::blobs::local::name(blake3::hash(&snapshot(2)))))
        .unwrap();
    let file = dir.path().join("a.backup");
    back_up(&store, &taken, &file);
    drop(taken);
    drop(point(&store).unwrap());
    close(store);
    let contents = check_backup(&file).unwrap();
    assert_eq!((contents.snapshots, contents.missing.len()), (2, 1));
    assert!(contents.missing[0].ends_with("is gone"), "{:?}", contents.missing);
    let restored = dir.path().join("restored");
    restore_backup(&file, &restored, Tokens::LeaveOut).unwrap();
    let (store, _) = reopen(&restored);
    assert_eq!(read_steps(&store), (0..100).collect::<Vec<_>>());
    close(store);
}

#[test]
fn a_token_that_was_revoked_since_is_not_valid() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(&dir.path().join("store"));
    let token = TokenRecord { id: "tok-1".to_string(), ..TokenRecord::default() };
    write(&store, |changes| changes.put(&token));
    let file = dir.path().join("a.backup");
    back_up(&store, &point(&store).unwrap(), &file);
    close(store);
    for (tokens, left, left_out) in [(Tokens::LeaveOut, 0, 1), (Tokens::Keep, 1, 0)] {
        let folder = dir.path().join(format!("restored-{left}"));
        assert_eq!(restore_backup(&file, &folder, tokens).unwrap().tokens_left_out, left_out);
        let (store, loaded) = reopen(&folder);
        assert_eq!(loaded.tokens.len(), left);
        close(store);
    }
}

#[test]
fn a_store_that_no_coordinator_has_is_backed_up_too() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    for (with, snapshots) in [(WithSnapshots::Yes, 2), (WithSnapshots::No, 0)] {
        let mut bytes = Vec::new();
        backup_folder(&dir.path().join("store"), with, &mut bytes).unwrap();
        let file = dir.path().join(format!("{snapshots}.backup"));
        std::fs::write(&file, bytes).unwrap();
        let restored = dir.path().join(format!("restored-{snapshots}"));
        let contents = restore_backup(&file, &restored, Tokens::LeaveOut).unwrap().contents;
        assert_eq!(
            (contents.snapshots, contents.header.with_snapshots),
            (snapshots, snapshots > 0)
        );
        let (store, loaded) = reopen(&restored);
        assert_eq!((loaded.incidents.len(), loaded.parts.len()), (1, 2));
        assert_eq!(read_steps(&store), (0..510).collect::<Vec<_>>());
        close(store);
    }
    let (store, _) = reopen(&dir.path().join("store"));
    let line =
        error_line(backup_folder(&dir.path().join("store"), WithSnapshots::No, &mut Vec::new()));
    assert!(line.contains("in use"), "{line}");
    close(store);
}

//! Stores of folders that are moved into a cluster, and checks of a cluster without owning it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use memtape_bucket::{Fault, Rule, Server};
use memtape_core::placement::OPENING_REQUESTS;
use memtape_disk::files::{Disk, read_all};
use memtape_disk::tree::Change;
use tokio::runtime::Runtime;

use crate::blobs::local as blobs;
use crate::bucket::Bucket;
use crate::cluster::checking::{check_in, read};
use crate::cluster::examining::examine_bucket;
use crate::cluster::identity::join;
use crate::cluster::moving::move_with;
use crate::cluster::reader::ShardReader;
use crate::cluster::shard::{Shard, ShardId};
use crate::encoding::Loaded;
use crate::error::Result;
use crate::handle::Store;
use crate::records::{TokenRecord, snapshot_of};
use crate::reports::MissingSnapshots::{self, LeaveOut, Refuse};
use crate::reports::StoreMove;
use crate::tests::fixtures::{
    change, close, error_line, flush, incident, part, read_steps, reopen, steps, write,
};

const PATIENCE: Duration = Duration::from_secs(60);
const URL: &str = "s3://bucket/team/memtape";
const SHARD: ShardId = ShardId(0);

/// A bucket, and a folder with something in every part of a store.
struct Rig {
    folder: PathBuf,
    _scratch: tempfile::TempDir,
    server: Server,
    runtime: Runtime,
}

fn snapshot(number: u8) -> Bytes {
    Bytes::from(vec![number; 300_000 + usize::from(number)])
}

/// The snapshots in the order in which they are moved.
fn by_hash() -> [u8; 3] {
    let mut numbers = [0, 1, 2];
    numbers.sort_by_key(|number| *blake3::hash(&snapshot(*number)).as_bytes());
    numbers
}

impl Rig {
    fn new() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let runtime = Runtime::new().unwrap();
        let server = runtime.block_on(Server::start());
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("store");
        let rig = Self { folder, _scratch: scratch, server, runtime };
        let (store, _) = reopen(&rig.folder);
        write(&store, |changes| {
            changes.put(&incident("inc-0", "kept"));
            changes.put(&TokenRecord { name: "ci".to_string(), ..TokenRecord::default() });
        });
        (0..3).for_each(|number| rig.capture(&store, number));
        steps(&store, 0..5_000);
        flush(&store);
        steps(&store, 5_000..5_010);
        close(store);
        rig
    }

    fn capture(&self, store: &Store, number: u8) {
        let snapshot = snapshot(number);
        let (hash, bytes) = (blake3::hash(&snapshot), snapshot.len() as u64);
        self.runtime.block_on(store.blobs().put(hash, snapshot)).unwrap();
        write(store, |changes| changes.put(&part(u64::from(number), bytes, hash)));
    }

    fn bucket(&self, client: &str) -> Bucket {
        Bucket::with_few_retries(URL, self.server.settings(client)).unwrap()
    }

    fn moved(&self) -> Result<StoreMove> {
        self.moved_to(&self.server, Refuse)
    }

    fn moved_to(&self, server: &Server, missing: MissingSnapshots) -> Result<StoreMove> {
        let to = (URL, server.settings("mover"));
        move_with(&self.folder, to, missing, self.runtime.handle())
    }

    /// Removes the file of a snapshot.
    fn lose(&self, number: u8) {
        let name = blobs::name(blake3::hash(&snapshot(number)));
        std::fs::remove_file(self.folder.join(name)).unwrap();
    }

    fn joined(&self) -> Result<()> {
        self.runtime.block_on(join(&self.bucket("coordinator"), "process", None)).map(|_| ())
    }

    /// A move that fails with all files in the shard, and all snapshots but one in the bucket.
    fn stop_at_the_last_snapshot(&self) {
        let last = by_hash()[2];
        let path: &'static str = Box::leak(Self::object(last).into_boxed_str());
        let method = Some("PUT".parse().unwrap());
        self.server.add_rule(Rule { method, path, ..Rule::of("mover", Fault::Denied) });
        self.moved().unwrap_err();
        self.server.clear_faults();
        let keys = self.server.keys();
        assert_eq!(by_hash().map(|of| keys.contains(&Self::object(of))), [true, true, false]);
    }

    /// The store of the shard, as a coordinator opens it.
    fn owned(&self) -> (Store, Loaded) {
        self.joined().unwrap();
        let bucket = self.bucket("coordinator");
        let taking = Shard::take(&bucket, SHARD, None, PATIENCE);
        let shard = self.runtime.block_on(taking).unwrap();
        let opened = Store::open_shard(shard.into(), self.runtime.handle().clone());
        let (store, loaded, recovery) = opened.unwrap();
        assert_eq!((recovery.losses.len(), recovery.journal_gaps, loaded.unreadable), (0, 0, 0));
        let url = SHARD.snapshots_url(&bucket);
        let settings = self.server.settings("coordinator");
        self.runtime.block_on(store.keep_snapshots_with(&url, settings)).unwrap();
        (store, loaded)
    }

    /// The store of the shard has what the folder had.
    fn has_everything(&self, incidents: usize) {
        let (store, loaded) = self.owned();
        let known: Vec<String> = loaded.incidents.iter().map(|of| of.id.clone()).collect();
        let expected: Vec<String> = (0..incidents).map(|number| format!("inc-{number}")).collect();
        assert_eq!((known, loaded.tokens.len(), loaded.parts.len()), (expected, 1, 3));
        assert_eq!(read_steps(&store), (0..5_010).collect::<Vec<_>>());
        for part in &loaded.parts {
            let stored = self.runtime.block_on(store.blobs().get(snapshot_of(part).unwrap()));
            assert_eq!(stored.unwrap(), snapshot(part.rank as u8));
        }
        flush(&store);
        close(store);
    }

    /// The object of a snapshot.
    fn object(number: u8) -> String {
        let hash = blake3::hash(&snapshot(number)).to_hex();
        format!("team/memtape/snapshots/0000/{}/{hash}", &hash[..2])
    }
}

/// Id of the store in a folder.
fn id(folder: &Path) -> String {
    let format = std::fs::read(folder.join("FORMAT")).unwrap();
    serde_json::from_slice::<serde_json::Value>(&format).unwrap()["id"].as_str().unwrap().into()
}

#[test]
fn a_moved_store_has_everything_and_its_folder_opens_no_more() {
    let rig = Rig::new();
    let id = id(&rig.folder);
    let moved = rig.moved().unwrap();
    // Journal, its previous generation, inventory, log, steps, format.
    assert!((moved.files, moved.snapshots) >= (5, 3) && moved.missing.is_empty(), "{moved:?}");
    assert!(moved.copied_bytes > 900_000 && moved.bytes >= moved.copied_bytes, "{moved:?}");
    let refused = error_line(Store::open(&rig.folder));
    let expected = format!("was moved to {URL}: start the coordinator with --cluster {URL}");
    assert!(refused.ends_with(&expected), "{refused}");
    rig.has_everything(1);
    let (store, _) = rig.owned();
    assert_eq!(store.id(), id, "agents do not send everything again");
    close(store);
    // A second call is harmless, and no other place gets the store.
    assert_eq!(rig.moved().unwrap(), StoreMove::default());
    let other = ("s3://bucket/other", rig.server.settings("mover"));
    let refused = error_line(move_with(&rig.folder, other, Refuse, rig.runtime.handle()));
    assert!(refused.ends_with(&format!("was moved to {URL}")), "{refused}");
    assert!(!rig.server.keys().iter().any(|key| key.starts_with("other")));
}

#[test]
fn a_move_that_was_stopped_goes_on_also_when_the_folder_changed() {
    let rig = Rig::new();
    rig.stop_at_the_last_snapshot();
    let refused = error_line(rig.joined());
    assert!(refused.contains("did not end: run memtape store move DIR"), "{refused}");
    let refused = error_line(check_in(&rig.bucket("reader"), rig.runtime.handle()));
    assert!(refused.contains("did not end"), "{refused}");
    // Its coordinator goes on meanwhile: the journal is another one.
    let (store, _) = reopen(&rig.folder);
    write(&store, |changes| changes.put(&incident("inc-1", "kept")));
    close(store);
    let moved = rig.moved().unwrap();
    assert!(moved.copied_bytes < moved.bytes, "what was there is left: {moved:?}");
    rig.has_everything(2);
}

#[test]
fn what_differs_in_the_bucket_is_copied_again_before_the_folder_is_marked() {
    let rig = Rig::new();
    rig.stop_at_the_last_snapshot();
    assert!(rig.server.damage(&Rig::object(by_hash()[0])));
    rig.moved().unwrap();
    rig.has_everything(1);
}

#[test]
fn a_prefix_that_is_in_use_gets_no_store() {
    let rig = Rig::new();
    rig.joined().unwrap();
    let keys = rig.server.keys();
    let refused = error_line(rig.moved());
    assert!(refused.ends_with("holds a cluster with a store of its own: choose an empty prefix"));
    assert_eq!(rig.server.keys(), keys);
    close(reopen(&rig.folder).0);
}

#[test]
fn a_lost_snapshot_is_named_and_the_rest_is_moved_on_demand() {
    let rig = Rig::new();
    rig.stop_at_the_last_snapshot();
    // One is lost, and one has a damaged copy alone.
    let [damaged, _, lost] = by_hash();
    assert!(rig.server.damage(&Rig::object(damaged)));
    [damaged, lost].into_iter().for_each(|number| rig.lose(number));
    let refused = error_line(rig.moved());
    assert!(refused.starts_with("of 3 snapshots in ") && refused.contains(" 2 cannot be moved ("));
    assert!(refused.contains("--without-missing") && !refused.contains('\n'), "{refused}");
    // The folder is not marked.
    close(reopen(&rig.folder).0);
    let moved = rig.moved_to(&rig.server, LeaveOut).unwrap();
    assert_eq!((moved.snapshots, moved.missing.len()), (1, 2));
    for (number, missing) in [damaged, lost].into_iter().zip(&moved.missing) {
        let name = blobs::name(blake3::hash(&snapshot(number)));
        assert_eq!(*missing, format!("{name}: the stored snapshot is gone"));
        assert!(refused.contains(missing), "{refused}");
    }
}

#[test]
fn snapshots_in_a_bucket_are_moved_from_the_prefix_of_their_store_alone() {
    let rig = Rig::new();
    let (store, _) = reopen(&rig.folder);
    let kept = store.keep_snapshots_with("s3://bucket/old", rig.server.settings("a"));
    rig.runtime.block_on(kept).unwrap();
    rig.capture(&store, 3);
    close(store);
    let elsewhere = rig.runtime.block_on(Server::start());
    let names_another = "memtape-store there is missing or names another store: check AWS_ENDPOINT";
    let refused = error_line(rig.moved_to(&elsewhere, LeaveOut));
    assert!(refused.contains(names_another) && !refused.contains('\n'), "{refused}");
    rig.server.put("old/memtape-store", "another\n");
    let refused = error_line(rig.moved());
    assert!(refused.contains(names_another), "{refused}");
    // Nothing was written, here or there.
    assert_eq!(elsewhere.keys(), Vec::<String>::new());
    assert!(!rig.server.keys().iter().any(|key| key.starts_with("team")));
    // A restored store has those of the other one.
    let path = rig.folder.join("FORMAT");
    change(&path, |text| {
        let mut format: serde_json::Value = serde_json::from_slice(text).unwrap();
        format["restored_from"] = "another".into();
        *text = format.to_string().into_bytes();
    });
    assert_eq!(rig.moved().unwrap().snapshots, 4);
}

#[test]
fn a_folder_without_its_journal_is_not_moved() {
    let rig = Rig::new();
    std::fs::remove_file(rig.folder.join("journal")).unwrap();
    assert!(!rig.folder.join("journal.previous").exists());
    let refused = error_line(rig.moved());
    assert!(refused.contains("is gone: put it back from a copy"), "{refused}");
    assert_eq!(rig.server.keys(), Vec::<String>::new());
}

#[test]
fn a_cluster_is_checked_by_a_reader_who_may_not_write_while_its_owner_works() {
    let rig = Rig::new();
    let bucket = rig.bucket("reader");
    let checked = || check_in(&bucket, rig.runtime.handle());
    assert!(error_line(checked()).contains("there is no cluster in s3://bucket/team/memtape"));
    rig.moved().unwrap();
    let (store, _) = rig.owned();
    for method in ["PUT", "POST", "DELETE"] {
        let method = Some(method.parse().unwrap());
        rig.server.add_rule(Rule { method, ..Rule::of("reader", Fault::Denied) });
    }
    for round in 1..4 {
        write(&store, |changes| changes.put(&incident(&format!("inc-{round}"), "kept")));
        let found = checked().unwrap();
        assert_eq!((&found.findings, found.snapshots), (&Vec::new(), 3));
        // Incidents, parts, a token, and the clock's record: all that was acknowledged.
        assert!(found.records >= 5 + round && found.rows >= 5_010, "{found:?}");
    }
    // Its owner has not noticed.
    write(&store, |changes| changes.put(&incident("inc-4", "kept")));
    assert_eq!(store.unready(), None);
    assert!(rig.server.damage(&Rig::object(1)));
    let found = checked().unwrap().findings;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].what, "is not what its name says");
    close(store);
}

#[test]
fn a_reader_stays_at_its_point_in_time() {
    let rig = Rig::new();
    rig.joined().unwrap();
    let row =
        |number: u32| Change { key: format!("{number:04}").into(), value: Some(vec![7; 100]) };
    rig.runtime.block_on(async {
        let owner = Shard::take(&rig.bucket("owner"), SHARD, None, PATIENCE).await.unwrap();
        for number in 0..20 {
            let reader = ShardReader::open(&rig.bucket("reader"), SHARD, PATIENCE).await.unwrap();
            for later in 0..5 {
                owner.write([row(number * 5 + later)]).await.unwrap();
                owner.settle().await.unwrap();
                let mut seen = 0;
                let visit = |_: &[u8], _: &Bytes| {
                    seen += 1;
                    std::ops::ControlFlow::Continue(())
                };
                reader.scan(b"0", b"1", visit).await.unwrap();
                assert_eq!(seen, number * 5, "after {later} more");
            }
        }
    });
}

#[test]
fn a_disk_that_is_only_read_changes_nothing() {
    let rig = Rig::new();
    rig.moved().unwrap();
    let disk = read(&rig.bucket("reader"), SHARD, rig.runtime.handle()).unwrap();
    let journal = read_all(&disk, "journal").unwrap();
    assert_eq!(journal, std::fs::read(rig.folder.join("journal")).unwrap());
    let kind = std::io::ErrorKind::ReadOnlyFilesystem;
    assert_eq!(disk.remove("journal").unwrap_err().kind(), kind);
    assert_eq!(disk.make("other").unwrap_err().kind(), kind);
    assert_eq!(disk.make("journal").unwrap().write_all_at(b"x", 0).unwrap_err().kind(), kind);
    assert_eq!(disk.rename("journal", "other").unwrap_err().kind(), kind);
    assert_eq!(disk.lock("lock").unwrap_err().kind(), kind);
    assert_eq!(read_all(&disk, "journal").unwrap(), journal);
}

#[test]
fn a_doctor_sees_the_cluster_its_owner_and_the_time_of_a_request() {
    let rig = Rig::new();
    let looked = || rig.runtime.block_on(examine_bucket(&rig.bucket("doctor")));
    let empty = looked().unwrap();
    assert!(empty.cluster.is_none() && empty.owners.is_empty() && empty.conditions.is_ok());
    assert_eq!(rig.server.keys(), Vec::<String>::new());
    rig.joined().unwrap();
    let delay = Duration::from_millis(20);
    rig.server.add_rule(Rule::of("doctor", Fault::Slow(delay)));
    let found = looked().unwrap();
    assert_eq!(found.cluster.unwrap().shards, 1);
    assert!(found.round_trip >= delay, "{:?}", found.round_trip);
    rig.server.clear_faults();
    // The time of a takeover is that of these requests in a row; others are sent beside them.
    let bucket = rig.bucket("doctor");
    let take = || rig.runtime.block_on(Shard::take(&bucket, SHARD, None, PATIENCE)).unwrap();
    drop(take());
    rig.server.add_rule(Rule::of("doctor", Fault::Slow(delay)));
    let (begun, before) = (Instant::now(), rig.server.requests());
    let shard = take();
    let (took, requests) = (begun.elapsed(), rig.server.requests() - before);
    drop(shard);
    println!("a takeover takes {requests} requests and {took:?}, with {delay:?} each");
    assert!((OPENING_REQUESTS.into()..=2 * u64::from(OPENING_REQUESTS)).contains(&requests));
    assert!(took >= delay * OPENING_REQUESTS * 2 / 3, "{took:?}");
    rig.server.clear_faults();
    rig.server.set_conditions(memtape_bucket::Conditions::Ignored);
    assert!(looked().unwrap().conditions.is_err());
}

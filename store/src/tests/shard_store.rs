//! A store on a shard: the disk that a shard is does what a folder does, and nothing acknowledged
//! is lost when another process takes the shard.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use memtape_bucket::{Fault, Rule, Server};
use memtape_core::placement::Proof;
use memtape_disk::clock;
use memtape_disk::files::{Disk, read_all};
use memtape_disk::real::RealDisk;
use object_store::RetryConfig;
use object_store::memory::InMemory;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::blobs::remote::GRACE_TIME;
use crate::bucket::Bucket;
use crate::cluster::disk::ShardDisk;
use crate::cluster::shard::{Shard, ShardId};
use crate::error::{Kind, Result};
use crate::handle::{Store, Unready};
use crate::tests::fixtures::{close, flush, incident, incidents, read_steps, steps, write};

const PATIENCE: Duration = Duration::from_secs(60);

/// A bucket in memory, and the runtime of the shards in it.
struct Cluster {
    runtime: Runtime,
    bucket: Bucket,
}

impl Cluster {
    fn new() -> Self {
        let runtime = Runtime::new().unwrap();
        let objects = Arc::new(InMemory::new());
        let bucket = Bucket::uncounted(objects, "cluster".into(), "memory");
        Self { runtime, bucket }
    }

    fn take(&self) -> Arc<Shard> {
        let taking = Shard::take(&self.bucket, ShardId(0), None, PATIENCE);
        Arc::new(self.runtime.block_on(taking).unwrap())
    }

    fn disk(&self) -> ShardDisk {
        ShardDisk::open(self.take(), self.runtime.handle().clone()).unwrap()
    }

    fn store(&self) -> (Store, Vec<String>) {
        let shard = self.take();
        let opened = Store::open_shard(shard, self.runtime.handle().clone());
        let (store, loaded, recovery) = opened.unwrap();
        assert_eq!((recovery.losses.len(), recovery.journal_gaps, loaded.unreadable), (0, 0, 0));
        (store, loaded.incidents.into_iter().map(|incident| incident.id).collect())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Make(usize),
    Write {
        name: usize,
        offset: u64,
        bytes: usize,
        fill: u8,
    },
    SetLen {
        name: usize,
        bytes: u64,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Remove(usize),
    Read {
        name: usize,
        offset: u64,
        bytes: usize,
    },
    /// The next owner opens the shard.
    Open,
}

const NAMES: [&str; 4] = ["one", "folder/two", "folder/three", "none/four"];

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (name, offset, bytes) = (0..NAMES.len(), 0..70_000_u64, 0..50_000_usize);
    let op = prop_oneof![
        2 => name.clone().prop_map(Op::Make),
        6 => (name.clone(), offset.clone(), bytes.clone(), any::<u8>()).prop_map(
            |(name, offset, bytes, fill)| Op::Write { name, offset, bytes, fill }
        ),
        2 => (name.clone(), offset.clone()).prop_map(|(name, bytes)| Op::SetLen { name, bytes }),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => name.clone().prop_map(Op::Remove),
        3 => (name, offset, bytes).prop_map(
            |(name, offset, bytes)| Op::Read { name, offset, bytes }
        ),
        1 => Just(Op::Open),
    ];
    proptest::collection::vec(op, 1..40)
}

/// Does one step; the answer of a read.
fn run(disk: &dyn Disk, op: &Op) -> io::Result<Vec<u8>> {
    match *op {
        Op::Make(name) => disk.make(NAMES[name]).map(|_| Vec::new()),
        Op::Write { name, offset, bytes, fill } => {
            disk.open(NAMES[name])?;
            let content: Vec<u8> = (0..bytes).map(|at| fill.wrapping_add(at as u8)).collect();
            disk.make(NAMES[name])?.write_all_at(&content, offset).map(|()| Vec::new())
        }
        Op::SetLen { name, bytes } => {
            disk.open(NAMES[name])?;
            disk.make(NAMES[name])?.set_len(bytes).map(|()| Vec::new())
        }
        Op::Rename { from, to } => disk.rename(NAMES[from], NAMES[to]).map(|()| Vec::new()),
        Op::Remove(name) => disk.remove(NAMES[name]).map(|()| Vec::new()),
        Op::Read { name, offset, bytes } => {
            let mut out = vec![0; bytes];
            disk.open(NAMES[name])?.read_exact_at(&mut out, offset).map(|()| out)
        }
        Op::Open => Ok(Vec::new()),
    }
}

/// All files with their contents.
fn contents(disk: &dyn Disk) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for folder in ["", "folder/"] {
        for entry in disk.list(folder.trim_end_matches('/')).unwrap() {
            let name = format!("{folder}{}", entry.name);
            let content = if entry.is_folder { Vec::new() } else { read_all(disk, &name).unwrap() };
            assert!(entry.is_folder || entry.bytes == content.len() as u64);
            all.push((name, content));
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn a_shard_is_a_disk_as_a_folder_is(ops in ops()) {
        let (cluster, dir) = (Cluster::new(), tempfile::tempdir().unwrap());
        let folder = RealDisk::new(dir.path());
        let mut shard = cluster.disk();
        for disk in [&folder as &dyn Disk, &shard] {
            disk.make_folder("folder").unwrap();
        }
        for op in &ops {
            let kind = |error: io::Error| error.kind();
            let (expected, answered) = (run(&folder, op), run(&shard, op));
            prop_assert_eq!(expected.map_err(kind), answered.map_err(kind), "{:?}", op);
            if matches!(op, Op::Open) {
                shard.sync_folder("").unwrap();
                shard = cluster.disk();
            }
        }
        prop_assert_eq!(contents(&folder), contents(&shard));
        // Of removed files, nothing is left.
        for name in NAMES {
            let _ = shard.remove(name);
        }
        shard.sync_folder("").unwrap();
        let (next, mut left) = (cluster.take(), Vec::new());
        for kinds in [b"d", b"o"] {
            let behind = [kinds[0] + 1];
            let scan = next.scan(kinds, &behind, |key, _| {
                left.push(key.to_vec());
                ControlFlow::Continue(())
            });
            cluster.runtime.block_on(scan).unwrap();
        }
        prop_assert_eq!(left, Vec::<Vec<u8>>::new());
    }
}

#[test]
fn a_shard_keeps_what_a_store_acknowledged() {
    let cluster = Cluster::new();
    for round in 0..4 {
        let (store, known) = cluster.store();
        let expected: Vec<String> = (0..round * 3).map(|number| format!("inc-{number}")).collect();
        assert_eq!(known, expected);
        let rows: Vec<u64> = (0..round * 200).map(|row| row as u64).collect();
        assert_eq!(read_steps(&store), rows);
        incidents(&store, round * 3..round * 3 + 3);
        steps(&store, round as u64 * 200..round as u64 * 200 + 200);
        // Packed, still in the log, or closed.
        match round {
            0 => flush(&store),
            1 => std::mem::forget(store),
            _ => close(store),
        }
    }
}

#[test]
fn a_store_whose_shard_was_taken_acknowledges_nothing() {
    let cluster = Cluster::new();
    let (zombie, _) = cluster.store();
    incidents(&zombie, 0..1);
    let (owner, known) = cluster.store();
    assert_eq!(known, ["inc-0"]);
    let (sender, receiver) = std::sync::mpsc::channel();
    let late = crate::encoding::Changes::of(&incident("inc-late", "kept"));
    zombie.try_write(late, Box::new(move |result| sender.send(result).unwrap()));
    let why = receiver.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(
        (why.kind, why.to_string().as_str()),
        (Kind::Locked, "another coordinator owns the shard")
    );
    assert!(zombie.unready().is_some());
    write(&owner, |changes| changes.put(&incident("inc-1", "kept")));
    drop((zombie, owner));
    assert_eq!(cluster.store().1, ["inc-0", "inc-1"]);
}

/// The proof of a store that it is still owned.
fn proof(store: &Store) -> Result<Proof> {
    let (sender, receiver) = std::sync::mpsc::channel();
    store.prove(Box::new(move |proof| sender.send(proof).unwrap()));
    receiver.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_store_whose_shard_was_taken_proves_nothing() {
    let cluster = Cluster::new();
    let (zombie, _) = cluster.store();
    assert!(zombie.prove_at_once().is_none());
    let before_ns = clock::now().mono_ns;
    let proved = proof(&zombie).unwrap();
    assert!(proved.holds(before_ns) && !proved.holds(u64::MAX));
    let (owner, _) = cluster.store();
    let why = proof(&zombie).unwrap_err();
    assert_eq!(
        (why.kind, why.to_string().as_str()),
        (Kind::Locked, "another coordinator owns the shard")
    );
    proof(&owner).unwrap();
}

/// A store of the shard, with its snapshots on this server.
fn store_with_snapshots(cluster: &Cluster, server: &Server, client: &str) -> Store {
    let (store, _) = cluster.store();
    let kept = store.keep_snapshots_with("s3://bucket/snapshots", server.settings(client));
    cluster.runtime.block_on(kept).unwrap();
    store
}

#[test]
fn requests_for_snapshots_count() {
    let cluster = Cluster::new();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = cluster.runtime.block_on(Server::start());
    let bucket = Bucket::with_few_retries("s3://bucket/c", server.settings("a")).unwrap();
    let (store, _) = cluster.store();
    let settings = server.settings("a");
    let kept = store.keep_snapshots_counted("s3://bucket/c/snapshots", settings, &bucket);
    cluster.runtime.block_on(kept).unwrap();
    let (hash, bytes) = (blake3::hash(b"snapshot"), &b"snapshot"[..]);
    cluster.runtime.block_on(store.blobs().put(hash, bytes.into())).unwrap();
    let counts = || bucket.requests().unwrap().counts();
    assert_eq!((counts().puts, counts().deletes), (2, 0), "that of the owner, and the snapshot");
    store.blobs().release(hash);
    let begun = Instant::now();
    while store.blobs().used_bytes() > 0 {
        assert!(begun.elapsed() < PATIENCE, "it was not removed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((counts().deletes, counts().all()), (1, server.requests()));
}

#[test]
fn a_removal_without_an_answer_is_sent_once_and_the_same_snapshot_waits_for_its_end() {
    let cluster = Cluster::new();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = cluster.runtime.block_on(Server::start());
    let store = store_with_snapshots(&cluster, &server, "a");
    let (hash, bytes) = (blake3::hash(b"snapshot"), &b"snapshot"[..]);
    for fault in [Fault::Silent, Fault::Unavailable] {
        cluster.runtime.block_on(store.blobs().put(hash, bytes.into())).unwrap();
        let method = Some("POST".parse().unwrap());
        server.add_rule(Rule { method, ..Rule::of("a", fault) });
        let (before, begun) = (server.requests(), Instant::now());
        store.blobs().release(hash);
        while server.requests() == before {
            assert!(begun.elapsed() < PATIENCE, "it is not removed");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(server.requests() - before, 1, "{fault:?}: no retry");
        server.clear_faults();
        // The server may carry the removal out until the grace time is over.
        cluster.runtime.block_on(store.blobs().put(hash, bytes.into())).unwrap();
        assert!(begun.elapsed() >= GRACE_TIME, "{fault:?}: {:?}", begun.elapsed());
        store.blobs().release(hash);
        while store.blobs().used_bytes() > 0 {
            assert!(begun.elapsed() < PATIENCE, "it was not removed");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(server.keys().len(), 1, "the object of the owner stays");
    }
}

#[test]
fn a_store_whose_shard_was_taken_removes_no_snapshot() {
    let cluster = Cluster::new();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = cluster.runtime.block_on(Server::start());
    let store = |client| store_with_snapshots(&cluster, &server, client);
    let zombie = store("a");
    let put = |store: &Store, bytes: &'static [u8]| {
        let hash = blake3::hash(bytes);
        cluster.runtime.block_on(store.blobs().put(hash, bytes.into())).unwrap();
        hash
    };
    let of_both = put(&zombie, b"of both");
    let owner = store("b");
    put(&owner, b"of both");
    let of_owner = put(&owner, b"of the owner");
    let keys = server.keys();
    zombie.blobs().release(of_both);
    let begin = Instant::now();
    let swept = cluster.runtime.block_on(zombie.blobs().sweep());
    assert_eq!((swept.kept, swept.removed), (1, 1));
    // A removal that is under way refuses new uses.
    let is_tried = |hash| {
        let is_free = zombie.blobs().retain(hash, 0);
        if is_free {
            zombie.blobs().release(hash);
        }
        !is_free
    };
    while !is_tried(of_both) || !is_tried(of_owner) {
        assert!(begin.elapsed() < PATIENCE, "its writer does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
    while ![of_both, of_owner].iter().all(|hash| zombie.blobs().retain(*hash, 0)) {
        assert!(begin.elapsed() < PATIENCE, "its removals do not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.keys(), keys);
    // The owner may.
    owner.blobs().release(of_both);
    while server.keys().len() == keys.len() {
        assert!(begin.elapsed() < PATIENCE, "it was not removed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// To read it again would take one request after the other, while all agents wait.
#[test]
fn a_file_of_this_process_is_removed_without_being_read() {
    let runtime = Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = runtime.block_on(Server::start());
    let bucket = Bucket::with_few_retries("s3://bucket/c", server.settings("a")).unwrap();
    let cluster = Cluster { runtime, bucket };
    let disk = cluster.disk();
    let requests_of_removal = |disk: &ShardDisk| {
        let before = server.requests();
        disk.remove("file").unwrap();
        server.requests() - before
    };
    let make = |disk: &ShardDisk| {
        let (file, mut rng) = (disk.make("file").unwrap(), fastrand::Rng::with_seed(1));
        for part in 0..24 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(1 << 20).collect();
            file.write_all_at(&bytes, part << 20).unwrap();
        }
        file.sync().unwrap();
    };
    make(&disk);
    // What an owner asks for from time to time, whatever it does.
    assert!(requests_of_removal(&disk) < 8);
    make(&disk);
    let next = cluster.disk();
    assert!(requests_of_removal(&next) > 16, "that of an earlier one is read");
}

/// What two syncs cover both must not count twice: a later sync would find nothing to do.
#[test]
fn two_syncs_at_once_leave_nothing_out() {
    let runtime = Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = runtime.block_on(Server::start());
    let bucket = |client| Bucket::with_few_retries("s3://bucket/c", server.settings(client));
    let cluster = Cluster { runtime, bucket: bucket("a").unwrap() };
    let disk = cluster.disk();
    let file = disk.make("file").unwrap();
    disk.sync_folder("").unwrap();
    file.write_all_at(b"one", 0).unwrap();
    server.add_rule(Rule::of("a", Fault::Slow(Duration::from_secs(2))));
    let before = server.requests();
    std::thread::scope(|scope| {
        let of_one = scope.spawn(|| file.sync().unwrap());
        while server.requests() == before {
            std::thread::sleep(Duration::from_millis(5));
        }
        file.write_all_at(b"two", 3).unwrap();
        let of_both = scope.spawn(|| file.sync().unwrap());
        of_one.join().unwrap();
        // As many bytes as those that both have seen.
        file.write_all_at(b"six", 6).unwrap();
        of_both.join().unwrap();
    });
    server.clear_faults();
    file.sync().unwrap();
    let next = Cluster { runtime: Runtime::new().unwrap(), bucket: bucket("b").unwrap() };
    assert_eq!(read_all(&next.disk(), "file").unwrap(), b"onetwosix");
}

#[test]
fn a_store_whose_bucket_is_away_acknowledges_nothing_and_goes_on() {
    let runtime = Runtime::new().unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = runtime.block_on(Server::start());
    let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let bucket = Bucket::new("s3://bucket/c", server.settings("a"), retry).unwrap();
    let cluster = Cluster { runtime, bucket };
    let (store, _) = cluster.store();
    incidents(&store, 0..1);
    server.add_rule(Rule::of("a", Fault::Unavailable));
    let (sender, receiver) = std::sync::mpsc::channel();
    let refused = crate::encoding::Changes::of(&incident("inc-refused", "kept"));
    store.try_write(refused, Box::new(move |result| sender.send(result).unwrap()));
    let why = receiver.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(why.to_string(), "the bucket does not answer");
    assert!(matches!(store.unready(), Some(Unready::Failing(_))));
    // What must not be lost is kept until the bucket is back.
    let (sender, receiver) = std::sync::mpsc::channel();
    let later = crate::encoding::Changes::of(&incident("inc-later", "kept"));
    store.write(later, Box::new(move |result| sender.send(result).unwrap()));
    server.clear_faults();
    receiver.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(store.unready(), None);
    close(store);
    let (_, known) = cluster.store();
    assert!(["inc-0", "inc-later"].iter().all(|id| known.iter().any(|of| of == id)), "{known:?}");
}

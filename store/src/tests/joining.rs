//! The first requests of a start: what is at the prefix, and whether a cluster may be there.

use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use memtape_bucket::{BUCKET, Conditions, Fault, Rule, Server};
use memtape_core::cluster::Identity;
use object_store::{BackoffConfig, RetryConfig};
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_uid;
use tokio::runtime::Builder;

use crate::bucket::Bucket;
use crate::cluster::identity::{join, join_expected, look, raise};
use crate::cluster::proof::prove;

/// As `Bucket::of_environment`.
fn retry() -> RetryConfig {
    let retry_timeout = Duration::from_secs(10);
    RetryConfig { max_retries: 3, retry_timeout, backoff: BackoffConfig::default() }
}

fn bucket(server: &Server, client: &str, url: &str) -> Bucket {
    let _ = rustls::crypto::ring::default_provider().install_default();
    Bucket::new(url, server.settings(client), retry()).unwrap()
}

fn prefix(prefix: &str) -> String {
    format!("s3://{BUCKET}/{prefix}")
}

/// Longest time until a bad bucket is refused, with room for a slow machine.
const REFUSED_WITHIN: Duration = Duration::from_secs(45);

/// What a case leaves in the bucket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Writes {
    /// No request writes.
    None,
    /// The objects of a proof, which are removed again.
    Proof,
}

struct Case {
    name: &'static str,
    url: String,
    prepare: fn(&Server),
    expected: &'static str,
    writes: Writes,
}

fn case(
    name: &'static str,
    url: String,
    prepare: fn(&Server),
    expected: &'static str,
    writes: Writes,
) -> Case {
    Case { name, url, prepare, expected, writes }
}

fn cluster(server: &Server, key: &str, format: u32, version: &str, shards: u16) {
    let (version, id, moving) = (version.to_string(), "1".to_string(), None);
    let identity = Identity { format, version, id, shards, moving };
    server.put(key, serde_json::to_vec(&identity).unwrap());
}

/// The identity of the cluster that most cases are about.
const OWN: &str = "team/memtape/memtape-cluster";

fn own() -> String {
    prefix("team/memtape")
}

/// Prefixes that hold something else, or another version.
fn prefixes() -> Vec<Case> {
    vec![
        case(
            "another product's objects",
            own(),
            |server| server.put("team/memtape/backups/2026.tar", "theirs"),
            "s3://bucket/team/memtape holds team/memtape/backups/2026.tar, and no cluster: choose",
            Writes::None,
        ),
        case(
            "the snapshots of a coordinator",
            own(),
            |server| server.put("team/memtape/memtape-store", "id"),
            "s3://bucket/team/memtape holds team/memtape/memtape-store, and no cluster: choose",
            Writes::None,
        ),
        case(
            "a cluster below the prefix",
            prefix("team"),
            |server| cluster(server, OWN, 1, "0.2.0", 1),
            "s3://bucket/team holds team/memtape/memtape-cluster, and no cluster: choose an empty",
            Writes::None,
        ),
        case(
            "a prefix inside a cluster",
            prefix("team/memtape/more/inside"),
            |server| cluster(server, OWN, 1, "0.2.0", 1),
            "lies inside the cluster s3://bucket/team/memtape: choose a prefix outside of it",
            Writes::None,
        ),
        case(
            "a newer format",
            own(),
            |server| server.put(OWN, r#"{"format":2,"of another kind":true}"#),
            "s3://bucket/team/memtape has format 2, and this memtape knows format 1: use the",
            Writes::None,
        ),
        case(
            "a version that is too new",
            own(),
            |server| cluster(server, OWN, 1, "0.99.0", 1),
            "s3://bucket/team/memtape was used by memtape 0.99, and this is 0.",
            Writes::None,
        ),
        case(
            "more shards than are known",
            own(),
            |server| cluster(server, OWN, 1, env!("CARGO_PKG_VERSION"), 65),
            "s3://bucket/team/memtape has 65 shards, and this memtape knows 1 to 64",
            Writes::None,
        ),
        case(
            "a damaged identity",
            own(),
            |server| server.put(OWN, "{"),
            "s3://bucket/team/memtape has a damaged object memtape-cluster: put it back",
            Writes::None,
        ),
    ]
}

/// Buckets that cannot be used.
fn buckets() -> Vec<Case> {
    vec![
        case(
            "a bucket that is not there",
            "s3://other/team/memtape".to_string(),
            |_| {},
            "the bucket of s3://other/team/memtape does not exist: make it, or check its name",
            Writes::None,
        ),
        case(
            "no rights",
            own(),
            |server| server.add_rule(Rule::of("a", Fault::Denied)),
            "access to s3://bucket/team/memtape is denied: check AWS_ACCESS_KEY_ID",
            Writes::None,
        ),
        case(
            "no right to write",
            own(),
            |server| {
                let method = Some("PUT".parse().unwrap());
                server.add_rule(Rule { method, ..Rule::of("a", Fault::Denied) });
            },
            "access to s3://bucket/team/memtape is denied: check AWS_ACCESS_KEY_ID",
            Writes::None,
        ),
        case(
            "conditions that are ignored",
            own(),
            |server| server.set_conditions(Conditions::Ignored),
            "s3://bucket/team/memtape cannot hold a cluster: a second creation of one object",
            Writes::Proof,
        ),
        case(
            "conditions that are checked too early",
            own(),
            |server| server.set_conditions(Conditions::Racing),
            "of one object succeeded. Use a store that honours",
            Writes::Proof,
        ),
        case(
            "a bucket that is busy",
            own(),
            |server| server.add_rule(Rule::of("a", Fault::Unavailable)),
            "s3://bucket/team/memtape cannot be reached: check AWS_ENDPOINT_URL",
            Writes::None,
        ),
        case(
            "a bucket that never answers",
            own(),
            |server| server.add_rule(Rule::of("a", Fault::Silent)),
            "s3://bucket/team/memtape did not answer within 10 s: check AWS_ENDPOINT_URL",
            Writes::None,
        ),
    ]
}

#[tokio::test]
async fn a_bad_bucket_is_refused_in_one_line_and_left_as_it_was() {
    for Case { name, url, prepare, expected, writes } in buckets().into_iter().chain(prefixes()) {
        let server = Server::start().await;
        prepare(&server);
        let before = (server.keys(), server.puts());
        let begun = Instant::now();
        let why = join(&bucket(&server, "a", &url), "process", None).await.unwrap_err().to_string();
        let took = begun.elapsed();
        println!("{name}: {:.1} s, {} PUTs: {why}", took.as_secs_f64(), server.puts() - before.1);
        assert!(why.contains(expected) && !why.contains('\n'), "{name}: {why}");
        assert!(took < REFUSED_WITHIN, "{name}: {took:?}");
        assert_eq!(server.keys(), before.0, "{name}");
        assert_eq!(server.puts() > before.1, writes == Writes::Proof, "{name}");
    }
}

#[tokio::test]
async fn an_address_without_a_server_is_refused_soon() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Server::start().await;
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = server.settings("a");
    settings.retain(|(name, _)| name != "AWS_ENDPOINT_URL");
    settings.push(("AWS_ENDPOINT_URL".to_string(), format!("http://{free}")));
    let bucket = Bucket::new(&prefix("team/memtape"), settings, retry()).unwrap();
    let begun = Instant::now();
    let why = join(&bucket, "process", None).await.unwrap_err().to_string();
    println!("{:.1} s: {why}", begun.elapsed().as_secs_f64());
    assert!(why.contains("cannot be reached: check AWS_ENDPOINT_URL"), "{why}");
    assert!(begun.elapsed() < REFUSED_WITHIN);
}

#[tokio::test]
async fn many_first_starts_at_once_make_one_cluster() {
    let server = Server::start().await;
    let url = prefix("team/memtape");
    // A proof that was killed is no other product.
    server.put("team/memtape/proof/killed/one", "first");
    let [a, b, c] = ["a", "b", "c"].map(|client| bucket(&server, client, &url));
    let (a, b, c) = tokio::join!(join(&a, "a", None), join(&b, "b", None), join(&c, "c", None));
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert_eq!((&a, &b), (&b, &c));
    assert_eq!((a.format, a.shards, a.id.len()), (1, 1, 32));
    let kept = ["team/memtape/memtape-cluster", "team/memtape/proof/killed/one"];
    assert_eq!(server.keys(), kept);
    let other = join(&bucket(&server, "a", &prefix("team/memtape2")), "a", None).await.unwrap();
    assert_ne!(other.id, a.id);
}

/// By a wrong URL, or because a disk is not mounted.
#[tokio::test]
async fn a_cluster_that_is_expected_is_joined_and_never_made() {
    let (server, dir) = (Server::start().await, tempfile::tempdir().unwrap());
    // A proof that was killed is no cluster.
    server.put("team/memtape/proof/killed/one", "first");
    let folder = format!("file://{}", dir.path().join("missing/cluster").display());
    let in_folder = Bucket::with_few_retries(&folder, Vec::new()).unwrap();
    for bucket in [bucket(&server, "a", &prefix("team/memtape")), in_folder] {
        let before = (server.keys(), server.puts());
        let line = join_expected(&bucket, "1", Some(2)).await.unwrap_err().to_string();
        assert!(line.contains(&format!("in {}, and --expect-store", bucket.url())), "{line}");
        assert!(line.contains("start once without the option") && !line.contains('\n'), "{line}");
        assert_eq!((server.keys(), server.puts()), before);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let made = join(&bucket, "2", Some(2)).await.unwrap();
        assert_eq!(join_expected(&bucket, "3", None).await.unwrap(), made);
    }
}

#[tokio::test]
async fn the_first_start_decides_the_number_of_shards() {
    let server = Server::start().await;
    let bucket = bucket(&server, "a", &prefix("team"));
    assert_eq!(join(&bucket, "first", Some(3)).await.unwrap().shards, 3);
    for later in [None, Some(3)] {
        assert_eq!(join(&bucket, "later", later).await.unwrap().shards, 3);
    }
    let why = join(&bucket, "other", Some(2)).await.unwrap_err().to_string();
    assert!(why.contains("has 3 shards, which cannot be changed: leave"), "{why}");
}

#[tokio::test]
async fn an_owner_notes_a_newer_version_and_never_an_older_one() {
    let server = Server::start().await;
    let bucket = bucket(&server, "a", &prefix("team"));
    let ours = env!("CARGO_PKG_VERSION");
    for (known, expected) in [("0.1.7", ours), (ours, ours), ("0.3.1", "0.3.1")] {
        cluster(&server, "team/memtape-cluster", 1, known, 1);
        raise(&bucket).await.unwrap();
        assert_eq!(look(&bucket).await.unwrap().unwrap().version, expected, "of {known}");
    }
}

#[tokio::test]
async fn a_proof_whose_answers_are_lost_refuses_no_good_bucket() {
    let server = Server::start().await;
    let bucket = bucket(&server, "a", &prefix("team"));
    // Of each PUT of its sequence, and of many.
    for lost in 0..5 {
        let faults: Vec<Fault> = (0..lost).map(|_| Fault::Slow(Duration::ZERO)).collect();
        server.fail_next(&[faults, vec![Fault::AnswerLost]].concat());
        prove(&bucket, &format!("{lost}")).await.unwrap();
        assert_eq!(server.clear_faults(), 0);
    }
    // Retries enough that none of a proof's PUTs loses all its answers.
    let retry = RetryConfig { max_retries: 12, ..retry() };
    let bucket = Bucket::new(&prefix("team"), server.settings("a"), retry).unwrap();
    let method = Some("PUT".parse().unwrap());
    server.add_rule(Rule { method, percent: 20, ..Rule::of("a", Fault::AnswerLost) });
    for round in 0..5 {
        prove(&bucket, &format!("many {round}")).await.unwrap();
    }
    assert_eq!(server.keys(), Vec::<String>::new());
}

/// Of a folder in the place of a bucket, for trying it out.
#[tokio::test]
async fn a_folder_that_can_be_no_cluster_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), "").unwrap();
    std::fs::create_dir(at("other")).unwrap();
    std::fs::write(at("other/notes.txt"), "").unwrap();
    let data = at("data");
    tokio::task::spawn_blocking(move || drop(crate::Store::open(&data).unwrap())).await.unwrap();
    for (name, expected) in [
        ("file", "cannot be used: it is a file, or lies in one: name a folder"),
        ("file/below", "cannot be used: it is a file, or lies in one: name a folder"),
        ("data", "is the data folder of a coordinator: name another folder, and move the store"),
        ("other", "and no cluster: choose an empty prefix"),
    ] {
        let url = format!("file://{}", at(name).display());
        let bucket = Bucket::with_few_retries(&url, Vec::new()).unwrap();
        let line = join(&bucket, "1", None).await.unwrap_err().to_string();
        assert!(line.starts_with(&url) && line.contains(expected), "{line}");
        assert!(!line.contains("LocalFileSystem") && !line.contains("os error"), "{line}");
    }
    let line = Bucket::with_few_retries("file:///", Vec::new()).unwrap_err().to_string();
    assert!(line.starts_with("file:/// names no folder"), "{line}");
    for letter in ['%', '?', '#'] {
        let url = format!("file:///tmp/a{letter}b");
        let line = Bucket::with_few_retries(&url, Vec::new()).unwrap_err().to_string();
        assert_eq!(line, format!("{url} has a {letter} in its path: name a folder without one"));
    }
}

/// By mode 0711 of another user, for one.
#[test]
fn a_folder_that_may_not_be_listed_is_refused_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set(dir.path(), 0o755);
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    set(&folder, 0o311);
    let url = format!("file://{}", folder.display());
    let looking = std::thread::spawn(move || {
        if geteuid().is_root() {
            // Of this thread and the threads that it starts; root may list every folder.
            set_thread_uid(Uid::from_raw(65_534)).unwrap();
        }
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let bucket = Bucket::with_few_retries(&url, Vec::new()).unwrap();
        runtime.block_on(look(&bucket)).unwrap_err().to_string()
    });
    let line = looking.join().unwrap();
    assert!(
        line.ends_with(
            "cannot be used: this user may not read and write it: check its owner \
                            and its mode"
        ),
        "{line}"
    );
}

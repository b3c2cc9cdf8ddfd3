//! Snapshots in the tests' bucket, an S3 server that closes connections, loses answers and answers
//! 503 on order.

use std::time::{Duration, Instant};

use bytes::Bytes;
use memtape_bucket::{Fault, Rule, Server};

use crate::error::{Kind, Result};
use crate::handle::Store;
use crate::tests::fixtures::{close, error_line, reopen};

async fn connect(store: &Store, url: &str, server: &Server) -> Result<()> {
    store.keep_snapshots_with(url, server.settings("tests")).await
}

fn snapshot(fill: u8, bytes: usize) -> (blake3::Hash, Bytes) {
    let snapshot: Vec<u8> = (0..bytes).map(|at| (at as u8).wrapping_mul(fill)).collect();
    (blake3::hash(&snapshot), Bytes::from(snapshot))
}

fn init() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

#[tokio::test]
async fn snapshots_can_be_in_an_s3_store() {
    init();
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(&dir.path().join("one"));
    let ((before, old), (hash, new)) = (snapshot(3, 500), snapshot(5, 3 << 20));
    // One from the time before is still found.
    store.blobs().put(before, old.clone()).await.unwrap();
    connect(&store, "s3://bucket/some/prefix", &server).await.unwrap();
    store.blobs().put(hash, new.clone()).await.unwrap();
    let name = hash.to_hex();
    let expected = format!("some/prefix/{}/{name}", &name[..2]);
    assert!(server.keys().contains(&expected));
    assert_eq!(store.blobs().get(hash).await.unwrap(), new);
    assert_eq!(store.blobs().get(before).await.unwrap(), old);
    // Its writer removes what has no use.
    let (gone, unused) = snapshot(7, 100);
    store.blobs().put(gone, unused).await.unwrap();
    store.blobs().release(gone);
    let removed = gone.to_hex();
    while server.keys().iter().any(|key| key.ends_with(removed.as_str())) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(store.blobs().get(gone).await.unwrap_err().kind, Kind::Gone);
    assert_eq!(store.blobs().used_bytes(), 500 + (3 << 20));
    // Another store must not have the prefix, or it would sweep it.
    let (other, _) = reopen(&dir.path().join("two"));
    let refused = connect(&other, "s3://bucket/some/prefix", &server).await;
    let line = error_line(refused);
    assert!(line.contains("belongs to another coordinator") && !line.contains('\n'), "{line}");
    connect(&other, "s3://bucket/other", &server).await.unwrap();
    assert_eq!(other.blobs().sweep().await.removed, 0);
    close(store);
    // The next process knows the first one only; the other is swept.
    let (store, _) = reopen(&dir.path().join("one"));
    connect(&store, "s3://bucket/some/prefix/", &server).await.unwrap();
    assert!(store.blobs().retain(before, 500));
    let swept = store.blobs().sweep().await;
    assert_eq!((swept.kept, swept.removed), (1, 1));
    for _ in 0..500 {
        if !server.keys().contains(&expected) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it was not removed");
}

/// Waits for something that happens within this time.
async fn wait_for(what: &str, time: Duration, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < time, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn has(server: &Server, hash: blake3::Hash) -> bool {
    server.keys().iter().any(|key| key.ends_with(hash.to_hex().as_str()))
}

/// All requests for removals of the tests' client.
fn removals(fault: Fault) -> Rule {
    Rule { method: Some("POST".parse().unwrap()), ..Rule::of("tests", fault) }
}

#[tokio::test]
async fn a_snapshot_that_a_start_sweeps_and_that_comes_again_is_kept() {
    init();
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = "s3://bucket/swept";
    let (store, _) = reopen(dir.path());
    connect(&store, url, &server).await.unwrap();
    let ((again, bytes), (gone, other)) = (snapshot(3, 1000), snapshot(5, 1000));
    store.blobs().put(again, bytes.clone()).await.unwrap();
    store.blobs().put(gone, other).await.unwrap();
    close(store);
    // Both are unknown to the next process. A removal arrives late.
    let (store, _) = reopen(dir.path());
    connect(&store, url, &server).await.unwrap();
    server.add_rule(removals(Fault::Slow(Duration::from_millis(500))));
    assert_eq!(store.blobs().sweep().await.removed, 2);
    store.blobs().put(again, bytes.clone()).await.unwrap();
    wait_for("the other is removed", Duration::from_secs(30), || !has(&server, gone)).await;
    assert_eq!(store.blobs().get(again).await.unwrap(), bytes);
    // It comes while its removal is on the way.
    store.blobs().release(again);
    store.blobs().remove_released();
    store.blobs().put(again, bytes.clone()).await.unwrap();
    assert_eq!(store.blobs().get(again).await.unwrap(), bytes);
}

#[tokio::test]
async fn a_removal_that_fails_is_repeated() {
    init();
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    connect(&store, "s3://bucket/repeated", &server).await.unwrap();
    // A busy server is asked again at once; one that refuses, after the grace time.
    for (fill, fault, requests) in [(3, Fault::Unavailable, 2), (5, Fault::Denied, 1)] {
        let (hash, bytes) = snapshot(fill, 1000);
        store.blobs().put(hash, bytes).await.unwrap();
        server.add_rule(removals(fault));
        let before = server.requests();
        store.blobs().release(hash);
        let is_tried = || server.requests() - before >= requests;
        wait_for("the removal is tried", Duration::from_secs(30), is_tried).await;
        assert_eq!(store.blobs().used_bytes(), 1000, "{fault:?}");
        server.clear_faults();
        let is_over = || store.blobs().used_bytes() == 0;
        wait_for("the removal is repeated", Duration::from_secs(60), is_over).await;
        assert!(!has(&server, hash), "{fault:?}");
    }
}

#[tokio::test]
async fn an_unusable_store_of_snapshots_is_reported_in_one_line() {
    init();
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    let server = Server::start().await;
    let refused = connect(&store, "s3://", &server).await;
    assert!(error_line(refused).contains("write s3://BUCKET/PREFIX"));
    let line = error_line(connect(&store, "s3://nobucket/p", &server).await);
    assert!(line.contains("check bucket, endpoint and credentials"), "{line}");
    assert!(!line.contains('\n'), "{line}");
}

#[tokio::test]
async fn uploads_survive_a_flaky_server_and_are_never_acknowledged_too_early() {
    use Fault::{AnswerLost, Unavailable};
    init();
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    connect(&store, "s3://bucket/flaky", &server).await.unwrap();
    let closed = |body_bytes| Fault::Closed { body_bytes };
    let scripts: [&[Fault]; 5] = [
        &[Unavailable, Unavailable],
        &[closed(0), Unavailable, closed(0)],
        &[closed(200_000), closed(50)],
        &[AnswerLost],
        &[AnswerLost, closed(100_000), closed(0), Unavailable],
    ];
    for (number, script) in scripts.into_iter().enumerate() {
        let (hash, bytes) = snapshot(11 + 2 * number as u8, 1 << 20);
        server.fail_next(script);
        store.blobs().put(hash, bytes.clone()).await.unwrap();
        assert_eq!(server.clear_faults(), 0, "{script:?} was not tried");
        assert_eq!(store.blobs().get(hash).await.unwrap(), bytes, "{script:?}");
    }
    // More failures than retries: the upload fails, and nothing is stored.
    let (hash, bytes) = snapshot(99, 1000);
    server.fail_next(&[Unavailable; 20]);
    assert!(store.blobs().put(hash, bytes.clone()).await.is_err());
    let name = hash.to_hex().to_string();
    assert!(!server.keys().iter().any(|key| key.ends_with(&name)));
    assert!(server.clear_faults() > 0);
    store.blobs().put(hash, bytes.clone()).await.unwrap();
    assert_eq!(store.blobs().get(hash).await.unwrap(), bytes);
}

#[tokio::test]
async fn an_unreachable_server_confirms_no_upload() {
    init();
    let server = Server::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = reopen(dir.path());
    connect(&store, "s3://bucket/gone", &server).await.unwrap();
    let (hash, bytes) = snapshot(13, 1000);
    drop(server);
    let why = store.blobs().put(hash, bytes).await.unwrap_err().to_string();
    assert!(!why.contains('\n'), "{why}");
    assert!(store.blobs().get(hash).await.is_err());
}

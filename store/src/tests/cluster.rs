//! Shards in the tests' bucket: ownership, the proof of a bucket, and a bucket that fails.

use std::ops::ControlFlow;
use std::time::Duration;

use memtape_bucket::{Conditions, Fault, Rule, Server};
use memtape_core::placement::Owner;
use memtape_disk::clock::{self, Now};
use memtape_disk::tree::Change;
use object_store::RetryConfig;

use crate::bucket::Bucket;
use crate::cluster::hint::{Hint, Placement as _, parse};
use crate::cluster::proof::prove;
use crate::cluster::shard::{EPOCH_KEY, Epoch, Position, Shard, ShardError, ShardId};
use crate::error::Kind;

/// Far more than anything takes here, unless it never ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// For what must not end.
const SHORT: Duration = Duration::from_millis(500);

const SHARD: ShardId = ShardId(7);

fn bucket(server: &Server, client: &str) -> Bucket {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let retry = RetryConfig { max_retries: 3, ..RetryConfig::default() };
    Bucket::new("s3://bucket/some/cluster", server.settings(client), retry).unwrap()
}

async fn take(server: &Server, client: &str, seen: Option<Epoch>) -> Result<Shard, ShardError> {
    Shard::take(&bucket(server, client), SHARD, seen, PATIENCE).await
}

fn row(key: &str, value: &str) -> Change {
    Change { key: key.into(), value: Some(value.into()) }
}

/// Writes a row, and waits until it is durable.
async fn put(shard: &Shard, key: &str) -> Result<(), ShardError> {
    let position = shard.write([row(key, "value")]).await?;
    shard.settle().await?;
    durable(shard, position).await
}

async fn durable(shard: &Shard, position: Position) -> Result<(), ShardError> {
    let mut watch = shard.durable();
    let mut durable = watch.now();
    loop {
        match durable.end {
            _ if durable.upto >= position => return Ok(()),
            Some(end) => return Err(end),
            None => durable = watch.changed().await,
        }
    }
}

/// Keys of all rows but the store's own, durable or not.
async fn keys(shard: &Shard) -> Vec<String> {
    let mut keys = Vec::new();
    let taken = shard.scan(&[1], &[0xff], |key, _| {
        keys.push(String::from_utf8(key.to_vec()).unwrap());
        ControlFlow::Continue(())
    });
    taken.await.unwrap();
    keys
}

#[tokio::test]
async fn a_bucket_that_ignores_conditions_is_refused() {
    let server = Server::start().await;
    let bucket = bucket(&server, "a");
    prove(&bucket, "1").await.unwrap();
    assert_eq!(server.keys(), Vec::<String>::new());
    for (conditions, expected) in [
        (Conditions::Ignored, "If-None-Match is ignored. Use a store that honours"),
        (Conditions::Racing, "racing creations of one object succeeded. Use a store"),
    ] {
        server.set_conditions(conditions);
        let why = prove(&bucket, "2").await.unwrap_err();
        assert_eq!(why.kind, Kind::Foreign);
        assert!(why.to_string().contains(expected), "{why}");
        assert_eq!(server.keys(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_bucket_that_removes_nothing_is_refused() {
    let server = Server::start().await;
    let mut settings = server.settings("a");
    let _ = rustls::crypto::ring::default_provider().install_default();
    let method = Some("POST".parse().unwrap());
    server.add_rule(Rule { method, ..Rule::of("a", Fault::Denied) });
    let url = "s3://bucket/some/cluster";
    let bucket = Bucket::with_few_retries(url, settings.clone()).unwrap();
    let why = prove(&bucket, "1").await.unwrap_err().to_string();
    assert!(why.contains("set AWS_DISABLE_BULK_DELETE=true") && !why.contains('\n'), "{why}");
    let left = server.keys();
    settings.push(("AWS_DISABLE_BULK_DELETE".to_string(), "true".to_string()));
    prove(&Bucket::with_few_retries(url, settings).unwrap(), "2").await.unwrap();
    assert_eq!(server.keys(), left);
}

#[tokio::test]
async fn a_bucket_that_is_away_is_said_to_be() {
    let server = Server::start().await;
    server.add_rule(Rule::of("a", Fault::Unavailable));
    let why = prove(&bucket(&server, "a"), "1").await.unwrap_err();
    assert_eq!(why.kind, Kind::Io);
    assert!(why.to_string().contains("cannot be reached: check AWS_ENDPOINT_URL"), "{why}");
}

#[tokio::test]
async fn rows_are_there_for_the_next_owner() {
    let server = Server::start().await;
    let first = take(&server, "a", Some(Epoch(0))).await.unwrap();
    put(&first, "one").await.unwrap();
    let position = first.write([row("two", "2"), row("three", "3")]).await.unwrap();
    first.settle().await.unwrap();
    assert!(first.durable().now().upto >= position);
    let gone = Change { key: "two".into(), value: None };
    first.write([gone, row("four", "4")]).await.unwrap();
    let epoch = first.epoch();
    first.close(PATIENCE).await.unwrap();
    let second = take(&server, "b", Some(epoch)).await.unwrap();
    assert!(second.epoch() > epoch);
    assert_eq!(keys(&second).await, ["four", "one", "three"]);
}

#[tokio::test]
async fn an_owner_that_was_replaced_makes_nothing_durable() {
    let server = Server::start().await;
    let zombie = take(&server, "a", None).await.unwrap();
    put(&zombie, "acknowledged").await.unwrap();
    let owner = take(&server, "b", Some(zombie.epoch())).await.unwrap();
    put(&owner, "of the owner").await.unwrap();
    assert_eq!(put(&zombie, "late").await, Err(ShardError::Taken));
    assert_eq!(zombie.settle().await, Err(ShardError::Taken));
    assert_eq!(zombie.durable().now().end, Some(ShardError::Taken));
    let ended = tokio::time::timeout(PATIENCE, async { zombie.durable().ended().await }).await;
    assert_eq!(ended, Ok(ShardError::Taken));
    put(&owner, "after").await.unwrap();
    let expected = ["acknowledged", "after", "of the owner"];
    assert_eq!(keys(&owner).await, expected);
    drop((zombie, owner));
    assert_eq!(keys(&take(&server, "c", None).await.unwrap()).await, expected);
}

/// Nothing was written since the last flush: another flush would ask the bucket for nothing.
#[tokio::test]
async fn an_idle_owner_that_was_replaced_proves_nothing() {
    let server = Server::start().await;
    let zombie = take(&server, "a", None).await.unwrap();
    zombie.prove().await.unwrap();
    let owner = take(&server, "b", Some(zombie.epoch())).await.unwrap();
    assert_eq!(zombie.prove().await, Err(ShardError::Taken));
    owner.prove().await.unwrap();
}

#[tokio::test]
async fn an_owner_whose_wall_clock_is_behind_writes() {
    let server = Server::start().await;
    for hour in [3_i64, 1, 2] {
        clock::set(Now { mono_ns: 0, wall_ns: hour * 3_600_000_000_000 });
        let owner = take(&server, "a", None).await.unwrap();
        put(&owner, &format!("at {hour}")).await.unwrap();
    }
    let owner = take(&server, "b", None).await.unwrap();
    assert_eq!(keys(&owner).await, ["at 1", "at 2", "at 3"]);
}

#[tokio::test]
async fn an_owner_whose_wall_clock_is_behind_writes_tables_while_it_opens() {
    let server = Server::start().await;
    let at_hour = |hour: i64| clock::set(Now { mono_ns: 0, wall_ns: hour * 3_600_000_000_000 });
    let fill = async |owner: &Shard, parts: std::ops::Range<u8>| {
        for part in parts {
            let row = Change { key: vec![part], value: Some(vec![part; 1 << 20]) };
            owner.write([row]).await.unwrap();
            owner.settle().await.unwrap();
        }
    };
    at_hour(3);
    let ahead = take(&server, "a", None).await.unwrap();
    fill(&ahead, 1..7).await;
    while !server.keys().iter().any(|key| key.contains("/compacted/")) {
        tokio::time::sleep(SHORT / 10).await;
    }
    // What it writes now gets into no table of its own, and is more than one table has.
    server.add_rule(Rule { path: "/compacted/", ..Rule::of("a", Fault::Silent) });
    fill(&ahead, 7..31).await;
    at_hour(1);
    // The first table is written before all rows are read.
    let slow = Fault::Slow(SHORT / 5);
    server.add_rule(Rule { path: "/wal/", percent: 30, ..Rule::of("b", slow) });
    let behind = take(&server, "b", None).await.unwrap();
    assert_eq!(keys(&behind).await.len(), 30);
    put(&behind, "and it writes").await.unwrap();
}

#[tokio::test]
async fn a_shard_is_not_taken_from_an_unknown_owner() {
    let server = Server::start().await;
    let owner = take(&server, "a", Some(Epoch(0))).await.unwrap();
    let refused = take(&server, "b", Some(Epoch(0))).await;
    assert_eq!(refused.unwrap_err(), ShardError::Taken);
    put(&owner, "still").await.unwrap();
}

#[tokio::test]
async fn of_two_that_make_a_shard_at_once_one_owns_it() {
    let server = Server::start().await;
    for round in 0..10 {
        let [a, b] = ["a", "b"].map(|client| bucket(&server, client));
        let make = |bucket| async move {
            Shard::take(&bucket, ShardId(round), Some(Epoch(0)), PATIENCE).await
        };
        let (a, b) = tokio::join!(make(a), make(b));
        let (owner, other) = match (a, b) {
            (Ok(owner), Err(other)) | (Err(other), Ok(owner)) => (owner, other),
            other => panic!("{other:?}"),
        };
        assert_eq!(other, ShardError::Taken, "round {round}");
        put(&owner, "row").await.unwrap();
    }
}

#[tokio::test]
async fn a_shard_that_was_given_up_stores_nothing_when_the_bucket_is_back() {
    let server = Server::start().await;
    let shard = take(&server, "a", None).await.unwrap();
    put(&shard, "acknowledged").await.unwrap();
    server.add_rule(Rule::of("a", Fault::Silent));
    let position = shard.write([row("lost", "value")]).await.unwrap();
    // The owner sees it, and it is not durable.
    assert_eq!(keys(&shard).await, ["acknowledged", "lost"]);
    let waited = tokio::time::timeout(SHORT, durable(&shard, position)).await;
    assert!(waited.is_err());
    assert_eq!(shard.close(SHORT).await, Err(ShardError::Away));
    server.clear_faults();
    let before = server.keys();
    tokio::time::sleep(SHORT).await;
    assert_eq!(server.keys(), before);
    assert_eq!(keys(&take(&server, "b", None).await.unwrap()).await, ["acknowledged"]);
}

#[tokio::test]
async fn opening_ends_in_time_while_the_bucket_is_away() {
    let server = Server::start().await;
    for fault in [Fault::Silent, Fault::Unavailable] {
        server.add_rule(Rule::of("a", fault));
        let opened = Shard::take(&bucket(&server, "a"), SHARD, None, SHORT).await;
        assert_eq!(opened.unwrap_err(), ShardError::Away);
        server.clear_faults();
        // Nothing of the attempt goes on.
        tokio::time::sleep(SHORT).await;
        assert_eq!(server.keys(), Vec::<String>::new());
    }
    take(&server, "a", None).await.unwrap();
}

#[tokio::test]
async fn lost_answers_and_errors_lose_no_acknowledged_row() {
    let server = Server::start().await;
    for (round, fault) in [Fault::AnswerLost, Fault::Unavailable].into_iter().enumerate() {
        let shard = take(&server, "a", None).await.unwrap();
        server.add_rule(Rule { percent: 30, ..Rule::of("a", fault) });
        for number in 0..20 {
            put(&shard, &format!("{round}/{number:02}")).await.unwrap();
        }
        server.clear_faults();
    }
    let shard = take(&server, "b", None).await.unwrap();
    assert_eq!(keys(&shard).await.len(), 40);
}

#[tokio::test]
async fn a_hint_whose_answer_was_lost_is_still_its_owners() {
    let server = Server::start().await;
    let hint = Hint::new(&bucket(&server, "a"), SHARD);
    let owner = |process: &str, renewals| Owner {
        process: process.to_string(),
        renewals,
        ..Owner::default()
    };
    let version = hint.write(None, &owner("a", 0)).await.unwrap();
    // It is stored, and the client gives it up.
    server.add_rule(Rule::of("a", Fault::AnswerLost));
    hint.write(version.clone(), &owner("a", 1)).await.unwrap_err();
    server.clear_faults();
    let version = hint.write(version, &owner("a", 2)).await.unwrap();
    assert!(version.is_some());
    assert!(hint.write(version.clone(), &owner("b", 0)).await.unwrap().is_some());
    assert!(hint.write(version, &owner("a", 3)).await.unwrap().is_none());
}

#[tokio::test]
async fn a_bucket_that_refuses_every_change_of_a_hint_is_an_error() {
    let server = Server::start().await;
    let hint = Hint::new(&bucket(&server, "a"), SHARD);
    let owner = |renewals| Owner { process: "a".to_string(), renewals, ..Owner::default() };
    let version = hint.write(None, &owner(0)).await.unwrap();
    server.set_conditions(Conditions::Refused);
    let written = tokio::time::timeout(PATIENCE, hint.write(version, &owner(1))).await;
    let why = written.expect("it ends").unwrap_err().to_string();
    let expected =
        "the object owners/0007 of s3://bucket/some/cluster refuses changes to its newest";
    assert!(why.starts_with(expected), "{why}");
}

#[tokio::test]
async fn the_url_and_the_name_in_a_hint_are_checked_where_they_are_read() {
    let server = Server::start().await;
    let hint = Hint::new(&bucket(&server, "a"), SHARD);
    let put = |process: &str, address: &str| {
        let (process, address) = (process.to_string(), address.to_string());
        let owner = Owner { process, address, epoch: 3, ..Owner::default() };
        server.put("some/cluster/owners/0007", serde_json::to_vec(&owner).unwrap());
    };
    for (address, expected) in [
        ("https://one:7771", "https://one:7771"),
        ("https://one:7771/elsewhere?", ""),
        ("https://one:7771@two:7771", ""),
        ("two:7771\nINFO", ""),
    ] {
        put("a", address);
        let (owner, _) = hint.read().await.unwrap().unwrap();
        // The shard can be taken over from such an owner.
        assert_eq!((owner.address.as_str(), owner.epoch), (expected, 3), "{address}");
        assert_eq!(owner.shown(), if expected.is_empty() { "a" } else { expected });
    }
    for name in ["x\nINFO the shard is mine", "\u{202e}x", "a b", &"x".repeat(65)] {
        put(name, "");
        let (owner, _) = hint.read().await.unwrap().unwrap();
        assert_eq!(owner.shown(), "a coordinator without a name", "{name:?}");
    }
    put("a", &"x".repeat(8192));
    assert_eq!(hint.read().await.unwrap_err().kind, Kind::Damaged);
    // A Lease may hold more.
    let long = serde_json::to_vec(&Owner { process: "x".repeat(8192), ..Owner::default() });
    assert_eq!(parse(&long.unwrap()), None);
}

#[tokio::test]
async fn damage_is_an_error_and_no_missing_row() {
    let server = Server::start().await;
    let shard = take(&server, "a", None).await.unwrap();
    put(&shard, "row").await.unwrap();
    drop(shard);
    let logged = server.keys().into_iter().rfind(|key| key.contains("/wal/")).unwrap();
    assert!(server.damage(&logged));
    assert_eq!(take(&server, "b", None).await.unwrap_err(), ShardError::Damaged);
}

#[tokio::test]
async fn damage_that_is_found_after_the_fence_is_not_an_absent_bucket() {
    let server = Server::start().await;
    let shard = take(&server, "a", None).await.unwrap();
    let newest = Change { key: EPOCH_KEY.into(), value: Some(u64::MAX.to_be_bytes().into()) };
    shard.write([newest]).await.unwrap();
    shard.settle().await.unwrap();
    let epoch = shard.epoch();
    drop(shard);
    let refused = take(&server, "b", Some(epoch)).await;
    assert_eq!(refused.unwrap_err(), ShardError::Damaged);
}

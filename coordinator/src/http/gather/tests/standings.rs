//! What coordinators say of themselves and of each other in the list of shards.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memtape_core::traffic::RequestCounts;
use memtape_core::waiting::WaitingNote;

use super::*;
use crate::http::gather::own_address::{self, AddressProblem};
use crate::standing::{Claim, Sign, Waiting};

/// The standing of an owner of three shards, whose requests are 20 more each time.
fn standing(name: &str, epoch: u64) -> Standing {
    let claim = Claim { epoch: epoch.into(), renewed_ns: clock::now().mono_ns.into() };
    let puts = AtomicU64::new(0);
    let requests = move || {
        let puts = puts.fetch_add(20, Relaxed);
        Some(RequestCounts { puts, lists: 3, ..RequestCounts::default() })
    };
    Standing::new((name.to_string(), Arc::new(claim)), 3, requests)
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_say_their_standing_and_who_waits() {
    let mut ports = Ports::of(3, "http").await;
    ports.standings = [("9-a", 7), ("9-b", 2), ("", 0)].map(|(name, of)| standing(name, of)).into();
    let [asked, other] = [0, 1].map(|shard| ports.standings[shard].clone());
    ports.coordinator(0, None);
    ports.coordinator(1, None);
    ports.set(2, "");
    asked.sample();
    other.sample();
    let sign = Sign { name: "9-c".to_string(), epoch: 5, version: "v".to_string() };
    asked.note_sign(2, Some(sign.clone()));
    let (process, address) = ("9-w".to_string(), "http://w:1".to_string());
    let note = WaitingNote { process, address, ..WaitingNote::default() };
    let notes = vec![(note, clock::now().mono_ns)];
    asked.set_waiting(Waiting { notes, left_out: 4, ..Waiting::default() });
    let url = format!("{}/api/v1/cluster", ports.url(0));
    let cluster = loop {
        let (status, missing, cluster) = ask(http().get(&url)).await;
        assert_eq!((status, missing.as_str()), (200, "2"));
        // There is no rate in the first second.
        let requests = field(&cluster["shards"], "requests");
        if requests.iter().all(|requests| !requests.is_null()) {
            break cluster;
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(field(&cluster["shards"], "name"), ["9-a", "9-b"]);
    assert_eq!(field(&cluster["shards"], "epoch"), [7, 2]);
    for shard in cluster["shards"].as_array().unwrap() {
        assert!(shard["sign_of_life_age_ns"].as_u64().is_some_and(|age| age > 0), "{shard:#}");
        let requests = &shard["requests"];
        let number = |name: &str| requests[name].as_f64().unwrap();
        assert!(number("puts_per_second") > 0.0 && number("lists_per_second") == 0.0, "{shard:#}");
        let dollars = number("puts_per_second") * number("dollars_per_million_writing") * 0.0864;
        assert!((number("dollars_per_day") - dollars).abs() < 1e-6, "{shard:#}");
    }
    let missing = &cluster["missing_shards"][0];
    assert_eq!((&missing["name"], &missing["epoch"]), (&"9-c".into(), &5.into()));
    assert!(missing["sign_of_life_age_ns"].as_u64().is_some_and(|age| age > 0));
    let waits = &cluster["waiting"][0];
    assert_eq!((&waits["name"], &waits["address"]), (&"9-w".into(), &"http://w:1".into()));
    assert_eq!(cluster["waiting_left_out"], 4);

    // A sign of life that is seen again is no new one.
    let age_ns = |cluster: &Value| cluster["missing_shards"][0]["sign_of_life_age_ns"].as_u64();
    asked.note_sign(2, Some(sign));
    asked.set_waiting_unknown("the bucket is away".to_string());
    let again = ask(http().get(&url)).await.2;
    assert!(age_ns(&again) > age_ns(&cluster), "{again:#}");
    assert_eq!(again["waiting_unknown"], "the bucket is away");
    assert_eq!(again["waiting"][0]["name"], "9-w", "who waited before");
    asked.note_sign(2, None);
    let left = ask(http().get(&url)).await.2;
    assert_eq!((&left["missing_shards"][0]["name"], age_ns(&left)), (&"".into(), None));
    let metrics = http().get(format!("{}/metrics", ports.url(0))).send().await.unwrap();
    let metrics = metrics.text().await.unwrap();
    let has = |line: &str| metrics.lines().any(|of| of.starts_with(line));
    assert!(has("memtape_bucket_requests_total{kind=\"put\"} "), "{metrics}");
    assert!(has("memtape_bucket_requests_total{kind=\"list\"} 3"), "{metrics}");
    assert!(has("memtape_store_lag_seconds "), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_leads_to_another_program_is_seen() {
    let mut ports = Ports::of(4, "http").await;
    ports.standings[..2].clone_from_slice(&["9-a", "9-b"].map(|name| standing(name, 1)));
    let api = ports.start(0, None, None);
    ports.start(1, None, None);
    // Without a standing, as one with a data folder.
    ports.start(2, None, None);
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let own = ports.standings[0].clone();
    let owners = Owners::new(api.door.clone(), IDLE_MAX);
    for (url, expected) in [
        (ports.url(0), Ok(())),
        (ports.url(1), Err(AddressProblem::OtherCoordinator)),
        (ports.url(2), Err(AddressProblem::Stranger)),
        (format!("http://{gone}"), Err(AddressProblem::Unreachable)),
        (ports.url(0).replace("http:", "https:"), Err(AddressProblem::Unreachable)),
    ] {
        assert_eq!(own_address::ask(&owners, &url, &own).await, expected, "{url}");
    }
    tokio::spawn(own_address::watch(api.door.clone(), ports.url(1), own));
    loop {
        let cluster = ask(http().get(format!("{}/api/v1/cluster", ports.url(0)))).await.2;
        let problem = cluster["shards"][0]["address_problem"].as_str().unwrap();
        if problem.starts_with(&ports.url(1)) {
            assert!(problem.contains("another coordinator answers there"), "{problem}");
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
}

//! What an operator sees of the coordinators of a cluster, and what a start that cannot work says.

use memtape_tests::processes::{signal, wait_for};

use super::on_bucket::{OnBucket, PATIENCE};

/// The names of objects of coordinators that wait.
fn waiting(rig: &OnBucket) -> Vec<String> {
    let entries = std::fs::read_dir(rig.scratch.path().join("bucket/waiting"));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn an_operator_sees_who_owns_what_it_costs_and_who_waits() {
    let rig = OnBucket::in_folder(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    assert_eq!(waiting(&rig), [""; 0], "it did not wait");
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    let cluster = wait_for("a coordinator that waits, and a rate", PATIENCE, || {
        let cluster = rig.ask(0, &["cluster"])?;
        let is_seen = cluster["waiting"][0]["address"] == rig.address(1);
        (is_seen && !cluster["shards"][0]["requests"].is_null()).then_some(cluster)
    });
    let name = cluster["waiting"][0]["name"].as_str().expect("a name").to_string();
    assert_eq!(waiting(&rig), [name.as_str()]);
    assert!(name.starts_with(&format!("{}-", second.id())), "{name}");
    let owner = &cluster["shards"][0];
    assert_eq!((&owner["owner"], &owner["epoch"]), (&rig.address(0).into(), &1.into()));
    let number = |field: &str| owner["requests"][field].as_f64().expect("a number");
    // It renews its sign of life each second.
    assert!(number("puts_per_second") > 0.5 && number("dollars_per_day") > 0.1, "{owner:#}");
    assert!(owner["sign_of_life_age_ns"].as_u64() < Some(5_000_000_000), "{owner:#}");
    signal(first.id(), libc::SIGTERM);
    assert_eq!(first.end(PATIENCE).0, Some(0));
    second.line_with("listening", PATIENCE);
    wait_for("the owner has no object", PATIENCE, || waiting(&rig).is_empty().then_some(()));
    let cluster = rig.ask(1, &["cluster"]).expect("an answer");
    assert_eq!(cluster["shards"][0]["epoch"], 2, "{cluster:#}");
    let third = rig.coordinator(0, &[]);
    wait_for("the third waits", PATIENCE, || (waiting(&rig).len() == 1).then_some(()));
    signal(third.id(), libc::SIGTERM);
    assert_eq!(third.end(PATIENCE).0, Some(0));
    assert_eq!(waiting(&rig), [""; 0], "it ended in order");
}

//! `memtape store`: a coordinator's folder can be checked and its index rebuilt, by a person.

use std::process::{Command, Output};

use memtape_tests::cluster::{Cluster, free_port};
use memtape_tests::memtape;
use serde_json::Value;

fn run(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(memtape());
    command.args(arguments).arg(cluster.data()).output().expect("memtape runs")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// One line on stderr, and a failure.
fn refusal(output: &Output) -> String {
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
    line
}

#[test]
fn a_store_is_checked_and_rebuilt_by_hand() {
    let mut cluster = Cluster::start(&["node"]);
    for command in ["check", "rebuild"] {
        assert!(refusal(&run(&cluster, &["store", command])).contains("in use"));
    }
    cluster.kill_coordinator();
    // Killed, the index may be behind; rebuilt it is not.
    let rebuilt = run(&cluster, &["store", "rebuild", "--json"]);
    assert!(rebuilt.status.success(), "{rebuilt:?}");
    let aside = json(&rebuilt)["aside"].as_str().expect("a path").to_string();
    assert!(std::path::Path::new(&aside).join("db").is_file());
    let checked = run(&cluster, &["store", "check", "--json"]);
    assert!(checked.status.success(), "{checked:?}");
    let found = json(&checked);
    assert_eq!(
        (found["ok"].as_bool(), found["findings"].as_array().map(Vec::len)),
        (Some(true), Some(0))
    );
    // Without its index it works all the same.
    std::fs::remove_dir_all(cluster.data().join("catalogue")).expect("it is there");
    cluster.start_coordinator();
    cluster.kill_coordinator();
    // With damage it says so.
    std::fs::remove_file(cluster.data().join("FORMAT")).expect("it is there");
    let checked = run(&cluster, &["store", "check"]);
    assert!(refusal(&checked).contains("1 finding"));
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.starts_with("FORMAT is missing: start the coordinator"), "{said}");
    assert!(run(&cluster, &["store", "rebuild"]).status.success());
    assert!(run(&cluster, &["store", "check"]).status.success());
}

#[test]
fn an_unreachable_store_of_snapshots_is_reported_at_once() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let start = |url: &str| {
        let mut command = Command::new(memtape());
        command.args(["coordinator", "--listen", "127.0.0.1:0", "--snapshots-url", url]);
        command.arg("--data-dir").arg(scratch.path().join("data"));
        let endpoint = format!("http://127.0.0.1:{}", free_port());
        command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_ALLOW_HTTP", "true");
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command.output().expect("memtape runs")
    };
    let wrong = start("https://bucket/prefix");
    assert_eq!(wrong.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("s3://bucket/prefix"));
    let refused = start("s3://bucket/prefix");
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    let line = error.lines().last().unwrap_or_default();
    assert_eq!(refused.status.code(), Some(1), "{error}");
    assert!(line.contains("the store of snapshots s3://bucket/prefix"), "{error}");
}

//! Several coordinators on one bucket: one works, and when it is killed another one takes over with
//! everything that was acknowledged. One that was only stopped acts on nothing when it goes on.

use std::process::Command;
use std::time::Instant;

use memtape_bucket::{Fault, Rule};
use memtape_tests::processes::{signal, wait_for};
use memtape_tests::{left_out, library, marked_line, memtape, torch};

use serde_json::Value;

use super::on_bucket::{OnBucket, PATIENCE, SCRIPT};

const JOB: &str = "leaking";

#[test]
fn another_coordinator_takes_over_with_everything_acknowledged() {
    let Some(torch) = torch("another coordinator takes over") else { return };
    let _ = library();
    let mut rig = OnBucket::new(2);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    assert!(rig.ask(1, &["jobs"]).is_none(), "the second one does not listen");
    rig.train(&torch, &[JOB]);
    let incident = wait_for("an incident that names its line", PATIENCE, || rig.diagnosed(0, JOB));
    assert_eq!(incident["culprit"]["line"], marked_line(SCRIPT, "# CULPRIT"), "{incident:#}");
    let captures = rig.ask(0, &["captures"]).expect("captures");
    first.kill();
    let killed = Instant::now();
    second.line_with("listening", PATIENCE);
    println!("another coordinator listens {:.1} s after the kill", killed.elapsed().as_secs_f64());
    assert_eq!(
        rig.ask(1, &["captures"]).expect("captures")["captures"][0],
        captures["captures"][0]
    );
    agent_finds_second(&rig);
    let known = rig.incidents(1, JOB);
    assert_eq!(known.len(), 1, "one cause, one incident: {known:#?}");
    assert_eq!((&known[0]["id"], &known[0]["culprit"]), (&incident["id"], &incident["culprit"]));
    // An orderly end leaves the cluster to the next one at once.
    let mut third = rig.coordinator(0, &[]);
    third.line_with("waiting: http://127.0.0.1:", PATIENCE);
    signal(second.id(), libc::SIGTERM);
    let (status, said) = second.end(PATIENCE);
    assert_eq!(status, Some(0), "{said:#?}");
    third.line_with("listening", PATIENCE);
    assert_eq!(rig.incidents(0, JOB).len(), 1);
}

/// Without a server: for trying it out.
#[test]
fn a_cluster_in_a_folder_is_taken_over_and_checked() {
    is_taken_over_and_checked(OnBucket::in_folder(2));
}

/// On a real S3 server that honours conditions: `tests/s3/cluster seaweedfs` has one.
#[test]
fn real_s3_is_taken_over_and_checked() {
    let Some(url) = real("MEMTAPE_TEST_S3", "a cluster on a real S3 server") else { return };
    is_taken_over_and_checked(OnBucket::new(2).at(url));
}

/// On a real S3 server that refuses an ETag in quotes: `tests/s3/cluster ceph` has one.
#[test]
fn real_s3_without_updates_is_refused_in_one_line() {
    let Some(url) = real("MEMTAPE_TEST_S3_UNFIT", "a real S3 server to refuse") else { return };
    let reason = format!(
        "{url} cannot hold a cluster: an update with the newest ETag was refused: If-Match is not \
         supported. Use a store that honours If-None-Match and If-Match on PUT"
    );
    let rig = OnBucket::new(1).at(url);
    let (status, said) = rig.coordinator(0, &[]).end(PATIENCE);
    assert_eq!((status, said.len()), (Some(1), 1), "{said:#?}");
    assert!(said[0].contains(&reason), "{said:#?}");
    let conditions = conditions(rig.url());
    assert_eq!(conditions["outcome"], "fail", "{conditions:#}");
    assert!(conditions["found"].as_str().is_some_and(|found| found.contains(&reason)));
}

/// A prefix that no other run has, below the URL in this variable.
fn real(variable: &str, what: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        left_out(what, "tests/s3/cluster");
    }
    url.map(|url| format!("{url}/{:016x}", fastrand::u64(..)))
}

fn is_taken_over_and_checked(mut rig: OnBucket) {
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &[]);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    rig.model(&[JOB]);
    let incident = wait_for("an incident", PATIENCE, || rig.incidents(0, JOB).pop());
    first.kill();
    let killed = Instant::now();
    second.line_with("listening", PATIENCE);
    println!("another coordinator listens {:.1} s after the kill", killed.elapsed().as_secs_f64());
    agent_finds_second(&rig);
    let known = rig.incidents(1, JOB);
    assert_eq!(known.len(), 1, "one cause, one incident: {known:#?}");
    assert_eq!(known[0]["id"], incident["id"]);
    let checked = json(&["store", "check", rig.url(), "--json"]);
    assert_eq!(checked["ok"], true, "{checked:#}");
    let conditions = conditions(rig.url());
    assert_eq!(conditions["outcome"], "ok", "{conditions:#}");
}

/// Waits until the agent has reported new steps to the second coordinator.
fn agent_finds_second(rig: &OnBucket) {
    let step = || rig.ask(1, &["jobs"])?["jobs"][0]["step_min"].as_u64();
    let before = wait_for("the job is known", PATIENCE, step);
    wait_for("the agent has found it", PATIENCE, || step().filter(|step| *step > before + 20));
}

/// The doctor's check of the bucket's conditions.
fn conditions(url: &str) -> Value {
    let found = json(&["doctor", "--python", "false", "--cluster", url, "--json"]);
    let checks = found["checks"].as_array().expect("a list");
    checks.iter().find(|check| check["name"] == "conditions").expect("checked").clone()
}

fn json(words: &[&str]) -> Value {
    let output = Command::new(memtape()).args(words).output().expect("memtape runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The owner is stopped when its action and the audit of it are stored, and its target is not asked
/// yet. When it goes on, another one owns the shard, and observes the job.
#[test]
fn a_stopped_owner_acts_on_nothing_when_another_one_took_over() {
    let mut rig = OnBucket::new(2);
    rig.server
        .add_rule(Rule { path: "/wal/", ..Rule::of("a", Fault::Held(r#""action":"restart""#)) });
    let in_scratch = |name: &str| rig.scratch.path().join(name).display().to_string();
    let (policy, asked) = (in_scratch("policy.toml"), in_scratch("asked"));
    std::fs::write(&policy, "[[rule]]\nmode = \"act\"\nalways = true\n").expect("a file");
    let restart = format!("echo $MEMTAPE_ACTION >>'{asked}'");
    let acting = ["--policy", &policy, "--restart-command", &restart];
    let mut first = rig.coordinator(0, &acting);
    first.line_with("listening", PATIENCE);
    let mut second = rig.coordinator(1, &acting);
    second.line_with("waiting: http://127.0.0.1:", PATIENCE);
    rig.model(&[JOB]);
    wait_for("a restart is about to be asked for", PATIENCE, || {
        (rig.server.held() > 0).then_some(())
    });
    signal(first.id(), libc::SIGSTOP);
    second.line_with("listening", PATIENCE);
    rig.server.clear_faults();
    signal(first.id(), libc::SIGCONT);
    let (status, said) = first.end(PATIENCE);
    assert_eq!(status, Some(1), "{said:#?}");
    assert!(said.iter().any(|line| line.contains("another coordinator owns")), "{said:#?}");
    let actions = rig.ask(1, &["actions"]).expect("actions");
    let [action] = actions["actions"].as_array().expect("a list").as_slice() else {
        panic!("one action: {actions:#}")
    };
    let outcome = action["outcome"].as_str().expect("a line");
    assert!(outcome.contains("the job or the node shows what came of it"), "{action:#}");
    let asked = std::fs::read_to_string(&asked).unwrap_or_default();
    assert_eq!(asked, "", "the target was asked: {said:#?}");
}

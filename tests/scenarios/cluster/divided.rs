//! A cluster of two shards: each coordinator has its jobs, an agent with jobs of both has a stream
//! to each, and when one coordinator is killed another one takes its jobs over.

use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{library, marked_line, torch};
use serde_json::Value;

use super::on_bucket::{OnBucket, PATIENCE, SCRIPT};

const SHARDS: [&str; 2] = ["--cluster-shards", "2"];

/// A job in each shard.
const JOBS: [&str; 2] = ["alpha", "beta"];

/// Starts a coordinator that finds a shard without an owner; which shard.
fn owner(rig: &OnBucket, member: usize) -> (Process, usize) {
    let mut coordinator = rig.coordinator(member, &SHARDS);
    let owns = coordinator.line_with("owns shard ", PATIENCE);
    coordinator.line_with("listening", PATIENCE);
    let (_, shard) = owns.split_once("owns shard ").expect("a shard");
    (coordinator, shard[..1].parse().expect("a number"))
}

fn step(rig: &OnBucket, member: usize, job: &str) -> Option<u64> {
    let jobs = rig.ask(member, &["jobs"])?["jobs"].take();
    let is_it = |of: &&Value| of["job"].as_str().is_some_and(|id| id.starts_with(job));
    jobs.as_array()?.iter().find(is_it)?["step_min"].as_u64()
}

#[test]
fn each_shard_has_its_coordinator_and_its_jobs() {
    let Some(torch) = torch("a cluster of two shards") else { return };
    let _ = library();
    let mut rig = OnBucket::new(3);
    let (first, first_shard) = owner(&rig, 0);
    let (second, second_shard) = owner(&rig, 1);
    assert_eq!(first_shard + second_shard, 1, "one shard each");
    let mut third = rig.coordinator(2, &SHARDS);
    third.line_with("waiting: all 2 shards have owners", PATIENCE);
    rig.train(&torch, &JOBS);
    // Member of each shard.
    let mut owners = if first_shard == 0 { [0, 1] } else { [1, 0] };
    let incidents: Vec<Value> = (0..2)
        .map(|shard| {
            wait_for("an incident in each shard", PATIENCE, || {
                rig.diagnosed(owners[shard], JOBS[shard])
            })
        })
        .collect();
    for incident in &incidents {
        assert_eq!(incident["culprit"]["line"], marked_line(SCRIPT, "# CULPRIT"), "{incident:#}");
    }

    let lost = second_shard;
    let mut second = second;
    second.kill();
    third.line_with(&format!("owns shard {lost}"), PATIENCE);
    third.line_with("listening", PATIENCE);
    owners[lost] = 2;
    let before = wait_for("the job is known", PATIENCE, || step(&rig, 2, JOBS[lost]));
    wait_for("the agent has found the new owner", PATIENCE, || {
        step(&rig, 2, JOBS[lost]).filter(|step| *step > before + 20)
    });
    for shard in 0..2 {
        let now = rig.diagnosed(owners[shard], JOBS[shard]).expect("the incident");
        assert_eq!(now["id"], incidents[shard]["id"], "one cause, one incident");
    }
    drop(first);
}

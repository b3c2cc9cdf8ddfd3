//! `memtape store backup` while a coordinator takes steps, and `memtape store restore`: the new
//! store has what was acknowledged before, and agents send the rest again from their tapes.

use std::process::Command;
use std::time::{Duration, Instant};

use memtape_tests::cluster::Cluster;
use memtape_tests::killed_history::{SEED, STEP_US};
use memtape_tests::processes::{Process, wait_for};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);
const JOB: &str = "kept";

/// Numbers of the steps that the coordinator has.
fn steps(cluster: &Cluster) -> Vec<u64> {
    let path = format!("/api/v1/jobs/{JOB}/series?rank=0&points=20000");
    let series = cluster.get(&path).unwrap_or_default();
    let steps = series["steps"].as_array().cloned().unwrap_or_default();
    steps.iter().filter_map(Value::as_u64).collect()
}

fn wait_for_step(cluster: &Cluster, step: u64) -> Vec<u64> {
    wait_for("enough steps", PATIENCE, || {
        let steps = steps(cluster);
        (steps.last() >= Some(&step)).then_some(steps)
    })
}

#[test]
fn a_backup_is_made_while_the_coordinator_runs_and_agents_send_the_rest_again() {
    let mut cluster = Cluster::start(&["node"]);
    // Slow: a tape keeps its last 4,096 steps, and a series of 20,000 points has each step.
    let mut training = Command::new(env!("CARGO_BIN_EXE_memtape-killed-writer"));
    training.env(SEED, "7").env(STEP_US, "20000").env("MEMTAPE_JOB", JOB);
    training.env("MEMTAPE_DIR", cluster.tapes("node"));
    let training = Process::start(&mut training);
    let before = wait_for_step(&cluster, 50);

    let file = cluster.scratch().join("a.backup");
    let path = file.to_str().expect("a plain path").to_string();
    let begun = Instant::now();
    let backup = cluster.ask(&["store", "backup", &path]);
    let took = begun.elapsed();
    assert!(!file.with_extension("backup.part").exists());
    assert!(cluster.ask(&["store", "check", &path])["files"].as_u64() >= Some(2));
    // It replaces no file.
    let again = cluster.memtape(&["store", "backup", &path]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("is there already"));
    let audit = String::from_utf8_lossy(&cluster.memtape(&["audit"]).stdout).into_owned();
    assert!(audit.contains("back up store"), "{audit}");

    let after = wait_for_step(&cluster, before.last().expect("steps") + 50);
    cluster.kill_coordinator();
    // The disk is lost.
    std::fs::remove_dir_all(cluster.data()).expect("the store is there");
    let data = cluster.data().to_str().expect("a plain path").to_string();
    let restored = cluster.ask(&["store", "restore", &path, &data]);
    assert_eq!(restored["bytes"], backup["bytes"]);
    cluster.start_coordinator();
    cluster.wait_for_agent_line("another store than before");
    // Everything that was acknowledged is there again, also what came behind the backup.
    let last = *after.last().expect("steps");
    let all = wait_for("all steps are there", PATIENCE, || {
        let steps = steps(&cluster);
        after.iter().all(|step| steps.contains(step)).then_some(steps)
    });
    println!(
        "before the backup {}, in all {last}, after the restore {}; {} bytes, {took:?}",
        before.len(),
        all.len(),
        backup["bytes"]
    );
    drop(training);
    cluster.kill_coordinator();
}

#[test]
fn a_backup_that_is_killed_leaves_nothing_that_seems_whole() {
    let cluster = Cluster::start(&["node"]);
    let file = cluster.scratch().join("a.backup");
    // As a client leaves it that is killed: a part without an end.
    let whole = cluster.scratch().join("whole.backup");
    let path = whole.to_str().expect("a plain path");
    cluster.ask(&["store", "backup", path]);
    let bytes = std::fs::read(&whole).expect("it was made");
    let part = file.with_extension("backup.part");
    std::fs::write(&part, &bytes[..bytes.len() - 1]).expect("room");
    let part = part.to_str().expect("a plain path");
    let folder = cluster.scratch().join("restored");
    let folder = folder.to_str().expect("a plain path");
    for arguments in [&["store", "check", part][..], &["store", "restore", part, folder]] {
        let refused = cluster.memtape(arguments);
        let line = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        assert!(line.contains("its end is missing"), "{line}");
    }
    assert!(!std::path::Path::new(folder).exists());
}

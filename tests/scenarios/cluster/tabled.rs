//! The questions about many jobs over a cluster of two shards: its tables by the command, and those
//! that its owners write into the bucket.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{Torch, torch};
use serde_json::Value;

use super::on_bucket::{OnBucket, PATIENCE};
use crate::user::fleet::{answers, questions};

const SHARDS: [&str; 4] = ["--cluster-shards", "2", "--cluster-tables-every", "10s"];

/// A job in each shard.
const JOBS: [&str; 2] = ["alpha", "beta"];

fn owner(rig: &OnBucket, member: usize) -> Process {
    let mut coordinator = rig.coordinator(member, &SHARDS);
    coordinator.line_with("listening", PATIENCE);
    coordinator
}

/// Checks the answers about these jobs, each with a leak of the same line.
fn check(answers: &[Value], jobs: &[&str]) {
    let (lines, used) = (&answers[0], &answers[1]);
    assert_eq!(lines[0]["attempts"], jobs.len(), "{lines}");
    assert!(lines[0]["gpu_hours"].as_f64() > Some(0.0), "{lines}");
    let mut named: Vec<&str> =
        used.as_array().expect("rows").iter().filter_map(|row| row["job"].as_str()).collect();
    named.sort_unstable();
    let is_of = |(name, job): (&&str, &&str)| name.starts_with(job);
    assert!(named.len() == jobs.len() && named.iter().zip(jobs).all(is_of), "{used}");
    assert!(answers[2].as_array().is_some_and(Vec::is_empty), "{}", answers[2]);
}

/// The answers over what the owners wrote; none until the tables of both have both incidents.
fn scheduled(torch: &Torch, rig: &OnBucket) -> Option<Vec<Value>> {
    let bucket = rig.scratch.path().join("bucket");
    let all = |table: &str| format!("'{}/tables/{table}/*/*.parquet'", bucket.display());
    let tables = ["attempts", "ranks", "devices", "steps", "incidents", "actions"];
    let is_there = |table: &&str| {
        let of = |shard: u8| format!("tables/{table}/shard={shard}/{table}.parquet");
        (0..2).all(|shard| bucket.join(of(shard)).exists())
    };
    let over_all = |question: String| {
        tables.iter().fold(question, |question, table| {
            question.replace(&format!("'{table}.parquet'"), &all(table))
        })
    };
    let questions: Vec<String> = questions().into_iter().map(over_all).collect();
    let are_there = tables.iter().all(is_there);
    let answers = are_there.then(|| answers(torch, rig.scratch.path(), &questions))?;
    (answers[0][0]["attempts"] == JOBS.len()).then_some(answers)
}

#[test]
fn questions_about_many_jobs_are_answered_over_all_shards() {
    let Some(torch) = torch("questions about the jobs of a cluster") else { return };
    let mut rig = OnBucket::in_folder(2);
    let first = owner(&rig, 0);
    let mut second = owner(&rig, 1);
    rig.model(&JOBS);
    for job in JOBS {
        wait_for("an incident that names its line", PATIENCE, || rig.diagnosed(0, job));
    }
    check(&wait_for("the tables", PATIENCE, || scheduled(&torch, &rig)), &JOBS);
    let tables = rig.scratch.path().join("exported");
    let exported = rig.export(1, &tables);
    let said = String::from_utf8_lossy(&exported.stderr);
    assert!(exported.status.success(), "{said}");
    check(&answers(&torch, &tables, &questions()), &JOBS);

    let mine = rig.ask(0, &["cluster"]).expect("the cluster");
    let shards = mine["shards"].as_array().expect("a list");
    let is_second = |of: &&Value| of["owner"] == rig.address(1);
    let lost = shards.iter().find(is_second).expect("its shard")["shard"].clone();
    let lost = lost.as_u64().expect("a number");
    second.kill();
    let exported = rig.export(0, &tables);
    let said = String::from_utf8_lossy(&exported.stderr);
    assert_eq!(exported.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("the tables lack shard {lost}: ")), "{said}");
    let left = JOBS.iter().enumerate().find(|(at, _)| *at as u64 != lost).expect("a job").1;
    check(&answers(&torch, &tables, &questions()), &[left]);
    drop(first);
}

#[test]
fn tables_that_cannot_be_written_are_counted_and_tried_again() {
    let rig = OnBucket::in_folder(1);
    let mut first = rig.coordinator(0, &[]);
    first.line_with("listening", PATIENCE);
    signal(first.id(), libc::SIGTERM);
    assert_eq!(first.end(PATIENCE).0, Some(0));
    let tables = rig.scratch.path().join("bucket/tables");
    std::fs::write(&tables, "").expect("a file in the way");
    let mut second = rig.coordinator(0, &["--cluster-tables-every", "10s"]);
    second.line_with("the tables of shard 0 cannot be written to file:///", PATIENCE);
    let count = |result: &str| {
        let address = rig.address(0);
        let mut stream =
            TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").expect("a request");
        let mut metrics = String::new();
        stream.read_to_string(&mut metrics).expect("an answer");
        let row = format!("memtape_table_exports_total{{result=\"{result}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&row));
        value.expect("the metric").parse::<f64>().expect("a number")
    };
    assert_eq!((count("failed"), count("written")), (1.0, 0.0));
    std::fs::remove_file(&tables).expect("the file is removed");
    second.line_with("the tables are in the bucket", PATIENCE);
    assert_eq!(count("written"), 1.0);
    assert!(tables.join("actions/shard=0/actions.parquet").exists());
}

//! An enemy with one agent's stream: what it can make the coordinator write and forget.

use std::path::Path;
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::limits::{
    AGENT_CAPTURES_AT_ONCE_MAX, AGENT_CAPTURES_PER_JOB_MAX, CHUNK_BYTES_MAX,
    MESSAGE_MIB_SECONDS_MAX, SNAPSHOT_BYTES_MAX, STEPS_PER_REPORT_MAX,
};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::Code;

use crate::JOB;
use crate::fake::{Agent, Job, PATIENCE, Running, attached, config, start, training};

/// Captures of these jobs, as many as a job can have, and one more.
const JOBS: [&str; 6] = ["j0", "j1", "j2", "j3", "j4", "j5"];

fn without_snapshot(job: &Job, number: usize) -> FromAgent {
    FromAgent::AgentCapture(v1::AgentCapture {
        answer: Some(v1::CaptureAnswer {
            capture_id: format!("cap-0k3f9a2-{number:010}-alone"),
            tape_id: job.tape(0),
            outcome: v1::RankOutcome::NoTape.into(),
            ..v1::CaptureAnswer::default()
        }),
        reason: v1::AgentCaptureReason::OutOfMemory.into(),
        seen_wall_ns: 1_700_000_000_000_000_000,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_agent_captures_has_a_rate() {
    let (_dir, running, mut agent) = attached().await;
    let mut number = 0;
    for name in JOBS {
        let job = Job { name, ..JOB };
        agent.announce(&job).await;
        for _ in 0..AGENT_CAPTURES_PER_JOB_MAX {
            agent.say(without_snapshot(&job, number)).await;
            number += 1;
        }
        agent.train(&job, 1..=1).await;
    }
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    let prefix = r#"memtape_losses_total{reason="agent_captures_too_many"} "#;
    let refused = text.lines().find_map(|line| line.strip_prefix(prefix)).unwrap();
    let refused: f64 = refused.split_whitespace().next().unwrap().parse().unwrap();
    let taken = number - refused as usize;
    // Some more come back while the test runs.
    let at_once = AGENT_CAPTURES_AT_ONCE_MAX as usize;
    assert!((at_once..number).contains(&taken), "{taken} of {number}");
    let (_, audit) = running.get("/api/v1/audit").await;
    let audited = audit["entries"].as_array().unwrap().iter();
    let captures = audited.filter(|entry| entry["action"] == "capture").count();
    assert_eq!(captures, taken);
    running.stop().await;
}

/// The coordinator has forgotten the job, or never had room for it.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_tape_is_not_known_announces_it_again() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=1).await;
    let other = Job { name: "other", ..JOB };
    agent
        .say(FromAgent::Report(v1::Report {
            number: 1_000,
            ranks: vec![other.rank_report(0, &(5..=5))],
            ..v1::Report::default()
        }))
        .await;
    assert!(agent.ended().await, "it is asked to come again");
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.announce(&other).await;
    agent.train(&other, 6..=6).await;
    let (status, _) = running.get("/api/v1/jobs/other/ranks").await;
    assert_eq!(status, 200);
    // Not again at once, where that did not help.
    let third = Job { name: "third", ..JOB };
    agent.train(&third, 1..=1).await;
    agent.train(&JOB, 7..=7).await;
    running.stop().await;
}

pub(crate) fn capture_id(of: usize) -> String {
    format!("cap-0k3f9a2-{of:010}-alone")
}

/// A snapshot of this size was taken alone.
pub(crate) fn taken_alone(job: &Job, of: usize, bytes: u64, hash: blake3::Hash) -> FromAgent {
    FromAgent::AgentCapture(v1::AgentCapture {
        answer: Some(v1::CaptureAnswer {
            capture_id: capture_id(of),
            tape_id: job.tape(0),
            outcome: v1::RankOutcome::Aligned.into(),
            step: 1,
            snapshot_bytes: bytes,
            snapshot_hash: hash.as_bytes().to_vec(),
            ..v1::CaptureAnswer::default()
        }),
        reason: v1::AgentCaptureReason::OutOfMemory.into(),
        seen_wall_ns: 1_700_000_000_000_000_000,
    })
}

/// Uploads of this node, each on a connection of its own, which bring one chunk and no more.
async fn stall(
    running: &Running,
    node: &'static str,
    first: usize,
) -> Vec<tokio::task::JoinHandle<(Agent, Option<tonic::Status>)>> {
    let job = Job { name: node, ranks: 1, ..JOB };
    let mut uploads = Vec::new();
    for of in first..first + 4 {
        let mut agent = Agent::attach(running, node).await;
        agent.announce(&job).await;
        let bytes = SNAPSHOT_BYTES_MAX as u64;
        agent.say(taken_alone(&job, of, bytes, blake3::hash(b"none"))).await;
        agent.train(&job, of as u64 + 1..=of as u64 + 1).await;
        let chunk = v1::UploadChunk {
            capture_id: capture_id(of),
            tape_id: job.tape(0),
            data: vec![0; CHUNK_BYTES_MAX].into(),
            ..v1::UploadChunk::default()
        };
        let chunks = tokio_stream::once(chunk).chain(tokio_stream::pending());
        uploads.push(tokio::spawn(async move {
            let answer = agent.client.upload(chunks).await;
            (agent, answer.err())
        }));
        sleep(Duration::from_millis(20)).await;
    }
    uploads
}

/// Whatever connections it has, one stolen agent delays no upload, and two delay it by one stall.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_uploads_on_many_connections_delay_others_by_one_stall() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let stall_time = Duration::from_secs(MESSAGE_MIB_SECONDS_MAX);
    let job = Job { name: "honest", ranks: 1, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    let snapshot = job.snapshot(0, 1, 0);
    let mut stalled = Vec::new();
    for (of, (node, delay)) in
        [("evil-1", stall_time / 2), ("evil-2", stall_time * 2)].into_iter().enumerate()
    {
        let begin = Instant::now();
        stalled.extend(stall(&running, node, 10 * of).await);
        let of = 100 + of;
        let taken = taken_alone(&job, of, snapshot.len() as u64, blake3::hash(&snapshot));
        agent.say(taken).await;
        agent.train(&job, of as u64..=of as u64).await;
        let (id, tape) = (capture_id(of), job.tape(0));
        let upload = timeout(delay, agent.upload(&id, &tape, &snapshot)).await;
        upload.expect("not held up").unwrap();
        println!("{node}: uploaded after {:?}", begin.elapsed());
    }
    // The agent of one that came too slowly is asked to try again.
    let (_evil, refused) = timeout(PATIENCE, stalled.remove(0)).await.unwrap().unwrap();
    let refused = refused.expect("too slow");
    assert_eq!(refused.code(), Code::DeadlineExceeded, "{refused}");
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    let line = text.lines().find(|line| line.contains(r#"{reason="slow_upload"}"#)).unwrap();
    assert!(!line.ends_with(" 0"), "{line}");
    for upload in stalled {
        upload.abort();
    }
    running.stop().await;
}

/// A report of steps that do not compress.
pub(crate) fn noise(job: &Job, first: u64) -> v1::RankReport {
    let mut report = job.rank_report(0, &(first..=first + STEPS_PER_REPORT_MAX as u64 - 1));
    for record in &mut report.steps {
        let hash = blake3::hash(&record.last_step.to_le_bytes());
        let number =
            |at: usize| hash.as_bytes()[at..at + 5].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        (record.floor_allocated, record.peak_allocated) = (number(0), number(0) + number(5));
        (record.end_allocated, record.floor_reserved) = (number(10), number(15));
        (record.peak_reserved, record.end_reserved) = (number(15) + number(20), number(25));
        (record.blocks, record.allocs, record.frees) = (number(2), number(7), number(12));
    }
    report
}

fn bytes_of(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    // A file may be gone since.
    files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
}

/// `MEMTAPE_FLOOD=1` floods with a million records, under 64 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_steps_evicts_none_of_another_node() {
    let (records, bytes_max) = match std::env::var_os("MEMTAPE_FLOOD") {
        Some(_) => (1_000_000, 64 << 20),
        None => (100_000, 4 << 20),
    };
    let dir = tempfile::tempdir().unwrap();
    let config = || Config { steps_bytes_max: bytes_max, ..config(dir.path()) };
    let running = start(config()).await;
    let mut honest = Agent::attach(&running, "node-a").await;
    honest.announce(&JOB).await;
    honest.train(&JOB, 1..=3000).await;
    let flood = Job::new("flood", 1);
    let mut evil = Agent::attach(&running, "evil").await;
    evil.announce(&flood).await;
    let (begin, mut most) = (Instant::now(), 0);
    for first in (1..=records).step_by(STEPS_PER_REPORT_MAX) {
        evil.report(vec![noise(&flood, first)]).await;
        if first % (8 * STEPS_PER_REPORT_MAX as u64) == 1 {
            evil.settle().await;
        }
        most = most.max(["rows", "steps"].map(|of| bytes_of(&dir.path().join(of))).iter().sum());
    }
    evil.settle().await;
    println!("{records} records in {:?}, at most {most} bytes of steps on disk", begin.elapsed());
    honest.train(&JOB, 3001..=3010).await;
    let kept = async |running: &Running, job: &str, rank: u32| {
        let path = format!("/api/v1/jobs/{job}/series?rank={rank}&points=20000");
        running.get(&path).await.1["steps"].as_array().unwrap().len()
    };
    let check = async |running: Running| {
        for rank in 0..JOB.ranks {
            assert_eq!(kept(&running, JOB.name, rank).await, 3010, "rank {rank}");
        }
        println!("points of the flood: {}", kept(&running, "flood", 0).await);
        running.stop().await;
    };
    check(running).await;
    let left = bytes_of(&dir.path().join("steps"));
    assert!(left <= bytes_max && most <= bytes_max + (64 << 20), "{left} and {most} bytes");
    check(start(config()).await).await;
}

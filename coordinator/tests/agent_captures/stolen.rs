//! An enemy with one agent's stream: what it can make the coordinator write and forget.

use memtape_core::limits::{AGENT_CAPTURES_AT_ONCE_MAX, AGENT_CAPTURES_PER_JOB_MAX};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;

use crate::JOB;
use crate::fake::{Agent, Job, config, start};

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
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
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
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, 1..=1).await;
    let other = Job { name: "other", ..JOB };
    agent
        .say(FromAgent::Report(v1::Report {
            number: 1_000,
            ranks: vec![Agent::rank_report(&other, 0, 5)],
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

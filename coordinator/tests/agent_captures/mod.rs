//! Agent-initiated captures: announced, uploaded, announced twice, kept over a restart.

pub(crate) mod stolen;

use memtape_core::limits::NAME_BYTES_MAX;

use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::json;
use tonic::Code;

use crate::JOB;
use crate::fake::{Agent, answer, config, start, training};

const CAPTURE: &str = "cap-0k3f9a2-0123456789-alone";

/// 2024-10-14 at 22:13:20 UTC.
const SEEN_WALL_NS: i64 = 1_728_944_000_000_000_000;

fn taken_alone(capture: &str, rank: u32, snapshot: &[u8]) -> FromAgent {
    taken_at(SEEN_WALL_NS, capture, rank, snapshot)
}

fn taken_at(seen_wall_ns: i64, capture: &str, rank: u32, snapshot: &[u8]) -> FromAgent {
    let request = v1::CaptureRequest {
        capture_id: capture.to_string(),
        step: 3,
        ..v1::CaptureRequest::default()
    };
    FromAgent::AgentCapture(v1::AgentCapture {
        answer: Some(v1::CaptureAnswer { dead: true, ..answer(&JOB, rank, &request, snapshot) }),
        reason: v1::AgentCaptureReason::Death.into(),
        seen_wall_ns,
    })
}

/// Neither a late name nor a late time makes a capture the newest.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_cannot_date_a_capture_into_the_future() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.say(taken_at(i64::MAX, "cap-zzzzzzz-0123456789-alone", 1, b"")).await;
    agent.say(taken_alone("cap-zzzzzzy-0123456789-alone", 2, b"")).await;
    agent.train(&JOB, 1..=3).await;
    let (status, asked) = running.post("/api/v1/jobs/train/captures", "").await;
    assert_eq!(status, 202, "{asked}");
    let (_, captures) = running.get("/api/v1/captures").await;
    let ids = captures["captures"].as_array().unwrap().iter().map(|of| of["id"].as_str().unwrap());
    let ids: Vec<&str> = ids.collect();
    let late = ["cap-zzzzzzz-0123456789-alone", "cap-zzzzzzy-0123456789-alone"];
    assert_eq!(ids, [asked["id"].as_str().unwrap(), late[0], late[1]]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_initiated_capture_is_stored_unchanged() {
    let (dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=3).await;
    let snapshot = JOB.snapshot(1, 3, 0);
    let tape = JOB.tape(1);
    let refused = agent.upload(CAPTURE, &tape, &snapshot).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "it was never announced");
    for _ in 0..2 {
        agent.say(taken_alone(CAPTURE, 1, &snapshot)).await;
    }
    agent.train(&JOB, 4..=4).await;
    let path = format!("/api/v1/captures/{CAPTURE}");
    let (status, capture) = running.get(&path).await;
    assert_eq!((status, &capture["trigger"]), (200, &json!("death")), "{capture:#}");
    for _ in 0..2 {
        let receipt = agent.upload(CAPTURE, &tape, &snapshot).await.unwrap();
        assert_eq!(receipt, blake3::hash(&snapshot).as_bytes());
    }
    // A restart in between: it is there, and what is said again changes nothing.
    running.stop().await;
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.say(taken_alone(CAPTURE, 1, &snapshot)).await;
    agent.train(&JOB, 5..=5).await;
    agent.upload(CAPTURE, &tape, &snapshot).await.unwrap();
    let (_, capture) = running.get(&path).await;
    assert_eq!((&capture["step"], &capture["trigger_rank"]), (&json!(3), &json!(1)), "{capture:#}");
    let parts = capture["parts"].as_array().unwrap();
    assert_eq!(parts.len(), 1);
    assert_eq!((&parts[0]["outcome"], &parts[0]["dead"]), (&json!("aligned"), &json!(true)));
    assert!(parts[0]["detail"].as_str().unwrap().starts_with("taken by the agent alone"));
    let stored = reqwest::get(running.url(&format!("{path}/ranks/1"))).await.unwrap();
    assert_eq!(stored.bytes().await.unwrap(), snapshot);
    running.stop().await;
}

/// The announcement came, the coordinator died, the snapshot comes to the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_may_come_after_a_restart_or_never() {
    let (dir, running, mut agent) = training(&JOB).await;
    let snapshot = JOB.snapshot(2, 3, 0);
    let lost = "cap-0k3f9a3-0123456789-alone";
    agent.say(taken_alone(CAPTURE, 2, &snapshot)).await;
    agent.say(taken_alone(lost, 2, &snapshot)).await;
    agent.train(&JOB, 1..=3).await;
    running.stop().await;
    let running = start(config(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.upload(CAPTURE, &JOB.tape(2), &snapshot).await.unwrap();
    // The agent had to drop this one, and says so.
    agent.say(taken_alone(lost, 2, &[])).await;
    agent.train(&JOB, 4..=4).await;
    let refused = agent.upload(lost, &JOB.tape(2), &snapshot).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let (_, capture) = running.get(&format!("/api/v1/captures/{lost}")).await;
    assert_eq!(capture["trigger"], "death", "{capture:#}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_captures_are_bounded_and_have_names_of_their_own() {
    let (_dir, running, mut agent) = training(&JOB).await;
    for number in 0..80 {
        agent.say(taken_alone(&format!("cap-0k3f9a2-{number:010}-alone"), 0, b"")).await;
    }
    agent.train(&JOB, 1..=1).await;
    let (_, captures) = running.get("/api/v1/captures").await;
    let count = captures["captures"].as_array().unwrap().len();
    assert!((60..=64).contains(&count), "{count}");
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    assert!(text.contains(r#"memtape_losses_total{reason="no_room"} 16"#));
    // An unannounced tape has no job; a name of the wrong form ends the stream.
    let mut other = Agent::attach(&running, "node-b").await;
    other.say(taken_alone(CAPTURE, 0, b"")).await;
    other.report(Vec::new()).await;
    let (status, _) = running.get(&format!("/api/v1/captures/{CAPTURE}")).await;
    assert_eq!(status, 404);
    for name in ["cap-0k3f9a2", "cap-0K-alone", "", &"x".repeat(NAME_BYTES_MAX)] {
        let mut bad = Agent::attach(&running, "node-c").await;
        bad.say(taken_alone(name, 0, b"")).await;
        assert!(!bad.ended().await, "{name:?} is no goodbye");
    }
    running.stop().await;
}

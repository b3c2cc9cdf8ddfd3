//! Makes the store of coordinator/tests/data/b715533 in the folder $MEMTAPE_MAKE_STORE.

#[path = "fake/mod.rs"]
#[allow(dead_code)]
mod fake;

use std::path::Path;
use std::time::Duration;

use fake::{Agent, Job, answer, config, picture, start};
use memtape_core::restart::Mode;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::Value;

const OVER: Job = Job { name: "over", attempt: 0, ranks: 2, leaking: Some(1), run: 1 };
const ENDED: Job = Job { name: "ended", attempt: 3, ranks: 2, leaking: Some(0), run: 2 };
const OPEN: Job = Job { name: "open", attempt: 1, ranks: 2, leaking: Some(1), run: 3 };
const UNKNOWN: Job = Job { name: "unknown", attempt: 0, ranks: 2, leaking: Some(0), run: 4 };

/// Trains until a capture is asked for, serves it if wanted; answers the step.
async fn train_until_captured(agent: &mut Agent, job: &Job, serves: bool) -> u64 {
    let mut step = 0;
    while agent.requests.is_empty() {
        assert!(step < 400);
        agent.train(job, step + 1..=step + 8).await;
        step += 8;
    }
    let request = agent.asked().await;
    if serves {
        agent.serve(job, &request).await;
    }
    step
}

async fn incident(running: &fake::Running, job: &Job, is: impl Fn(&Value) -> bool) -> Value {
    let path = format!("/api/v1/incidents?job={}", job.name);
    running.wait(&path, |answer| {
        let one = &answer["incidents"][0];
        one["stored"] == true && is(one)
    }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn make() {
    let Some(target) = std::env::var_os("MEMTAPE_MAKE_STORE") else { return };
    let target = Path::new(&target);
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");

    // A dry run: a job that is over, and one whose growth ended.
    let mut dry = config(&live);
    dry.restart.policy.mode = Mode::DryRun;
    dry.restart.policy.always = true;
    dry.restart.command = ["true"].map(str::to_string).to_vec();
    let running = start(dry).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&OVER).await;
    train_until_captured(&mut agent, &OVER, true).await;
    incident(&running, &OVER, |one| one["class"] == "leak").await;
    let capture = "cap-0k3f9a2-0123456789-alone";
    let body = OVER.body(1, 3, 0);
    let request = v1::CaptureRequest { capture_id: capture.to_string(), step: 3, ..Default::default() };
    agent.say(FromAgent::SoloCapture(v1::SoloCapture {
        answer: Some(v1::CaptureAnswer { dead: true, ..answer(&OVER, 1, &request, &body) }),
        reason: v1::SoloReason::Death.into(),
        seen_wall_ns: 1_700_000_000_000_000_000,
    })).await;
    agent.settle().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    agent.upload(capture, &OVER.tape(1), &body).await.unwrap();
    for rank in 0..2 {
        agent.say(FromAgent::RankDown(v1::RankDown {
            tape_id: OVER.tape(rank),
            end: v1::RankEnd::Exited.into(),
            detail: "exited with status 0".to_string(),
            wall_ns: 1,
            step: 200,
        })).await;
    }
    incident(&running, &OVER, |one| one["state"] == "closed").await;
    agent.requests.clear();

    let mut agent_b = Agent::attach(&running, "node-b").await;
    agent_b.announce(&ENDED).await;
    let step = train_until_captured(&mut agent_b, &ENDED, true).await;
    incident(&running, &ENDED, |one| one["class"] == "leak").await;
    let healed = Job { leaking: None, ..ENDED.clone() };
    let mut at = step;
    loop {
        agent_b.train(&healed, at + 1..=at + 64).await;
        at += 64;
        let (_, found) = running.get("/api/v1/incidents?job=ended").await;
        if found["incidents"][0]["state"] == "closed" { break; }
        assert!(at < 5000, "{found:#}");
    }
    incident(&running, &ENDED, |one| one["state"] == "closed").await;
    running.stop().await;

    // For real: a job whose restart was asked for, and asked for again, which waits for a capture.
    let mut act = config(&live);
    act.restart.policy.mode = Mode::Act;
    act.restart.policy.always = true;
    act.restart.policy.cooldown_ns = 45_000_000_000;
    act.restart.command = ["true"].map(str::to_string).to_vec();
    let running = start(act).await;
    let mut agent = Agent::attach(&running, "node-c").await;
    agent.announce(&OPEN).await;
    let mut step = train_until_captured(&mut agent, &OPEN, true).await;
    incident(&running, &OPEN, |one| one["class"] == "leak").await;
    let mut unknown = Agent::attach(&running, "node-d").await;
    unknown.announce(&UNKNOWN).await;
    train_until_captured(&mut unknown, &UNKNOWN, false).await;
    let begin = std::time::Instant::now();
    loop {
        agent.train(&OPEN, step + 1..=step + 1).await;
        step += 1;
        let (_, found) = running.get("/api/v1/actions").await;
        let text = found.to_string();
        if text.contains("waiting for capture ") && text.contains("\"done\"") { break; }
        assert!(begin.elapsed().as_secs() < 150, "{found:#}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let (_, incidents) = running.get("/api/v1/incidents").await;
    let (_, actions) = running.get("/api/v1/actions").await;
    let (_, captures) = running.get("/api/v1/captures").await;
    println!("{incidents:#}\n{actions:#}\n{captures:#}");
    running.stop().await;
    picture(&live, target);
}

//! Ranks that die: the capture, the incident, and the state of the job.

use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};

use crate::fake::{Job, answer, training, wall_ns};

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_rank_is_captured_with_the_others() {
    let job = Job::new("train", 4);
    let (_dir, running, mut agent) = training(&job).await;
    agent.train(&job, 1..=40).await;
    let down = |rank: u32, end: v1::RankEnd| {
        FromAgent::RankDown(v1::RankDown {
            tape_id: job.tape(rank),
            end: end.into(),
            detail: "the lock is gone".to_string(),
            wall_ns: wall_ns(),
            step: 40,
            exit_status: None,
        })
    };
    agent.say(down(3, v1::RankEnd::OomKilled)).await;
    let request = agent.asked().await;
    assert_eq!(request.tape_ids.len(), 4);
    let mut dead = answer(&job, 3, &request, &job.snapshot(3, 40, request.before_step));
    dead.dead = true;
    let snapshot = job.snapshot(3, 40, request.before_step);
    agent.say(FromAgent::CaptureAnswer(dead)).await;
    agent.upload(&request.capture_id, &job.tape(3), &snapshot).await.unwrap();
    let others = v1::CaptureRequest {
        tape_ids: (0..3).map(|rank| job.tape(rank)).collect(),
        ..request.clone()
    };
    agent.serve(&job, &others).await;
    let path = format!("/api/v1/captures/{}", request.capture_id);
    let capture = running.wait(&path, |capture| capture["state"] == "complete").await;
    assert_eq!((&capture["trigger"], &capture["trigger_rank"]), (&json!("death"), &json!(3)));
    assert_eq!(capture["parts"][3]["dead"], true);
    let (_, answer) = running.get("/api/v1/jobs/train/ranks").await;
    let rank = &answer["ranks"][3];
    assert_eq!((&rank["end"], &rank["alive"]), (&json!("oom_killed"), &json!(false)));
    assert_eq!(rank["ended"], "OOM killed");
    assert_eq!(rank["state"], "failed");
    let diagnosed = |answer: &Value| answer["incidents"][0]["class"] == "died";
    let incidents = running.wait("/api/v1/incidents", diagnosed).await;
    let incident = &incidents["incidents"][0];
    let sentence = incident["sentence"].as_str().unwrap();
    let expected = "rank 3 was killed by the kernel for memory of the host after step 40";
    assert!(sentence.starts_with(expected), "{sentence}");
    assert!(sentence.ends_with("; ranks 0, 1 and 2 live and have finished step 40"), "{sentence}");
    assert_eq!((&incident["urgency"], &incident["capture_step"]), (&json!("page"), &json!(40)));
    for rank in 0..3 {
        agent.say(down(rank, v1::RankEnd::Exited)).await;
    }
    let over = |answer: &Value| answer["jobs"][0]["ended_wall_ns"].is_number();
    let jobs = running.wait("/api/v1/jobs", over).await;
    assert_eq!(jobs["jobs"][0]["state"], "failed");
    // The incident outlives its job.
    let (_, incidents) = running.get("/api/v1/incidents").await;
    assert_eq!(incidents["incidents"][0]["state"], "open");
    // The same launcher number again, by other processes: a new attempt.
    let next = Job { run: 9, ..job.clone() };
    agent.announce(&next).await;
    let fresh = |answer: &Value| answer["jobs"][0]["attempts"] == 2;
    let jobs = running.wait("/api/v1/jobs", fresh).await;
    assert_eq!(
        (&jobs["jobs"][0]["state"], &jobs["jobs"][0]["attempt_ordinal"]),
        (&json!("warming"), &json!(1))
    );
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_death_waits_for_is_shown() {
    let job = Job::new("waits", 2);
    let (_dir, running, mut agent) = training(&job).await;
    agent.train(&job, 1..=8).await;
    let (tape_id, end) = (job.tape(1), v1::RankEnd::Killed.into());
    let down = v1::RankDown { tape_id, end, wall_ns: wall_ns(), step: 8, ..Default::default() };
    agent.say(FromAgent::RankDown(down)).await;
    let has_reason = |answer: &Value| answer["unknown"].to_string().contains("is opened after");
    let answer = running.wait("/api/v1/jobs/waits/ranks", has_reason).await;
    let unknown = answer["unknown"].as_array().unwrap().iter().find(|of| of["what"] == "end");
    assert_eq!(unknown.unwrap()["ranks"], json!([1]), "{answer:#}");
    running.stop().await;
}

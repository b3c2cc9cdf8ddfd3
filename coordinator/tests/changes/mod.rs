//! What clients learn that stay: by `/changes` of each job that changes, after a pause only where a
//! job has; and by `ETag` that an answer is the same.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::fake::{Job, training};

const JOB: Job = Job::new("watched", 2);

/// Pages that one user has open.
const STREAMS: usize = 100;

/// Longer than the time between two marks of the jobs.
const QUIET: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_that_change_are_sent() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=10).await;
    agent.settle().await;
    let mut events = running.changes(None).await;
    let (_, first) = events.next().await;
    assert_eq!(first, json!({ "is_whole": true, "is_all": true, "jobs": [] }));
    agent.train(&JOB, 11..=12).await;
    agent.settle().await;
    let (id, sent) = events.next().await;
    assert_eq!(sent, json!({ "is_whole": true, "is_all": false, "jobs": ["watched@0"] }));
    assert!(timeout(QUIET, events.next()).await.is_err(), "nothing has changed");
    drop(events);

    // A client that connects again is sent nothing that it knows, and everything after a change.
    let mut events = running.changes(Some(&id)).await;
    let (_, first) = events.next().await;
    assert_eq!(first, json!({ "is_whole": true, "is_all": false, "jobs": [] }));
    assert!(timeout(QUIET, events.next()).await.is_err(), "nothing has changed");
    drop(events);
    let other = Job::new("another", 1);
    agent.announce(&other).await;
    agent.train(&other, 1..=2).await;
    agent.settle().await;
    let mut events = running.changes(Some(&id)).await;
    let (_, sent) = events.next().await;
    assert_eq!(sent["is_all"], true, "{sent}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_streams_leave_memory_for_answers() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=2).await;
    agent.settle().await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let mut events = running.changes(None).await;
        events.next().await;
        streams.push(events);
    }
    let asked = timeout(QUIET, running.get("/api/v1/jobs/watched/ranks"));
    assert_eq!(asked.await.expect("an answer").0, 200);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_the_same_comes_without_its_bytes() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=10).await;
    agent.settle().await;
    let client = reqwest::Client::new();
    let ask = async |tag: Option<&str>| {
        let asked = client.get(running.url("/api/v1/jobs/watched/series?rank=0"));
        let asked = tag.into_iter().fold(asked, |asked, tag| asked.header("if-none-match", tag));
        let answer = asked.send().await.unwrap();
        let tag = answer.headers()["etag"].to_str().unwrap().to_string();
        (answer.status().as_u16(), tag, answer.bytes().await.unwrap().len())
    };
    let (status, tag, bytes) = ask(None).await;
    assert_eq!((status, bytes > 0), (200, true));
    assert_eq!(ask(Some(&tag)).await, (304, tag.clone(), 0));
    assert_eq!(ask(Some("\"another\"")).await, (200, tag.clone(), bytes));
    agent.train(&JOB, 11..=12).await;
    agent.settle().await;
    let (status, newer, _) = ask(Some(&tag)).await;
    assert_eq!((status, newer != tag), (200, true));
    running.stop().await;
}

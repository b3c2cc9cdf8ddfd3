//! `/changes`: a client is told of each job that changes, and after a pause only where something has.

use std::time::Duration;

use serde_json::json;
use tokio::time::timeout;

use crate::fake::{Job, training};

const JOB: Job = Job::new("watched", 2);

/// Longer than the time between two looks at the jobs.
const QUIET: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_told_of_the_jobs_that_change() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=10).await;
    agent.settle().await;
    let mut events = running.changes(None).await;
    let (_, first) = events.next().await;
    assert_eq!(first, json!({ "is_whole": true, "is_all": true, "jobs": [] }));
    agent.train(&JOB, 11..=12).await;
    agent.settle().await;
    let (id, told) = events.next().await;
    assert_eq!(told, json!({ "is_whole": true, "is_all": false, "jobs": ["watched@0"] }));
    assert!(timeout(QUIET, events.next()).await.is_err(), "nothing has changed");
    drop(events);

    // Whoever comes again hears nothing of what it knows, and everything after a change.
    let mut events = running.changes(Some(&id)).await;
    assert!(timeout(QUIET, events.next()).await.is_err(), "nothing has changed");
    drop(events);
    let other = Job::new("another", 1);
    agent.announce(&other).await;
    agent.train(&other, 1..=2).await;
    agent.settle().await;
    let mut events = running.changes(Some(&id)).await;
    let (_, told) = events.next().await;
    assert_eq!(told["is_all"], true, "{told}");
    running.stop().await;
}

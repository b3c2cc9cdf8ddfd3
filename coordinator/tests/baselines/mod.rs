//! Captures of a healthy state.

use serde_json::Value;

use crate::fake::{Job, training};
use crate::{JOB, open_incidents, train_until_captured};

/// A step at which a job is warm, and the leak has not filled its device.
const WARM_STEP: u64 = 310;

fn has_baseline(answer: &Value) -> bool {
    let mut captures = answer["captures"].as_array().unwrap().iter();
    captures.any(|capture| capture["trigger"] == "baseline")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_an_open_incident_has_no_baseline() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    running.wait("/api/v1/incidents", |answer| open_incidents(answer) == 1).await;
    agent.train(&JOB, step + 1..=WARM_STEP).await;
    let calm = Job::new("calm", 2);
    agent.announce(&calm).await;
    agent.train(&calm, 1..=WARM_STEP).await;
    running.wait("/api/v1/captures?job=calm", has_baseline).await;
    let (_, answer) = running.get("/api/v1/captures?job=train").await;
    assert!(!has_baseline(&answer), "{answer:#}");
    running.stop().await;
}

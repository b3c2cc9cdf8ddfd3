//! Restarts and what the job's next attempt shows of them, over the network and across a kill.

mod hints;
mod remedies;

use std::path::Path;
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::policy::Mode;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::fake::{Agent, Job, PATIENCE, Running, config, copy_store, start, wall_ns};
use crate::{JOB, train_until_captured};

/// A coordinator that restarts at once, by a script that notes each call.
fn acting(folder: &Path, data: &str, script: &str) -> Config {
    let mut config = config(&folder.join(data));
    config.restart.policy.rest.mode = Mode::Act;
    config.restart.policy.rest.always = true;
    config.restart.policy.budgets.cool_down_ns = 0;
    config.restart.policy.budgets.job.restarts_max = 9;
    let note = folder.join("note");
    config.restart.command = Some(format!("echo asked >>'{}'; {script}", note.display()));
    config
}

fn calls(folder: &Path) -> usize {
    std::fs::read_to_string(folder.join("note")).map_or(0, |text| text.lines().count())
}

/// All ranks of an attempt exit, as a launcher makes them.
async fn exit(agent: &Agent, job: &Job, step: u64) {
    for rank in 0..job.ranks {
        agent
            .say(FromAgent::RankDown(v1::RankDown {
                tape_id: job.tape(rank),
                end: v1::RankEnd::Exited.into(),
                wall_ns: wall_ns(),
                step,
                ..v1::RankDown::default()
            }))
            .await;
    }
}

/// Trains forty steps of the next attempt, without a leak.
async fn train_next(agent: &mut Agent) {
    let next = Job { attempt: 1, run: 2, ..JOB };
    agent.announce(&next).await;
    agent.train(&next, 1..=1).await;
    // The first step is seen before the twentieth comes.
    sleep(Duration::from_millis(1_500)).await;
    agent.train(&next, 2..=40).await;
}

/// The newest restart, when it is as wished.
async fn restart(running: &Running, is_there: impl Fn(&Value) -> bool) -> Value {
    let newest = |answer: &Value| {
        let actions = answer["actions"].as_array().cloned().unwrap_or_default();
        actions.into_iter().find(|action| action["decision"] == "restart")
    };
    let is_there = |answer: &Value| newest(answer).is_some_and(|action| is_there(&action));
    newest(&running.wait("/api/v1/actions", is_there).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_has_a_verdict_when_the_next_attempt_shows_it() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(acting(dir.path(), "data", "true")).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let action = restart(&running, |action| action["outcome"] == "done").await;
    assert_eq!((&action["verdict"], &action["proof"]), (&json!(""), &json!("")));
    exit(&agent, &JOB, step).await;
    train_next(&mut agent).await;
    let action = restart(&running, |action| action["verdict"] != "").await;
    assert_eq!(action["verdict"], "helped", "{action:#}");
    let proof = action["proof"].as_str().unwrap();
    assert!(proof.contains(", 512 MiB at step 40 of the next attempt; "), "{proof}");
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    let line = "memtape_actions_total{target=\"command\",verdict=\"helped\"} 1";
    assert!(text.contains(line), "no {line} in {text}");
    let (_, audit) = running.get("/api/v1/audit").await;
    assert!(audit.to_string().contains("\"verdict\""), "{audit}");
    assert_eq!(calls(dir.path()), 1);
    running.stop().await;
}

/// A failed `cudaMalloc` that PyTorch survives in the next attempt is no end of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_in_the_next_attempt_is_not_out_of_memory() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(acting(dir.path(), "data", "true")).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    restart(&running, |action| action["outcome"] == "done").await;
    exit(&agent, &JOB, step).await;
    let next = Job { attempt: 1, run: 2, ..JOB };
    agent.announce(&next).await;
    agent.train(&next, 1..=1).await;
    let retried = |rank| {
        let mut report = next.rank_report(rank, &(2..=2));
        report.totals.iter_mut().for_each(|totals| totals.malloc_failures = 3);
        report
    };
    agent.report((0..next.ranks).map(retried).collect()).await;
    agent.settle().await;
    // The first step is seen before the twentieth comes.
    sleep(Duration::from_millis(1_500)).await;
    agent.train(&next, 3..=40).await;
    let action = restart(&running, |action| action["verdict"] != "").await;
    assert_eq!(action["verdict"], "helped", "{action:#}");
    running.stop().await;
}

/// The coordinator is killed while its target runs: the next one does not ask again, and sees by
/// the next attempt what came of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_coordinator_observes_and_does_not_repeat() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(acting(dir.path(), "data", "sleep 20")).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    restart(&running, |action| action["outcome"] == "running").await;
    let begin = Instant::now();
    while calls(dir.path()) == 0 {
        assert!(begin.elapsed() < PATIENCE, "the target was not asked");
        sleep(Duration::from_millis(20)).await;
    }
    copy_store(&dir.path().join("data"), &dir.path().join("killed"));
    running.stop().await;
    let again = start(acting(dir.path(), "killed", "true")).await;
    let action = restart(&again, |_| true).await;
    assert!(
        action["outcome"].as_str().unwrap().contains("the job or the node shows what came of it"),
        "{action}"
    );
    let mut agent = Agent::attach(&again, "node-a").await;
    agent.announce(&JOB).await;
    exit(&agent, &JOB, step).await;
    train_next(&mut agent).await;
    let action = restart(&again, |action| action["verdict"] != "").await;
    assert_eq!(action["verdict"], "helped", "{action:#}");
    assert_eq!(calls(dir.path()), 1, "asked once");
    again.stop().await;
}

/// Trains and serves captures until there is such an action; the last step.
async fn train_until(
    running: &Running,
    agent: &mut Agent,
    job: &Job,
    from: u64,
    is_there: impl Fn(&Value) -> bool,
) -> u64 {
    let mut step = from;
    loop {
        agent.train(job, step + 1..=step + 8).await;
        step += 8;
        agent.serve_all(job).await;
        let (_, answer) = running.get("/api/v1/actions").await;
        if answer["actions"].as_array().unwrap().iter().any(&is_there) {
            return step;
        }
        assert!(step < from + 1_000, "{answer:#}");
    }
}

/// Attempts that go on where the one before was, with the same memory: after two there is no third
/// restart.
#[tokio::test(flavor = "multi_thread")]
async fn two_restarts_without_effect_are_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(acting(dir.path(), "data", "true")).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    let mut step = 0;
    for attempt in 0..2 {
        let job = Job { attempt, run: attempt + 1, ..JOB };
        agent.announce(&job).await;
        let done =
            |action: &Value| action["attempt"] == json!(attempt) && action["outcome"] == "done";
        step = train_until(&running, &mut agent, &job, step, done).await;
        exit(&agent, &job, step).await;
        let next = Job { attempt: attempt + 1, run: attempt + 2, ..JOB };
        agent.announce(&next).await;
        agent.train(&next, step..=step).await;
        sleep(Duration::from_millis(1_500)).await;
        let proven = |action: &Value| {
            action["attempt"] == json!(attempt) && action["verdict"] == "no effect"
        };
        step = train_until(&running, &mut agent, &next, step, proven).await;
    }
    let last = Job { attempt: 2, run: 3, ..JOB };
    let why = "did nothing: the last 2 restarts did not help: a person must look";
    let declined = |action: &Value| action["why"] == why;
    train_until(&running, &mut agent, &last, step, declined).await;
    assert_eq!(calls(dir.path()), 2);
    running.stop().await;
}

/// A restart that a person has to approve is not made before, and once after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_waits_for_its_approval() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = acting(dir.path(), "data", "true");
    config.restart.policy.rest.approval = true;
    let running = start(config).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let why = "did nothing: a person must approve the restart, by `memtape policy approve`";
    let waits = |action: &Value| action["why"] == why;
    let step = train_until(&running, &mut agent, &JOB, step, waits).await;
    let (_, answer) = running.get("/api/v1/actions").await;
    let incident = answer["actions"][0]["incident_id"].as_str().unwrap().to_string();
    assert_eq!(calls(dir.path()), 0);
    let path = format!("/api/v1/incidents/{incident}/approve");
    let (status, approved) = running.post(&path, "{}").await;
    assert_eq!((status, approved), (200, json!({ "incident_id": incident, "is_needed": true })));
    let is_done = |action: &Value| action["outcome"] == "done";
    train_until(&running, &mut agent, &JOB, step, is_done).await;
    assert_eq!(calls(dir.path()), 1);
    running.stop().await;
}

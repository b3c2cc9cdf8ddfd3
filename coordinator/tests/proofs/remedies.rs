//! Remedies over the network: calls to all ranks at one step, what their next steps prove, and a
//! restart that waits for its checkpoint.

use std::path::Path;

use memtape_coordinator::Config;
use memtape_core::action::remedy::Signal;
use memtape_core::policy::Mode;
use memtape_proto::v1;
use memtape_proto::v1::RemedyOutcome::{Armed, Done, Refused, Signalled, Withdrawn};
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use crate::fake::{Agent, Job, PATIENCE, Running, config, copy_store, start};
use crate::proofs::exit;
use crate::train_until_captured;

/// Devices so large that there is time for the proof of a remedy: steps take no time here.
const JOB: Job = Job { device_mib: 16 << 20, ..crate::JOB };

/// The same ranks when the leak is gone.
const HEALED: Job = Job { leaking: None, ..JOB };

fn acting(folder: &Path) -> Config {
    let mut config = config(&folder.join("data"));
    config.restart.policy.rest.mode = Mode::Act;
    config.restart.policy.budgets.cool_down_inside_ns = 0;
    config.restart.signal = Some(Signal::SigTerm);
    config
}

/// Announces ranks that offer this.
async fn announce(agent: &Agent, offered: &[v1::Remedy]) {
    for rank in 0..JOB.ranks {
        let offered = offered.iter().map(|remedy| i32::from(*remedy)).collect();
        agent.say(FromAgent::RankUp(v1::RankUp { offered, ..JOB.rank_up(rank) })).await;
    }
}

/// All actions of this decision, newest first.
fn of_decision<'a>(answer: &'a Value, decision: &str) -> Vec<&'a Value> {
    let actions = answer["actions"].as_array().unwrap();
    actions.iter().filter(|action| action["decision"] == decision).collect()
}

/// Trains and serves captures until a remedy is asked for; the last step, and the request.
async fn train_until_asked(
    running: &Running,
    agent: &mut Agent,
    job: &Job,
    from: u64,
) -> (u64, v1::RemedyRequest) {
    let mut step = from;
    while agent.remedies.is_empty() {
        agent.train(job, step + 1..=step + 8).await;
        step += 8;
        agent.serve_all(job).await;
        let (_, answer) = running.get("/api/v1/actions").await;
        assert!(step < from + 2_000, "{answer:#}");
    }
    (step, agent.remedies.remove(0))
}

/// A job that has come as far as a call for a garbage collection; the last step, and the call.
async fn until_collection(dir: &Path) -> (Running, Agent, u64, v1::RemedyRequest) {
    let running = start(acting(dir)).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Gc]).await;
    let (step, call) = train_until_asked(&running, &mut agent, &JOB, 0).await;
    (running, agent, step, call)
}

/// A garbage collection has its verdict.
fn is_proven(answer: &Value) -> bool {
    of_decision(answer, "collect garbage").iter().any(|action| action["verdict"] != "")
}

/// A garbage collection was done on no rank.
fn is_on_none(answer: &Value) -> bool {
    let done = of_decision(answer, "collect garbage");
    done.iter().any(|action| action["outcome"].as_str().unwrap().contains("0 of 4 ranks"))
}

/// A remedy is done at one step on all ranks, and the steps that follow prove it.
#[tokio::test(flavor = "multi_thread")]
async fn a_remedy_is_done_at_one_step_and_proven_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, step, request) = until_collection(dir.path()).await;
    assert_eq!((request.remedy(), request.tape_ids.len()), (v1::Remedy::Gc, 4));
    assert!(request.step > step, "{} is not ahead of {step}", request.step);
    agent.answer_remedy(&JOB, 0..4, &request, Armed).await;
    agent.train(&JOB, step + 1..=request.step - 1).await;
    agent.train(&HEALED, request.step..=request.step).await;
    agent.answer_remedy(&JOB, 0..4, &request, Done).await;
    agent.train(&HEALED, request.step + 1..=request.step + 30).await;
    let answer = running.wait("/api/v1/actions", is_proven).await;
    let action = of_decision(&answer, "collect garbage")[0];
    assert_eq!((&action["verdict"], &action["kind"]), (&json!("helped"), &json!("ranks")));
    let said = format!("garbage collected at step {}, done on 4 of 4 ranks", request.step);
    assert_eq!(action["outcome"], json!(said));
    assert!(of_decision(&answer, "restart").is_empty(), "{answer:#}");
    running.stop().await;
}

/// A remedy that did not help twice is not tried a third time.
#[tokio::test(flavor = "multi_thread")]
async fn a_remedy_without_effect_is_tried_twice() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(acting(dir.path())).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Gc]).await;
    let mut step = 0;
    for time in 1..=2 {
        let (reached, request) = train_until_asked(&running, &mut agent, &JOB, step).await;
        agent.answer_remedy(&JOB, 0..4, &request, Armed).await;
        agent.train(&JOB, reached + 1..=request.step).await;
        agent.answer_remedy(&JOB, 0..4, &request, Done).await;
        step = request.step;
        let without_effect = |answer: &Value| {
            let done = of_decision(answer, "collect garbage");
            done.iter().filter(|action| action["verdict"] == "no effect").count() == time
        };
        loop {
            agent.train(&JOB, step + 1..=step + 8).await;
            step += 8;
            agent.serve_all(&JOB).await;
            if without_effect(&running.get("/api/v1/actions").await.1) {
                break;
            }
            assert!(step < 3_000);
        }
    }
    // What is left is a restart, and that is not due or refused.
    for _ in 0..20 {
        agent.train(&JOB, step + 1..=step + 8).await;
        step += 8;
        agent.serve_all(&JOB).await;
    }
    let (_, answer) = running.get("/api/v1/actions").await;
    assert_eq!(of_decision(&answer, "collect garbage").len(), 2, "{answer:#}");
    let (_, explained) = running.get("/api/v1/jobs/train/policy").await;
    let gc = &explained["incidents"][0]["remedies"][0];
    let why = "the last 2 garbage collections did not help: a person must look";
    assert_eq!((&gc["remedy"], &gc["objection"]), (&json!("gc"), &json!(why)));
    running.stop().await;
}

/// Where one rank cannot, all are asked to leave it.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_one_rank_refuses_is_taken_back_from_all() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, _, request) = until_collection(dir.path()).await;
    agent.answer_remedy(&JOB, 0..3, &request, Armed).await;
    agent.answer_remedy(&JOB, 3..4, &request, Refused).await;
    let withdrawn = agent.remedy_asked().await;
    assert_eq!(withdrawn.remedy(), v1::Remedy::Withdraw);
    assert_eq!(withdrawn.call_id, request.call_id);
    agent.answer_remedy(&JOB, 0..3, &request, Withdrawn).await;
    let answer = running.wait("/api/v1/actions", is_on_none).await;
    assert_eq!(of_decision(&answer, "collect garbage")[0]["verdict"], "", "nothing to observe");
    running.stop().await;
}

/// The agent's stream breaks before the withdrawal is carried out.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_taken_back_is_taken_back_again_on_the_next_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, _, request) = until_collection(dir.path()).await;
    agent.answer_remedy(&JOB, 0..3, &request, Armed).await;
    agent.answer_remedy(&JOB, 3..4, &request, Refused).await;
    assert_eq!(agent.remedy_asked().await.remedy(), v1::Remedy::Withdraw);
    drop(agent);

    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Gc]).await;
    let mut tapes = Vec::new();
    for _ in 0..JOB.ranks {
        let again = agent.remedy_asked().await;
        assert_eq!((again.remedy(), &again.call_id), (v1::Remedy::Withdraw, &request.call_id));
        tapes.extend(again.tape_ids);
    }
    assert_eq!(tapes, request.tape_ids);
    agent.answer_remedy(&JOB, 0..3, &request, Withdrawn).await;
    running.wait("/api/v1/actions", is_on_none).await;
    running.stop().await;
}

/// The agent still has a stream, and the coordinator cannot prove that it owns its store.
#[tokio::test(flavor = "multi_thread")]
async fn a_coordinator_that_owns_nothing_any_more_calls_no_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, _, request) = until_collection(dir.path()).await;
    let [data, gone] = ["data", "gone"].map(|name| dir.path().join(name));
    std::fs::rename(&data, &gone).unwrap();
    announce(&agent, &[v1::Remedy::Gc]).await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
        let count = text.split("memtape_losses_total{reason=\"agent_not_asked\"} ").nth(1);
        let count = count.and_then(|rest| rest.lines().next()?.parse::<f64>().ok());
        if count.is_some_and(|count| count >= f64::from(JOB.ranks)) {
            break;
        }
        assert!(Instant::now() < deadline, "{text}");
        sleep(Duration::from_millis(20)).await;
    }
    std::fs::rename(&gone, &data).unwrap();
    announce(&agent, &[v1::Remedy::Gc]).await;
    assert_eq!(agent.remedy_asked().await.call_id, request.call_id);
    assert!(agent.remedies.is_empty());
    running.stop().await;
}

/// The agent's stream breaks before the call is answered.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_made_again_on_the_next_stream() {
    let dir = tempfile::tempdir().unwrap();
    let (running, agent, _, request) = until_collection(dir.path()).await;
    drop(agent);
    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Gc]).await;
    for tape_id in &request.tape_ids {
        let tape_ids = vec![tape_id.clone()];
        let again = v1::RemedyRequest { tape_ids, ..request.clone() };
        assert_eq!(agent.remedy_asked().await, again);
    }
    running.stop().await;
}

/// The ranks end while no coordinator runs: what was asked of them may have been done.
#[tokio::test(flavor = "multi_thread")]
async fn a_remedy_whose_ranks_ended_without_a_coordinator_has_a_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let (running, agent, step, request) = until_collection(dir.path()).await;
    agent.answer_remedy(&JOB, 0..4, &request, Armed).await;
    copy_store(&dir.path().join("data"), &dir.path().join("killed"));
    running.stop().await;
    let mut config = acting(dir.path());
    config.data_dir = dir.path().join("killed");
    let again = start(config).await;
    let agent = Agent::attach(&again, "node-a").await;
    announce(&agent, &[v1::Remedy::Gc]).await;
    exit(&agent, &JOB, step).await;
    let answer = again.wait("/api/v1/actions", is_proven).await;
    assert_eq!(of_decision(&answer, "collect garbage")[0]["verdict"], "unknown", "{answer:#}");
    again.stop().await;
}

/// What an earlier coordinator knew is not acted on before the agents are back.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_coordinator_decides_when_the_agents_are_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = acting(dir.path());
    config.restart.policy.rest.mode = Mode::Off;
    let running = start(config).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Signal]).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_sure = |answer: &Value| {
        let policy = &answer["incidents"][0];
        policy["decision"].as_str().is_some_and(|it| it.contains("the policy is off"))
    };
    running.wait("/api/v1/jobs/train/policy", is_sure).await;
    let (again, mut agent) = {
        copy_store(&dir.path().join("data"), &dir.path().join("next"));
        running.stop().await;
        let mut config = acting(dir.path());
        config.restart.policy.rest.always = true;
        config.data_dir = dir.path().join("next");
        let again = start(config).await;
        let (_, explained) = again.get("/api/v1/jobs/train/policy").await;
        let why = "did nothing: the agents of the job are not back since the coordinator was \
                   started";
        assert_eq!(explained["incidents"][0]["decision"], why, "{explained:#}");
        let (_, answer) = again.get("/api/v1/actions").await;
        assert!(of_decision(&answer, "restart").is_empty(), "{answer:#}");
        let agent = Agent::attach(&again, "node-a").await;
        announce(&agent, &[v1::Remedy::Signal]).await;
        (again, agent)
    };
    let (_, signal) = train_until_asked(&again, &mut agent, &JOB, step).await;
    assert_eq!(signal.remedy(), v1::Remedy::Signal);
    again.stop().await;
}

/// First the capture, then the checkpoint at one step, then the signal.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_waits_for_its_capture_and_its_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, step, request) = until_checkpoint(dir.path()).await;
    assert_eq!(request.remedy(), v1::Remedy::Checkpoint);
    agent.answer_remedy(&JOB, 0..4, &request, Armed).await;
    agent.train(&JOB, step + 1..=request.step).await;
    assert!(agent.remedies.is_empty(), "no signal before the checkpoint");
    agent.answer_remedy(&JOB, 0..4, &request, Done).await;
    let signal = agent.remedy_asked().await;
    assert_eq!(signal.remedy(), v1::Remedy::Signal);
    assert_eq!(signal.signal(), v1::RemedySignal::Term);
    agent.answer_remedy(&JOB, 0..4, &signal, Signalled).await;
    let restart = &signalled(&running).await;
    let said = format!("checkpoint at step {}, done on 4 of 4 ranks", request.step);
    assert_eq!((&restart["checkpoint"], &restart["kind"]), (&json!(said), &json!("signal")));
    running.stop().await;
}

/// A coordinator that goes on with the store as it is now, after a kill, with the agent of the
/// ranks, which has reported that it knows no ends.
async fn go_on(running: Running, dir: &Path, name: &str, mode: Mode) -> (Running, Agent) {
    copy_store(&dir.join("data"), &dir.join(name));
    running.stop().await;
    let mut config = acting(dir);
    config.restart.policy.rest.always = true;
    config.restart.policy.rest.mode = mode;
    config.data_dir = dir.join(name);
    let again = start(config).await;
    let mut agent = Agent::attach(&again, "node-a").await;
    announce(&agent, &[v1::Remedy::Checkpoint, v1::Remedy::Signal]).await;
    agent.report(Vec::new()).await;
    agent.report(Vec::new()).await;
    (again, agent)
}

/// A restart that has come as far as a call for its checkpoint; the last step, and the call.
async fn until_checkpoint(dir: &Path) -> (Running, Agent, u64, v1::RemedyRequest) {
    let mut config = acting(dir);
    config.restart.policy.rest.always = true;
    let running = start(config).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    announce(&agent, &[v1::Remedy::Checkpoint, v1::Remedy::Signal]).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let (step, call) = train_until_asked(&running, &mut agent, &JOB, step).await;
    (running, agent, step, call)
}

/// The only restart, once it has signalled all ranks.
async fn signalled(running: &Running) -> Value {
    let is_done = |answer: &Value| {
        let restart = of_decision(answer, "restart");
        restart.iter().any(|action| action["outcome"] == "SIGTERM: done on 4 of 4 ranks")
    };
    let answer = running.wait("/api/v1/actions", is_done).await;
    let restarts = of_decision(&answer, "restart");
    assert_eq!(restarts.len(), 1, "{answer:#}");
    restarts[0].clone()
}

/// The call is repeated under its name, and the restart goes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_coordinator_repeats_the_call_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (running, agent, step, call) = until_checkpoint(dir.path()).await;
    agent.answer_remedy(&JOB, 0..4, &call, Armed).await;
    let (again, mut agent) = go_on(running, dir.path(), "killed", Mode::Act).await;
    assert_eq!(agent.remedy_asked().await, call);
    agent.answer_remedy(&JOB, 0..4, &call, Armed).await;
    agent.train(&JOB, step + 1..=call.step).await;
    agent.answer_remedy(&JOB, 0..4, &call, Done).await;
    let signal = agent.remedy_asked().await;
    assert_eq!(signal.remedy(), v1::Remedy::Signal);
    assert_ne!(signal.call_id, call.call_id, "agents follow a call once");
    // It is killed again before the answers to the signal come.
    let data = dir.path().join("data");
    std::fs::remove_dir_all(&data).unwrap();
    copy_store(&dir.path().join("killed"), &data);
    let (again, mut agent) = go_on(again, dir.path(), "again", Mode::Act).await;
    assert_eq!(agent.remedy_asked().await, signal);
    agent.answer_remedy(&JOB, 0..4, &signal, Signalled).await;
    signalled(&again).await;
    again.stop().await;
}

/// A checkpoint that no rank can write any more is asked for once more, at a later step.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_checkpoint_is_requested_once_more() {
    let dir = tempfile::tempdir().unwrap();
    let (running, mut agent, step, call) = until_checkpoint(dir.path()).await;
    agent.answer_remedy(&JOB, 0..4, &call, Refused).await;
    let second = agent.remedy_asked().await;
    assert_eq!(second.remedy(), v1::Remedy::Checkpoint);
    assert!(second.step > step && second.call_id != call.call_id, "{call:?} {second:?}");
    running.stop().await;
}

/// An operator who starts the coordinator again with a dry run stops what was under way.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_coordinator_gives_up_what_its_policy_does_not_allow() {
    let dir = tempfile::tempdir().unwrap();
    let (running, agent, step, call) = until_checkpoint(dir.path()).await;
    agent.answer_remedy(&JOB, 0..4, &call, Armed).await;
    let (again, mut agent) = go_on(running, dir.path(), "again", Mode::DryRun).await;
    let is_given_up = |answer: &Value| {
        let restart = of_decision(answer, "restart");
        restart.iter().any(|it| it["outcome"].as_str().unwrap().starts_with("not run: "))
    };
    again.wait("/api/v1/actions", is_given_up).await;
    agent.train(&JOB, step + 1..=step + 40).await;
    assert!(agent.remedies.is_empty(), "{:?}", agent.remedies);
    again.stop().await;
}

//! The coordinator as agents and users see it: over gRPC and HTTP, through kills and bad input.

mod access;
mod agent_captures;
mod area;
mod attacks;
mod baselines;
mod censuses;
mod changes;
mod deaths;
mod differences;
mod fake;
mod host_readings;
mod job_end;
mod kept;
mod kept_memory;
mod openapi;
mod page;
mod proofs;
mod protocol;
mod readiness;
mod reference;
mod segments;
mod turns;

use std::time::Duration;

use fake::{Agent, Job, LEAK_BEGINS, LEAK_LINE, answer, config, copy_store, start, training};
use memtape_coordinator::Config;
use memtape_core::policy::Mode;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::Code;

const JOB: Job = Job { leaking: Some(2), ..Job::new("train", 4) };

/// Steps after which the leak has been found, whatever the detector's settings.
const FOUND_BY: u64 = 400;

fn open_incidents(answer: &Value) -> usize {
    let incidents = answer["incidents"].as_array().unwrap();
    incidents.iter().filter(|incident| incident["state"] == "open").count()
}

/// A capture that the agent was asked for, and the snapshots it sent.
type Found = (v1::CaptureRequest, std::collections::BTreeMap<u32, Vec<u8>>);

/// Trains until the coordinator asks for a capture, and answers it.
async fn train_until_captured(agent: &mut Agent, job: &Job, from: u64) -> (u64, Found) {
    let mut step = from;
    while agent.requests.is_empty() {
        assert!(step < FOUND_BY, "no capture was asked for by step {step}");
        agent.train(job, step + 1..=step + 8).await;
        step += 8;
    }
    let request = agent.asked().await;
    let snapshots = agent.serve(job, &request).await;
    (step, (request, snapshots))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leak_is_found_captured_named_and_stored() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let (step, (request, snapshots)) = train_until_captured(&mut agent, &JOB, 0).await;
    assert_eq!(request.tape_ids.len(), 4);
    assert!(request.step <= step && step - request.step <= 16, "T is a newest step of all ranks");

    let diagnosed = |answer: &Value| answer["incidents"][0]["class"] == "leak";
    let answer = running.wait("/api/v1/incidents", diagnosed).await;
    assert_eq!(answer["incidents"].as_array().unwrap().len(), 1, "{answer:#}");
    let id = answer["incidents"][0]["id"].as_str().unwrap().to_string();
    let path = format!("/api/v1/incidents/{id}");
    let incident = running.wait(&path, |incident| incident["stored"] == true).await;
    let culprit = json!({"file": "/app/train.py", "line": LEAK_LINE, "function": "train_step"});
    assert_eq!(incident["culprit"], culprit);
    assert_eq!(incident["suspects"][0]["frame"], culprit);
    assert_eq!((&incident["rank"], &incident["scope"]), (&json!(2), &json!("one_rank")));
    assert_eq!(incident["bytes_per_step"], 32 * fake::MIB);
    let onset = incident["onset_step"].as_u64().unwrap();
    assert!(onset.abs_diff(LEAK_BEGINS) <= 32, "the onset is dated {onset}");
    assert!(incident["explained_ratio"].as_f64().unwrap() > 0.9, "{incident:#}");
    assert!(incident["steps_to_oom"].as_u64().unwrap() > 50);

    let path = format!("/api/v1/captures/{}", request.capture_id);
    let (_, capture) = running.get(&path).await;
    assert_eq!((&capture["state"], &capture["aligned"]), (&json!("complete"), &json!(4)));
    assert_eq!((&capture["trigger"], &capture["missing"]), (&json!("growth"), &json!([])));
    assert_eq!(incident["capture_id"], capture["id"]);
    for (rank, snapshot) in &snapshots {
        let answer = reqwest::get(running.url(&format!("{path}/ranks/{rank}"))).await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/zstd");
        assert_eq!(answer.bytes().await.unwrap(), snapshot);
    }
    check_lists(&running, step, &id).await;
    check_doors(&running).await;
    running.stop().await;
    assert!(agent.ended().await, "the coordinator says goodbye");
}

async fn check_lists(running: &fake::Running, step: u64, incident: &str) {
    let (_, answer) = running.get("/api/v1/jobs").await;
    let job = &answer["jobs"][0];
    assert_eq!((&job["state"], &job["class"]), (&json!("incident"), &json!("leak")));
    assert_eq!((&job["ranks_alive"], &job["step_max"]), (&json!(4), &json!(step)));
    assert_eq!(job["step_on_tapes"], 1);
    assert_eq!((&job["incidents_open"], &job["nodes"]), (&json!(1), &json!(["node-a"])));
    let (_, answer) = running.get("/api/v1/jobs/train/ranks").await;
    let rank = &answer["ranks"][2];
    assert_eq!((&rank["state"], &rank["alive"]), (&json!("growing"), &json!(true)));
    assert_eq!((&rank["pid"], &rank["end"]), (&json!(1002), &Value::Null));
    assert_eq!(rank["devices"][0]["process_bytes"], 4300 * fake::MIB);
    assert_eq!(rank["devices"][0]["uuid"], "GPU-2");
    let (_, series) = running.get("/api/v1/jobs/train/series?rank=2&points=50000").await;
    assert_eq!(series["steps"], json!((1..=step).collect::<Vec<u64>>()));
    let (_, series) = running.get("/api/v1/jobs/train/series?rank=2&points=3").await;
    assert!((2..=3).contains(&series["steps"].as_array().unwrap().len()), "{series}");
    area::check(running, step).await;
    let (_, answer) = running.get("/api/v1/actions").await;
    let action = &answer["actions"][0];
    assert_eq!((&action["incident_id"], &action["kind"]), (&json!(incident), &json!("none")));
    let (_, answer) = running.get("/api/v1/nodes").await;
    let node = &answer["nodes"][0];
    assert_eq!((&node["node"], &node["connected"]), (&json!("node-a"), &json!(true)));
    assert_eq!(node["host"]["nvml_missing"], "no driver");
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    for line in [
        r#"rank="1",node="node-a",device="0",layer="allocated"} 536870912"#,
        r#"memtape_rank_memory_bytes{job="train@0",attempt="0",rank="0","#,
        r#"memtape_captures_total{result="complete"} 1"#,
        r#"memtape_incidents_total 1"#,
        r#"memtape_losses_total{reason="bad_message"} 0"#,
        r#"memtape_snapshots_total 4"#,
        "# EOF",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    let active = format!("memtape_incident_active{{job=\"train@0\",incident=\"{incident}\"");
    let (_, known) = running.get(&format!("/api/v1/incidents/{incident}")).await;
    let urgency = format!("urgency={}}} 1.0", known["urgency"]);
    let is_it = |line: &str| line.starts_with(&active) && line.ends_with(&urgency);
    assert!(text.lines().any(is_it), "{text}");
    assert!(!text.contains("train.py"), "nothing is labelled by stack");
}

/// What is no JSON, and what is not there.
async fn check_doors(running: &fake::Running) {
    for (path, content_type, part) in [
        ("/", "text/html", "Memtape"),
        ("/app.js", "text/javascript", "api/v1"),
        ("/healthz", "text/plain", "ok"),
    ] {
        let answer = reqwest::get(running.url(path)).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'self'"));
        let found = answer.headers()["content-type"].to_str().unwrap().to_string();
        assert!(found.starts_with(content_type), "{path}: {found}");
        assert!(answer.text().await.unwrap().contains(part), "{path}");
    }
    for (path, status) in [
        ("/api/v1/jobs/nosuch/ranks", 404),
        ("/api/v1/jobs/nosuch/series?rank=0", 404),
        ("/api/v1/jobs/train/series?rank=77", 404),
        ("/api/v1/jobs/train/series", 400),
        ("/api/v1/jobs/train/series?rank=x", 400),
        ("/api/v1/jobs/train/series?rank=0&from=9&to=8", 400),
        ("/api/v1/jobs/train/series?rank=0&account=nosuch", 400),
        ("/api/v1/jobs/nosuch/area", 404),
        ("/api/v1/jobs/train/area?attempt=7", 404),
        ("/api/v1/jobs/train/area?first_rank=4", 404),
        ("/api/v1/jobs/train/area?first_rank=2&last_rank=1", 400),
        ("/api/v1/jobs/train/area?from=9&to=8", 400),
        ("/api/v1/jobs/train/area?rows=0", 400),
        ("/api/v1/jobs/train/area?columns=x", 400),
        ("/api/v1/jobs/train/area?account=nosuch", 400),
        ("/api/v1/captures/cap-nosuch", 404),
        ("/api/v1/captures/cap-nosuch/ranks/0", 404),
        ("/api/v1/captures/cap-nosuch/ranks/first", 400),
        ("/api/v1/incidents/inc-nosuch", 404),
        ("/api/v1/nosuch", 404),
    ] {
        let (found, answer) = running.get(path).await;
        assert_eq!(found, status, "{path}: {answer}");
        let line = answer["error"].as_str().unwrap();
        assert!(!line.is_empty() && !line.contains('\n'), "{path}: {line}");
    }
    let (_, answer) = running.get("/api/v1/incidents?job=other").await;
    assert_eq!(answer, json!({"incidents": [], "missing_shards": []}));
    assert_eq!(running.get("/nosuch").await.0, 404);
    assert_eq!(running.post("/api/v1/jobs/nosuch/captures", "{}").await.0, 404);
    assert_eq!(running.post("/api/v1/jobs/train/captures", "{\"step\":").await.0, 400);
    let (status, answer) = running.post("/api/v1/jobs/train/captures", r#"{"step":99999}"#).await;
    assert_eq!(status, 409, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("not finished"));
    let cross_site = reqwest::Client::new()
        .post(running.url("/api/v1/jobs/train/captures"))
        .header("sec-fetch-site", "cross-site");
    assert_eq!(cross_site.send().await.unwrap().status(), 403);
    // A name that another site took for this address.
    let rebound = reqwest::Client::new().get(running.url("/api/v1/jobs")).header("host", "evil.x");
    let answer = rebound.send().await.unwrap();
    assert_eq!(answer.status(), 421);
    assert!(answer.headers().contains_key("x-request-id"));
    assert!(answer.text().await.unwrap().contains("--host evil.x"));
    assert_eq!(running.get("/readyz").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn uploads_are_for_agents_alone() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let channel = tonic::transport::Channel::from_shared(running.url("")).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = v1::coordinator_client::CoordinatorClient::new(channel);
    // Its first chunk never comes: it takes none of the places of uploads.
    let refused = client.upload(tokio_stream::pending()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert!(refused.message().contains("no agent is attached"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_coordinator_resumes_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let (live, killed) = (dir.path().join("live"), dir.path().join("killed"));
    let running = start(config(&live)).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, (request, snapshots)) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_stored = |answer: &Value| {
        answer["incidents"][0]["class"] == "leak" && answer["incidents"][0]["stored"] == true
    };
    let before = running.wait("/api/v1/incidents", is_stored).await;
    let path = format!("/api/v1/captures/{}", request.capture_id);
    let (_, capture) = running.get(&path).await;
    copy_store(&live, &killed);

    let again = start(config(&killed)).await;
    let (_, incidents) = again.get("/api/v1/incidents").await;
    // Rates and forecast were those of the moment; the record has those of the last finding.
    let same = ["id", "class", "culprit", "onset_step", "evidence", "suspects", "capture_step"];
    for field in same.into_iter().chain(["capture_id", "opened_wall_ns", "state"]) {
        let found = &incidents["incidents"][0][field];
        assert_eq!(found, &before["incidents"][0][field], "{field}");
    }
    // Nothing is forecast of a job of which no rank is heard.
    let ends = [&before, &incidents].map(|of| of["incidents"][0]["steps_to_oom"].is_u64());
    assert_eq!(ends, [true, false]);
    assert_eq!(again.get(&path).await.1, capture);
    assert_eq!(again.get("/api/v1/jobs").await.1["jobs"][0]["state"], "disconnected");
    for (rank, snapshot) in &snapshots {
        let answer = reqwest::get(again.url(&format!("{path}/ranks/{rank}"))).await.unwrap();
        assert_eq!(answer.bytes().await.unwrap(), snapshot);
    }
    let (_, answer) = again.get("/api/v1/jobs/train/ranks").await;
    for rank in answer["ranks"].as_array().unwrap() {
        let found = (&rank["state"], &rank["alive"], &rank["step"]);
        assert_eq!(found, (&json!("disconnected"), &json!(false), &json!(step)));
    }
    // Until the growth is found again, too.
    again.check_rate().await;
    let (_, series) = again.get("/api/v1/jobs/train/series?rank=2&points=50000").await;
    assert_eq!(series["steps"].as_array().unwrap().len() as u64, step);
    // The restart that was decided on is remembered, with its cool-down.
    let (_, actions) = again.get("/api/v1/actions").await;
    let actions = actions["actions"].as_array().unwrap();
    assert_eq!(actions.last(), running.get("/api/v1/actions").await.1["actions"].get(0));
    let repeated = actions.iter().filter(|action| action["decision"] == "would restart");
    assert_eq!(repeated.count(), 1, "{actions:#?}");

    // The agent comes back with the same tapes; the growth goes on and is the same incident.
    let mut agent = Agent::attach(&again, "node-a").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, step + 1..=step + 320).await;
    let (_, answer) = again.get("/api/v1/jobs/train/ranks").await;
    let rank = &answer["ranks"][2];
    assert_eq!((&rank["state"], &rank["alive"]), (&json!("growing"), &json!(true)));
    let grown = before["incidents"][0]["grown_bytes"].as_u64().unwrap() + 200 * fake::MIB;
    let grew = |answer: &Value| answer["incidents"][0]["grown_bytes"].as_u64().unwrap() > grown;
    let after = again.wait("/api/v1/incidents", grew).await;
    assert_eq!(after["incidents"].as_array().unwrap().len(), 1, "{after:#}");
    assert_eq!(after["incidents"][0]["id"], before["incidents"][0]["id"]);
    assert_eq!(open_incidents(&after), 1);
    again.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_survives_a_kill_in_its_middle() {
    let dir = tempfile::tempdir().unwrap();
    let (live, killed) = (dir.path().join("live"), dir.path().join("killed"));
    let running = start(config(&live)).await;
    let job = Job { leaking: None, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    agent.train(&job, 1..=40).await;
    let (status, answer) = running.post("/api/v1/jobs/train/captures", r#"{"step":35}"#).await;
    assert_eq!(status, 202);
    let id = answer["id"].as_str().unwrap().to_string();
    let request = agent.asked().await;
    assert_eq!((request.capture_id.as_str(), request.step), (id.as_str(), 35));
    // One snapshot is in, then the coordinator dies.
    let one = v1::CaptureRequest { tape_ids: vec![job.tape(1)], ..request.clone() };
    agent.serve(&job, &one).await;
    copy_store(&live, &killed);

    let again = start(config(&killed)).await;
    let path = format!("/api/v1/captures/{id}");
    let (_, capture) = again.get(&path).await;
    assert_eq!(capture["state"], "collecting");
    let mut agent = Agent::attach(&again, "node-a").await;
    agent.announce(&job).await;
    agent.train(&job, 41..=48).await;
    let request = agent.asked().await;
    assert_eq!((request.capture_id.as_str(), request.step), (id.as_str(), 35));
    agent.serve(&job, &request).await;
    let capture = again.wait(&path, |capture| capture["state"] == "complete").await;
    assert_eq!(capture["aligned"], 4);
    // Its snapshot is acknowledged again to an agent that had no receipt.
    let snapshot = job.snapshot(1, request.step, request.before_step);
    let receipt = agent.upload(&id, &job.tape(1), &snapshot).await;
    assert!(receipt.is_ok(), "{receipt:?}");
    again.stop().await;
    running.stop().await;
}

/// A second agent of the same name, or one that looks into the wrong folder, does not know the
/// tapes. Its word counts, until an agent knows them again.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_wrongly_taken_as_ended_keeps_its_incident() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let is = |state: &'static str| {
        move |answer: &Value| {
            let incidents = answer["incidents"].as_array().unwrap();
            incidents.len() == 1 && incidents[0]["state"] == state
        }
    };
    let before = running.wait("/api/v1/incidents", is("open")).await;
    let mut ignorant = Agent::attach(&running, "node-a").await;
    ignorant.report(Vec::new()).await;
    running.wait("/api/v1/incidents", is("closed")).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    agent.train(&JOB, step + 1..=step + 64).await;
    let after = running.wait("/api/v1/incidents", is("open")).await;
    assert_eq!(after["incidents"][0]["id"], before["incidents"][0]["id"]);
    assert_eq!(after["incidents"][0]["onset_step"], before["incidents"][0]["onset_step"]);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_node_makes_a_capture_partial_by_its_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.capture_deadline = Duration::from_secs(3);
    let running = start(config).await;
    let job = Job { leaking: None, ranks: 2, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    agent.train(&job, 1..=16).await;
    let (_, answer) = running.post("/api/v1/jobs/train/captures", "").await;
    let request = agent.asked().await;
    let one = v1::CaptureRequest { tape_ids: vec![job.tape(0)], ..request.clone() };
    let path = format!("/api/v1/captures/{}", answer["id"].as_str().unwrap());
    let (_, capture) = running.get(&path).await;
    assert_eq!(capture["parts"][1]["outcome"], "awaited", "it may still come: {capture:#}");
    agent.serve(&job, &one).await;
    let capture = running.wait(&path, |capture| capture["state"] == "partial").await;
    assert_eq!(capture["missing"][0]["rank"], 1);
    assert_eq!(capture["missing"][0]["outcome"], "unreachable");
    let late = agent.upload(&request.capture_id, &job.tape(1), b"late").await.unwrap_err();
    assert_eq!(late.code(), Code::FailedPrecondition);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_agents_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let job = Job { leaking: None, ..JOB };
    let mut honest = Agent::attach(&running, "node-a").await;
    honest.announce(&job).await;
    honest.train(&job, 1..=16).await;
    let up = v1::RankUp { rank: 140_000, ..job.rank_up(0) };
    let mut rank = job.rank_report(0, &(17..=17));
    rank.steps = vec![rank.steps[0]; 5_000];
    let huge = v1::Report { number: 1, ranks: vec![rank], ..v1::Report::default() };
    for (number, bad) in [FromAgent::RankUp(up), FromAgent::Report(huge)].into_iter().enumerate() {
        let mut hostile = Agent::attach(&running, &format!("bad-{number}")).await;
        hostile.say(bad).await;
        running
            .wait("/api/v1/nodes", |answer| {
                let nodes = answer["nodes"].as_array().unwrap();
                let bad = nodes.iter().find(|node| node["node"] == format!("bad-{number}"));
                bad.is_some_and(|node| node["connected"] == false)
            })
            .await;
        assert!(!hostile.ended().await);
    }
    // A node cannot speak for the ranks of another, nor take its name while it is there.
    let mut liar = Agent::attach(&running, "node-b").await;
    liar.announce(&job).await;
    liar.train(&job, 500..=516).await;
    let (_, answer) = running.get("/api/v1/jobs/train/ranks").await;
    assert_eq!(answer["ranks"][0]["step"], 16);
    honest.train(&job, 17..=24).await;
    let taken = Agent::try_attach(&running, "node-a", "boot-2").await.err().unwrap();
    assert_eq!(taken.code(), Code::AlreadyExists);
    // Snapshots that were not requested, or that are not what was announced.
    let stray = honest.upload("cap-nosuch", &job.tape(0), b"snapshot").await.unwrap_err();
    assert_eq!(stray.code(), Code::FailedPrecondition);
    running.post("/api/v1/jobs/train/captures", "{}").await;
    let request = honest.asked().await;
    let snapshot = job.snapshot(0, request.step, request.before_step);
    honest.say(FromAgent::CaptureAnswer(answer_of(&job, &request, &snapshot))).await;
    running.get("/api/v1/jobs").await;
    // Damage is sent again, also where it hides the size of the snapshot.
    for at in [0, 20] {
        let mut other = snapshot.clone();
        other[at] ^= 1;
        let swapped = honest.upload(&request.capture_id, &job.tape(0), &other).await.unwrap_err();
        assert_eq!(swapped.code(), Code::Aborted);
    }
    let garbage = honest.upload(&request.capture_id, &job.tape(1), b"garbage").await.unwrap_err();
    assert_eq!(garbage.code(), Code::InvalidArgument);
    honest.upload(&request.capture_id, &job.tape(0), &snapshot).await.unwrap();
    honest.train(&job, 25..=32).await;
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    for line in [
        "{reason=\"bad_message\"} 2",
        "{reason=\"bad_snapshot\"} 3",
        "{reason=\"stale_snapshot\"} 1",
    ] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    running.stop().await;
}

fn answer_of(job: &Job, request: &v1::CaptureRequest, snapshot: &[u8]) -> v1::CaptureAnswer {
    answer(job, 0, request, snapshot)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_is_asked_for_once() {
    let dir = tempfile::tempdir().unwrap();
    let note = dir.path().join("note");
    let mut config = config(&dir.path().join("data"));
    config.restart.policy.rest.mode = Mode::Act;
    config.restart.policy.rest.always = true;
    let script = format!("echo $MEMTAPE_JOB $MEMTAPE_RANK $MEMTAPE_CLASS >>'{}'", note.display());
    config.restart.command = Some(script);
    let running = start(config).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&JOB).await;
    let (step, _) = train_until_captured(&mut agent, &JOB, 0).await;
    let is_done = |answer: &Value| answer["actions"][0]["outcome"] == "done";
    let answer = running.wait("/api/v1/actions", is_done).await;
    let action = &answer["actions"][0];
    assert_eq!(answer["actions"].as_array().unwrap().len(), 1);
    assert_eq!(action["kind"], "command");
    assert_eq!((&action["decision"], &action["dry_run"]), (&json!("restart"), &json!(false)));
    agent.train(&JOB, step + 1..=step + 160).await;
    assert_eq!(std::fs::read_to_string(&note).unwrap(), "train@0 2 leak\n");
    let (_, audit) = running.get("/api/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap();
    for action in ["capture", "restart", "restart done"] {
        let is_entry = |entry: &&Value| entry["action"] == action;
        assert!(entries.iter().any(|entry| is_entry(&entry)), "no {action} in {audit}");
    }
    assert!(!audit.to_string().contains("hush"), "{audit}");
    running.stop().await;
}

/// What an OTLP collector gets: the path of each call, and its body as far as it is text.
async fn collector(calls: mpsc::UnboundedSender<(String, String)>) -> String {
    let take = move |request: axum::extract::Request| {
        let calls = calls.clone();
        async move {
            let path = request.uri().path().to_string();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let _ = calls.send((path, String::from_utf8_lossy(&body).into_owned()));
            [("content-type", "application/grpc"), ("grpc-status", "0")]
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(take);
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_is_a_span_with_a_child_per_rank() {
    let dir = tempfile::tempdir().unwrap();
    let (sender, mut calls) = mpsc::unbounded_channel();
    let otlp_endpoint = Some(collector(sender).await);
    let running = start(Config { otlp_endpoint, ..config(dir.path()) }).await;
    let job = Job { leaking: None, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    agent.train(&job, 1..=16).await;
    running.post("/api/v1/jobs/train/captures", "{}").await;
    let request = agent.asked().await;
    agent.serve(&job, &request).await;
    let path = format!("/api/v1/captures/{}", request.capture_id);
    running.wait(&path, |capture| capture["state"] == "complete").await;
    // What waits is sent at the end.
    running.stop().await;
    let (mut spans, mut metrics) = (String::new(), String::new());
    while let Ok((path, body)) = calls.try_recv() {
        let sort = if path.ends_with("TraceService/Export") { &mut spans } else { &mut metrics };
        sort.push_str(&body);
    }
    assert_eq!(spans.matches("capture rank").count(), 4, "{spans}");
    for part in ["upload", "store snapshot", &request.capture_id, "memtape-coordinator"] {
        assert!(spans.contains(part), "no {part} in {spans}");
    }
    for part in ["memtape.reports", "memtape.captures", "memtape.losses"] {
        assert!(metrics.contains(part), "no {part} in {metrics}");
    }
}

/// 64 nodes of 16 ranks: every report is taken and acknowledged, every rank is in the capture.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_ranks_report_and_are_captured() {
    const NODES: u32 = 64;
    const RANKS_PER_NODE: u32 = 16;
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(dir.path())).await;
    let job = Job { leaking: None, ranks: NODES * RANKS_PER_NODE, ..JOB };
    let begin = std::time::Instant::now();
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let (job, first) = (job.clone(), node * RANKS_PER_NODE);
        let ranks = first..first + RANKS_PER_NODE;
        let mut agent = Agent::attach(&running, &format!("node-{node}")).await;
        nodes.push(tokio::spawn(async move {
            agent.announce_ranks(&job, ranks.clone()).await;
            agent.train_ranks(&job, ranks, 1..=64).await;
            agent
        }));
    }
    let mut agents = Vec::new();
    for node in nodes {
        agents.push(node.await.unwrap());
    }
    let trained = begin.elapsed();
    let (status, answer) = running.post("/api/v1/jobs/train/captures", "{}").await;
    assert_eq!(status, 202, "{answer}");
    let mut serving = Vec::new();
    for mut agent in agents {
        let job = job.clone();
        serving.push(tokio::spawn(async move {
            let request = agent.asked().await;
            agent.serve(&job, &request).await;
            agent
        }));
    }
    let mut agents = Vec::new();
    for agent in serving {
        agents.push(agent.await.unwrap());
    }
    let path = format!("/api/v1/captures/{}", answer["id"].as_str().unwrap());
    let capture = running.wait(&path, |capture| capture["state"] == "complete").await;
    assert_eq!((&capture["aligned"], &capture["step"]), (&json!(job.ranks), &json!(64)));
    let (_, answer) = running.get("/api/v1/jobs").await;
    assert_eq!(answer["jobs"][0]["ranks_alive"], job.ranks);
    println!("{} ranks, 64 steps each: {trained:?}; all: {:?}", job.ranks, begin.elapsed());
    running.stop().await;
    drop(agents);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_start_is_explained_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(config(&dir.path().join("data"))).await;
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let check = async |config: Config, part: &str| {
        let run = memtape_coordinator::run(config, std::future::pending(), |_| {});
        let ended = tokio::time::timeout(Duration::from_secs(30), run).await.unwrap();
        let line = format!("{:#}", ended.unwrap_err());
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
    };
    check(Config { listen: running.address, ..config(&file) }, "is in use: stop the program").await;
    check(config(&dir.path().join("data")), "in use by another coordinator").await;
    check(config(&file), "is a file: name a folder").await;
    check(config("".as_ref()), "settings are wrong").await;
    running.stop().await;
    // What was in use is free again.
    start(config(&dir.path().join("data"))).await.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn captures_are_kept_for_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let captures_age_max = Duration::from_secs(1);
    let running = start(Config { captures_age_max, ..config(&dir.path().join("data")) }).await;
    let job = Job { leaking: None, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    agent.train(&job, 1..=40).await;
    let (_, answer) = running.post("/api/v1/jobs/train/captures", r#"{"step":35}"#).await;
    let path = format!("/api/v1/captures/{}", answer["id"].as_str().unwrap());
    assert_eq!(running.get(&path).await.0, 200);
    let request = agent.asked().await;
    agent.serve(&job, &request).await;
    // It is closed, old, and gone, and its snapshots are deleted.
    for _ in 0..600 {
        if running.get(&path).await.0 == 404 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(running.get(&path).await.0, 404);
    let text = reqwest::get(running.url("/metrics")).await.unwrap().text().await.unwrap();
    assert!(text.contains(r#"memtape_captures_expired_total{limit="age"} 1"#), "{text}");
    running.stop().await;
}

//! What is kept on disk: a flood of each kind pushes out nothing of another node or owner.

use std::collections::BTreeSet;
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::limits::{Kept, STEPS_PER_REPORT_MAX};
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::Value;
use strum::VariantArray as _;
use tokio::time::sleep;

use crate::agent_captures::stolen::{capture_id, noise, taken_alone};
use crate::fake::{Agent, Job, Running, config, start, wall_ns};
use crate::{JOB, train_until_captured};

/// The honest owner, and another one.
const OWNER: u32 = 1000;
const OTHER: u32 = 666;

/// Jobs of a flood: more than are remembered of all.
const JOBS: usize = 1100;

fn rank_up(job: &Job, rank: u32, uid: u32) -> FromAgent {
    let owner = Some(v1::Owner { uid, ..v1::Owner::default() });
    FromAgent::RankUp(v1::RankUp { owner, ..job.rank_up(rank) })
}

/// Job of a flood.
fn job(prefix: &str, of: usize) -> Job {
    Job::new(format!("{prefix}-{of}").leak(), 1)
}

/// What an agent or a user sends without end.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Flood {
    DyingJobs,
    Ranks,
    Steps,
    Captures,
    Requests,
}

/// The flood by which more of a kind is kept.
fn flood_of(kept: Kept) -> Flood {
    match kept {
        Kept::Attempts | Kept::Incidents | Kept::Actions => Flood::DyingJobs,
        Kept::Ranks => Flood::Ranks,
        Kept::Steps => Flood::Steps,
        Kept::Captures | Kept::Snapshots | Kept::AgentAudit => Flood::Captures,
        Kept::Tokens | Kept::Notes | Kept::UserAudit => Flood::Requests,
    }
}

/// Reads what an agent is asked for, at every 50th message: who does not read is sent away.
async fn read_some(agent: &mut Agent, number: usize) {
    if number.is_multiple_of(50) {
        agent.report(Vec::new()).await;
        agent.settle().await;
    }
}

/// Reports again and again, as an agent does.
async fn go_on(agent: &mut Agent) {
    loop {
        read_some(agent, 0).await;
        sleep(Duration::from_secs(1)).await;
    }
}

/// Floods through an agent's stream, or through the API, as this owner.
async fn send(flood: Flood, running: &Running, agent: &mut Agent, uid: u32, prefix: &str) {
    let prefix = &format!("{prefix}-{flood:?}");
    match flood {
        Flood::DyingJobs => {
            for of in 0..JOBS {
                let job = job(prefix, of);
                agent.say(rank_up(&job, 0, uid)).await;
                let (tape_id, end) = (job.tape(0), v1::RankEnd::OomKilled.into());
                let wall_ns = wall_ns();
                let down = v1::RankDown { tape_id, end, wall_ns, step: 8, ..Default::default() };
                agent.say(FromAgent::RankDown(down)).await;
                read_some(agent, of).await;
            }
        }
        Flood::Ranks => {
            let job = Job { ranks: 5000, ..job(prefix, 0) };
            for rank in 0..job.ranks {
                agent.say(rank_up(&job, rank, uid)).await;
                read_some(agent, rank as usize).await;
            }
        }
        Flood::Steps => {
            let job = job(prefix, 0);
            agent.say(rank_up(&job, 0, uid)).await;
            for first in (1..=100_000).step_by(STEPS_PER_REPORT_MAX) {
                agent.report(vec![noise(&job, first)]).await;
            }
        }
        Flood::Captures => {
            for of in 0..60 {
                let job = job(prefix, of);
                agent.say(rank_up(&job, 0, uid)).await;
                let snapshot = job.snapshot(0, 1, 0);
                let (bytes, hash) = (snapshot.len() as u64, blake3::hash(&snapshot));
                let of = of + 1000 * uid as usize;
                agent.say(taken_alone(&job, of, bytes, hash)).await;
                agent.train(&job, 1..=1).await;
                // What is over the rate is not wanted.
                let _ = agent.upload(&capture_id(of), &job.tape(0), &snapshot).await;
            }
        }
        Flood::Requests => {
            let newest = get(running, "/api/v1/incidents").await["incidents"][0]["id"].clone();
            let thread = format!("/api/v1/incidents/{}/thread", newest.as_str().unwrap());
            for _ in 0..300 {
                let wish = r#"{"name":"flood","role":"viewer","uids":[666],"days":7}"#;
                running.post("/api/v1/tokens", wish).await;
                running.post("/api/v1/jobs/none/captures", "{}").await;
                running.post(&thread, r#"{"note":"flood"}"#).await;
                running.post(&thread, r#"{"note":"of notes"}"#).await;
            }
        }
    }
    agent.report(Vec::new()).await;
    agent.settle().await;
}

/// Asks again while the flood has used up the rate of all callers of this address.
async fn get(running: &Running, path: &str) -> Value {
    loop {
        match running.get(path).await {
            (429, _) => sleep(Duration::from_secs(1)).await,
            (_, answer) => return answer,
        }
    }
}

/// All that is kept of the honest job and its owner, by name.
async fn honest(running: &Running) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (path, list, id) in [
        ("jobs/train/ranks", "ranks", "tape_id"),
        ("captures?job=train", "captures", "id"),
        ("incidents?job=train", "incidents", "id"),
        ("actions?job=train", "actions", "id"),
        ("tokens", "tokens", "id"),
        ("audit", "entries", "number"),
    ] {
        let answer = get(running, &format!("/api/v1/{path}")).await;
        let rows = answer[list].as_array().cloned().unwrap_or_default();
        all.extend(rows.iter().map(|row| format!("{path} {}", row[id])));
    }
    for rank in 0..JOB.ranks {
        let path = format!("/api/v1/jobs/train/series?rank={rank}&points=20000");
        let series = get(running, &path).await;
        let steps = series["steps"].as_array().cloned().unwrap_or_default();
        all.extend(steps.iter().map(|step| format!("rank {rank} step {step}")));
    }
    let captures: Vec<String> =
        all.iter().filter(|of| of.starts_with("captures")).cloned().collect();
    for capture in captures {
        let id = capture.split('"').nth(1).unwrap_or_default();
        for rank in 0..JOB.ranks {
            let url = running.url(&format!("/api/v1/captures/{id}/ranks/{rank}"));
            let mut status = reqwest::get(&url).await.unwrap().status();
            while status.as_u16() == 429 {
                sleep(Duration::from_secs(1)).await;
                status = reqwest::get(&url).await.unwrap().status();
            }
            all.extend(status.is_success().then(|| format!("snapshot {id} {rank}")));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_kept_is_pushed_out_by_a_flood() {
    let dir = tempfile::tempdir().unwrap();
    let snapshots_bytes_max = 64 * JOB.snapshot(0, 400, 399).len() as u64;
    let steps_bytes_max = 4 << 20;
    let config = Config { steps_bytes_max, snapshots_bytes_max, ..config(dir.path()) };
    let running = start(config).await;
    let mut agent = Agent::attach(&running, "node-a").await;
    for rank in 0..JOB.ranks {
        agent.say(rank_up(&JOB, rank, OWNER)).await;
    }
    train_until_captured(&mut agent, &JOB, 0).await;
    running.wait("/api/v1/incidents", |answer| answer["incidents"][0]["class"] == "leak").await;
    running.wait("/api/v1/actions", |answer| answer["actions"][0]["job"] == "train@1000").await;
    running
        .post("/api/v1/tokens", r#"{"name":"mine","role":"viewer","uids":[1000],"days":7}"#)
        .await;
    let before = honest(&running).await;
    println!("{} entries of the honest job", before.len());
    for kind in ["jobs", "captures", "incidents", "actions", "tokens", "audit", "rank", "snapshot"]
    {
        assert!(before.iter().any(|entry| entry.starts_with(kind)), "{kind}: {before:?}");
    }
    let floods: BTreeSet<Flood> = Kept::VARIANTS.iter().map(|kept| flood_of(*kept)).collect();
    for flood in floods {
        // A node that names the honest owner, and another owner on the honest node.
        let mut evil = Agent::attach(&running, &format!("evil-{flood:?}")).await;
        tokio::select! {
            () = send(flood, &running, &mut evil, OWNER, "evil") => {}
            () = go_on(&mut agent) => {}
        }
        send(flood, &running, &mut agent, OTHER + flood as u32, "mate").await;
        let after = honest(&running).await;
        let gone: Vec<&String> = before.difference(&after).collect();
        assert!(gone.is_empty(), "{flood:?}: {gone:?}");
    }
    running.stop().await;
}

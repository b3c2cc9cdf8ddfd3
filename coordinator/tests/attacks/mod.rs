//! What a stolen agent can do to a job that runs nothing on its node: it knows the job's name and
//! owner, announces ranks and attempts of it, and reports and answers what it likes.

use std::time::Duration;

use memtape_coordinator::Config;
use memtape_core::action::remedy::Signal;
use memtape_core::policy::Mode;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::fake::{Agent, Job, Running, config, start};

/// A healthy job of two nodes, with devices so large that there is time for the proof of a remedy.
const HONEST: Job = Job { device_mib: 16 << 20, ..Job::new("prod", 8) };

/// Steps after which a leak has been found, captured and decided upon.
const DECIDED_BY: u64 = 600;

/// A coordinator that acts, and the agents of a job that offers every remedy.
struct Attacked {
    running: Running,
    honest: [Agent; 2],
    _folder: TempDir,
}

impl Attacked {
    async fn begin() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config: Config = config(&folder.path().join("data"));
        config.restart.policy.rest.mode = Mode::Act;
        config.restart.signal = Some(Signal::SigTerm);
        let running = start(config).await;
        let first = Agent::attach(&running, "node-a").await;
        let second = Agent::attach(&running, "node-b").await;
        for (agent, ranks) in [(&first, 0..4), (&second, 4..8)] {
            announce(agent, &HONEST, ranks).await;
        }
        let mut attacked = Self { running, honest: [first, second], _folder: folder };
        attacked.train(1).await;
        attacked
    }

    /// The ranks of the job do eight steps.
    async fn train(&mut self, from: u64) {
        for (agent, ranks) in self.honest.iter_mut().zip([0..4, 4..8]) {
            agent.train_ranks(&HONEST, ranks, from..=from + 7).await;
        }
    }

    /// A node reports a leak of its rank of `job` until it is decided upon; the decisions.
    async fn leak_on(&mut self, evil: &mut Agent, job: &Job, rank: u32) -> Vec<Value> {
        announce(evil, job, rank..rank + 1).await;
        let mut step = 8;
        loop {
            assert!(step < DECIDED_BY, "nothing was decided by step {step}");
            evil.train_ranks(job, rank..rank + 1, step + 1..=step + 8).await;
            self.train(step + 1).await;
            step += 8;
            evil.serve_all(job).await;
            let (_, answer) = self.running.get("/api/v1/actions").await;
            let actions = answer["actions"].as_array().unwrap();
            if !actions.is_empty() {
                return actions.clone();
            }
        }
    }

    /// The job as it is shown by its name alone.
    async fn shown(&self) -> Value {
        let (status, answer) = self.running.get("/api/v1/jobs").await;
        assert_eq!(status, 200);
        answer["jobs"][0].clone()
    }
}

/// Announces ranks that offer every remedy.
async fn announce(agent: &Agent, job: &Job, ranks: std::ops::Range<u32>) {
    let remedies = [v1::Remedy::Gc, v1::Remedy::EmptyCache, v1::Remedy::Signal];
    for rank in ranks {
        let offered = remedies.iter().map(|remedy| i32::from(*remedy)).collect();
        agent.say(FromAgent::RankUp(v1::RankUp { offered, ..job.rank_up(rank) })).await;
    }
}

/// Finding N3: a rank beyond the eight, and one that the job has, each with a leak of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_its_job_did_not_prove_causes_nothing() {
    for (ranks, rank) in [(10, 9), (8, 3)] {
        let mut attacked = Attacked::begin().await;
        let mut evil = Agent::attach(&attacked.running, "evil").await;
        let forged = Job { ranks, leaking: Some(rank), run: 2, ..HONEST };
        let decided = attacked.leak_on(&mut evil, &forged, rank).await;
        for action in &decided {
            assert_eq!(action["decision"], "nothing", "{decided:#?}");
            assert!(action["why"].as_str().unwrap().contains("has not proved"), "{decided:#?}");
        }
        assert!(attacked.honest.iter().all(|agent| agent.remedies.is_empty()));
        // The captures because of it are of its own rank alone.
        let (_, answer) = attacked.running.get("/api/v1/captures").await;
        let captures = answer["captures"].as_array().unwrap().iter();
        let of_growth: Vec<_> = captures.filter(|of| of["trigger"] == "growth").collect();
        assert!(!of_growth.is_empty() && of_growth.iter().all(|of| of["ranks"] == 1), "{answer:#}");
        assert_eq!(attacked.shown().await["ranks_alive"], 8);
        attacked.running.stop().await;
    }
}

/// Finding N8: a newer attempt on a node without a rank of the job, which then ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_attempt_is_not_shown_for_the_job() {
    let mut attacked = Attacked::begin().await;
    let mut evil = Agent::attach(&attacked.running, "evil").await;
    let forged = Job { attempt: 7, ranks: 1, run: 9, ..HONEST };
    announce(&evil, &forged, 0..1).await;
    evil.train(&forged, 1..=8).await;
    let shown = attacked.shown().await;
    assert_eq!((&shown["attempt"], &shown["ranks_alive"]), (&json!(0), &json!(8)));
    assert_eq!(shown["attempts"], 2, "it is in the list of attempts");
    let captures = "/api/v1/jobs/prod/captures";
    assert_eq!(attacked.running.post(captures, "").await.0, 202);
    for agent in &mut attacked.honest {
        assert_eq!(agent.asked().await.tape_ids.len(), 4);
    }
    let end = v1::RankEnd::Exited.into();
    let down = v1::RankDown { tape_id: forged.tape(0), end, ..v1::RankDown::default() };
    evil.say(FromAgent::RankDown(down)).await;
    evil.train(&forged, 9..=16).await;
    let shown = attacked.shown().await;
    assert_eq!((&shown["ended_wall_ns"], &shown["ranks_alive"]), (&Value::Null, &json!(8)));
    assert!(evil.requests.is_empty());
    attacked.running.stop().await;
}

/// An attempt of another node claims settings of the allocator, for the next start and for a shell.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_attempt_gives_no_hints() {
    let attacked = Attacked::begin().await;
    let mut evil = Agent::attach(&attacked.running, "evil").await;
    let forged = Job { attempt: 7, ranks: 1, run: 9, ..HONEST };
    let claimed = "x:1;$(id),max_split_size_mb:64".to_string();
    let up = v1::RankUp {
        allocator_settings: Some(claimed.clone()),
        applied_hints: claimed,
        ..forged.rank_up(0)
    };
    evil.say(FromAgent::RankUp(up)).await;
    evil.train(&forged, 1..=8).await;
    let (status, found) = attacked.running.get("/api/v1/jobs/prod/hints").await;
    assert_eq!((status, &found["attempt"]), (200, &json!(0)), "{found:#}");
    assert_eq!((&found["applied"], &found["settings"]), (&Value::Null, &json!("")), "{found:#}");
    assert_eq!(found["allocator_settings"], Value::Null, "{found:#}");
    let text = reqwest::get(attacked.running.url("/metrics")).await.unwrap().text().await.unwrap();
    let line = "memtape_losses_total{reason=\"settings_left_out\"} 2";
    assert!(text.contains(line), "no {line} in {text}");
    attacked.running.stop().await;
}

/// A rank that joined a job, not all of whose ranks are known, is out of memory again and again.
#[tokio::test(flavor = "multi_thread")]
async fn an_unproved_rank_has_itself_captured_alone() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(config(&folder.path().join("data"))).await;
    let mut honest = Agent::attach(&running, "node-a").await;
    let mut evil = Agent::attach(&running, "evil").await;
    honest.announce_ranks(&HONEST, 0..6).await;
    evil.announce_ranks(&HONEST, 7..8).await;
    let mut captures = Value::Null;
    for step in 1..100 {
        honest.train_ranks(&HONEST, 0..6, step..=step).await;
        let mut report = HONEST.rank_report(7, &(step..=step));
        report.totals.iter_mut().for_each(|totals| totals.ooms = step / 8);
        evil.report(vec![report]).await;
        evil.settle().await;
        captures = running.get("/api/v1/captures").await.1["captures"].clone();
        if !captures.as_array().unwrap().is_empty() {
            break;
        }
        sleep(Duration::from_millis(250)).await;
    }
    let [trigger, ranks] = ["trigger", "ranks"].map(|field| &captures[0][field]);
    assert_eq!((trigger, ranks), (&json!("out_of_memory"), &json!(1)));
    assert!(honest.requests.is_empty(), "{:?}", honest.requests);
    assert_eq!(evil.asked().await.tape_ids, [HONEST.tape(7)]);
    running.stop().await;
}

/// Finding N1: dead ranks of an unknown namespace come before the job, and a rank of another
/// namespace after it.
#[tokio::test(flavor = "multi_thread")]
async fn dead_tapes_claim_no_name_for_a_namespace() {
    let folder = tempfile::tempdir().unwrap();
    let running = start(config(&folder.path().join("data"))).await;
    let mut agent = Agent::attach(&running, "shared").await;
    let dead = Job { ranks: 9, run: 2, ..HONEST };
    let other = Job { ranks: 9, run: 3, ..HONEST };
    let unknown = v1::Owner { is_namespace_unknown: true, ..v1::Owner::default() };
    let of = |namespace: &str| v1::Owner { namespace: namespace.to_string(), ..unknown.clone() };
    let known = |namespace| v1::Owner { is_namespace_unknown: false, ..of(namespace) };
    let all = [
        (&dead, 0..9, unknown.clone()),
        (&HONEST, 0..8, known("team-a")),
        (&other, 8..9, known("team-b")),
    ];
    for (job, ranks, owner) in all {
        for rank in ranks {
            let owner = Some(owner.clone());
            agent.say(FromAgent::RankUp(v1::RankUp { owner, ..job.rank_up(rank) })).await;
        }
    }
    agent.report(Vec::new()).await;
    agent.settle().await;
    let (_, answer) = running.get("/api/v1/jobs").await;
    let jobs = answer["jobs"].as_array().unwrap().iter();
    let jobs: Vec<(&str, u64)> =
        jobs.map(|of| (of["job"].as_str().unwrap(), of["ranks"].as_u64().unwrap())).collect();
    assert_eq!(jobs, [("prod@0.team-a", 8), ("prod@0.team-b", 1), ("prod@0.~shared", 9)]);
    running.stop().await;
}

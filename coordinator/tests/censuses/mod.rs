//! Which lines hold the memory of a job: from agents' censuses to the answer, through a restart.

use std::time::Duration;

use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};

use crate::fake::{Job, LEAK_BEGINS, MIB, config, start, training};

const JOB: Job = Job::new("lines", 2);
const LINE: u64 = 7;
const STEP: u64 = 200;

/// A line that keeps blocks of these bytes from every step of these.
fn line(steps: std::ops::Range<u64>, bytes: u64) -> v1::CensusLine {
    let starts: Vec<u64> = steps.step_by(8).collect();
    v1::CensusLine {
        line: LINE,
        frames: vec![v1::Frame { file: "/app/train.py".into(), line: 36, function: "step".into() }],
        bytes: vec![8 * bytes; starts.len()],
        blocks: vec![8; starts.len()],
        first_steps: starts,
    }
}

fn census(step: u64, is_whole: bool, lines: Vec<v1::CensusLine>) -> v1::Census {
    v1::Census { step, is_whole, lines, ..v1::Census::default() }
}

fn report(rank: u32, step: u64, censuses: Vec<v1::Census>) -> v1::RankReport {
    v1::RankReport { censuses, ..JOB.rank_report(rank, &(step..=step)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_shown_with_their_ranks_and_outlive_the_coordinator() {
    let (dir, running, mut agent) = training(&JOB).await;
    let flat = census(STEP, true, vec![line(0..8, 5 * MIB)]);
    agent.report(vec![report(0, STEP, vec![flat])]).await;
    let begun = census(100, true, vec![line(40..72, MIB)]);
    agent.report(vec![report(1, 100, vec![begun])]).await;
    // Only the cohorts: the frames are known.
    let grown = v1::CensusLine { frames: Vec::new(), ..line(40..160, MIB) };
    let mut last = report(1, STEP, vec![census(STEP, false, vec![grown])]);
    // A request failed in the step after it, which has no record.
    (last.totals[0].allocated, last.totals[0].ooms) = (900 * MIB, 1);
    agent.report(vec![last]).await;
    agent.settle().await;

    let (status, answer) = running.get("/api/v1/jobs/lines/lines").await;
    assert_eq!((status, &answer["ranks"]), (200, &json!(2)), "{answer:#}");
    let shown = &answer["lines"][0];
    assert_eq!(shown["frames"][0]["line"], 36);
    let holders = shown["holders"].as_array().unwrap();
    let ranks: Vec<_> = holders.iter().map(|holder| holder["rank"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 0], "the rank with the most survivors first");
    assert_eq!(holders[0]["bytes"], 120 * MIB);
    assert_eq!((&holders[0]["step"], &holders[0]["oldest_step"]), (&json!(STEP), &json!(41)));
    assert_eq!(holders[0]["growth_bytes_per_step"], MIB);
    assert_eq!(
        (&holders[0]["growing_since_step"], &holders[1]["growing_since_step"]),
        (&json!(41), &json!(null))
    );

    let (_, of_rank) = running.get("/api/v1/jobs/lines/lines?rank=0").await;
    assert_eq!(of_rank["lines"][0]["holders"].as_array().unwrap().len(), 1);
    let (status, _) = running.get("/api/v1/jobs/nothing/lines").await;
    assert_eq!(status, 404);

    // What a dead rank held is kept.
    let down = v1::RankDown {
        tape_id: JOB.tape(1),
        end: v1::RankEnd::Killed.into(),
        step: STEP,
        ..Default::default()
    };
    agent.say(FromAgent::RankDown(down)).await;
    agent.report(Vec::new()).await;
    agent.settle().await;
    running.stop().await;
    let again = start(config(dir.path())).await;
    let (_, answer) = again.get("/api/v1/jobs/lines/lines?rank=1").await;
    assert_eq!(answer["lines"][0]["holders"][0]["bytes"], 120 * MIB, "{answer:#}");
    assert_eq!(answer["lines"][0]["frames"][0]["file"], "/app/train.py");
    let (_, answer) = again.get("/api/v1/jobs/lines/ranks").await;
    let device = &answer["ranks"][1]["devices"][0];
    assert_eq!((&device["allocated_bytes"], &device["ooms"]), (&json!(900 * MIB), &json!(1)));
    again.stop().await;
}

/// The first line of rank 1 of a job that trains, with a line like this, until a number of steps
/// and of incidents is reached; and the incidents.
async fn followed(
    (job, incidents): (&Job, usize),
    line: impl Fn(u64) -> v1::CensusLine,
) -> (Value, Value) {
    let (_dir, running, mut agent) = training(job).await;
    let mut answer = Value::Null;
    for step in (16..).step_by(16) {
        let ranks = (0..job.ranks).map(|rank| job.rank_report(rank, &(step - 15..=step)));
        let mut ranks: Vec<v1::RankReport> = ranks.collect();
        ranks[1].censuses = vec![census(step, true, vec![line(step)])];
        agent.report(ranks).await;
        agent.settle().await;
        answer = running.get("/api/v1/incidents").await.1["incidents"].take();
        if step >= 480 && answer.as_array().unwrap().len() >= incidents {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (_, lines) = running.get(&format!("/api/v1/jobs/{}/lines?rank=1", job.name)).await;
    running.stop().await;
    (lines["lines"][0]["holders"][0].clone(), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_replaces_its_oldest_entries_keeps_nothing() {
    let full = |step: u64| line(step.saturating_sub(128)..step, MIB);
    let (holder, _) = followed((&Job::new("window", 2), 0), full).await;
    assert_eq!(holder["bytes"], 128 * MIB);
    assert_eq!(holder["growing_since_step"], json!(null), "{holder:#}");
    assert_eq!(holder["growth_bytes_per_step"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_of_an_incident_has_its_rate() {
    // The younger half of its blocks has another rate.
    let faster = |step: u64| {
        let mut line = line(LEAK_BEGINS - 4..step, 24 * MIB);
        let late = line.first_steps.iter().zip(&mut line.bytes);
        late.filter(|(of, _)| **of >= 288).for_each(|(_, bytes)| *bytes *= 2);
        line
    };
    let job = Job { leaking: Some(1), device_mib: 819_200, ..Job::new("rate", 2) };
    let (holder, incidents) = followed((&job, 1), faster).await;
    let incident = &incidents[0];
    assert!(incident["bytes_per_step"].as_u64().unwrap() > 0, "{incident:#}");
    assert_eq!(holder["growth_bytes_per_step"], incident["bytes_per_step"], "{holder:#}");
    assert_eq!(holder["growing_since_step"], incident["onset_step"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_for_no_census_is_shown() {
    let (dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=8).await;
    let missing = |answer: (u16, serde_json::Value)| answer.1["missing"].to_string();
    let none_yet = missing(running.get("/api/v1/jobs/lines/lines").await);
    assert!(none_yet.contains("after its first use of a GPU"), "{none_yet}");
    running.stop().await;
    let again = start(config(dir.path())).await;
    let not_heard = missing(again.get("/api/v1/jobs/lines/lines").await);
    assert!(not_heard.contains("no rank of the job is heard, and"), "{not_heard}");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_without_their_beginning_are_not_shown() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.report(vec![report(0, STEP, vec![census(STEP, false, vec![line(0..80, MIB)])])]).await;
    agent.settle().await;
    let (_, answer) = running.get("/api/v1/jobs/lines/lines").await;
    assert_eq!((&answer["ranks"], answer["lines"].as_array().unwrap().len()), (&json!(0), 0));
    running.stop().await;
}

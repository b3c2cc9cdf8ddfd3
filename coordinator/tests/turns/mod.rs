//! Ranks that count turns: judged each by itself, and shown in their own words.

use memtape_proto::v1;
use serde_json::{Value, json};

use crate::fake::{Job, LEAK_LINE, MIB, config, start, training};

/// Two servers, one of which leaks, while the other has no requests.
const JOB: Job = Job { leaking: Some(0), ..Job::new("serve", 2) };

/// Turns after which the leak has been found, whatever the detector's settings.
const FOUND_BY: u64 = 4_000;

fn turns(rank: u32, turns: std::ops::RangeInclusive<u64>) -> v1::RankReport {
    let clock = v1::Clock::Turns.into();
    v1::RankReport { clock, ..JOB.rank_report(rank, &turns) }
}

fn rank(answer: &Value, rank: usize) -> &Value {
    &answer["ranks"][rank]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_leaks_is_found_beside_one_that_idles() {
    let (dir, running, mut agent) = training(&JOB).await;
    agent.report(vec![turns(1, 1..=70)]).await;
    let mut turn = 0;
    while agent.requests.is_empty() {
        assert!(turn < FOUND_BY, "no capture was asked for by turn {turn}");
        agent.report(vec![turns(0, turn + 1..=turn + 16)]).await;
        agent.settle().await;
        turn += 16;
    }
    let request = agent.asked().await;
    assert_eq!(request.tape_ids, [JOB.tape(0)], "the turns of two servers cannot be compared");
    assert!(request.step > 70 && request.step <= turn, "T is its own newest turn: {request:?}");
    agent.serve(&JOB, &request).await;

    let diagnosed = |answer: &Value| answer["incidents"][0]["class"] == "leak";
    let answer = running.wait("/api/v1/incidents", diagnosed).await;
    let incident = &answer["incidents"][0];
    assert_eq!((&incident["rank"], &incident["clock"]), (&json!(0), &json!("turns")));
    assert_eq!((&incident["scope"], &incident["peers"]), (&json!("one_rank"), &json!(0)));
    assert_eq!(incident["culprit"]["line"], LEAK_LINE);
    let shown = incident.to_string();
    let text = ["sentence", "evidence", "against", "advice", "restart"].map(|key| &incident[key]);
    let text = text.map(ToString::to_string).concat();
    assert!(text.contains(" turn ") && !text.contains(" step"), "{shown}");

    let (_, ranks) = running.get("/api/v1/jobs/serve/ranks").await;
    assert_eq!(rank(&ranks, 1)["clock"], "turns");
    assert_ne!(rank(&ranks, 1)["state"], "behind", "a server without requests is not behind");
    let (_, jobs) = running.get("/api/v1/jobs").await;
    assert_eq!(
        (&jobs["jobs"][0]["clock"], &jobs["jobs"][0]["step_min"]),
        (&json!("turns"), &json!(70))
    );

    // After a restart each is judged by itself again, and the incident goes on.
    running.stop().await;
    let again = start(config(dir.path())).await;
    let (_, ranks) = again.get("/api/v1/jobs/serve/ranks").await;
    assert_eq!(
        (&rank(&ranks, 0)["clock"], &rank(&ranks, 0)["step"]),
        (&json!("turns"), &json!(turn))
    );
    let (_, answer) = again.get("/api/v1/incidents").await;
    assert_eq!(answer["incidents"][0]["state"], "open");
    again.stop().await;
}

/// A census is taken before the first turn, and only its changes are sent afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_a_server_are_known_from_before_its_first_turn() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let census = |step, is_whole, steps: Vec<u64>| {
        let count = steps.len();
        let line = v1::CensusLine {
            line: 7,
            first_steps: steps,
            bytes: vec![MIB; count],
            blocks: vec![1; count],
            ..v1::CensusLine::default()
        };
        v1::Census { step, is_whole, lines: vec![line], ..v1::Census::default() }
    };
    let loading = v1::RankReport { step: 0, steps: Vec::new(), ..JOB.rank_report(0, &(1..=1)) };
    let censuses = vec![census(0, true, vec![0])];
    agent.report(vec![v1::RankReport { censuses, ..loading }]).await;
    let censuses = vec![census(70, false, vec![0, 64])];
    agent.report(vec![v1::RankReport { censuses, ..turns(0, 1..=70) }]).await;
    agent.settle().await;
    let (_, lines) = running.get("/api/v1/jobs/serve/lines?rank=0").await;
    assert_eq!(lines["lines"][0]["holders"][0]["bytes"], 2 * MIB, "{lines:#}");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_trains_after_all_begins_with_its_first_step() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.report(vec![turns(0, 1..=200), JOB.rank_report(1, &(1..=3))]).await;
    agent.settle().await;
    let (_, jobs) = running.get("/api/v1/jobs").await;
    let job = &jobs["jobs"][0];
    assert_eq!((&job["clock"], &job["step_max"]), (&json!("steps"), &json!(3)), "{job:#}");
    agent.report(vec![JOB.rank_report(0, &(1..=5))]).await;
    // One that was on its way.
    agent.report(vec![turns(0, 201..=202)]).await;
    agent.settle().await;
    let (_, ranks) = running.get("/api/v1/jobs/serve/ranks").await;
    assert_eq!((&rank(&ranks, 0)["clock"], &rank(&ranks, 0)["step"]), (&json!("steps"), &json!(5)));
    running.stop().await;
}

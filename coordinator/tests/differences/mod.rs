//! `/jobs/{job}/differences`: chosen ranks beside the others, and a run beside another one.

use memtape_proto::api::{Difference, Differences};
use memtape_proto::v1;

use crate::fake::{Job, LEAK_BEGINS, MIB, Running, training};

const JOB: Job = Job { leaking: Some(2), ..Job::new("pair", 4) };
const STEP: u64 = LEAK_BEGINS + 10;

/// A rank that was counted with one line that holds these bytes.
fn counted(rank: u32, bytes: u64) -> v1::RankReport {
    let frame = v1::Frame { file: "/app/train.py".into(), line: 36, function: "step".into() };
    let line = v1::CensusLine {
        line: 7,
        frames: vec![frame],
        bytes: vec![bytes],
        blocks: vec![1],
        first_steps: vec![1],
    };
    let census =
        v1::Census { step: STEP, is_whole: true, lines: vec![line], ..v1::Census::default() };
    v1::RankReport { censuses: vec![census], ..JOB.rank_report(rank, &(STEP + 1..=STEP + 1)) }
}

async fn differences(running: &Running, query: &str) -> Differences {
    let (status, answer) = running.get(&format!("/api/v1/jobs/pair/differences?{query}")).await;
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer).unwrap()
}

fn named<'a>(found: &'a Differences, name: &str) -> Option<&'a Difference> {
    found.differences.iter().find(|of| of.name == name)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_line_of_the_leaking_rank_explains_most() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=STEP).await;
    let bytes = |rank: u32| if rank == 2 { 320 * MIB } else { MIB };
    agent.report((0..4).map(|rank| counted(rank, bytes(rank))).collect()).await;
    agent.settle().await;

    let found = differences(&running, "first_rank=2&last_rank=2").await;
    let first = &found.differences[0];
    assert_eq!((first.kind.as_str(), first.frames[0].line), ("line", 36), "{found:#?}");
    assert_eq!((first.separation_permille, first.chosen.median), (1000, 320 * MIB));
    assert_eq!((first.baseline.median, first.baseline.ranks), (MIB, 3));
    let allocated = named(&found, "allocated").expect("the account");
    assert!(allocated.chosen.median > allocated.baseline.median);
    assert_eq!(allocated.chosen.highest_rank, Some(2));
    assert_eq!((found.chosen.ranks, found.baseline.ranks), (1, 3));
    assert_eq!((found.chosen.first_step, found.chosen.last_step), (Some(1), Some(STEP + 1)));
    for of in [&found.chosen, &found.baseline] {
        assert_eq!((of.counted_first_step, of.counted_last_step), (Some(STEP), Some(STEP)));
    }
    // All ranks are on one node: it tells nothing.
    assert!(found.differences.iter().all(|of| of.kind.as_str() != "node"), "{found:#?}");

    // Before the leak the ranks are the same.
    let before = differences(&running, "first_rank=2&last_rank=2&to=50").await;
    let allocated = named(&before, "allocated").expect("the account");
    assert_eq!(allocated.chosen.median, allocated.baseline.median, "{before:#?}");
    assert_eq!(before.chosen.last_step, Some(50));
    // The lines are still those of the newest count, and the answer says so.
    assert_eq!(before.chosen.counted_first_step, Some(STEP));

    for (query, status) in [
        ("", 400),
        ("first_rank=3&last_rank=2", 400),
        ("first_rank=2&last_rank=2&from=9&to=8", 400),
        ("first_rank=9", 404),
        ("baseline_attempt=0", 400),
        ("baseline_attempt=7", 404),
        ("baseline_job=nosuch", 404),
        ("attempt=7", 404),
    ] {
        let path = format!("/api/v1/jobs/pair/differences?{query}");
        assert_eq!(running.get(&path).await.0, status, "{query}");
    }
    let (status, _) = running.get("/api/v1/jobs/nosuch/differences").await;
    assert_eq!(status, 404);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stands_beside_another_one() {
    let (_dir, running, mut agent) = training(&JOB).await;
    agent.train(&JOB, 1..=STEP).await;
    let other = Job::new("other", 4);
    agent.announce(&other).await;
    agent.train(&other, 1..=50).await;
    agent.settle().await;
    let found = differences(&running, "baseline_job=other").await;
    assert_eq!((found.chosen.job.as_str(), found.baseline.job.as_str()), ("pair@0", "other@0"));
    assert_eq!((found.chosen.ranks, found.baseline.ranks), (4, 4));
    assert_eq!((found.chosen.counted_ranks, found.chosen.counted_last_step), (0, None));
    let peak = named(&found, "peak").expect("the account");
    // One rank of four leaks: the median stays.
    assert_eq!(peak.chosen.median, peak.baseline.median);
    assert!(peak.chosen.highest > peak.baseline.highest, "{peak:?}");
    assert_eq!((peak.chosen.highest_rank, peak.separation_permille), (Some(2), 250));
    let same = differences(&running, "baseline_job=other&to=50").await;
    let peak = named(&same, "peak").expect("the account");
    assert_eq!((peak.chosen.highest, peak.explains_permille), (peak.baseline.highest, 0));
    running.stop().await;
}

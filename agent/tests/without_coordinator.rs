//! An agent while its coordinator is away: it watches, takes captures, keeps, and delivers later.

use std::path::Path;
use std::time::Duration;

use memtape_agent::Config;
use memtape_proto::v1;
use prost::Message;

use crate::support::RunningAgent;
use crate::support::coordinator::{FakeCoordinator, Seen};
use crate::support::rank::{Rank, SMALL};
use crate::{assert_gapless, down_of, folder, has_steps};

/// Files of a kind in the spool.
fn files(spool: &Path, kind: &str) -> usize {
    let entries = std::fs::read_dir(spool).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(kind)).count()
}

async fn wait_for_files(spool: &Path, kind: &str, count: usize) {
    for _ in 0..1500 {
        if files(spool, kind) == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} files of {kind}, not {count}", files(spool, kind));
}

fn with_spool(spool: &Path) -> impl Fn(&mut Config) {
    let dir = spool.to_path_buf();
    move |config: &mut Config| config.spool_dir = Some(dir.clone())
}

/// The capture by the agent alone of a rank, with what its snapshot shows.
fn capture_of(seen: &Seen, rank: &Rank) -> (v1::AgentCapture, v1::RankSnapshot) {
    let of_rank = |capture: &&v1::AgentCapture| {
        capture.answer.as_ref().is_some_and(|answer| answer.tape_id == rank.tape_id)
    };
    let capture = seen.captures.iter().find(of_rank).expect("an agent-initiated capture").clone();
    let answer = capture.answer.clone().expect("an answer");
    let key = (answer.capture_id.clone(), rank.tape_id.clone());
    let snapshot = seen.snapshots.get(&key).expect("its snapshot");
    assert_eq!(answer.snapshot_hash, blake3::hash(snapshot).as_bytes());
    let snapshot = zstd::decode_all(snapshot.as_slice()).expect("zstd");
    (capture, v1::RankSnapshot::decode(snapshot.as_slice()).expect("a snapshot"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_happened_without_a_coordinator_is_delivered_once_and_in_order() {
    let (dir, spool) = (folder(), folder());
    let mut coordinator = FakeCoordinator::start();
    let mut failing = Rank::start(dir.path(), "job", 0, SMALL);
    let mut dying = Rank::start(dir.path(), "job", 1, SMALL);
    failing.train(10);
    dying.train(10);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(spool.path()));
    for rank in [&failing, &dying] {
        coordinator.wait("its steps", |seen| has_steps(seen, rank, 10)).await;
    }
    coordinator.wait_for_reports(3).await;
    coordinator.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;

    failing.train(5);
    failing.out_of_memory(1 << 40);
    dying.train(3);
    dying.kill();
    wait_for_files(spool.path(), "capture", 2).await;
    wait_for_files(spool.path(), "steps", 1).await;
    agent.stop().await;
    failing.train(2);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(spool.path()));
    tokio::time::sleep(Duration::from_millis(300)).await;
    failing.train(3);
    coordinator.revive();
    coordinator.wait("the newest step", |seen| has_steps(seen, &failing, 20)).await;
    coordinator.wait("both snapshots", |seen| (seen.snapshots.len() == 2).then_some(())).await;
    wait_for_files(spool.path(), "capture", 0).await;
    wait_for_files(spool.path(), "steps", 0).await;
    // A restarted agent delivers nothing again.
    agent.stop().await;
    let first = coordinator.seen().captures.len();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(spool.path()));
    coordinator.wait_for_reports(4).await;
    agent.stop().await;

    let seen = coordinator.seen();
    assert_eq!((first, seen.captures.len()), (2, 2), "delivered more than once");
    let (capture, snapshot) = capture_of(&seen, &failing);
    assert_eq!((capture.reason(), snapshot.step), (v1::AgentCaptureReason::OutOfMemory, 15));
    let oom = snapshot.devices[0].trace.iter().rfind(|event| event.kind() == v1::TraceKind::Oom);
    assert_eq!(oom.map(|event| event.size), Some(1 << 40));
    let (capture, snapshot) = capture_of(&seen, &dying);
    assert_eq!((capture.reason(), snapshot.step), (v1::AgentCaptureReason::Death, 13));
    let is_agents = memtape_core::identity::ids::is_agent_capture;
    assert!(capture.answer.is_some_and(|answer| answer.dead && is_agents(&answer.capture_id)));
    let streams: Vec<_> =
        (1..=2).map(|stream| seen.steps(&failing.tape_id, Some(stream))).collect();
    assert_gapless(&streams.concat(), 1, 20);
    assert_gapless(&seen.steps(&dying.tape_id, Some(2)), 11, 13);
    assert_eq!(down_of(&seen, &dying).map(v1::RankDown::end), Some(v1::RankEnd::Killed));
    check_order(&seen, &dying);
}

/// The second stream has the rank's steps, then its end, then the capture.
fn check_order(seen: &Seen, dying: &Rank) {
    let last = seen.reports.iter().find(|(stream, report)| {
        let of_rank = report.ranks.iter().find(|each| each.tape_id == dying.tape_id);
        *stream == 2 && of_rank.is_some_and(|each| each.steps.iter().any(|s| s.last_step == 13))
    });
    let last = format!("report {}", last.expect("the last steps").1.number);
    let hello = seen.order.iter().position(|line| line == "up 1").expect("a first stream");
    let second = &seen.order[hello..];
    let second = &second[second.iter().position(|line| line == "hello").expect("a second")..];
    let at = |what: &str| second.iter().position(|line| line.starts_with(what)).expect("there");
    let (up, down, capture) = (at("up 1"), at(&format!("down {}", dying.tape_id)), at("capture"));
    assert!(up < at(&last) && at(&last) < down && at(&last) < capture, "{second:?}");
    let of_both = seen
        .reports
        .iter()
        .position(|(_, report)| report.spool.as_ref().is_some_and(|spool| spool.bytes > 0));
    assert!(of_both.is_some(), "the coordinator knows of the spool");
}

/// The tape is gone too: the spool alone tells of the rank.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_whose_tape_is_gone_is_reported_from_the_spool() {
    let (dir, spool) = (folder(), folder());
    let mut coordinator = FakeCoordinator::start();
    coordinator.kill();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(spool.path()));
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    rank.train(7);
    wait_for_files(spool.path(), "steps", 1).await;
    rank.kill();
    wait_for_files(spool.path(), "capture", 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    agent.stop().await;
    std::fs::remove_file(&rank.path).expect("a tape");
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(spool.path()));
    coordinator.revive();
    let down = |seen: &Seen| down_of(seen, &rank).cloned();
    let down = coordinator.wait("its end", down).await;
    assert_eq!((down.end(), down.step), (v1::RankEnd::Killed, 7));
    coordinator.wait("the snapshot", |seen| (seen.snapshots.len() == 1).then_some(())).await;
    wait_for_files(spool.path(), "capture", 0).await;
    agent.stop().await;
    let seen = coordinator.seen();
    assert_gapless(&seen.steps(&rank.tape_id, None), 1, 7);
    assert_eq!(capture_of(&seen, &rank).1.step, 7);
    let at = |what: &str| {
        seen.order.iter().position(|line| line.starts_with(what)).expect("it was said")
    };
    assert!(at("up 0") < at("report") && at("report") < at("capture"), "{:?}", seen.order);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_a_spool_folder_works_and_keeps_no_entries() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let file = dir.path().join("a-file");
    std::fs::write(&file, "no folder").expect("file");
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    rank.train(3);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), with_spool(&file));
    coordinator.wait("its steps", |seen| has_steps(seen, &rank, 3)).await;
    agent.stop().await;
}

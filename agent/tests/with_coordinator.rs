//! An agent between real tapes and a coordinator that only listens.

mod without_coordinator;

mod divided;
mod host_memory;
mod ownership;
mod remedies;
mod secrets;

mod support;
mod worker_samples;

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use memtape_agent::Config;
use memtape_proto::v1;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use prost::Message;
use support::RunningAgent;
use support::cgroup::MemoryCgroup;
use support::coordinator::{FakeCoordinator, Seen};
use support::rank::{Rank, SMALL};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("folder")
}

/// The records are all steps from `first` to `last`, each once, in order.
fn assert_gapless(records: &[v1::StepRecord], first: u64, last: u64) {
    let mut next = first;
    for record in records {
        assert_eq!(record.first_step, next, "a gap or an overlap before step {next}");
        next = record.last_step + 1;
    }
    assert_eq!(next, last + 1);
}

fn has_steps(seen: &Seen, rank: &Rank, last: u64) -> Option<()> {
    seen.steps(&rank.tape_id, None).iter().any(|step| step.last_step == last).then_some(())
}

fn down_of<'a>(seen: &'a Seen, rank: &Rank) -> Option<&'a v1::RankDown> {
    seen.downs.iter().find(|down| down.tape_id == rank.tape_id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_are_reported_from_first_to_last_step() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut early = Rank::start(dir.path(), "job", 0, SMALL);
    early.train(20);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait("steps of rank 0", |seen| has_steps(seen, &early, 20)).await;
    let mut late = Rank::start(dir.path(), "job", 1, SMALL);
    late.train(7);
    early.train(5);
    coordinator.wait("steps of rank 1", |seen| has_steps(seen, &late, 7)).await;
    coordinator.wait("more of rank 0", |seen| has_steps(seen, &early, 25)).await;

    early.exit();
    late.train(1);
    late.kill();
    let downs = |seen: &Seen| Some((down_of(seen, &early)?.clone(), down_of(seen, &late)?.clone()));
    let (exited, killed) = coordinator.wait("both ends", downs).await;
    assert_eq!((exited.end(), exited.step), (v1::RankEnd::Exited, 25));
    assert_eq!((killed.end(), killed.step), (v1::RankEnd::Killed, 8));
    // The agent may see the kernel's word before it tells of the end.
    let is_said =
        |said: &str| ["did not exit in order", "signal 9"].iter().any(|of| said.contains(of));
    assert!(is_said(&killed.detail), "{}", killed.detail);
    agent.stop().await;

    let seen = coordinator.seen();
    assert_eq!(seen.hellos[0].node, "node-1");
    assert_eq!(seen.hellos.len(), 1);
    let up = &seen.ups[0];
    assert_eq!((up.job.as_str(), up.rank, up.world_size, up.pid), ("job", 0, 2, early.pid()));
    assert_eq!(up.tape_id, early.tape_id);
    assert_eq!(up.device_uuids, ["GPU-08070605-0403-0201-0000-000000000000"]);
    assert_gapless(&seen.steps(&early.tape_id, None), 1, 25);
    assert_gapless(&seen.steps(&late.tape_id, None), 1, 8);
    let report = seen.newest(&early.tape_id).expect("a report");
    let totals = report.totals[0];
    assert_eq!((report.step, report.oldest_step, totals.device_bytes), (25, 1, 80 << 30));
    assert_eq!((totals.allocated, totals.blocks, totals.allocs), (25 * 512, 25, 50));
    let with_rss = seen.reports.iter().flat_map(|(_, report)| &report.ranks);
    assert!(with_rss.filter_map(|rank| rank.rss_bytes).any(|bytes| bytes > 0));
    let host = seen.reports[0].1.host.clone().expect("host");
    assert!(host.memory_total_bytes > host.memory_available_bytes);
    // A rank is in no report after its end.
    let last = seen.order.iter().rposition(|line| line.starts_with("down")).expect("an end");
    assert!(seen.order[..last].iter().any(|line| line == "up 1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_disturbs_no_rank() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut good = Rank::start(dir.path(), "job", 0, SMALL);
    good.train(3);
    let whole = std::fs::read(&good.path).expect("tape");
    let mut flipped = whole.clone();
    flipped[128 * 8..256 * 8].fill(0xff);
    for (name, bytes) in [
        ("empty.tape", &[][..]),
        ("zeros.tape", &[0; 8192][..]),
        ("noise.tape", &[0xa5; 70_000][..]),
        ("short.tape", &whole[..4000]),
        ("cut.tape", &whole[..whole.len() / 2]),
        ("flipped.tape", &flipped[..]),
        // Says that it is rank 0's tape.
        ("twin.tape", &whole[..]),
    ] {
        std::fs::write(dir.path().join(name), bytes).expect("file");
    }
    std::fs::create_dir(dir.path().join("folder.tape")).expect("folder");
    std::os::unix::fs::symlink("/dev/zero", dir.path().join("link.tape")).expect("link");
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait_for_reports(10).await;
    good.train(2);
    coordinator.wait("the good rank", |seen| has_steps(seen, &good, 5)).await;

    // A tape that is cut while it is in use: no crash, no wrong numbers, and its end is reported.
    let mut cut = Rank::start(dir.path(), "job", 1, SMALL);
    cut.train(4);
    coordinator.wait("the other rank", |seen| has_steps(seen, &cut, 4)).await;
    cut.file.set_len(64).expect("truncation");
    coordinator.wait_for_reports(4).await;
    good.train(1);
    coordinator.wait("the good rank still", |seen| has_steps(seen, &good, 6)).await;
    assert!(coordinator.seen().newest(&cut.tape_id).is_some_and(|report| report.step == 4));
    cut.kill();
    let step = |seen: &Seen| Some(down_of(seen, &cut)?.step);
    assert_eq!(coordinator.wait("the end of the cut one", step).await, 4);
    agent.stop().await;

    let seen = coordinator.seen();
    let tapes: BTreeSet<_> = seen.ups.iter().map(|up| up.tape_id.clone()).collect();
    assert_eq!(tapes, BTreeSet::from([good.tape_id.clone(), cut.tape_id.clone()]));
    assert_gapless(&seen.steps(&good.tape_id, None), 1, 6);
    assert!(dir.path().join("noise.tape").exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_step_is_lost_with_a_coordinator() {
    let dir = folder();
    let mut coordinator = FakeCoordinator::start();
    coordinator.seen().acks_until = Some(3);
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    rank.train(1);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    for step in 2..=12 {
        coordinator.wait_for_reports(1).await;
        rank.train(1);
        coordinator.wait("each step", |seen| has_steps(seen, &rank, step)).await;
    }
    coordinator.kill();
    rank.train(30);
    tokio::time::sleep(Duration::from_millis(400)).await;
    coordinator.seen().acks_until = None;
    coordinator.revive();
    coordinator.wait("steps of the break", |seen| has_steps(seen, &rank, 42)).await;
    rank.train(1);
    coordinator.wait("steps after it", |seen| has_steps(seen, &rank, 43)).await;

    let (acked, last_report) = {
        let seen = coordinator.seen();
        assert_eq!(seen.hellos.len(), 2);
        let acked = seen.reports.iter().take(3).flat_map(|(_, report)| &report.ranks);
        let acked = acked.flat_map(|rank| &rank.steps).map(|step| step.last_step).max();
        assert_gapless(&seen.steps(&rank.tape_id, Some(1)), 1, 12);
        assert_eq!(seen.ups.len(), 2);
        (acked.expect("acknowledged steps"), seen.reports.last().expect("a report").1.number)
    };
    // Exactly what was not acknowledged comes again.
    let resent = coordinator.seen().steps(&rank.tape_id, Some(2));
    assert_gapless(&resent, acked + 1, 43);
    assert!(last_report >= 2);

    // A coordinator that leaves politely is left alone for as long as it asked.
    coordinator.say(ToAgent::Goodbye(v1::Goodbye { reconnect_after_ms: 1500 }));
    let left = std::time::Instant::now();
    coordinator.wait("the third stream", |seen| (seen.hellos.len() == 3).then_some(())).await;
    assert!(left.elapsed() >= Duration::from_millis(1400), "{:?}", left.elapsed());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_comes_in_pieces_and_whole() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let sizes = memtape_core::tape::layout::Sizes { step_records: 8192, events: 32768, ..SMALL };
    let mut ranks: Vec<Rank> =
        (0..2).map(|rank| Rank::start(dir.path(), "job", rank, sizes)).collect();
    ranks.iter_mut().for_each(|rank| rank.train(6000));
    ranks[0].kill();
    ranks[1].exit();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    let ends =
        |seen: &Seen| Some((down_of(seen, &ranks[0])?.clone(), down_of(seen, &ranks[1])?.clone()));
    let (killed, exited) = coordinator.wait("the ends of those found dead", ends).await;
    assert_eq!((killed.end(), killed.step), (v1::RankEnd::Killed, 6000));
    assert!(killed.detail.contains("first saw"), "{}", killed.detail);
    assert_eq!((exited.end(), exited.step), (v1::RankEnd::Exited, 6000));
    agent.stop().await;
    let seen = coordinator.seen();
    for rank in &ranks {
        assert_gapless(&seen.steps(&rank.tape_id, None), 1, 6000);
        let last = format!("down {}", rank.tape_id);
        let end = seen.order.iter().position(|line| *line == last).expect("an end");
        let before = seen.order[..end].iter().filter(|line| line.starts_with("report")).count();
        let reports = seen.reports.iter().take(before).flat_map(|(_, report)| &report.ranks);
        let of_rank = reports.filter(|report| report.tape_id == rank.tape_id);
        let reported: usize = of_rank.map(|report| report.steps.len()).sum();
        assert_eq!(reported, 6000, "steps came after the end of their rank");
    }
    let largest = seen.reports.iter().map(|(_, report)| report.encoded_len()).max();
    assert!(largest.is_some_and(|bytes| (1 << 16..1 << 20).contains(&bytes)), "{largest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overwritten_steps_are_counted_once() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let sizes = memtape_core::tape::layout::Sizes { step_records: 64, ..SMALL };
    let mut rank = Rank::start(dir.path(), "job", 0, sizes);
    rank.train(200);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait("the newest step", |seen| has_steps(seen, &rank, 200)).await;
    coordinator.wait_for_reports(3).await;
    agent.stop().await;
    let seen = coordinator.seen();
    let records = seen.steps(&rank.tape_id, None);
    let missed = seen.newest(&rank.tape_id).expect("a report").steps_missed;
    assert_eq!(missed, records[0].first_step - 1);
    assert!(missed >= 200 - 65, "{missed}");
}

/// The kernel itself kills one of two ranks; only that one is said to have been OOM-killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oom_kills_are_named() {
    let cgroup = match MemoryCgroup::make(20 << 20) {
        Ok(cgroup) => cgroup,
        Err(why) => return eprintln!("SKIPPED: no cgroup can be made here ({why})"),
    };
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut greedy = Command::new("sh");
    greedy.args(["-c", "read go; exec tail /dev/zero"]).stdin(Stdio::piped());
    let mut greedy = Rank::start_as(greedy, dir.path(), "job", 0, SMALL);
    let mut other = Rank::start(dir.path(), "job", 1, SMALL);
    cgroup.add(greedy.pid());
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait_for_reports(4).await;
    greedy.say("go");
    let end = |seen: &Seen| down_of(seen, &greedy).cloned();
    let down = coordinator.wait("the OOM kill", end).await;
    assert_eq!(down.end(), v1::RankEnd::OomKilled, "{}", down.detail);
    assert!(down.detail.contains("OOM kills of its cgroup rose from 0 to 1"), "{}", down.detail);
    other.kill();
    let end = |seen: &Seen| down_of(seen, &other).cloned();
    let down = coordinator.wait("the plain kill", end).await;
    assert_eq!(down.end(), v1::RankEnd::Killed, "{}", down.detail);
    agent.stop().await;
    greedy.kill();
}

/// What a capture of one rank must say.
struct Expected<'a> {
    outcome: v1::RankOutcome,
    step: u64,
    before_step: u64,
    blocks: usize,
    dead: bool,
    detail: &'a str,
}

async fn check_capture(
    coordinator: &FakeCoordinator,
    request: (&str, &str, u64, u64),
    expected: Expected<'_>,
) {
    let (capture_id, tape_id, step, before_step) = request;
    coordinator.say(ToAgent::CaptureRequest(v1::CaptureRequest {
        capture_id: capture_id.to_string(),
        tape_ids: vec![tape_id.to_string()],
        step,
        before_step,
        deadline_ms: 20_000,
        sample_workers: String::new(),
    }));
    let of_capture =
        |seen: &Seen| seen.answers.iter().find(|answer| answer.capture_id == capture_id).cloned();
    let answer = coordinator.wait(capture_id, of_capture).await;
    assert_eq!(answer.outcome(), expected.outcome, "{answer:?}");
    assert_eq!((answer.step, answer.before_step), (expected.step, expected.before_step));
    assert_eq!(answer.dead, expected.dead);
    assert!(answer.detail.contains(expected.detail), "{:?}", answer.detail);
    if answer.outcome() == v1::RankOutcome::NoTape {
        assert_eq!((answer.snapshot_bytes, answer.snapshot_hash.len()), (0, 0));
        return;
    }
    assert!(answer.wall_error_ns < 60_000_000_000, "{answer:?}");
    let key = (capture_id.to_string(), tape_id.to_string());
    let snapshot = coordinator.wait("the snapshot", |seen| seen.snapshots.get(&key).cloned()).await;
    assert_eq!(answer.snapshot_bytes, snapshot.len() as u64);
    assert_eq!(answer.snapshot_hash, blake3::hash(&snapshot).as_bytes());
    let snapshot = zstd::decode_all(snapshot.as_slice()).expect("zstd");
    let snapshot = v1::RankSnapshot::decode(snapshot.as_slice()).expect("a snapshot");
    assert_eq!(snapshot.rank.as_ref().map(|rank| rank.tape_id.as_str()), Some(tape_id));
    assert_eq!((snapshot.step, snapshot.before_step), (expected.step, expected.before_step));
    check_state(&snapshot, &expected);
}

/// Every block stands where the rank put it, and names the line that did.
fn check_state(snapshot: &v1::RankSnapshot, expected: &Expected) {
    let device = &snapshot.devices[0];
    let blocks = device.blocks.as_ref().expect("blocks");
    assert_eq!(blocks.sizes.len(), expected.blocks);
    let mut address = 0;
    for (index, delta) in blocks.address_deltas.iter().enumerate() {
        address += delta;
        assert_eq!(address, (index as u64 + 1) << 16);
        assert_eq!((blocks.sizes[index], blocks.birth_steps[index]), (512, index as u64));
        let stack = &snapshot.stacks[blocks.stacks[index] as usize];
        let frame = &snapshot.frames[stack.frames[0] as usize];
        assert_eq!((frame.file.as_str(), frame.line), ("/app/train.py", 36));
    }
    let before: u64 = device.before.iter().map(|each| each.bytes).sum();
    assert_eq!(before, expected.before_step * 512);
    assert_eq!(device.allocated, expected.blocks as u64 * 512);
    assert!(!device.trace.is_empty() && device.complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn captures_name_the_step_they_show() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    // 256 events are 85 steps of the rank.
    let sizes = memtape_core::tape::layout::Sizes { events: 256, ..SMALL };
    let mut rank = Rank::start(dir.path(), "job", 0, sizes);
    rank.train(100);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    coordinator.wait("the rank", |seen| has_steps(seen, &rank, 100)).await;
    coordinator.seen().uploads_to_fail = 2;

    let base = Expected {
        outcome: v1::RankOutcome::Aligned,
        step: 90,
        before_step: 40,
        blocks: 90,
        dead: false,
        detail: "",
    };
    let tape = rank.tape_id.clone();
    check_capture(&coordinator, ("cap-aligned", &tape, 90, 40), Expected { ..base }).await;
    assert_eq!(coordinator.seen().uploads_to_fail, 0);
    let no_before = Expected { before_step: 0, detail: "earlier step 2 is not", ..base };
    check_capture(&coordinator, ("cap-no-before", &tape, 90, 2), no_before).await;
    let present = Expected { step: 100, blocks: 100, before_step: 0, ..base };
    check_capture(&coordinator, ("cap-now", &tape, 0, 0), Expected { ..present }).await;
    let late = Expected {
        outcome: v1::RankOutcome::Late,
        detail: "step 3 is no longer on the tape",
        ..present
    };
    check_capture(&coordinator, ("cap-late", &tape, 3, 0), late).await;
    let behind = Expected {
        outcome: v1::RankOutcome::Behind,
        before_step: 50,
        detail: "step 300 is not finished",
        ..present
    };
    check_capture(&coordinator, ("cap-behind", &tape, 300, 50), behind).await;
    let none = Expected { outcome: v1::RankOutcome::NoTape, step: 0, detail: "no such", ..present };
    check_capture(&coordinator, ("cap-none", "0000", 90, 0), none).await;

    rank.kill();
    let aligned = Expected { dead: true, ..base };
    check_capture(&coordinator, ("cap-after", &tape, 90, 40), aligned).await;
    let dead = Expected {
        outcome: v1::RankOutcome::Dead,
        dead: true,
        detail: "step 101 is not finished",
        ..present
    };
    check_capture(&coordinator, ("cap-dead", &tape, 101, 0), dead).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_captures_survive_a_restart_of_the_coordinator() {
    let dir = folder();
    let mut coordinator = FakeCoordinator::start();
    let sizes =
        memtape_core::tape::layout::Sizes { events: 1 << 18, table_entries: 1 << 19, ..SMALL };
    let mut ranks: Vec<Rank> =
        (0..2).map(|rank| Rank::start(dir.path(), "job", rank, sizes)).collect();
    for rank in &mut ranks {
        // Sizes that do not compress.
        let mut random = 1_u64;
        for index in 0..150_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            rank.alloc((index + 1) << 16, random >> 24);
        }
        rank.train(1);
    }
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config: &mut Config| {
        config.upload_bytes_max = 1 << 20; // one snapshot at a time, although each is larger
    });
    let both =
        |seen: &Seen| ranks.iter().all(|rank| has_steps(seen, rank, 1).is_some()).then_some(());
    coordinator.wait("both ranks", both).await;
    coordinator.seen().uploads_to_fail = usize::MAX;
    coordinator.say(ToAgent::CaptureRequest(v1::CaptureRequest {
        capture_id: "cap-1".to_string(),
        tape_ids: ranks.iter().map(|rank| rank.tape_id.clone()).collect(),
        step: 1,
        before_step: 0,
        deadline_ms: 60_000,
        sample_workers: String::new(),
    }));
    coordinator.wait("an answer", |seen| seen.answers.first().cloned()).await;
    coordinator.kill();
    tokio::time::sleep(Duration::from_millis(300)).await;
    coordinator.seen().uploads_to_fail = 0;
    coordinator.revive();
    for rank in &ranks {
        let key = ("cap-1".to_string(), rank.tape_id.clone());
        let snapshot =
            coordinator.wait("a snapshot", |seen| seen.snapshots.get(&key).cloned()).await;
        assert!(snapshot.len() > 1 << 20, "{} bytes are one chunk", snapshot.len());
        let answered = |seen: &Seen| {
            let of_rank = |answer: &&v1::CaptureAnswer| answer.tape_id == rank.tape_id;
            seen.answers.iter().rfind(of_rank).cloned()
        };
        let answer = coordinator.wait("its answer", answered).await;
        assert_eq!(answer.outcome(), v1::RankOutcome::Aligned);
        assert_eq!(answer.snapshot_hash, blake3::hash(&snapshot).as_bytes());
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tapes_of_the_dead_are_deleted_only_when_reported() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    coordinator.seen().acks_until = Some(0);
    let mut ranks: Vec<Rank> =
        (0..3).map(|rank| Rank::start(dir.path(), "job", rank, SMALL)).collect();
    ranks.iter_mut().for_each(|rank| rank.train(2));
    ranks[0].kill();
    ranks[1].exit();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config: &mut Config| {
        config.dead_tape_bytes_max = 0;
    });
    coordinator.wait("both ends", |seen| (seen.downs.len() == 2).then_some(())).await;
    coordinator.wait_for_reports(4).await;
    assert!(ranks.iter().all(|rank| rank.path.exists()), "deleted before it was acknowledged");
    coordinator.seen().acks_until = None;
    for _ in 0..500 {
        if !ranks[0].path.exists() && !ranks[1].path.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(!ranks[0].path.exists() && !ranks[1].path.exists());
    coordinator.wait_for_reports(2).await;
    assert!(ranks[2].path.exists());
    ranks[2].train(1);
    coordinator.wait("the living one", |seen| has_steps(seen, &ranks[2], 3)).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_waits_for_its_coordinator() {
    let dir = folder();
    let mut coordinator = FakeCoordinator::start();
    coordinator.kill();
    let mut rank = Rank::start(&dir.path().join("."), "job", 0, SMALL);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    tokio::time::sleep(Duration::from_millis(500)).await;
    rank.train(3);
    coordinator.revive();
    coordinator.wait("the steps", |seen| has_steps(seen, &rank, 3)).await;
    agent.stop().await;
    assert_gapless(&coordinator.seen().steps(&rank.tape_id, None), 1, 3);
}

#[tokio::test]
async fn wrong_settings_are_refused_all_at_once() {
    let config =
        Config { node: String::new(), coordinator: "localhost".to_string(), ..Config::default() };
    let error = memtape_agent::run(config, std::future::pending()).await.expect_err("a refusal");
    let line = error.to_string();
    assert!(line.contains("node") && line.contains("coordinator"), "{line}");
}

//! What a rank has kept of a range of steps, beside its peers, over HTTP.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memtape_coordinator::Config;
use memtape_proto::api::Kept;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use serde_json::{Value, json};

use crate::JOB;
use crate::fake::{
    Agent, Job, LEAK_BEGINS, LEAK_LINE, MIB, Running, config, start, training, wall_ns,
};

/// The step at whose end the ranks are captured.
const STEP: u64 = LEAK_BEGINS + 10;

/// Bytes of the weights of a rank.
const WEIGHTS: u64 = 500 * MIB;

/// The path of a capture at the end of [`STEP`].
async fn captured(running: &Running, agent: &mut Agent, job: &Job, without: &[u32]) -> String {
    agent.train(job, 1..=STEP + 2).await;
    let (_, answer) = running.post("/api/v1/jobs/train/captures", r#"{"step":110}"#).await;
    let request = agent.asked().await;
    let is_sent = |tape: &String| without.iter().all(|rank| *tape != job.tape(*rank));
    let tape_ids = request.tape_ids.iter().filter(|tape| is_sent(tape)).cloned().collect();
    agent.serve(job, &v1::CaptureRequest { tape_ids, ..request }).await;
    let path = format!("/api/v1/captures/{}", answer["id"].as_str().unwrap());
    running.wait(&path, |capture| capture["state"] != "collecting").await;
    path
}

async fn kept(running: &Running, path: &str, query: &str) -> Kept {
    let (status, answer) = running.get(&format!("{path}/kept?{query}")).await;
    assert_eq!(status, 200, "{answer}");
    let kept: Kept = serde_json::from_value(answer).unwrap();
    let lines: u64 = kept.lines.iter().map(|line| line.bytes).sum();
    let stacks: u64 = kept.stacks.iter().map(|stack| stack.bytes).sum();
    assert_eq!(lines + kept.other_lines.bytes, kept.bytes);
    assert_eq!(stacks + kept.other_stacks.bytes, kept.bytes);
    kept
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_of_a_range_is_exact_and_beside_the_peers() {
    let (_dir, running, mut agent) = training(&JOB).await;
    let path = captured(&running, &mut agent, &JOB, &[]).await;
    let all = kept(&running, &path, "rank=2").await;
    assert_eq!((all.job.as_str(), all.rank, all.step), ("train@0", 2, STEP));
    assert_eq!((all.from, all.to, all.clock.as_str()), (None, None, "steps"));
    assert_eq!((all.bytes, all.blocks), (WEIGHTS + 320 * MIB, 30));
    // The level of the rank is 512 MiB above the leak.
    assert_eq!(all.unrecorded_bytes, 12 * MIB);
    assert_eq!((&all.peers[..], all.peers_left_out), (&[0, 1, 3][..], 0));
    assert_eq!((all.peer_bytes, all.missing_peers.len()), (Some(WEIGHTS), 0));
    let [leak, weights] = &all.lines[..] else { panic!("{:?}", all.lines) };
    let line = (leak.frame.file.as_str(), leak.frame.line, leak.frame.function.as_str());
    assert_eq!(line, ("/app/train.py", LEAK_LINE, "train_step"), "as an incident names it");
    assert_eq!((leak.bytes, leak.blocks, leak.peer_bytes), (320 * MIB, 10, Some(0)));
    assert_eq!((leak.first_step, leak.last_step), (Some(LEAK_BEGINS + 1), Some(STEP)));
    assert_eq!((weights.bytes, weights.peer_bytes), (WEIGHTS, Some(WEIGHTS)));
    assert_eq!((weights.first_step, weights.last_step), (Some(1), Some(1)));
    let stacks: Vec<Vec<&str>> = all
        .stacks
        .iter()
        .map(|stack| {
            let names = stack.frames.iter().map(|frame| &*all.frames[*frame as usize].function);
            names.collect()
        })
        .collect();
    assert_eq!(stacks, [["main", "Model.__init__"], ["main", "train_step"]]);

    // 4 steps keep 4 blocks; the ranges partition.
    let part = kept(&running, &path, "rank=2&from=105&to=108").await;
    assert_eq!((part.bytes, part.blocks, part.peer_bytes), (128 * MIB, 4, Some(0)));
    assert_eq!((part.from, part.to), (Some(105), Some(108)));
    assert_eq!((part.lines[0].first_step, part.lines[0].last_step), (Some(105), Some(108)));
    let mut sum = 0;
    for query in ["rank=2&to=104", "rank=2&from=105&to=108", "rank=2&from=109&to=110"] {
        sum += kept(&running, &path, query).await.bytes;
    }
    assert_eq!(sum, all.bytes);
    assert_eq!(kept(&running, &path, "rank=0&from=2").await.bytes, 0);

    for (query, status, words) in [
        ("rank=2&from=9&to=3", 400, "from=9 is after to=3"),
        ("rank=2&to=0", 400, "is after to=0"),
        ("rank=2&to=111", 400, "later than step 110"),
        ("from=1", 400, "rank"),
        ("rank=9", 404, "no rank"),
    ] {
        let (answered, answer) = running.get(&format!("{path}/kept?{query}")).await;
        let line = answer["error"].as_str().unwrap();
        assert!(answered == status && line.contains(words), "{query}: {answered} {line}");
    }
    assert_eq!(running.get("/api/v1/captures/cap-none/kept?rank=2").await.0, 404);
    let (_, audit) = running.get("/api/v1/audit").await;
    let is_entry = |entry: &Value| entry["action"] == "read kept memory";
    assert!(audit["entries"].as_array().unwrap().iter().any(is_entry), "{audit}");
    running.stop().await;
}

/// The incident's rank is shown when a request of it failed, without being asked for that; its
/// peers at their peaks.
#[tokio::test(flavor = "multi_thread")]
async fn memory_of_one_step_is_shown_at_the_peak_and_at_a_failed_request() {
    let job = Job { has_events: true, ..JOB };
    let (_dir, running, mut agent) = training(&job).await;
    let path = captured(&running, &mut agent, &job, &[]).await;
    let end = kept(&running, &path, "rank=2").await;
    assert_eq!((end.at.as_str(), end.step, end.bytes), ("step_end", STEP, WEIGHTS + 320 * MIB));
    let failed = end.failed.expect("it failed after the end of the step");
    let (_, map) = running.get(&format!("{path}/segments?rank=2")).await;
    assert_eq!(map["failed"]["asked_bytes"], failed.asked_bytes, "{map}");
    assert_eq!((failed.asked_bytes, failed.step), (300 * MIB, STEP + 1));
    assert_eq!((failed.frame.line, failed.device_free_bytes), (LEAK_LINE, None));

    let peak = kept(&running, &path, "rank=2&at=peak").await;
    assert_eq!((peak.at.as_str(), peak.step), ("peak", STEP));
    assert_eq!((peak.bytes, peak.peer_bytes), (end.bytes + 364 * MIB, Some(WEIGHTS + 300 * MIB)));
    let leak = &peak.lines[0];
    assert_eq!((leak.bytes, leak.peer_bytes), (684 * MIB, Some(300 * MIB)));
    assert_eq!((leak.frame.line, leak.first_step), (LEAK_LINE, None));

    let then = kept(&running, &path, "rank=2&at=failed_request").await;
    assert_eq!((then.step, then.bytes, then.peer_bytes), (STEP + 1, WEIGHTS, peak.peer_bytes));
    assert_eq!(then.bytes + then.unrecorded_bytes, failed.allocated_bytes);
    let other = kept(&running, &path, "rank=0").await;
    assert_eq!((other.failed, other.peer_bytes), (None, Some(WEIGHTS)));

    for (query, status, words) in [
        ("rank=2&at=peak&from=3", 400, "leave out at"),
        ("rank=2&at=noon", 400, "noon"),
        ("rank=0&at=failed_request", 404, "shows no failed request of rank 0"),
    ] {
        let (answered, answer) = running.get(&format!("{path}/kept?{query}")).await;
        let line = answer["error"].as_str().unwrap();
        assert!(answered == status && line.contains(words), "{query}: {answered} {line}");
    }
    running.stop().await;
}

/// Without a choice: the other ranks of the capture are shown at the end of its step.
#[tokio::test(flavor = "multi_thread")]
async fn the_rank_of_a_failed_request_is_shown_at_that_request() {
    let job = Job { has_events: true, ..JOB };
    let (_dir, running, mut agent) = training(&job).await;
    agent.train(&job, 1..=40).await;
    let ended = v1::RankDown {
        tape_id: job.tape(2),
        end: v1::RankEnd::Exited.into(),
        wall_ns: wall_ns(),
        step: 40,
        exit_status: Some(1),
        ..v1::RankDown::default()
    };
    agent.say(FromAgent::RankDown(ended)).await;
    let request = agent.asked().await;
    agent.serve(&job, &request).await;
    let is_of_memory = |answer: &Value| answer["incidents"][0]["class"] == "out_of_memory";
    running.wait("/api/v1/incidents", is_of_memory).await;
    let path = format!("/api/v1/captures/{}", request.capture_id);
    for (query, at) in [
        ("rank=2", "failed_request"),
        ("rank=2&at=step_end", "step_end"),
        ("rank=2&from=1", "step_end"),
        ("rank=0", "step_end"),
    ] {
        assert_eq!(kept(&running, &path, query).await.at.as_str(), at, "{query}");
    }
    running.stop().await;
}

/// The file of a stored snapshot.
fn stored(folder: &Path, hash: &str) -> Option<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find_map(
        |path| match path.is_dir() {
            true => stored(&path, hash),
            false => path.file_name()?.to_str()?.contains(hash).then_some(path),
        },
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_cannot_be_compared_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let capture_deadline = Duration::from_secs(3);
    let running = start(Config { capture_deadline, ..config(dir.path()) }).await;
    let job = Job { ranks: 20, ..JOB };
    let mut agent = Agent::attach(&running, "node-a").await;
    agent.announce(&job).await;
    let path = captured(&running, &mut agent, &job, &[1]).await;
    let (_, capture) = running.get(&path).await;
    let hash = capture["parts"][3]["hash"].as_str().unwrap();
    std::fs::remove_file(stored(dir.path(), hash).unwrap()).unwrap();
    let kept = kept(&running, &path, "rank=2").await;
    let near: Vec<u32> = (0..16).filter(|rank| ![1, 2, 3].contains(rank)).collect();
    assert_eq!((kept.peers, kept.peers_left_out), (near, 4));
    assert_eq!((kept.peer_bytes, kept.bytes), (Some(WEIGHTS), WEIGHTS + 320 * MIB));
    let missing: Vec<u32> = kept.missing_peers.iter().map(|missing| missing.rank).collect();
    assert_eq!(missing, [1, 3], "{:?}", kept.missing_peers);
    assert!(kept.missing_peers[0].why.contains("no snapshot of rank 1 (unreachable)"));
    // Neither has an answer of its own.
    let (status, answer) = running.get(&format!("{path}/kept?rank=1")).await;
    assert_eq!(status, 404, "{answer}");
    assert_eq!(running.get(&format!("{path}/kept?rank=3")).await.0, 410);
    assert_eq!(running.get(&path).await.1["aligned"], json!(19));
    running.stop().await;
}

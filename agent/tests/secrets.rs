//! What the agent sends has no secret of a command line, although the tape has.

use memtape_proto::v1;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use prost::Message;

use super::{FakeCoordinator, Rank, RunningAgent, SMALL, folder, has_steps};

const REDACTED: &str = "python train.py --wandb-key=[redacted] --my-licence [redacted]";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_of_a_command_line_leaves_the_node() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    rank.train(3);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config| {
        config.redacted_names = vec!["licence".to_string()];
    });
    coordinator.wait("steps", |seen| has_steps(seen, &rank, 3)).await;
    coordinator.say(ToAgent::CaptureRequest(v1::CaptureRequest {
        capture_id: "cap-1".to_string(),
        tape_ids: vec![rank.tape_id.clone()],
        step: 3,
        deadline_ms: 20_000,
        ..v1::CaptureRequest::default()
    }));
    let key = ("cap-1".to_string(), rank.tape_id.clone());
    let snapshot = coordinator.wait("the snapshot", |seen| seen.snapshots.get(&key).cloned()).await;
    let snapshot = zstd::decode_all(snapshot.as_slice()).expect("zstd");
    let decoded = v1::RankSnapshot::decode(snapshot.as_slice()).expect("a snapshot");
    assert_eq!(decoded.rank.map(|rank| rank.command).as_deref(), Some(REDACTED));
    agent.stop().await;
    let seen = coordinator.seen();
    assert!(!seen.ups.is_empty() && seen.ups.iter().all(|up| up.command == REDACTED));
    let all = format!("{:?} {:?} {}", seen.ups, seen.reports, String::from_utf8_lossy(&snapshot));
    assert!(!all.contains("hush0hush") && !all.contains("mute0mute"), "{all}");
}

//! A capture samples the workers of the rank that it names, and of no other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use memtape_agent::Config;
use memtape_proto::snapshot::{Bounds, decode};
use memtape_proto::v1;
use memtape_proto::v1::coordinator_message::Body as ToAgent;

use crate::folder;
use crate::support::RunningAgent;
use crate::support::coordinator::{FakeCoordinator, Seen};
use crate::support::rank::{Rank, SMALL};

/// A shell with a child, in the place of a rank with a worker. The child ends with the shell's
/// input, which ends with this value.
fn rank(dir: &Path, number: u32) -> Rank {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec 3<&0; cat <&3 & wait"]).stdin(Stdio::piped());
    let mut rank = Rank::start_as(shell, dir, "job", number, SMALL);
    rank.train(1);
    rank
}

/// In the place of py-spy: one sample, whose frame has the name of the process.
fn py_spy(dir: &Path) -> PathBuf {
    let path = dir.join("py-spy");
    let text = r#"#!/bin/sh
while [ "$1" != --pid ]; do shift; done
name=$(cat /proc/$2/comm)
frame="{\"name\": \"$name\", \"file\": \"/app/data.py\", \"line\": 12}"
echo "{\"profiles\": [{\"samples\": [[0]]}], \"shared\": {\"frames\": [$frame]}}" > /dev/stdin
"#;
    // Another process writes it: a file that is open for writing while some test starts a process
    // cannot be run.
    let write = r#"printf %s "$1" > "$0" && chmod 755 "$0""#;
    let status = Command::new("sh").arg("-c").arg(write).arg(&path).arg(text).status();
    assert!(status.expect("a shell").success());
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_workers_of_the_rank_that_a_request_names_are_sampled() {
    let (dir, tools) = (folder(), folder());
    let coordinator = FakeCoordinator::start();
    let mut ranks = [rank(dir.path(), 0), rank(dir.path(), 1)];
    let tapes: Vec<String> = ranks.iter().map(|rank| rank.tape_id.clone()).collect();
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config: &mut Config| {
        config.py_spy = Some(py_spy(tools.path()));
    });
    let counted = |seen: &Seen| {
        let of = |tape: &String| seen.newest(tape)?.host.as_ref()?.workers;
        tapes.iter().all(|tape| of(tape).is_some_and(|workers| workers.count == 1)).then_some(())
    };
    coordinator.wait("the worker of each rank", counted).await;
    coordinator.say(ToAgent::CaptureRequest(v1::CaptureRequest {
        capture_id: "cap-1".to_string(),
        tape_ids: tapes.clone(),
        sample_workers: tapes[1].clone(),
        ..v1::CaptureRequest::default()
    }));
    for (tape, is_sampled) in tapes.iter().zip([false, true]) {
        let key = ("cap-1".to_string(), tape.clone());
        let bytes = coordinator.wait("a snapshot", |seen| seen.snapshots.get(&key).cloned()).await;
        let snapshot = decode(&bytes, Bounds::default()).expect("a snapshot");
        assert_eq!(snapshot.worker_samples.is_some(), is_sampled);
        let Some(samples) = &snapshot.worker_samples else { continue };
        assert_eq!((samples.processes, samples.failure.as_str()), (1, ""), "{samples:?}");
        let stack = snapshot.frames_of(samples.stacks[0].stack).next().expect("a frame");
        assert_eq!((stack.function.as_str(), stack.line), ("cat", 12));
    }
    agent.stop().await;
    ranks.iter_mut().for_each(Rank::kill);
}

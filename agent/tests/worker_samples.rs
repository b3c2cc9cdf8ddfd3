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

/// A rank whose worker decodes all the time, as a forked worker of a data loader does. The worker
/// ends with the rank, which is killed.
const DECODING: &str = "\
import multiprocessing, os, sys
def decode(kept):
    kept.append([float(number) for number in range(2000)])
    del kept[:]
def work():
    kept, parent = [], os.getppid()
    while os.getppid() == parent:
        decode(kept)
if __name__ == '__main__':
    worker = multiprocessing.get_context('fork').Process(target=work, daemon=True)
    worker.start()
    sys.stdin.read()
";

/// A real py-spy beside the Python for tests, where it may read other processes.
fn real_py_spy() -> Option<(PathBuf, PathBuf)> {
    let python = PathBuf::from(std::env::var_os("MEMTAPE_TEST_PYTHON")?);
    let py_spy = python.with_file_name("py-spy");
    let mut sibling = Command::new(&python);
    let mut sibling = sibling.args(["-c", "import time; time.sleep(60)"]).spawn().ok()?;
    let pid = sibling.id().to_string();
    let dump = || Command::new(&py_spy).args(["dump", "--nonblocking", "--pid", &pid]).output();
    // Python needs a moment to start.
    let may_read = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        dump().is_ok_and(|output| output.status.success())
    });
    let _ = sibling.kill();
    let _ = sibling.wait();
    may_read.then_some((python, py_spy))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_py_spy_names_the_function_of_a_real_worker() {
    let Some((python, py_spy)) = real_py_spy() else {
        eprintln!("left out: stacks of a real worker needs py-spy beside MEMTAPE_TEST_PYTHON");
        return;
    };
    let (dir, tools) = (folder(), folder());
    let script = tools.path().join("train.py");
    std::fs::write(&script, DECODING).expect("a script");
    let coordinator = FakeCoordinator::start();
    let mut command = Command::new(python);
    command.arg(&script).stdin(Stdio::piped());
    let mut rank = Rank::start_as(command, dir.path(), "job", 0, SMALL);
    rank.train(1);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |config: &mut Config| {
        config.py_spy = Some(py_spy);
    });
    let tape = rank.tape_id.clone();
    let counted = |seen: &Seen| {
        let workers = seen.newest(&tape)?.host.as_ref()?.workers?;
        (workers.count == 1).then_some(())
    };
    coordinator.wait("the worker", counted).await;
    coordinator.say(ToAgent::CaptureRequest(v1::CaptureRequest {
        capture_id: "cap-1".to_string(),
        tape_ids: vec![tape.clone()],
        sample_workers: tape.clone(),
        ..v1::CaptureRequest::default()
    }));
    let key = ("cap-1".to_string(), tape);
    let bytes = coordinator.wait("a snapshot", |seen| seen.snapshots.get(&key).cloned()).await;
    let snapshot = decode(&bytes, Bounds::default()).expect("a snapshot");
    let samples = snapshot.worker_samples.as_ref().expect("it was asked for");
    assert_eq!((samples.processes, samples.failure.as_str()), (1, ""), "{samples:?}");
    let is_decoding = |stack: u32| {
        let frames = snapshot.worker_frames(stack);
        let of_script = |name: &str| {
            frames.iter().any(|frame| frame.function == name && frame.file.ends_with("train.py"))
        };
        // The parent's own code is cut off.
        of_script("decode") && of_script("work") && !of_script("<module>")
    };
    let decoding = samples.stacks.iter().filter(|stack| is_decoding(stack.stack));
    let decoding: u64 = decoding.map(|stack| stack.samples).sum();
    assert!(decoding > samples.samples() / 2, "{decoding} of {samples:?}");
    agent.stop().await;
    rank.kill();
}

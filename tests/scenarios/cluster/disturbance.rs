//! No capture runs code in a training process: the agent reads the tape from outside, and neither
//! signals the process nor waits for it.
//!
//! A process that is stopped can run nothing. So a rank is stopped and captured: the capture must
//! be as good as any other, and every thread of the process must be exactly where it was, with the
//! same CPU time, the same number of times it was given a core, and no signal that waits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{library, memtape, torch};
use serde_json::Value;

const JOB: &str = "stopped";

/// Trains, with a few megabytes that come and go.
const SCRIPT: &str = r#"
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)
"#;

/// Lines of a thread's `/proc/…/status` that change when it runs, is signalled or is traced.
const TELLING: [&str; 6] = [
    "State:",
    "TracerPid:",
    "SigPnd:",
    "ShdPnd:",
    "voluntary_ctxt_switches:",
    "nonvoluntary_ctxt_switches:",
];

#[test]
fn a_stopped_rank_is_captured_and_does_not_notice() {
    let Some(torch) = torch("a capture runs no code in the training process") else { return };
    library();
    let cluster = Cluster::start(&["node-a"]);
    let inner = torch.command(1, "2G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", JOB, "--dir"]).arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args()).args(["-c", SCRIPT]);
    command.current_dir(memtape_tests::root());
    let rank = Process::start(&mut command);
    wait_for("the job is known", Duration::from_secs(60), || {
        (cluster.ask(&["jobs"])["jobs"][0]["step_max"].as_u64()? > 20).then_some(())
    });

    signal(rank.id(), libc::SIGSTOP);
    // A thread is called stopped shortly before it is: two readings must be equal.
    let mut before = BTreeMap::new();
    let stopped = wait_for("all threads stop", Duration::from_secs(10), || {
        let now = threads(rank.id());
        let is_stopped = now.values().all(|thread| thread.contains("State:\tT"));
        let last = std::mem::replace(&mut before, now.clone());
        (is_stopped && now == last).then_some(now)
    });
    for _ in 0..3 {
        let manifest = capture(&cluster);
        assert_eq!(manifest["parts"][0]["outcome"], "aligned", "{manifest:#}");
        assert_eq!(manifest["parts"][0]["dead"], false, "{manifest:#}");
    }
    assert_eq!(threads(rank.id()), stopped, "a thread of the rank has run, or was signalled");

    // What was compared does change when a thread runs.
    signal(rank.id(), libc::SIGCONT);
    wait_for("the rank goes on", Duration::from_secs(10), || {
        (threads(rank.id()) != stopped).then_some(())
    });
}

fn capture(cluster: &Cluster) -> Value {
    let id = cluster.ask(&["capture", JOB])["id"].as_str().expect("an id").to_string();
    wait_for("the manifest is closed", Duration::from_secs(60), || {
        let manifest = cluster.ask(&["show", &id]);
        (!manifest["closed_wall_ns"].is_null()).then_some(manifest)
    })
}

/// What tells of each thread of a process whether it has run.
fn threads(pid: u32) -> BTreeMap<PathBuf, String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process is there");
    let folders = entries.map(|entry| entry.expect("a thread").path());
    let counters = folders.map(|folder| {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a thread");
        let status = read("status");
        let telling = status.lines().filter(|line| TELLING.iter().any(|at| line.starts_with(at)));
        let mut counters: Vec<String> = telling.map(String::from).collect();
        assert_eq!(counters.len(), TELLING.len(), "{counters:?}");
        // Time on a core, time waiting for one, and how often it was given one.
        counters.push(read("schedstat"));
        (folder, counters.join("\n"))
    });
    counters.collect()
}

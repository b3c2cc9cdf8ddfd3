//! A rank killed in mid-step is not lost: its tape and the next capture show its last state.

use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, signal, wait_for};
use memtape_tests::{library, memtape, tapes, torch};

/// Allocates in a loop, and says after each step at what time it began its last allocation.
const SCRIPT: &str = r#"
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(100000):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(step % 7)]
    began = time.monotonic_ns()
    last = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    print("allocated", began, torch.cuda.memory_allocated(), flush=True)
    time.sleep(0.002)
"#;

#[test]
fn a_killed_rank_leaves_its_last_state() {
    let Some(torch) = torch("a rank killed in mid-step is in the capture") else { return };
    library();
    let cluster = Cluster::start(&["node-a"]);
    let inner = torch.command(1, "2G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", "killed", "--dir"]).arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args()).args(["-c", SCRIPT]);
    command.current_dir(memtape_tests::root());
    let mut rank = Process::start(&mut command);
    rank.line_with("allocated", Duration::from_secs(60));
    wait_for("the job is known", Duration::from_secs(30), || {
        (cluster.ask(&["jobs"])["jobs"][0]["step_max"].as_u64()? > 20).then_some(())
    });
    // `memtape run` and the launcher replace themselves: this is the Python process.
    signal(rank.id(), libc::SIGKILL);
    let (code, said) = rank.end(Duration::from_secs(10));
    assert_eq!(code, None, "it died of the signal");

    let path = tapes::in_folder(&cluster.tapes("node-a")).pop().expect("the tape outlives it");
    let file = path.to_string_lossy().into_owned();
    let shown = cluster.ask(&["tape", &file]);
    assert!(shown["process"].as_str().is_some_and(|state| state.contains("killed")), "{shown:#}");

    // The kill may have cut the last line short.
    let is_whole = |line: &&String| line.starts_with("allocated ") && line.len() > 20;
    let last = said.iter().rev().find(is_whole).expect("it said so");
    let numbers: Vec<u64> = last.split(' ').skip(1).map(|word| word.parse().unwrap()).collect();
    let tape = tapes::open(&path);
    let event = tape.tail(0, 2).pop().expect("events");
    // The script looked at the clock before its last allocation: the tape must reach up to it. The
    // recorder's own clock may differ from that one by 1 ms; a step pauses for 2 ms.
    assert!(event.mono_ns + 1_000_000 >= numbers[0], "{} and {}", event.mono_ns, numbers[0]);

    let capture = wait_for("the death is captured", Duration::from_secs(30), || {
        let captures = cluster.ask(&["captures", "killed"]);
        let captures = captures["captures"].as_array()?.clone();
        captures.into_iter().find(|capture| capture["parts"][0]["dead"] == true)
    });
    assert_eq!(capture["parts"][0]["rank"], 0);
    let incident = wait_for("the death is an incident", Duration::from_secs(30), || {
        let incidents = cluster.ask(&["incidents", "killed"]);
        incidents["incidents"].as_array()?.iter().find(|of| of["class"] == "died").cloned()
    });
    let sentence = incident["sentence"].as_str().expect("a sentence");
    assert!(sentence.starts_with("rank 0 was killed by "), "{sentence}");
    assert_eq!(incident["urgency"], "notice", "a person may have stopped a job of one rank");
    assert_eq!(cluster.ask(&["jobs"])["jobs"][0]["state"], "failed");
    let output = cluster.scratch().join("dead.json").to_string_lossy().into_owned();
    let id = capture["id"].as_str().expect("an id");
    let export = ["export", id, "--rank", "0", "--format", "json", "-o", &output];
    assert!(cluster.memtape(&export).status.success(), "the dead rank's snapshot is in the store");
    let text = std::fs::read_to_string(&output).expect("the export");
    let snapshot: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(
        snapshot["devices"][0]["allocated"].as_u64().is_some_and(|bytes| bytes > 0),
        "{text:.300}"
    );
}

//! A fragmenting job gets a hint, its next start applies it, and the hints say what it did.
//!
//! The job is real PyTorch on the fake CUDA runtime, whose virtual memory management lets
//! PyTorch's segments grow. How much time the setting costs or saves on a real device, this does
//! not show.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use memtape_tests::cluster::{Cluster, free_port};
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, library, memtape, root, torch};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(240);
const EXPAND: &str = "expandable_segments:True";

/// Steps of the job.
const STEPS: u64 = 60;

/// Starts the job with hints.
fn start(cluster: &Cluster, torch: &Torch, go: &Path) -> Process {
    let inner = torch.command(1, "16G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", "hinted", "--apply-hints", "--coordinator", &cluster.url()]);
    command.arg("--dir").arg(cluster.tapes("node")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args());
    command.arg("tests/torch/hinted.py").arg(go).current_dir(root());
    Process::start(&mut command)
}

/// Lets the job end; all it said.
fn end(job: Process, go: &Path) -> Vec<String> {
    std::fs::write(go, "").expect("a file");
    let (code, said) = job.end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    said
}

/// The hints, when they are as wished.
fn hints(cluster: &Cluster, is_there: impl Fn(&Value) -> bool) -> Value {
    wait_for("hints as wished", PATIENCE, || {
        let output = cluster.memtape(&["hints", "hinted", "--json"]);
        let answer = serde_json::from_slice::<Value>(&output.stdout).ok();
        answer.filter(|answer| is_there(answer))
    })
}

#[test]
fn a_hint_is_applied_at_the_next_start_and_proven() {
    let Some(torch) = torch("a hint is applied and proven") else { return };
    library();
    let cluster = Cluster::start(&["node"]);
    let go = |number: u32| cluster.scratch().join(format!("go-{number}"));

    let mut job = start(&cluster, &torch, &go(1));
    let line = job.line_with("memtape: no hints are applied", PATIENCE);
    assert!(line.contains("there is no job"), "{line}");
    job.line_with("waits", PATIENCE);
    wait_for("all steps", PATIENCE, || {
        let jobs = cluster.ask(&["jobs"]);
        (jobs["jobs"][0]["step_max"] == STEPS).then_some(())
    });
    let captured = cluster.memtape(&["capture", "hinted", "--wait"]);
    assert!(captured.status.success(), "{captured:?}");
    let said = end(job, &go(1));
    assert!(said.contains(&"settings ".to_string()), "{said:#?}");
    assert!(said.contains(&"expandable False".to_string()), "{said:#?}");
    let before = hints(&cluster, |answer| answer["settings"] == EXPAND);
    let hint = &before["hints"][0];
    assert_eq!(hint["setting"], EXPAND, "{before:#}");
    let saves = hint["saves_bytes"].as_u64().expect("bytes");
    let reserved = before["reserved_bytes"].as_u64().expect("bytes");
    assert!(saves > 1 << 30 && saves < reserved, "{before:#}");
    assert!(hint["evidence"].to_string().contains("cap-"), "{hint:#}");
    let text = cluster.memtape(&["hints", "hinted"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&format!("export PYTORCH_CUDA_ALLOC_CONF={EXPAND}")), "{text}");

    let mut job = start(&cluster, &torch, &go(2));
    let line = job.line_with("memtape: ", PATIENCE);
    assert_eq!(line, format!("memtape: hints for hinted: PYTORCH_CUDA_ALLOC_CONF={EXPAND}"));
    job.line_with("waits", PATIENCE);
    let said = end(job, &go(2));
    assert!(said.contains(&format!("settings {EXPAND}")), "{said:#?}");
    assert!(said.contains(&"expandable True".to_string()), "{said:#?}");
    let after = hints(&cluster, |answer| answer["applied"]["after"]["step"] == STEPS);
    let applied = &after["applied"];
    println!("{applied:#}");
    assert_eq!((&applied["verdict"], &applied["settings"]), (&"helped".into(), &EXPAND.into()));
    let bytes = |of: &str| applied[of]["reserved_bytes"].as_u64().expect("bytes");
    assert!(bytes("after") < bytes("before") - saves / 2, "{applied:#}");
    assert_eq!(applied["before"]["step"], applied["after"]["step"]);
    assert_eq!(after["settings"], EXPAND, "what helped is kept: {after:#}");
}

/// Runs a command that prints its settings, with hints of this coordinator.
fn run(coordinator: &str, settings: &[(&str, &str)]) -> Output {
    let dir = tempfile::tempdir().expect("a folder");
    library();
    let mut command = Command::new(memtape());
    command.args(["run", "--job", "x", "--apply-hints", "--coordinator", coordinator]);
    command.arg("--dir").arg(dir.path());
    command.args(["--", "sh", "-c", "echo \"${PYTORCH_CUDA_ALLOC_CONF-none}\""]);
    command.env_remove("PYTORCH_CUDA_ALLOC_CONF").envs(settings.iter().copied());
    command.output().expect("it runs")
}

#[test]
fn a_job_starts_without_hints_where_no_coordinator_answers() {
    // One that does not exist, and one that takes a connection and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = format!("127.0.0.1:{}", listener.local_addr().expect("an address").port());
    for coordinator in [format!("127.0.0.1:{}", free_port()), silent] {
        let output = run(&coordinator, &[("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(output.stdout, b"max_split_size_mb:64\n");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> =
            said.lines().filter(|line| !line.contains("no NVIDIA GPU")).collect();
        assert_eq!(lines.len(), 1, "{said}");
        assert!(lines[0].starts_with("memtape: no hints are applied: "), "{said}");
    }
}

//! The recorder as a guest: it changes nothing for its host, and is not there where it is not
//! needed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use memtape_core::tape::rewind::Moment;
use memtape_tests::processes::Process;
use memtape_tests::{Torch, library, tapes, torch};

const PATIENCE: Duration = Duration::from_secs(120);

/// Allocates, forks a child that frees and allocates nothing on the GPU, and goes on.
const FORKS: &str = r#"
import os, torch
kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
pid = os.fork()
if pid == 0:
    kept.clear()            # frees the parent's tensors in the child's copy of the allocator
    raise SystemExit(3)     # an orderly exit, which must not seal the parent's tape
status = os.waitpid(pid, 0)[1]
assert os.waitstatus_to_exitcode(status) == 3, status
print("sealed by the child?", flush=True)
kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
os._exit(0)                 # leaves without any handler: as abrupt as a kill
"#;

/// Everything PyTorch's profiler and allocator report about a small run, as one line.
const PROFILED: &str = r#"
import torch
from torch.profiler import profile, ProfilerActivity
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as seen:
    x = torch.empty(1000, 1000, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
memory = [(e.name, e.device_memory_usage) for e in seen.events() if e.device_memory_usage]
stats = torch.cuda.memory_stats()
peak = stats["allocated_bytes.all.peak"]
print("profiled", len(memory), memory, stats["allocation.all.allocated"], peak)
"#;

fn python(torch: &Torch, tapes_at: &Path, script: &str) -> Command {
    let mut command = torch.recorded(1, "2G", tapes_at);
    command.args(["-c", script]);
    command
}

#[test]
fn pytorchs_own_tools_see_what_they_saw_before() {
    let Some(torch) = torch("PyTorch's profiler and history are unchanged") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let with = Process::start(&mut python(&torch, scratch.path(), PROFILED)).end(PATIENCE);
    let without = Process::start(torch.command(1, "2G").args(["-c", PROFILED])).end(PATIENCE);
    assert_eq!(with.0, Some(0), "{with:#?}");
    let numbers = |said: &[String]| {
        said.iter().find(|line| line.starts_with("profiled")).cloned().expect("its line")
    };
    assert_eq!(numbers(&with.1), numbers(&without.1));
    assert!(!numbers(&with.1).starts_with("profiled 0 "), "the profiler saw memory: {with:?}");
    assert_eq!(tapes::in_folder(scratch.path()).len(), 1, "and the recorder recorded it");

    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut smoke = torch.recorded(1, "2G", scratch.path());
    let (code, said) = Process::start(smoke.arg("tests/torch/smoke.py")).end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    let [native, ..] = tapes::in_folder(scratch.path()).try_into().unwrap_or_else(
        |paths: Vec<_>| -> [std::path::PathBuf; 2] { panic!("two processes: {paths:?}") },
    );
    let totals = tapes::open(&native).totals();
    assert!(totals[0].ooms >= 1, "the script's out-of-memory is on the tape: {totals:?}");
}

#[test]
fn a_forked_child_leaves_the_tape_alone() {
    let Some(torch) = torch("a forked child leaves the tape alone") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut parent = Process::start(&mut python(&torch, scratch.path(), FORKS));
    parent.line_with("sealed by the child?", PATIENCE);
    let (code, said) = parent.end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    let paths = tapes::in_folder(scratch.path());
    assert_eq!(paths.len(), 1, "the child made no tape of its own");
    let tape = tapes::open(&paths[0]);
    assert!(!tape.status().sealed, "os._exit runs no handler, and the child's exit is not ours");
    let snapshot = tape.snapshot(Moment::Present, None, 0).expect("the last state");
    assert_eq!(snapshot.devices[0].blocks.len(), 6, "the child's frees are not the parent's");
}

#[test]
fn children_without_gpu_memory_pay_nothing() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    for command in
        [&["sh", "-c", "true | cat"][..], &["python3", "-c", "print(1)"], &["gcc", "--version"]]
    {
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).env("LD_PRELOAD", library()).env("MEMTAPE_DIR", scratch.path());
        let (code, said) = Process::start(&mut child).end(PATIENCE);
        assert_eq!(code, Some(0), "{command:?}: {said:#?}");
    }
    let left = std::fs::read_dir(scratch.path()).expect("the folder").count();
    assert_eq!(left, 0, "no tape, no file of any kind");
}

#[test]
fn a_job_whose_tape_cannot_be_had_runs_unrecorded() {
    let Some(torch) = torch("a job without a place for its tape runs on") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let file = scratch.path().join("file");
    std::fs::write(&file, "in the way").expect("a file");
    let script = "import torch; print(torch.ones(3, device='cuda').shape)";
    let mut command = python(&torch, &file.join("tapes"), script);
    let (code, said) = Process::start(&mut command).end(PATIENCE);
    assert_eq!((code, said), (Some(0), vec!["torch.Size([3])".to_string()]));
}

#[test]
fn what_is_switched_off_is_said_on_the_tape() {
    let Some(torch) = torch("limitations are said on the tape") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let script = "import torch; kept = torch.ones(3, device='cuda')";
    let mut command = python(&torch, scratch.path(), script);
    let (code, said) = Process::start(command.env("MEMTAPE_STACKS", "0")).end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    let tape = tapes::open(&tapes::in_folder(scratch.path())[0]);
    assert_eq!(tape.status().limitations, ["no stacks: MEMTAPE_STACKS=0"]);
    assert!(tape.totals()[0].allocs >= 1);

    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = python(&torch, scratch.path(), script);
    let (code, said) = Process::start(command.env("MEMTAPE_DISABLE", "1")).end(PATIENCE);
    assert_eq!(code, Some(0), "{said:#?}");
    assert!(tapes::in_folder(scratch.path()).is_empty());
}

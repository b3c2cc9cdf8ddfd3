//! Children: a preloaded library is in all of them.

use std::collections::BTreeSet;
use std::process::Command;

use memtape_core::tape::rewind::PointInTime;
use memtape_tests::{library, tapes, torch};

use memtape_tests::left_out;

use super::{Script, counts, run, script};

/// Allocates, forks a child that frees the parent's tensors in its copy of the allocator, goes on.
const FORKS: &str = r#"
import os, torch
kept = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(5)]
pid = os.fork()
if pid == 0:
    kept.clear()
    raise SystemExit(3)     # an orderly exit, which must not seal the parent's tape
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
os._exit(0)                 # leaves without any handler: as abrupt as a kill
"#;

/// What the loader may do for one library more: find, read and map it. Everything else would be
/// the library's own doing.
const LOADING: [&str; 11] = [
    "access",
    "openat",
    "read",
    "pread64",
    "fstat",
    "newfstatat",
    "mmap",
    "mprotect",
    "munmap",
    "close",
    "brk",
];

/// System calls that loading this library and the one it needs may take.
const LOADING_CALLS_MAX: usize = 40;

#[test]
fn programs_of_all_kinds_run_as_ever() {
    for words in [
        &["sh", "-c", "true | cat; exit 3"][..],
        &["python3", "-c", "raise SystemExit(3)"],
        &["bash", "-c", "gcc --version >/dev/null; exit 3"],
        &["env", "-i", "sh", "-c", "exit 3"],
    ] {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let tapes_at = scratch.path().join("tapes");
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("LD_PRELOAD", library()).env("MEMTAPE_DIR", &tapes_at);
        let outcome = run(command, scratch);
        assert_eq!(outcome.status.code(), Some(3), "{words:?}: {}", outcome.said);
        assert_eq!(outcome.said, "", "{words:?}: nothing is said");
        assert!(!tapes_at.exists(), "{words:?}: not even the folder is made");
    }
}

#[test]
fn a_child_without_gpu_has_one_library_more_and_nothing_else() {
    let with = Script::new("idle.py").succeeds();
    let without = Script::new("idle.py").unrecorded().succeeds();
    for part in ["open", "environment", "status", "children", "limits"] {
        assert_eq!(with.value(part), without.value(part), "{part}");
    }
    let mapped = |said: &str| said.split(' ').map(String::from).collect::<BTreeSet<_>>();
    let (more, before) = (mapped(with.value("mapped")), mapped(without.value("mapped")));
    // libgcc_s is what Rust unwinds with; any C++ program has it.
    let news: Vec<&String> =
        more.difference(&before).filter(|name| *name != "libgcc_s.so.1").collect();
    assert_eq!(news, ["libmemtape.so"]);
    assert!(with.tapes().is_empty(), "and no file");
}

#[test]
fn a_child_without_gpu_makes_no_system_call_of_the_recorders() {
    let what = "counting the system calls of a child";
    if Command::new("strace").arg("-V").output().is_err() {
        return left_out(what, "strace");
    }
    let calls = |preload: &str| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-E", &format!("LD_PRELOAD={preload}"), "true"]);
        let output = strace.output().expect("strace runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(text)
    };
    let preload = library().to_string_lossy();
    let (Some(with), Some(without)) = (calls(&preload), calls("")) else {
        return left_out(what, "the right to trace");
    };
    let names = |text: &str| -> Vec<String> {
        text.lines().filter_map(|line| Some(line.split_once('(')?.0.to_string())).collect()
    };
    let (mut more, before) = (names(&with), names(&without));
    for name in before {
        if let Some(at) = more.iter().position(|each| *each == name) {
            more.swap_remove(at);
        }
    }
    assert!(more.iter().any(|name| name == "mmap"), "the library was loaded: {with}");
    more.retain(|name| !name.starts_with('+'));
    let strange: Vec<&String> =
        more.iter().filter(|name| !LOADING.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}\n{with}");
    assert!(more.len() <= LOADING_CALLS_MAX, "{}: {more:?}", more.len());
}

#[test]
fn a_forked_child_writes_nothing_onto_its_parents_tape() {
    let outcome = Script::new("forks.py").succeeds();
    let tape = outcome.tape();
    assert_eq!(counts(&tape), (6, 0), "what the parent did, and no more");
    assert_eq!(tape.status().step, 0);
    assert!(!tape.status().sealed, "the children's exits are not the parent's");
}

#[test]
fn a_forked_child_of_pytorch_leaves_the_tape_alone() {
    let Some(torch) = torch("a forked child of PyTorch leaves the tape alone") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let tapes_at = scratch.path().join("tapes");
    let mut command = torch.recorded(1, "2G", &tapes_at);
    command.args(["-c", FORKS]);
    let outcome = run(command, scratch);
    assert!(outcome.status.success(), "{}", outcome.said);
    let tape = outcome.tape();
    assert!(!tape.status().sealed, "os._exit runs no handler, and the child's exit is not ours");
    let snapshot = tape.snapshot(PointInTime::Present, None, 0).expect("the last state");
    assert_eq!(snapshot.devices[0].blocks.len(), 6, "the child's frees are not the parent's");
}

#[test]
fn children_forked_before_the_first_gpu_memory_have_their_own_tapes() {
    let outcome = Script::new("forks_first.py").succeeds();
    let paths = outcome.tapes();
    assert_eq!(paths.len(), 3, "one for each child, none for the launcher");
    for (rank, path) in paths.iter().enumerate() {
        let tape = tapes::open(path);
        assert_eq!(tape.identity().rank as usize, rank);
        assert_eq!(counts(&tape), (1, 0));
        assert_eq!(tape.status().exit_status, Some(0), "each sealed its own");
    }
}

#[test]
fn dataloader_workers_by_fork_leave_the_tape_to_the_trainer() {
    check_dataloader("fork");
}

#[test]
fn dataloader_workers_by_spawn_leave_the_tape_to_the_trainer() {
    check_dataloader("spawn");
}

fn check_dataloader(method: &str) {
    let Some(torch) = torch(&format!("DataLoader workers by {method}")) else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.recorded(1, "2G", &scratch.path().join("tapes"));
    command.arg(script("dataloader.py")).arg(method);
    let outcome = run(command, scratch);
    assert!(outcome.status.success(), "{}", outcome.said);
    let tape = outcome.tape();
    let totals = tape.totals()[0];
    assert_eq!(totals.live_bytes.to_string(), outcome.value("live"), "{}", outcome.said);
    assert_eq!(totals.allocs.to_string(), outcome.value("allocations"));
    assert_eq!(tape.status().lost, 0, "{:?}", tape.status().losses);
}

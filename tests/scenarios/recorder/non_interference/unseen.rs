//! What the host can see of its own process is what it would be without the recorder.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use memtape_tests::memtape;
use memtape_tests::processes::Process;
use memtape_tests::tapes;
use memtape_tests::torch;

use super::{PATIENCE, Script, folder, run};

#[test]
fn errno_is_kept_across_every_hook() {
    let script = Script::new("unseen.py").arg("errno");
    // A folder that has to be made, and one that cannot be: each takes calls that fail.
    let made = folder(&script).join("tapes/deeper");
    let outcome = script.env("MEMTAPE_DIR", &made).succeeds();
    let tapes = tapes::in_folder(&outcome.scratch.path().join("tapes/deeper"));
    assert_eq!(tapes.len(), 1, "{}", outcome.said);
    Script::new("unseen.py").arg("errno").env("MEMTAPE_DIR", "/dev/null/tapes").succeeds();
}

#[test]
fn rounding_and_exception_flags_are_kept_across_every_hook() {
    Script::new("unseen.py").arg("floating_point").succeeds().tape();
}

#[test]
fn signals_are_the_hosts() {
    Script::new("unseen.py").arg("signals").succeeds().tape();
    let outcome = Script::new("unseen.py").arg("terminated").run();
    assert_eq!(outcome.status.signal(), Some(libc::SIGTERM), "{}", outcome.said);
    let outcome = Script::new("unseen.py").arg("handled").run();
    assert_eq!(outcome.status.code(), Some(21), "{}", outcome.said);
}

#[test]
fn a_bus_error_of_the_hosts_own_is_handled_as_ever() {
    let outcome = Script::new("unseen.py").arg("bus_error").run();
    assert_eq!(outcome.status.signal(), Some(libc::SIGBUS), "{}", outcome.said);
    let faulthandler = Script::new("unseen.py").arg("bus_error").env("PYTHONFAULTHANDLER", "1");
    let outcome = faulthandler.run();
    assert_eq!(outcome.status.signal(), Some(libc::SIGBUS), "{}", outcome.said);
    assert!(outcome.said.contains("Fatal Python error: Bus error"), "{}", outcome.said);
}

#[test]
fn standard_streams_are_not_touched() {
    Script::new("unseen.py").arg("standard_streams").succeeds().tape();
}

#[test]
fn a_program_that_closes_all_descriptors_is_still_alive() {
    let Script { mut command, scratch } = Script::new("unseen.py").arg("closed_descriptors");
    let mut program = Process::start(&mut command);
    program.line_with("closed", PATIENCE);
    let path = &tapes::in_folder(&scratch.path().join("tapes"))[0];
    let process = || {
        let mut shown = Command::new(memtape());
        let output = shown.arg("tape").arg(path).arg("--json").output().expect("memtape runs");
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        shown["alive"].as_bool().expect("it is known")
    };
    assert!(process(), "it closed its descriptors, and lives");
    // Until its process is gone.
    program.kill();
    assert!(!process(), "and when it is dead, it is");
}

#[test]
fn what_is_switched_off_is_said_on_the_tape() {
    let Some(torch) = torch("limitations are said on the tape") else { return };
    let script = "import torch; kept = torch.ones(3, device='cuda')";
    let outcome = |name: &str, value: &str| {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let mut command = torch.recorded(1, "2G", &scratch.path().join("tapes"));
        command.args(["-c", script]).env(name, value);
        let outcome = run(command, scratch);
        assert!(outcome.status.success(), "{}", outcome.said);
        outcome
    };
    let without_stacks = outcome("MEMTAPE_STACKS", "0");
    let tape = without_stacks.tape();
    assert!(tape.status().limitations.contains(&"no stacks: MEMTAPE_STACKS=0".to_string()));
    assert!(tape.totals()[0].allocs >= 1);
    assert!(outcome("MEMTAPE_DISABLE", "1").tapes().is_empty());
}

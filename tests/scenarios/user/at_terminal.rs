//! `memtape run` at a terminal: it says at its end what was recorded, and ends as the command does.

use std::path::Path;
use std::process::{Command, Output};

use memtape_tests::{memtape, root, tapes, torch};

/// Runs its arguments at a terminal of their own, and ends with their exit code.
const TERMINAL: &str = "import os, pty, sys\n\
                        sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// `memtape run` at a terminal, where this program leads to it.
fn run(mut leads: Command, tapes_at: &Path, command: &[&str]) -> Output {
    leads.args(["python3", "-c", TERMINAL]).arg(memtape()).args(["run", "--dir"]).arg(tapes_at);
    leads.arg("--").args(command).output().expect("a terminal")
}

#[test]
fn a_run_without_a_gpu_says_that_nothing_was_recorded() {
    let tapes_at = tempfile::tempdir().expect("a folder");
    for (command, code) in [("exit 3", 3), ("kill -TERM $$", 128 + 15)] {
        let output = run(Command::new("env"), tapes_at.path(), &["sh", "-c", command]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{command}: {said}");
        assert!(said.contains("memtape: nothing was recorded: no process "), "{command}: {said}");
    }
    let mut disabled = Command::new("env");
    disabled.env("MEMTAPE_DISABLE", "1");
    let output = run(disabled, tapes_at.path(), &["true"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("nothing was recorded: MEMTAPE_DISABLE is 1"), "{said}");
}

#[test]
fn a_run_with_a_gpu_says_where_its_tapes_are() {
    let Some(torch) = torch("the last line of memtape run") else { return };
    let tapes_at = tempfile::tempdir().expect("a folder");
    let mut leads = Command::new(root().join("tests/fake_cuda/run"));
    leads.args(["-n", "1", "-b", "1G", "--"]);
    let python = torch.python.to_string_lossy();
    let program = "import torch; torch.zeros(8, device='cuda')";
    let output = run(leads, tapes_at.path(), &[&python, "-c", program]);
    let said = String::from_utf8_lossy(&output.stdout);
    let [tape] = &tapes::in_folder(tapes_at.path())[..] else { panic!("not one tape: {said}") };
    let line = format!(
        "memtape: 1 tape of 1 rank in {}, no step was seen; read one:  memtape tape {}",
        tapes_at.path().display(),
        tape.display()
    );
    assert!(said.contains(&line), "{said}");
}

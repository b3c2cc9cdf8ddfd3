//! `memtape run` at a terminal: it says at its end what was recorded, and ends as the command does.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use memtape_tests::processes::wait_for;
use memtape_tests::{memtape, root, tapes, torch};

/// Runs its arguments at a terminal of their own, and ends with their exit code. A shell that runs
/// the tests in the background has made some signals ignored.
const TERMINAL: &str = "import os, pty, signal, sys\n\
                        for name in ('SIGHUP', 'SIGINT', 'SIGQUIT'):\n\
                        \x20   signal.signal(getattr(signal, name), signal.SIG_DFL)\n\
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

/// Types Ctrl-C at the terminal when the command says that it is ready, and prints what it says.
const TYPIST: &str = "import os, pty, signal, sys\n\
                      signal.signal(signal.SIGINT, signal.SIG_DFL)\n\
                      pid, terminal = pty.fork()\n\
                      if pid == 0: os.execvp(sys.argv[1], sys.argv[1:])\n\
                      said, typed = b'', False\n\
                      while True:\n\
                      \x20   try: read = os.read(terminal, 4096)\n\
                      \x20   except OSError: break\n\
                      \x20   said += read\n\
                      \x20   if not read: break\n\
                      \x20   if b'ready' in said and not typed:\n\
                      \x20       typed = os.write(terminal, b'\\x03')\n\
                      print(said.decode())\n\
                      sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";

#[test]
fn each_signal_reaches_the_command_once() {
    let tapes_at = tempfile::tempdir().expect("a folder");
    let wait = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; done; exit 9";
    // The command's parent is the process that was started at the terminal.
    for name in ["USR1", "USR2", "INT", "QUIT", "TERM", "HUP"] {
        let command = format!("trap 'echo one of {name}' {name}; kill -{name} $PPID; {wait}");
        let output = run(Command::new("env"), tapes_at.path(), &["sh", "-c", &command]);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(9), "{name}: {said}");
        assert_eq!(said.matches("one of").count(), 1, "{name}: {said}");
    }
    let command = format!("trap 'echo one of INT' INT; echo ready; {wait}");
    let mut typed = Command::new("python3");
    typed.args(["-c", TYPIST]).arg(memtape()).args(["run", "--dir"]).arg(tapes_at.path());
    let output = typed.args(["--", "sh", "-c", &command]).output().expect("a terminal");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(9), "{said}");
    assert_eq!(said.matches("one of").count(), 1, "{said}");
}

#[test]
fn what_the_shell_has_ignored_or_blocked_stays_so() {
    let tapes_at = tempfile::tempdir().expect("a folder");
    let blocks = "import os, signal, sys\n\
                  signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n\
                  signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])\n\
                  os.execvp(sys.argv[1], sys.argv[1:])";
    let mut leads = Command::new("timeout");
    leads.args(["60", "python3", "-c", blocks]);
    // A shell cannot undo what was ignored when it began.
    let output = run(leads, tapes_at.path(), &["sh", "-c", "kill -USR1 $$; exit 7"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(7), "{said}");
}

#[test]
fn the_command_is_asked_to_end_when_memtape_is_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = folder.path().join("asked");
    let command = format!(
        "trap '' HUP; trap 'touch {}; exit' TERM; kill -KILL $PPID; while :; do sleep 0.1; done",
        asked.display()
    );
    run(Command::new("env"), folder.path(), &["sh", "-c", &command]);
    wait_for("the command to be asked", Duration::from_secs(60), || asked.exists().then_some(()));
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

//! Non-interference: what the recorder must not change in the training process.
//!
//! `docs/non-interference.md` has one row for each of these tests. The scripts are in
//! `torch/non_interference/`. Most need no PyTorch: `gpu.py` calls the preloaded library's report
//! function as PyTorch would.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use memtape_core::tape::read::Tape;
use memtape_tests::left_out;
use memtape_tests::tapes::{self, TapeFile};
use memtape_tests::{library, root};

// Children: those without a GPU, forked ones, DataLoader workers.
mod children;

// How a process ends.
mod endings;

// Where the tape cannot be had, or is taken away.
mod space;

// What the host can see of its own process.
mod unseen;

// Looks at PyTorch's flight recorder.
mod polling;

// Other tools in the same process.
mod beside;

// What starts the ranks.
mod launchers;

// The table in the docs is the list of these tests.
mod table;

/// No script here takes longer, whatever else the machine does.
const PATIENCE: Duration = Duration::from_secs(150);

/// A script of `torch/non_interference/`, with the recorder preloaded and its tapes in a folder of
/// its own.
struct Script {
    command: Command,
    scratch: tempfile::TempDir,
}

/// What became of a process.
struct Outcome {
    status: ExitStatus,
    said: String,
    scratch: tempfile::TempDir,
}

/// The script's path.
fn script(name: &str) -> PathBuf {
    root().join("tests/torch/non_interference").join(name)
}

/// A Python; these scripts need none of its packages.
fn python() -> PathBuf {
    let asked = std::env::var_os("MEMTAPE_TEST_PYTHON").map(PathBuf::from);
    let installed = root().join("target/venv/bin/python");
    asked.or_else(|| installed.exists().then_some(installed)).unwrap_or_else(|| "python3".into())
}

impl Script {
    /// Runs by itself, on no GPU.
    fn new(name: &str) -> Self {
        let mut command = Command::new(python());
        command.arg(script(name));
        Self::of(command)
    }

    /// As the arguments of a program that ends up running it.
    fn under(before: &[&str], name: &str) -> Self {
        let mut command = Command::new(before[0]);
        command.args(&before[1..]).arg(python()).arg(script(name));
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let scratch = tempfile::tempdir().expect("a temporary folder");
        let tapes_at = scratch.path().join("tapes");
        std::fs::create_dir(&tapes_at).expect("a folder for tapes");
        command
            .env("LD_PRELOAD", library())
            .env("MEMTAPE_DIR", tapes_at)
            .env("MEMTAPE_EVENTS", "4096");
        Self { command, scratch }
    }

    fn arg(mut self, argument: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    fn unrecorded(mut self) -> Self {
        self.command.env_remove("LD_PRELOAD");
        self
    }

    fn run(self) -> Outcome {
        let Self { command, scratch } = self;
        run(command, scratch)
    }

    /// Runs it; it must end with 0. Returns what it said, and its tapes.
    fn succeeds(self) -> Outcome {
        let outcome = self.run();
        assert!(outcome.status.success(), "{}\n{}", outcome.status, outcome.said);
        outcome
    }
}

/// Runs a command to its end. What it says goes to a file, so that no pipe fills.
fn run(mut command: Command, scratch: tempfile::TempDir) -> Outcome {
    let path = scratch.path().join("said");
    let file = std::fs::File::create(&path).expect("a file for what it says");
    let errors = file.try_clone().expect("a second handle");
    command.stdin(Stdio::null()).stdout(file).stderr(errors).current_dir(root());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = || String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
    let deadline = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("{command:?} hangs after {PATIENCE:?}; it said\n{}", said());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Outcome { status, said: said(), scratch }
}

impl Outcome {
    fn tapes(&self) -> Vec<PathBuf> {
        tapes::in_folder(&self.scratch.path().join("tapes"))
    }

    /// The one tape that there is.
    fn tape(&self) -> Tape<TapeFile> {
        let paths = self.tapes();
        assert_eq!(paths.len(), 1, "one tape, of one process: {paths:?}\n{}", self.said);
        tapes::open(&paths[0])
    }

    /// What the script said after `name: `.
    fn value(&self, name: &str) -> &str {
        let mut lines = self.said.lines().filter_map(|line| line.split_once(": "));
        lines
            .find(|(key, _)| *key == name)
            .unwrap_or_else(|| panic!("no {name} in\n{}", self.said))
            .1
    }
}

/// A shell in a mount namespace of its own, where the machine allows that; it runs `setup` and then
/// becomes the arguments that follow.
fn namespace(setup: &str, what: &str) -> Option<Vec<String>> {
    let works = |flags: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args([flags, "sh", "-c", "mount -t tmpfs none /mnt"]);
        unshare.output().is_ok_and(|output| output.status.success())
    };
    let Some(flags) = ["-m", "-rm"].into_iter().find(|flags| works(flags)) else {
        left_out(what, "the right to mount in a namespace of its own");
        return None;
    };
    let line = format!("{setup} && exec \"$@\"");
    Some(["unshare", flags, "sh", "-c", &line, "sh"].map(String::from).to_vec())
}

/// The totals of a tape's first device: blocks handed out, taken back.
fn counts(tape: &Tape<TapeFile>) -> (u64, u64) {
    tape.totals().first().map_or((0, 0), |total| (total.allocs, total.frees))
}

/// The folder of a script's tapes.
fn folder(script: &Script) -> &Path {
    script.scratch.path()
}

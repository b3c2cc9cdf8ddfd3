//! What the scenarios share: the binaries under test, PyTorch where it is, tapes on disk, and
//! processes that do not outlive their test.
//!
//! A scenario that needs PyTorch asks [`torch`] for it. Without PyTorch the scenario reports that
//! it was [`left_out`] and returns. `cargo xtask test` installs PyTorch and makes its absence an
//! error.

pub mod cluster;
pub mod killed_history;
pub mod namespaces;
pub mod page;
pub mod processes;
pub mod programs;
pub mod tapes;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Folder of the repository, where it is not the one that this was built in.
const ROOT: &str = "MEMTAPE_TEST_ROOT";

/// Folder with `memtape` and `libmemtape.so`, which are then not built.
const BINARIES: &str = "MEMTAPE_TEST_BINARIES";

/// Folder with the fake CUDA's libraries and its `run` beside them, which are then not built.
const FAKE_CUDA: &str = "MEMTAPE_TEST_FAKE_CUDA";

/// The repository.
pub fn root() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        folder(ROOT).unwrap_or_else(|| {
            let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
            tests.parent().expect("tests/ lies in the repository").to_path_buf()
        })
    })
}

/// The folder that this variable of the environment names.
fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from)
}

/// Folder of the fake CUDA's libraries.
pub fn fake_cuda() -> PathBuf {
    folder(FAKE_CUDA).unwrap_or_else(|| root().join("target/fake_cuda"))
}

/// The one binary, built by this call if it is not up to date.
pub fn memtape() -> &'static Path {
    &built().0
}

/// The library it preloads, built by this call if it is not up to date.
pub fn library() -> &'static Path {
    &built().1
}

/// Both, by one command, the same as that of `cargo xtask test`: cargo unites the features of the
/// packages that it builds, so each alone would be built again with what it depends on.
fn built() -> &'static (PathBuf, PathBuf) {
    static BUILT: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(binaries) = folder(BINARIES) {
            return (binaries.join("memtape"), binaries.join("libmemtape.so"));
        }
        let mut build = cargo(&["build", "--quiet", "-p", "memtape", "-p", "memtape-recorder"]);
        let status = build.args(["--features", "memtape/full"]).status();
        assert!(status.is_ok_and(|status| status.success()), "memtape does not build");
        let target = std::env::var_os("CARGO_TARGET_DIR");
        let target = target.map_or_else(|| root().join("target"), PathBuf::from).join("debug");
        (target.join("memtape"), target.join("libmemtape.so"))
    })
}

/// The cargo that runs us, with these arguments, in the repository's root.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    // `cargo test` describes this package in the environment. Build scripts that watch it (ring's)
    // would take that for a change, and half of the dependencies would be rebuilt, twice.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.args(arguments).current_dir(root());
    cargo
}

/// A Python with the PyTorch these tests are written for, and the fake CUDA runtime.
#[derive(Clone, Debug)]
pub struct Torch {
    /// The interpreter.
    pub python: PathBuf,
}

/// Reports that a check was left out because something is missing on this machine.
///
/// Writes past the test harness, which shows the output of failed tests only. `cargo xtask test`
/// collects these lines, counts them and names them at its end.
pub fn left_out(what: &str, needs: &str) {
    let line = format!("left out: {what} needs {needs}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The PyTorch to test with; `None`, reported by [`left_out`], where there is none.
///
/// # Panics
/// When `MEMTAPE_TEST_TORCH=1` demands one and it is missing.
pub fn torch(scenario: &str) -> Option<Torch> {
    static FOUND: OnceLock<Option<Torch>> = OnceLock::new();
    let found = FOUND.get_or_init(find_torch);
    if found.is_none() {
        let demanded = std::env::var_os("MEMTAPE_TEST_TORCH").is_some_and(|value| value == "1");
        assert!(!demanded, "{scenario}: no python with torch; see MEMTAPE_TEST_PYTHON");
        left_out(scenario, "PyTorch; `cargo xtask test` sets it up");
    }
    found.clone()
}

fn find_torch() -> Option<Torch> {
    let python = std::env::var_os("MEMTAPE_TEST_PYTHON")
        .map_or_else(|| root().join("target/venv/bin/python"), PathBuf::from);
    let imports = Command::new(&python).args(["-c", "import torch"]).output();
    imports.ok().filter(|output| output.status.success())?;
    Some(Torch { python })
}

impl Torch {
    /// The py-spy that is installed beside the interpreter, where it may read other processes;
    /// else none, reported by [`left_out`].
    pub fn py_spy(&self) -> Option<String> {
        static MAY_READ: OnceLock<bool> = OnceLock::new();
        let path = self.python.with_file_name("py-spy");
        let may_read = || {
            // A sibling, as the agent and a worker are: the kernel may allow parents more.
            let sleeps = ["-c", "import time; time.sleep(60)"];
            let mut sibling = Command::new(&self.python).args(sleeps).spawn().expect("python");
            let pid = sibling.id().to_string();
            let dump =
                || Command::new(&path).args(["dump", "--nonblocking", "--pid", &pid]).output();
            // Python needs a moment to start.
            let may_read = (0..20).any(|_| {
                std::thread::sleep(Duration::from_millis(100));
                dump().is_ok_and(|output| output.status.success())
            });
            let _ = sibling.kill();
            let _ = sibling.wait();
            if !may_read {
                left_out("lines of workers", "py-spy, and the right to read other processes");
            }
            may_read
        };
        MAY_READ.get_or_init(may_read).then(|| path.display().to_string())
    }

    /// A command on the fake CUDA runtime with this many devices of this many bytes (`2G`).
    /// Its arguments are those of the Python interpreter.
    pub fn command(&self, devices: u32, bytes: &str) -> Command {
        let runs = folder(FAKE_CUDA).unwrap_or_else(|| root().join("tests/fake_cuda"));
        let mut command = Command::new(runs.join("run"));
        command.args(["-n", &devices.to_string(), "-b", bytes, "--"]).arg(&self.python);
        command.current_dir(root());
        command
    }

    /// As [`Self::command`], with the recorder preloaded and its tapes in `tapes`.
    pub fn recorded(&self, devices: u32, bytes: &str, tapes: &Path) -> Command {
        let mut command = self.command(devices, bytes);
        command.env("LD_PRELOAD", library()).env("MEMTAPE_DIR", tapes);
        command
    }

    /// Arguments that start a script under torchrun with this many ranks on this machine.
    pub fn torchrun(ranks: u32) -> Vec<String> {
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
            .map(String::from)
            .into_iter()
            .chain([ranks.to_string()])
            .collect()
    }
}

/// The 1-based line of a script that carries this trailing comment, so that no test repeats a
/// line number.
///
/// # Panics
/// When the script has no such line, or several.
pub fn marked_line(script: &str, mark: &str) -> u32 {
    let text = std::fs::read_to_string(root().join(script)).expect("the script is there");
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.trim_end().ends_with(mark));
    let (number, _) = lines.next().expect("a line carries the mark");
    assert!(lines.next().is_none(), "{mark} stands on one line only");
    number
}

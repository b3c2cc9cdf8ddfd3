//! `pip install` of the wheel into a fresh environment is all it takes.
//!
//! The wheel is made by `cargo xtask wheel dev` out of the debug build: the same layout and the
//! same packer as the one that is shipped, without the minutes that its optimization takes. What
//! only the shipped one can show, its glibc, `cargo xtask wheel` checks each time it makes one.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::Process;
use memtape_tests::{left_out, library, memtape, root, tapes};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(120);

/// The first build of the program by maturin may have to build all of it.
const PATIENCE_WITH_BUILDS: Duration = Duration::from_secs(900);

/// A program without PyTorch that says what PyTorch would, and marks of its own.
const SCRIPT: &str = r#"
import ctypes, memtape, os
everything = ctypes.CDLL(None)
report = getattr(everything, "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", None)
print("recorder", report is not None, memtape.is_recording())
for block in range(3) if report is not None else ():
    address, size, total = (block + 1) << 21, 1 << 20, (block + 1) << 20
    report(ctypes.c_void_p(address), ctypes.c_int64(size), ctypes.c_size_t(total),
           ctypes.c_size_t(total), ctypes.c_uint16(1))
memtape.phase("train")
memtape.annotate(lr=0.25)
memtape.step(5)
with memtape.phase("checkpoint"):
    memtape.annotate("file", "model-5.pt")
memtape.phase("eval")
print("recording", memtape.is_recording())
print("tape", memtape.tape_path())
here = memtape.tape()
print("shown", here.problem is None, here.step, [device.allocated for device in here.devices])
print("judged", memtape.report().problem is None)
"#;

/// A virtual environment in a folder that goes with the test.
struct Environment {
    folder: tempfile::TempDir,
}

impl Environment {
    fn fresh() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut python = Command::new("python3");
        python.args(["-m", "venv"]).arg(folder.path());
        said(&mut python, PATIENCE);
        Self { folder }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join("bin").join(name)
    }

    /// A command that finds the environment's programs first, as after `activate`, and nothing of
    /// what the tests themselves are given.
    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program(name));
        let path = std::env::var("PATH").expect("a PATH");
        let bin = self.folder.path().join("bin");
        command.args(arguments).env("PATH", format!("{}:{path}", bin.display()));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("MEMTAPE_") {
                command.env_remove(name);
            }
        }
        command.env_remove("PYTHONPATH").env_remove("LD_PRELOAD").current_dir("/");
        command
    }

    fn pip(&self, arguments: &[&str]) -> Vec<String> {
        let mut pip = self.command("python", &["-m", "pip", "--disable-pip-version-check"]);
        said(pip.args(arguments), PATIENCE)
    }

    /// Every file of the environment but what Python compiled for itself.
    fn files(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.folder.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder of the environment") {
                let path = entry.expect("an entry").path();
                let is_compiled = path.ends_with("__pycache__");
                if path.is_dir() && !path.is_symlink() && !is_compiled {
                    folders.push(path.clone());
                }
                if !is_compiled {
                    found.insert(path);
                }
            }
        }
        found
    }
}

/// What a command says that must succeed.
fn said(command: &mut Command, patience: Duration) -> Vec<String> {
    let (code, said) = Process::start(command).end(patience);
    assert_eq!(code, Some(0), "{command:?}: {said:#?}");
    said
}

/// The wheel of the debug build; `None`, reported as left out, where maturin cannot be installed.
fn wheel() -> Option<PathBuf> {
    // Built by the same commands as for the other scenarios, so that maturin finds it built.
    library();
    memtape();
    let mut make = Command::new("python3");
    make.current_dir(root()).args(["xtask/wheel.py", "dev"]).env("CARGO", env!("CARGO"));
    let (code, said) = Process::start(&mut make).end(PATIENCE_WITH_BUILDS);
    let object = said.iter().find(|line| line.starts_with('{')).expect("one JSON object");
    let object: Value = serde_json::from_str(object).expect("JSON");
    let is_alone = object["failed"] == "wheel tools";
    if is_alone && std::env::var_os("MEMTAPE_TEST_TORCH").is_none() {
        left_out("the wheel", "maturin, which cannot be installed here");
        return None;
    }
    assert_eq!(code, Some(0), "{said:#?}");
    assert_eq!(object["figures"]["tag"], "py3-none-linux_x86_64", "{object}");
    Some(PathBuf::from(object["figures"]["path"].as_str().expect("the wheel's path")))
}

#[test]
fn pip_install_is_all_it_takes() {
    let Some(wheel) = wheel() else { return };
    let environment = Environment::fresh();
    let before = environment.files();
    environment.pip(&["install", "--no-index", "--quiet", wheel.to_str().expect("a path")]);

    let version = said(&mut environment.command("memtape", &["--version"]), PATIENCE);
    assert_eq!(version, [format!("memtape {}", env!("CARGO_PKG_VERSION"))]);
    let module = &["-c", "import memtape; print('memtape', memtape.__version__)"];
    assert_eq!(said(&mut environment.command("python", module), PATIENCE), version);
    let program = &["-m", "memtape", "--version"];
    assert_eq!(said(&mut environment.command("python", program), PATIENCE), version);

    the_library_is_free_of_python(&environment);
    children_run_unharmed(&environment);
    marks_are_on_the_tape(&environment);

    environment.pip(&["uninstall", "--yes", "--quiet", "memtape"]);
    let left: Vec<_> = environment.files().difference(&before).cloned().collect();
    assert!(left.is_empty(), "{left:#?}");
}

/// With one symbol of Python's, every preloaded shell would die of it.
fn the_library_is_free_of_python(environment: &Environment) {
    let found = environment.files();
    let installed: Vec<_> = found.iter().filter(|path| path.ends_with("libmemtape.so")).collect();
    let [path] = installed[..] else { panic!("one library: {installed:?}") };
    assert!(path.ends_with("site-packages/memtape/libmemtape.so"), "{path:?}");
    let undefined = said(Command::new("nm").args(["-D", "--undefined-only"]).arg(path), PATIENCE);
    assert!(undefined.iter().any(|line| line.contains("dlsym")), "{undefined:?}");
    let names = undefined.iter().filter_map(|line| line.split_whitespace().last());
    let of_python: Vec<_> =
        names.filter(|name| name.trim_start_matches('_').starts_with("Py")).collect();
    assert!(of_python.is_empty(), "{of_python:?}");
}

fn children_run_unharmed(environment: &Environment) {
    let tapes_at = tempfile::tempdir().expect("a temporary folder");
    let dir = tapes_at.path().to_str().expect("a path");
    let run = ["run", "--dir", dir, "--", "bash", "-c", "echo $LD_PRELOAD; true | cat; exit 3"];
    let (code, said) = Process::start(&mut environment.command("memtape", &run)).end(PATIENCE);
    assert_eq!(code, Some(3), "{said:?}");
    let [line] = &said[..] else { panic!("nothing but the child's own words: {said:?}") };
    assert!(line.ends_with("site-packages/memtape/libmemtape.so"), "{line}");
    assert!(tapes::in_folder(tapes_at.path()).is_empty());
}

fn marks_are_on_the_tape(environment: &Environment) {
    let without = said(&mut environment.command("python", &["-c", SCRIPT]), PATIENCE);
    let nothing = ["shown False 0 []", "judged False"];
    assert_eq!(without[..3], ["recorder False False", "recording False", "tape None"]);
    assert_eq!(without[3..], nothing);

    let tapes_at = tempfile::tempdir().expect("a temporary folder");
    let dir = tapes_at.path().to_str().expect("a path");
    let run = ["run", "--dir", dir, "--", "python", "-c", SCRIPT];
    let with = said(&mut environment.command("memtape", &run), PATIENCE);
    let paths = tapes::in_folder(tapes_at.path());
    let [path] = &paths[..] else { panic!("one tape: {paths:?}, {with:?}") };
    let path = path.to_str().expect("a path");
    assert_eq!(with[..3], ["recorder True False", "recording True", &format!("tape {path}")]);
    let shown = format!("shown True 5 [{}]", 3 << 20);
    assert_eq!(with[3..], [shown.as_str(), "judged True"]);

    let tape = said(&mut environment.command("memtape", &["tape", path, "--json"]), PATIENCE);
    let tape: Value = serde_json::from_str(&tape.concat()).expect("JSON");
    assert_eq!(tape["step"], 5, "{tape:#}");
    assert_eq!(tape["devices"][0]["allocs"], 3, "{tape:#}");
    assert_eq!(tape["phase"], "eval", "{tape:#}");
    let marks: Vec<_> =
        tape["marks"].as_array().expect("marks").iter().map(|m| &m["text"]).collect();
    let expected = ["train", "lr=0.25", "checkpoint", "file=model-5.pt", "train", "eval"];
    assert_eq!(marks, expected, "{tape:#}");
}

#[test]
fn the_module_keeps_its_word() {
    for test in ["test_memtape.py", "test_notebook.py"] {
        let mut python = Command::new("python3");
        python.arg(root().join("python/tests").join(test));
        python.env("PYTHONPATH", root().join("python")).env("PYTHONDONTWRITEBYTECODE", "1");
        let said = said(&mut python, PATIENCE);
        assert_eq!(said.last().map(String::as_str), Some("OK"), "{said:#?}");
    }
}

//! One release of PyTorch, as far as the hooks concern it: its two libraries, a runtime to go with
//! them, and a program that drives the allocator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU64;

use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::layout::header;
use memtape_core::tape::read::Status;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use serde_json::Value;

use crate::elf;
use crate::step::{command, root};

/// Below the repository; each release has a folder of its own.
const FOLDER: &str = "target/compat";

/// The newest Python that torch 2.0 has wheels for.
const PYTHON: &str = "python3.11";

/// The program.
const DRIVER: &str = "tests/compat/drive.py";

/// More than happens.
const EVENTS_MAX: usize = 10_000;

/// A release that was fetched.
pub(crate) struct Release {
    /// Its version.
    pub(crate) torch: String,
    folder: PathBuf,
}

/// What one run asked for, and what its tape says.
pub(crate) struct Run {
    pub(crate) requests: Vec<Request>,
    pub(crate) snapshot: RankSnapshot,
    pub(crate) status: Status,
    /// A number of `layout::Tracker`.
    pub(crate) tracker: u64,
}

/// One thing that the program asked the allocator for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `alloc`, `free`, `defer` (a free that waits for another stream) or `oom`.
    pub(crate) what: String,
    pub(crate) address: u64,
    /// As asked for.
    pub(crate) size: u64,
    /// Line of the program.
    pub(crate) line: u32,
    pub(crate) stream: u64,
}

/// Fetches the libraries, unless they are there.
pub(crate) fn fetch(version: &str) -> Result<Release, String> {
    let mut fetch = command(PYTHON);
    fetch.args(["tests/compat/fetch.py", version, FOLDER]);
    let fetched: Value = serde_json::from_str(&output(&mut fetch)?).map_err(one_line)?;
    let torch = fetched["torch"].as_str().ok_or("no version was fetched")?.to_string();
    let folder = root().join(FOLDER).join(&torch);
    Ok(Release { torch, folder })
}

impl Release {
    /// The second number of its version: 11 of 2.11.0.
    pub(crate) fn minor(&self) -> u32 {
        let mut numbers = self.torch.split('.').map(|number| number.parse().unwrap_or(0));
        match (numbers.next(), numbers.next()) {
            (Some(2), Some(minor)) => minor,
            (Some(major), _) if major > 2 => u32::MAX,
            _ => 0,
        }
    }

    /// File name of the CUDA runtime that it wants.
    pub(crate) fn runtime(&self) -> String {
        let demands = elf::demands(&self.library()).unwrap_or_default();
        let is_runtime = |name: &String| name.starts_with("libcudart.so");
        demands.libraries.into_iter().find(is_runtime).unwrap_or_default()
    }

    fn library(&self) -> PathBuf {
        self.folder.join("libc10_cuda.so")
    }

    /// Makes the runtime and what the driver needs besides.
    pub(crate) fn build(&self) -> Result<(), String> {
        let runtime = self.runtime();
        let write =
            |name: &str, text: String| fs::write(self.folder.join(name), text).map_err(one_line);
        // The name of the library is the version of its symbols, too.
        write("cudart.map", format!("{runtime} {{ global: *; }};\n"))?;
        let imported = elf::demands(&self.library())?.undefined;
        let refusals = imported.iter().filter(|name| name.starts_with("cuda")).map(|name| {
            format!(
                "__attribute__((weak)) int {name}(void) {{ return 801; /* not supported */ }}\n"
            )
        });
        write("refusals.c", refusals.collect())?;
        let shared = |compiler: &str, result: &str| {
            let mut compile = command(compiler);
            compile.args(["-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-o"]);
            compile.arg(self.folder.join(result));
            compile
        };
        let mut compile = shared("gcc", &runtime);
        compile.arg("tests/compat/cudart.c").arg(self.folder.join("refusals.c"));
        compile.arg(format!("-Wl,-soname,{runtime}"));
        compile.arg(format!("-Wl,--version-script={}", self.folder.join("cudart.map").display()));
        output(&mut compile)?;
        output(shared("g++", "libdriver.so").arg("tests/compat/driver.cpp")).map(drop)
    }

    /// Runs the program under the recorder and reads the tape.
    pub(crate) fn drive(&self, with_detail: bool) -> Result<Run, String> {
        let tapes = self.folder.join("tapes");
        let _ = fs::remove_dir_all(&tapes);
        let mut drive = command(PYTHON);
        drive.arg(root().join(DRIVER)).arg(&self.folder);
        drive.env("LD_PRELOAD", recorder()).env("MEMTAPE_DIR", &tapes);
        drive.env("MEMTAPE_DETAIL", if with_detail { "1" } else { "0" });
        for name in ["MEMTAPE_DISABLE", "MEMTAPE_STACKS", "MEMTAPE_EVENTS", "MEMTAPE_BLOCKS"] {
            drive.env_remove(name);
        }
        let said: Value = serde_json::from_str(&output(&mut drive)?).map_err(one_line)?;
        let requests = said.as_array().map(|all| all.iter().map(request).collect());
        let words = words(&only_file(&tapes)?)?;
        let tape = Tape::open(words.as_slice()).map_err(one_line)?;
        Ok(Run {
            requests: requests.ok_or("the program said nothing")?,
            snapshot: tape.snapshot(PointInTime::Present, None, EVENTS_MAX).map_err(one_line)?,
            status: tape.status(),
            tracker: words
                .get(header::TRACKER)
                .map_or(0, |word| word.load(std::sync::atomic::Ordering::Relaxed)),
        })
    }
}

fn request(value: &Value) -> Request {
    let number = |name: &str| value[name].as_u64().unwrap_or(0);
    Request {
        what: value["what"].as_str().unwrap_or_default().to_string(),
        address: number("address"),
        size: number("size"),
        line: number("line") as u32,
        stream: number("stream"),
    }
}

/// The library that was built just now.
fn recorder() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from);
    target.join("debug/libmemtape.so")
}

fn only_file(folder: &Path) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|_| "the recorder made no tape")?;
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        files => Err(format!("{} tapes, not one", files.len())),
    }
}

fn words(path: &Path) -> Result<Vec<AtomicU64>, String> {
    let bytes = fs::read(path).map_err(one_line)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word).into()).collect())
}

/// Standard output of a command that must succeed.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name}: {}\n{}", output.status, errors.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(one_line)
}

fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string()
}

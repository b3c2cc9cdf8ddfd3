//! One release of PyTorch, as far as the hooks concern it: its two libraries, a runtime to go with
//! them, and a program that drives the allocator.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use anyhow::{Context, Result, bail};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::layout::header;
use memtape_core::tape::read::Status;
use memtape_core::tape::read::Tape;
use memtape_core::tape::rewind::PointInTime;
use serde::Deserialize;
use serde_json::Value;

use crate::process::{built, call, command, output, root};
use crate::wheel::elf;

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

/// What the program can ask the allocator for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    Alloc,
    Free,
    /// A free that waits for another stream.
    Defer,
    Oom,
}

/// One thing that the program asked the allocator for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Request {
    pub(crate) what: What,
    pub(crate) address: u64,
    /// As asked for.
    pub(crate) size: u64,
    /// Line of the program.
    pub(crate) line: u32,
    pub(crate) stream: u64,
}

/// Fetches the libraries, unless they are there.
pub(crate) fn fetch(version: &str) -> Result<Release> {
    let mut fetch = call(PYTHON, &["tests/compat/fetch.py", version, FOLDER]);
    let fetched: Value = serde_json::from_str(&output(&mut fetch)?)?;
    let torch = fetched["torch"].as_str().context("no version was fetched")?.to_string();
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
    pub(crate) fn build(&self) -> Result<()> {
        let runtime = self.runtime();
        let write = |name: &str, text: String| fs::write(self.folder.join(name), text);
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
    pub(crate) fn drive(&self, with_detail: bool) -> Result<Run> {
        let tapes = self.folder.join("tapes");
        let _ = fs::remove_dir_all(&tapes);
        let mut drive = command(PYTHON);
        drive.arg(root().join(DRIVER)).arg(&self.folder);
        drive.env("LD_PRELOAD", built("debug").join("libmemtape.so")).env("MEMTAPE_DIR", &tapes);
        drive.env("MEMTAPE_DETAIL", if with_detail { "1" } else { "0" });
        for name in ["MEMTAPE_DISABLE", "MEMTAPE_STACKS", "MEMTAPE_EVENTS", "MEMTAPE_BLOCKS"] {
            drive.env_remove(name);
        }
        let requests = serde_json::from_str(&output(&mut drive)?)?;
        let bytes = fs::read(only_file(&tapes)?)?;
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word).into());
        let words: Vec<AtomicU64> = words.collect();
        let tape = Tape::open(words.as_slice())?;
        Ok(Run {
            requests,
            snapshot: tape.snapshot(PointInTime::Present, None, EVENTS_MAX)?,
            status: tape.status(),
            tracker: words
                .get(header::TRACKER)
                .map_or(0, |word| word.load(std::sync::atomic::Ordering::Relaxed)),
        })
    }
}

fn only_file(folder: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).context("the recorder made no tape")?;
    let files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        files => bail!("{} tapes, not one", files.len()),
    }
}

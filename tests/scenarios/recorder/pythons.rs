//! On every CPython that is here, the tape's stacks are what Python itself says they are.
//!
//! `torch/stacks.py` takes blocks from every kind of code there is, needs no PyTorch, and writes
//! down file, line and function of each frame as Python's own frame objects have them. Code objects
//! that die and whose memory the next one gets are part of it. On CPython 3.12 and later, the
//! script's evaluation is marked.
//!
//! Looked for: `python3.9` to `python3.14` in `MEMTAPE_TEST_PYTHONS` (paths, separated by colons),
//! among pyenv's versions and on the `PATH`. A version that is missing is reported as left out; the
//! Python that PyTorch is tested with must be there.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memtape_core::tape::rewind::PointInTime;
use memtape_tests::processes::Process;
use memtape_tests::{left_out, library, root, tapes};
use serde_json::Value;

const MINORS: std::ops::RangeInclusive<u8> = 9..=14;

#[test]
fn stacks_are_pythons_own_on_every_version() {
    let mut missing = Vec::new();
    for minor in MINORS {
        match find(minor) {
            Some(python) => check(&python, minor),
            None => missing.push(format!("3.{minor}")),
        }
    }
    assert!(!missing.contains(&"3.11".to_string()), "python3.11 must be here");
    if !missing.is_empty() {
        left_out("stacks of other versions", &format!("CPython {}", missing.join(", ")));
    }
}

fn find(minor: u8) -> Option<PathBuf> {
    let name = format!("python3.{minor}");
    let given = std::env::var("MEMTAPE_TEST_PYTHONS").unwrap_or_default();
    let mut candidates: Vec<PathBuf> = given.split(':').map(PathBuf::from).collect();
    if let Some(home) = std::env::var_os("HOME") {
        let versions = std::fs::read_dir(Path::new(&home).join(".pyenv/versions"));
        let entries = versions.into_iter().flatten().flatten();
        candidates.extend(entries.map(|entry| entry.path().join("bin").join(&name)));
    }
    candidates.push(PathBuf::from(&name));
    candidates.into_iter().find(|python| is_it(python, minor))
}

/// A CPython of this version, with `ctypes` and a GIL.
fn is_it(python: &Path, minor: u8) -> bool {
    let words = format!(
        "import sys, ctypes; sys.exit(sys.version_info[:2] != (3, {minor}) or \
         not getattr(sys, '_is_gil_enabled', lambda: True)())"
    );
    !python.as_os_str().is_empty()
        && Command::new(python).args(["-c", &words]).output().is_ok_and(|run| run.status.success())
}

fn check(python: &Path, minor: u8) {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let expected = scratch.path().join("expected.json");
    let mut command = Command::new(python);
    command.arg(root().join("tests/torch/stacks.py")).arg(&expected);
    command.env("LD_PRELOAD", library()).env("MEMTAPE_DIR", scratch.path());
    let (code, said) = Process::start(&mut command).end(Duration::from_secs(120));
    assert_eq!(code, Some(0), "{}: {said:#?}", python.display());

    let text = std::fs::read_to_string(&expected).expect("the script wrote its stacks");
    let expected: Value = serde_json::from_str(&text).expect("JSON");
    let blocks = expected["blocks"].as_array().expect("a list of blocks");
    let compared = compare(scratch.path(), blocks, minor);
    let line = format!("CPython {}: {compared} stacks compared\n", expected["python"]);
    let _ = std::io::stderr().write_all(line.as_bytes());
}

type Frames = Vec<(String, u64, String)>;

fn compare(folder: &Path, blocks: &[Value], minor: u8) -> usize {
    let [path] = &*tapes::in_folder(folder) else { panic!("3.{minor}: one tape") };
    let tape = tapes::open(path);
    let status = tape.status();
    assert!(!status.limitations.iter().any(|line| line.contains("stacks")), "{status:?}");
    assert_eq!(status.lost, 0, "3.{minor}: {status:?}");
    let snapshot = tape.snapshot(PointInTime::Present, None, 0).expect("the present");
    // Since 3.12 the interpreter tells of running code.
    let evaluations = snapshot.marks.iter().filter(|mark| mark.text == "activity=evaluation");
    assert_eq!(evaluations.count(), usize::from(minor >= 12), "3.{minor}");
    let [device] = &*snapshot.devices else { panic!("3.{minor}: one device") };
    let recorded: HashMap<u64, u32> =
        device.blocks.iter().map(|block| (block.address, block.stack)).collect();
    assert_eq!(recorded.len(), blocks.len(), "3.{minor}");
    for block in blocks {
        let address = block["address"].as_u64().expect("a number");
        let stack = recorded[&address];
        let found: Frames = snapshot
            .frames_of(stack)
            .map(|frame| (frame.file.clone(), frame.line.into(), frame.function.clone()))
            .collect();
        assert_eq!(found, frames(&block["stack"]), "3.{minor}, left: tape, right: Python");
    }
    blocks.len()
}

fn frames(stack: &Value) -> Frames {
    let text = |value: &Value| value.as_str().expect("a string").to_string();
    let frames = stack.as_array().expect("a list of frames").iter();
    frames.map(|f| (text(&f[0]), f[1].as_u64().unwrap_or(0), text(&f[2]))).collect()
}

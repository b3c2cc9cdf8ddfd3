//! A tape and a pickle that commit b715533 wrote are read as that commit read them.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Unpacks a file of the test data into a folder.
fn unpacked(name: &str, folder: &Path) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/b715533");
    let compressed = std::fs::read(data.join(format!("{name}.gz"))).expect("the data is there");
    let mut bytes = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(compressed.as_slice());
    decoder.read_to_end(&mut bytes).expect("the data is whole");
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("a file can be written");
    path
}

fn json(arguments: &[&str], file: &Path) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
    let output = command.args(arguments).arg(file).arg("--json").output().expect("memtape runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

#[test]
fn an_old_tape_is_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = json(&["tape"], &unpacked("rank.tape", folder.path()));
    assert_eq!((&said["job"], &said["step"]), (&Value::from("old"), &Value::from(60)), "{said:#}");
    let device = &said["devices"][0];
    for (name, expected) in [
        ("allocated", 946_768_896_u64),
        ("allocs", 3932),
        ("frees", 3852),
        ("blocks", 80),
        ("peak_allocated", 1_787_546_112),
        ("reserved", 2_025_848_832),
    ] {
        assert_eq!(device[name], expected, "{name}");
    }
    let stacks = device["stacks"].as_array().expect("stacks");
    assert_eq!(stacks.len(), 3);
    assert_eq!((&stacks[2]["blocks"], &stacks[2]["bytes"]), (&41.into(), &116_296_704_u64.into()));
    assert_eq!(stacks[2]["frames"][0], "cli/src/demo/training.rs:159 remember_loss");
    let steps = device["steps"].as_array().expect("steps");
    let last = steps.last().expect("a step");
    assert_eq!((&last["end_allocated"], &last["blocks"]), (&946_768_896_u64.into(), &80.into()));
}

#[test]
fn an_old_pickle_is_analyzed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let said = json(&["analyze"], &unpacked("rank.pickle", folder.path()));
    let verdict = &said["verdict"];
    assert_eq!((&verdict["class"], &verdict["blocks"]), (&"leak".into(), &41.into()), "{said:#}");
    assert_eq!(verdict["bytes"], 116_296_704_u64);
    assert_eq!(verdict["culprit"]["file"], "cli/src/demo/training.rs");
    assert_eq!(verdict["culprit"]["line"], 159);
    assert_eq!(verdict["culprit"]["function"], "remember_loss");
}

//! `memtape analyze` on what real PyTorch writes of itself: faults are named at their line, and
//! what only looks like one is not. No recorder and no service runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use memtape_tests::{Torch, marked_line, memtape, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/snapshots.py";

/// Trains in a way of its own; the folder with the snapshots.
fn trained(torch: &Torch, scratch: &Path, bytes: &str, words: &[&str]) -> PathBuf {
    let folder = scratch.join(words.join("").replace('-', "_"));
    std::fs::create_dir_all(&folder).expect("made");
    let mut command = torch.command(1, bytes);
    let [habit, options @ ..] = words else { panic!("a habit is needed") };
    command.args([SCRIPT, habit]).arg(&folder).args(options);
    let output = command.output().expect("python runs");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    folder
}

fn analyzed(path: &Path) -> Value {
    let output = Command::new(memtape()).args(["analyze", "--json"]).arg(path).output();
    let output = output.expect("memtape runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The class is this, and the culprit the line with this mark.
fn check(found: &Value, class: &str, mark: &str) {
    let verdict = &found["verdict"];
    assert_eq!(verdict["class"], class, "{mark}: {found}");
    assert_eq!(verdict["culprit"]["line"], marked_line(SCRIPT, mark), "{mark}: {verdict}");
    let file = verdict["culprit"]["file"].as_str().expect("a file");
    assert!(file.ends_with(SCRIPT), "{file}");
}

#[test]
fn snapshots_of_real_pytorch_are_judged() {
    let Some(torch) = torch("snapshots of real PyTorch are judged") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let run = |bytes: &str, words: &[&str]| trained(&torch, scratch.path(), bytes, words);
    let end = |folder: PathBuf| analyzed(&folder.join("rank0_end.pickle"));

    check(&end(run("2G", &["outputs"])), "leak", "# OUTPUTS");
    check(&end(run("2G", &["outputs", "--stacks", "all"])), "leak", "# OUTPUTS");
    check(&end(run("2G", &["outputs", "--ring", "900"])), "leak", "# OUTPUTS");
    check(&end(run("2G", &["graph"])), "leak", "# GRAPH");
    for habit in ["clean", "window", "sgd"] {
        let found = end(run("2G", &[habit]));
        assert_eq!(found["verdict"], Value::Null, "{habit}");
        assert!(found["steps"].as_u64() > Some(10), "{habit}: {}", found["steps"]);
    }

    let moments = run("2G", &["outputs", "--dump-every", "5"]);
    let segments = analyzed(&moments.join("segments.pkl"));
    assert_eq!((&segments["verdict"], &segments["steps"]), (&Value::Null, &0.into()));
    let notes = segments["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|note| note.as_str().is_some_and(|n| n.contains("segments only"))));
    std::fs::remove_file(moments.join("segments.pkl")).expect("removed");
    let found = analyzed(&moments);
    assert_eq!(found["mode"], "over_time");
    check(&found, "leak", "# OUTPUTS");

    let found = end(run("800M", &["pieces"]));
    check(&found, "fragmentation", "# TOO LARGE");
    assert_eq!(found["verdict"]["bytes"], 350 << 20);
}

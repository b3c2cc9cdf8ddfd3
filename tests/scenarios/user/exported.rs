//! The exported pickle of a live rank is what PyTorch's own snapshot says at that moment, and
//! PyTorch's own tools take it.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{memtape, tapes, torch};
use serde_json::Value;

/// Loads the pickle, runs PyTorch's own segment and trace functions over it, prints the segments.
const READER: &str = r#"
import json, pickle, sys
from torch.cuda import _memory_viz as viz
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
assert len(viz.segsum(snapshot)) > 0
assert len(viz.trace(snapshot)) > 0
assert "<html" in viz.segment_plot(snapshot) and "<html" in viz.trace_plot(snapshot)
assert any(frame["filename"].endswith("export_probe.py")
           for segment in snapshot["segments"] for block in segment["blocks"]
           for frame in block.get("frames", []))
print(json.dumps([{"address": s["address"], "total_size": s["total_size"],
                   "blocks": [{k: b[k] for k in ("address", "size", "state")} for b in s["blocks"]]}
                  for s in snapshot["segments"]]))
"#;

#[test]
fn the_pickle_of_a_live_rank_equals_pytorchs_snapshot() {
    let Some(torch) = torch("the exported pickle equals PyTorch's snapshot") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let (expected, ready) = (scratch.path().join("expected.json"), scratch.path().join("ready"));
    let mut command = torch.recorded(1, "4G", &scratch.path().join("tapes"));
    command.arg("tests/torch/export_probe.py").arg(&expected).arg(&ready);
    let probe = Process::start(&mut command);
    wait_for("the probe holds still", Duration::from_secs(90), || ready.exists().then_some(()));

    let tape = tapes::in_folder(&scratch.path().join("tapes")).pop().expect("one tape");
    let pickle = scratch.path().join("rank.pickle");
    let export = Command::new(memtape())
        .args(["export", "--format", "pickle"])
        .arg(&tape)
        .arg("-o")
        .arg(&pickle)
        .output()
        .expect("memtape runs");
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    drop(probe);

    let read = Command::new(&torch.python).args(["-c", READER]).arg(&pickle).output();
    let read = read.expect("python runs");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let ours: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    let text = std::fs::read_to_string(&expected).expect("the probe wrote it");
    let theirs: Value = serde_json::from_str(&text).expect("JSON");
    let (ours, theirs) = (segments(&ours), segments(&theirs["segments"]));
    assert!(theirs.len() > 10, "the probe has {} segments", theirs.len());
    assert_eq!(ours, theirs);
}

/// Segment address → size and blocks (address, size, in use).
type Segments = BTreeMap<u64, (u64, Vec<(u64, u64, bool)>)>;

/// The segments of a snapshot.
///
/// What hook 1 cannot know is taken out of PyTorch's side: a block freed while another stream
/// still uses it is reported as free at once, and so joins its free neighbours.
fn segments(value: &Value) -> Segments {
    let number = |value: &Value, name: &str| value[name].as_u64().expect("a number");
    let of = |segment: &Value| {
        let mut blocks: Vec<(u64, u64, bool)> = Vec::new();
        for block in segment["blocks"].as_array().expect("blocks") {
            let used = block["state"] == "active_allocated";
            let size = number(block, "size");
            match blocks.last_mut() {
                Some((_, last_size, false)) if !used => *last_size += size,
                _ => blocks.push((number(block, "address"), size, used)),
            }
        }
        (number(segment, "address"), (number(segment, "total_size"), blocks))
    };
    value.as_array().expect("segments").iter().map(of).collect()
}

//! With the allocator's trace on the tape (`MEMTAPE_DETAIL=1`), what is exported is PyTorch's own
//! snapshot: every segment and block, every event of the history, with and without expandable
//! segments.

use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{Torch, memtape, tapes, torch};
use serde_json::Value;

#[test]
fn segments_blocks_and_history_equal_pytorchs() {
    let Some(torch) = torch("segments, blocks and history equal PyTorch's") else { return };
    let counts = compare(&torch, "");
    assert_eq!(counts["segment_map"], Value::Null, "no expandable segments");
    assert!(count(&counts, "segment_alloc") > 10 && count(&counts, "segment_free") > 5, "{counts}");
}

#[test]
fn they_do_with_expandable_segments_too() {
    let Some(torch) = torch("they equal PyTorch's with expandable segments, too") else { return };
    let counts = compare(&torch, "expandable_segments:True");
    assert!(count(&counts, "segment_map") > 10 && count(&counts, "segment_unmap") > 5, "{counts}");
}

/// Runs the probe, exports its tape and compares; how much of what was there to compare.
fn compare(torch: &Torch, settings: &str) -> Value {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let path = |name: &str| scratch.path().join(name);
    let mut command = torch.recorded(1, "16G", &path("tapes"));
    command.env("MEMTAPE_DETAIL", "1").env("PYTORCH_CUDA_ALLOC_CONF", settings);
    command.arg("tests/torch/exact_probe.py").arg(path("theirs.pickle")).arg(path("ready"));
    let probe = Process::start(&mut command);
    let ready = || path("ready").exists().then_some(());
    wait_for("the probe holds still", Duration::from_secs(90), ready);

    let tape = tapes::in_folder(&path("tapes")).pop().expect("one tape");
    let mut export = Command::new(memtape());
    export.args(["export", "--format", "pickle"]).arg(&tape);
    let export = export.arg("-o").arg(path("ours.pickle")).output().expect("memtape runs");
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    drop(probe);

    let mut compare = Command::new(&torch.python);
    compare.arg("tests/torch/exact_compare.py").arg(path("ours.pickle"));
    compare.arg(path("theirs.pickle")).current_dir(memtape_tests::root());
    let compared = compare.output().expect("python runs");
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stderr));
    let counts: Value = serde_json::from_slice(&compared.stdout).expect("JSON");
    println!("{settings:?}: {counts}");
    for (name, at_least) in [
        ("alloc", 700),
        ("free_completed", 600),
        ("oom", 1),
        ("active_pending_free", 1),
        ("pools", 3),
        ("streams", 3),
    ] {
        assert!(count(&counts, name) >= at_least, "{name}: {counts}");
    }
    counts
}

fn count(counts: &Value, name: &str) -> u64 {
    counts[name].as_u64().unwrap_or(0)
}

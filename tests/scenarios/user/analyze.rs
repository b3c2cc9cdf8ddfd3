//! `memtape analyze` on what real PyTorch writes of itself: faults are named at their line, and
//! what only looks like one is not. No recorder and no service runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use memtape_tests::{Torch, marked_line, memtape, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/snapshots.py";

/// Jobs that have room, in one process each but with one import of PyTorch for all.
const JOBS: [&str; 22] = [
    "clean",
    "window",
    "sgd",
    "outputs",
    "outputs,stacks=all",
    "outputs,ring=900",
    "outputs,dump=5",
    "graph",
    "gaps",
    "thrash",
    "deferred",
    "pools",
    "balanced",
    "balanced,rank=1",
    "heavy,rank=2",
    "even",
    "even,rank=1",
    "longer,rank=2",
    "longer,rank=2,ring=1500",
    "even,rank=3",
    "varied",
    "varied,ring=1500",
];

/// Jobs whose last request fails.
const FAILING: [&str; 2] = ["pieces", "full"];

/// Trains in all these ways, on a device of this many bytes.
fn train(torch: &Torch, folder: &Path, bytes: &str, jobs: &[&str]) {
    let mut command = torch.command(1, bytes);
    command.arg(SCRIPT).arg(folder).args(jobs).env("FAKECUDA_COPY_MIB_S", "20");
    let output = command.output().expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn said(command: &str, paths: &[PathBuf]) -> Value {
    let output = Command::new(memtape()).args([command, "--json"]).args(paths).output();
    let output = output.expect("memtape runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// What was found in the file that this job wrote last.
fn found(folder: &Path, job: &str) -> Value {
    said("analyze", &[folder.join(job).join("rank0_end.pickle")])
}

/// The class is this, and the culprit the line with this mark.
fn check(found: &Value, class: &str, mark: &str) {
    let verdict = &found["verdict"];
    assert_eq!(verdict["class"], class, "{mark}: {found}");
    assert_eq!(verdict["culprit"]["line"], marked_line(SCRIPT, mark), "{mark}: {verdict}");
    let file = verdict["culprit"]["file"].as_str().expect("a file");
    assert!(file.ends_with(SCRIPT), "{file}");
}

fn leaks(folder: &Path) {
    for job in ["outputs", "outputs,stacks=all", "outputs,ring=900"] {
        check(&found(folder, job), "leak", "# OUTPUTS");
    }
    check(&found(folder, "graph"), "leak", "# GRAPH");
    for pattern in ["clean", "window", "sgd", "balanced"] {
        let found = found(folder, pattern);
        assert_eq!(found["verdict"], Value::Null, "{pattern}");
        assert!(found["steps"].as_u64() > Some(10), "{pattern}: {}", found["steps"]);
    }
}

fn other_faults(folder: &Path) {
    check(&found(folder, "thrash"), "cache_thrash", "# THRASH");
    check(&found(folder, "deferred"), "deferred_frees", "# DEFERRED");
    check(&found(folder, "pools"), "compile_pools", "# GRAPH");
    let gaps = found(folder, "gaps");
    assert_eq!(gaps["verdict"]["class"], "fragmentation", "{gaps}");
    assert!(gaps["verdict"]["bytes"].as_u64() > Some(1 << 30), "{}", gaps["verdict"]);
    let ranks = ["balanced/rank0_end", "balanced,rank=1/rank1_end", "heavy,rank=2/rank2_end"]
        .map(|file| folder.join(file).with_extension("pickle"));
    let uneven = said("analyze", &ranks);
    check(&uneven, "imbalance", "# GRAPH");
    assert_eq!((&uneven["verdict"]["rank"], &uneven["mode"]), (&2.into(), &"across_ranks".into()));
}

/// Steps that need more than the ones before, of one rank of four and in its file alone.
fn longer_steps(folder: &Path) {
    // Eleven tensors of the batch's rows are alive at a peak; each has 1,024 rows more.
    let a_step = 11 * (1024 * 512 * 4);
    let healthy = folder.join("even/rank0_end.pickle");
    for job in ["longer,rank=2", "longer,rank=2,ring=1500"] {
        let growing = folder.join(job).join("rank2_end.pickle");
        let rate = |found: &Value| {
            let rate = found["verdict"]["bytes_per_step"].as_u64().expect("a rate");
            assert!(rate.abs_diff(a_step) <= a_step / 10, "{rate} instead of {a_step}");
            let sentence = found["verdict"]["sentence"].as_str().expect("a sentence");
            assert!(sentence.starts_with("each step of rank 2 needs "), "{sentence}");
            assert!(sentence.contains(" are reserved over a peak of "), "{sentence}");
        };
        let alone = said("analyze", std::slice::from_ref(&growing));
        check(&alone, "pressure", "# GRAPH");
        rate(&alone);
        let peers = ["even/rank0_end", "even,rank=1/rank1_end", "even,rank=3/rank3_end"]
            .map(|file| folder.join(file).with_extension("pickle"));
        let among = said("analyze", &[&peers[..], std::slice::from_ref(&growing)].concat());
        check(&among, "imbalance", "# GRAPH");
        rate(&among);
        assert_eq!(among["verdict"]["rank"], 2);
        let diff = said("diff", &[healthy.clone(), growing.clone()]);
        check(&diff, "imbalance", "# GRAPH");
        let beyond = |name: &str| {
            let bytes = |at: usize| diff[name][at].as_u64().expect("bytes");
            assert!(bytes(1) > bytes(0) + bytes(0) / 4, "{name}: {}", diff[name]);
        };
        beyond("peak");
        beyond("reserved");
    }
    for job in ["varied", "varied,ring=1500", "even"] {
        assert_eq!(found(folder, job)["verdict"], Value::Null, "{job}");
    }
}

/// Several files of one rank, and what is between two of them.
fn snapshots_over_time(folder: &Path) {
    let job = folder.join("outputs,dump=5");
    let segments = said("analyze", &[job.join("segments.pkl")]);
    assert_eq!(segments["verdict"]["class"], "cannot_judge", "{}", segments["verdict"]);
    assert_eq!(segments["steps"], 0);
    let notes = segments["notes"].as_array().expect("notes");
    assert!(notes.iter().any(|note| note.as_str().is_some_and(|n| n.contains("segments only"))));
    std::fs::remove_file(job.join("segments.pkl")).expect("removed");
    let over_time = said("analyze", std::slice::from_ref(&job));
    assert_eq!(over_time["mode"], "over_time");
    check(&over_time, "leak", "# OUTPUTS");
    let diff = said("diff", &["rank0_5.pickle", "rank0_20.pickle"].map(|file| job.join(file)));
    check(&diff, "leak", "# OUTPUTS");
    let top = &diff["lines"][0];
    assert_eq!((&top["state"], &top["change_bytes"]), (&"grown".into(), &(15 << 19).into()));
    assert_eq!(top["frames"][0]["line"], marked_line(SCRIPT, "# OUTPUTS"));
}

#[test]
fn snapshots_of_real_pytorch_are_judged() {
    let Some(torch) = torch("snapshots of real PyTorch are judged") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let folder = scratch.path();
    train(&torch, folder, "20G", &JOBS);
    leaks(folder);
    other_faults(folder);
    longer_steps(folder);
    snapshots_over_time(folder);

    train(&torch, folder, "800M", &FAILING);
    let pieces = found(folder, "pieces");
    check(&pieces, "out_of_memory", "# TOO LARGE");
    assert_eq!(
        (&pieces["verdict"]["cause"], &pieces["verdict"]["bytes"]),
        (&"fragments".into(), &(350 << 20).into())
    );
    let full = found(folder, "full");
    check(&full, "out_of_memory", "# FULL");
    assert_eq!(full["verdict"]["cause"], "load", "{full}");
}

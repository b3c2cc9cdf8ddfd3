//! A state that is given twice counts once.

use std::path::PathBuf;

use serde_json::Value;

use crate::analyze::{check_leak, folder_of, json, memtape};

/// Copies of a file and its export are one state of one rank, whatever their names.
#[test]
fn copies_of_a_file_count_once() {
    let folder = folder_of(&[
        ("ddp_leak_rank2.pickle.gz", "a.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "b.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "rank2.pickle.gz"),
    ]);
    let [a, b, named] =
        ["a", "b", "rank2"].map(|name| folder.path().join(name).with_extension("pickle.gz"));
    let export = folder.path().join("export.pickle");
    let words = ["export", "-o", &export.to_string_lossy()];
    assert!(memtape(&words, std::slice::from_ref(&named), b"").status.success());
    let alone = json(&["analyze", "--json"], std::slice::from_ref(&named));
    check_leak(&alone, 2);
    for (words, files) in [
        (vec!["analyze", "--json"], vec![named.clone(), export.clone()]),
        (vec!["analyze", "--json"], vec![a.clone(), named, export]),
        (vec!["analyze", "--json", "--over-time"], vec![a.clone(), b.clone()]),
        (vec!["analyze", "--json"], vec![a, b]),
    ] {
        let found = json(&words, &files);
        let (of, expected) = (&found["verdict"], &alone["verdict"]);
        for key in ["class", "culprit", "confidence", "bytes", "against"] {
            assert_eq!(of[key], expected[key], "{key} of {files:?}");
        }
        let notes = found["notes"].to_string();
        assert!(notes.contains("shows the same state as"), "{notes}");
    }
    // A name that states another rank makes no peer of a copy, and a folder no other job.
    let folder = folder_of(&[
        ("ddp_leak_rank2.pickle.gz", "a/rank2.pickle.gz"),
        ("ddp_leak_rank0.pickle.gz", "a/rank0.pickle.gz"),
        ("ddp_leak_rank2.pickle.gz", "b/rank2.pickle.gz"),
        ("ddp_leak_rank0.pickle.gz", "b/rank0.pickle.gz"),
        ("ddp_leak_rank0.pickle.gz", "c/rank1.pickle.gz"),
    ]);
    let of = |below: &[&str]| -> Vec<PathBuf> {
        below.iter().map(|name| folder.path().join(name)).collect()
    };
    let found = json(&["analyze", "--json"], &of(&["a/rank0.pickle.gz", "c/rank1.pickle.gz"]));
    assert_eq!((&found["mode"], &found["verdict"]), (&"one_file".into(), &Value::Null));
    let pair = json(&["analyze", "--json"], &of(&["a"]));
    check_leak(&pair, 2);
    // The ranks of a folder with nothing but copies are known.
    std::fs::copy(&of(&["c/rank1.pickle.gz"])[0], folder.path().join("c/rank3.pickle.gz"))
        .expect("copied");
    let diff = memtape(&["diff", "--json"], &of(&["c", "a/rank2.pickle.gz"]), b"");
    assert!(diff.status.success(), "{}", String::from_utf8_lossy(&diff.stderr));
    for folders in [&["a", "b"][..], &["a", "c"], &["a", "b", "c"]] {
        let found = json(&["analyze", "--json"], &of(folders));
        assert_eq!(found["verdict"], pair["verdict"], "{folders:?}");
        assert!(found["notes"].to_string().contains("shows the same state as"), "{folders:?}");
    }
    let files = of(&["a/rank0.pickle.gz", "b/rank0.pickle.gz", "a/rank2.pickle.gz"]);
    let said = memtape(&["analyze", "--over-time"], &files, b"");
    let text = String::from_utf8(said.stdout).expect("UTF-8");
    let rows = text.lines().skip_while(|line| !line.contains("STATE  ALLOCATED")).skip(1).take(3);
    let numbers: Vec<&str> = rows.filter_map(|row| row.split_whitespace().next()).collect();
    assert_eq!(numbers, ["1", "2", "2"], "{text}");
}

//! `memtape export` and `memtape report` as a user runs them, on recorded snapshots of PyTorch and
//! on real tapes, which the demo's ranks write without PyTorch.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn memtape(arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memtape"));
    command.args(arguments).envs(variables.iter().copied());
    command.env("MEMTAPE_JOB", "alone").env("MEMTAPE_EVENTS", "8192");
    command.output().expect("memtape runs")
}

/// What the program writes to stdout.
fn written(arguments: &[&str]) -> Vec<u8> {
    let output = memtape(arguments, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// What it says on stderr when it fails.
fn refused(arguments: &[&str]) -> String {
    let output = memtape(arguments, &[]);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("UTF-8")
}

fn snapshot(rank: u32) -> String {
    let path = format!("../core/tests/data/snapshots/ddp_leak_rank{rank}.pickle.gz");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path).display().to_string()
}

/// The tape of a process that has exited after 40 steps, and its folder.
fn tape() -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let arguments = [
        "demo-rank",
        "--step-time",
        "1ms",
        "--steps",
        "40",
        "--fault",
        "leak",
        "--fault-from",
        "5",
    ];
    let output = memtape(&arguments, &[("MEMTAPE_DIR", folder.path())]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut entries = std::fs::read_dir(folder.path()).expect("the folder");
    let path: PathBuf = entries.next().expect("a tape").expect("its entry").path();
    (folder, path.display().to_string())
}

/// Bytes of the first box of a flame graph, which has all others below it.
fn root_bytes(svg: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(svg);
    let number = text.split("data-bytes=\"").nth(1).and_then(|rest| rest.split('"').next());
    number.and_then(|number| number.parse().ok()).expect("a box")
}

fn json(content: &[u8]) -> Value {
    serde_json::from_slice(content).expect("JSON")
}

#[test]
fn the_bytes_of_a_file_are_the_same_in_every_format() {
    let file = snapshot(2);
    let analysis = json(&written(&["analyze", "--json", &file]));
    let allocated = analysis["ranks"][0]["allocated"].as_u64().expect("a number");
    let export = |format: &str| written(&["export", &file, "--format", format, "-o", "-"]);
    assert_eq!(root_bytes(&export("flamegraph")), allocated);
    assert_eq!(export("flamegraph"), export("flamegraph"));
}

#[test]
fn the_bytes_of_a_tape_are_the_same_in_every_format() {
    let (_folder, tape) = tape();
    let export = |format: &str, more: &[&str]| {
        let arguments = ["export", &tape, "--format", format, "-o", "-"];
        written(&[&arguments[..], more].concat())
    };
    let allocated = json(&export("json", &[]))["devices"][0]["allocated"].as_u64();
    let allocated = allocated.expect("a number");
    assert_eq!(root_bytes(&export("flamegraph", &[])), allocated);
}

/// The numbers that follow these words in a file.
fn numbered(content: &[u8], words: &str) -> BTreeSet<u64> {
    let text = String::from_utf8_lossy(content);
    let digits = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest.get(..end)?.parse().ok()
    };
    text.split(words).skip(1).filter_map(digits).collect()
}

#[test]
fn every_format_of_a_tape_has_the_same_steps() {
    let (_folder, tape) = tape();
    let export = |of: &str, format: &str, more: &[&str]| {
        let arguments = ["export", of, "--format", format, "-o", "-"];
        written(&[&arguments[..], more].concat())
    };
    for (more, last) in [(&[][..], 40), (&["--step", "9"], 9)] {
        let steps: BTreeSet<u64> = (1..=last).collect();
        let pickle = export(&tape, "pickle", more);
        assert_eq!(numbered(&pickle, "memtape.step#"), steps);
        let state = json(&export(&tape, "json", more));
        let events = state["devices"][0]["trace"].as_array().expect("events");
        let of_events = events.iter().filter_map(|event| Some(event["step"].as_u64()? + 1));
        assert_eq!(of_events.collect::<BTreeSet<u64>>(), steps);
    }
}

#[test]
fn growth_is_the_difference_of_two_steps() {
    let (_folder, tape) = tape();
    let at = |step: &str, more: &[&str]| {
        let arguments = ["export", &tape, "--format", "flamegraph", "--step", step];
        written(&[&arguments[..], &["-o", "-"], more].concat())
    };
    let grown = root_bytes(&at("40", &[])) - root_bytes(&at("2", &[]));
    let growth = String::from_utf8(at("40", &["--since-step", "2"])).expect("text");
    let mib = format!("{:.1}", grown as f64 / f64::from(1 << 20));
    let words = format!("+{} MiB in the stacks that differ", mib.trim_end_matches(".0"));
    assert!(growth.contains(&words), "{words}");
    let error = refused(&["export", &tape, "--since-step", "2"]);
    assert!(error.contains("flamegraph"), "{error}");
}

#[test]
fn a_report_of_files_names_the_fault_and_its_inputs() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html").display().to_string();
    let files: Vec<String> = (0..4).map(snapshot).collect();
    let mut arguments = vec!["report", "-o", &page];
    arguments.extend(files.iter().map(String::as_str));
    let said = String::from_utf8(written(&arguments)).expect("UTF-8");
    assert!(said.starts_with("rank 2 keeps 128 KiB more each step"), "{said}");
    let html = std::fs::read_to_string(&page).expect("the page");
    let data = html.split_once("id=\"report\">").and_then(|(_, rest)| rest.split_once("</script>"));
    let report = json(data.expect("the answers").0.as_bytes());
    assert_eq!(report["start"][0], "files");
    let analysis = &report["answers"]["analyses"]["analyses"];
    assert_eq!(analysis["verdict"]["culprit"]["file"], "/app/train.py");
    assert_eq!(analysis["files"].as_array().map(Vec::len), Some(4));
    assert!(said.contains(report["sentences"][0].as_str().expect("a sentence")), "{said}");
}

#[test]
fn a_failed_export_is_reported_in_one_line() {
    let file = snapshot(0);
    let check = |arguments: &[&str], words: &str| {
        let error = refused(arguments);
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
    };
    check(&["export", &file, "--format", "flamegraph", "--against", "peers"], "needs a capture");
    check(&["export", &file, "--format", "flamegraph", "--since-step", "99"], "has no step 99");
    check(&["report", "no-such-file.pickle"], "cannot open no-such-file.pickle");
}

//! The demo is what a newcomer sees first: each scenario must end in its class, and a healthy job
//! in a verdict.

use std::process::Command;
use std::time::Duration;

use memtape_tests::processes::Process;
use memtape_tests::{memtape, root};
use serde_json::Value;

fn demo(arguments: &[&str], patience: Duration) -> Value {
    let mut command = Command::new(memtape());
    command.arg("demo").args(arguments).args(["--exit", "--json"]);
    let (code, said) = Process::start(&mut command).end(patience);
    assert_eq!(code, Some(0), "{said:#?}");
    let objects: Vec<&String> = said.iter().filter(|line| line.starts_with('{')).collect();
    let [object] = objects.as_slice() else { panic!("one object: {said:#?}") };
    serde_json::from_str(object).expect("JSON")
}

#[test]
fn the_leaking_rank_is_found_and_its_line_named() {
    let result = demo(&["--ranks", "8", "--leak-rank", "5"], Duration::from_secs(120));
    let (incident, capture) = (&result["incident"], &result["capture"]);
    assert_eq!((&incident["rank"], &incident["class"]), (&5.into(), &"leak".into()), "{result:#}");
    assert_eq!((&capture["ranks"], &capture["aligned"]), (&8.into(), &8.into()), "{result:#}");
    assert_eq!(capture["missing"], Value::Array(Vec::new()));
    assert_eq!(result["stored"], true);
    assert!(incident["onset_step"].as_u64() < incident["detected_step"].as_u64(), "{result:#}");
    // The line it names is a line of the demo's own source, in the function it names.
    let culprit = &incident["culprit"];
    let file = culprit["file"].as_str().expect("a file");
    let text = std::fs::read_to_string(root().join(file)).expect("a file of this repository");
    let line = culprit["line"].as_u64().expect("a line") as usize;
    assert!(line >= 1 && line <= text.lines().count(), "{culprit}");
    let function = culprit["function"].as_str().expect("a function");
    assert!(text.contains(&format!("fn {function}")), "{culprit}");
}

#[test]
fn without_a_fault_there_is_a_verdict() {
    let result = demo(&["--leak-rank", "none", "--for", "20s"], Duration::from_secs(120));
    assert_eq!(result["incident"], Value::Null, "{result:#}");
    let (judged, verdict) = (&result["judged"], result["verdict"].as_str().expect("a verdict"));
    let steps = judged["steps"].as_u64().expect("steps");
    assert!(judged["ranks"] == 4 && steps > 0, "{result:#}");
    assert_eq!(verdict, format!("nothing grows: 4 ranks judged over {steps} steps"));
}

/// Runs a scenario on rank 1 of four. It ends as soon as its class is found; the limits are for
/// busy machines.
fn scenario(name: &str) -> Value {
    let arguments = ["--scenario", name, "--leak-rank", "1", "--for", "280s"];
    let result = demo(&arguments, Duration::from_secs(300));
    assert_eq!((&result["scenario"], &result["stored"]), (&name.into(), &true.into()));
    result
}

/// The incident is of this class, on the rank with the fault.
fn is_found_as(name: &str, class: &str) {
    let result = scenario(name);
    let incident = &result["incident"];
    assert_eq!((&incident["rank"], &incident["class"]), (&1.into(), &class.into()), "{result:#}");
    assert_eq!(result["capture"]["trigger_rank"], 1, "{result:#}");
}

#[test]
fn fragmentation_is_found_as_such() {
    is_found_as("fragmentation", "fragmentation");
}

#[test]
fn a_rank_with_more_work_is_found_as_imbalance() {
    is_found_as("imbalance", "imbalance");
}

#[test]
fn growth_of_a_process_is_found_as_host_memory() {
    is_found_as("host", "host");
}

#[test]
fn a_rank_that_leaves_a_collective_out_is_named() {
    let result = scenario("desync");
    let incident = &result["incident"];
    let expected = (&1.into(), &"desynchronised".into());
    assert_eq!((&incident["rank"], &incident["class"]), expected, "{result:#}");
    let verdict = result["verdict"].as_str().expect("a sentence");
    assert!(verdict.contains("rank 1 has enqueued only"), "{verdict}");
}

#[test]
fn the_request_that_fails_is_captured() {
    let result = scenario("oom");
    assert_eq!(result["incident"]["class"], "leak", "{result:#}");
    let capture = &result["oom_capture"];
    assert_eq!(
        (&capture["trigger"], &capture["trigger_rank"]),
        (&"out_of_memory".into(), &1.into())
    );
    assert_eq!(capture["ranks"], 4, "{result:#}");
}

#[test]
fn a_killed_rank_is_captured() {
    let shown = scenario("killed");
    assert_eq!(shown["incident"]["class"], "died", "{shown:#}");
    let capture = &shown["capture"];
    assert_eq!((&capture["trigger"], &capture["trigger_rank"]), (&"death".into(), &1.into()));
    assert_eq!(capture["ranks"], 4, "{capture:#}");
}

//! The demo is what a newcomer sees first: it must end in the incident, or in none, as asked.

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
fn without_a_leak_there_is_no_incident() {
    let result = demo(&["--leak-rank", "none", "--for", "20s"], Duration::from_secs(90));
    assert_eq!(result["incident"], Value::Null, "{result:#}");
}

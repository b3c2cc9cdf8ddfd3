//! Saves, loads and evaluations are marked where they begin, and what is kept from each save is
//! said to be.

use std::process::Command;
use std::time::Duration;

use memtape_core::tape::rewind::PointInTime;
use memtape_tests::processes::Process;
use memtape_tests::{marked_line, memtape, tapes, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/activities.py";

#[test]
fn what_is_kept_from_each_save_is_said_to_be() {
    let Some(torch) = torch("saves, loads and evaluations are marked") else { return };
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let mut command = torch.recorded(1, "2G", scratch.path());
    let (code, said) = Process::start(command.arg(SCRIPT)).end(Duration::from_secs(180));
    assert_eq!(code, Some(0), "{said:#?}");
    let line = said.iter().find(|line| line.starts_with('{')).expect("what it did");
    let began: Value = serde_json::from_str(line).expect("an object");

    let [path] = &*tapes::in_folder(scratch.path()) else { panic!("one tape") };
    let snapshot = tapes::open(path).snapshot(PointInTime::Present, None, 0).expect("the present");
    let marked = |text: &str| -> Value {
        let marks = snapshot.marks.iter().filter(|mark| mark.text == text);
        marks.map(|mark| mark.step).collect::<Vec<u64>>().into()
    };
    assert_eq!(marked("activity=save"), began["save"]);
    assert_eq!(marked("activity=load"), began["load"]);
    // The interpreter tells of running code since CPython 3.12.
    let has_monitoring = began["has_monitoring"] == true;
    let evaluations = if has_monitoring { &began["evaluation"] } else { &Value::Array(vec![]) };
    assert_eq!(marked("activity=evaluation"), *evaluations);

    let answer = Command::new(memtape()).arg("analyze").arg(path).output().expect("an answer");
    let text = String::from_utf8_lossy(&answer.stdout);
    let kept = format!("activities.py:{} in main at each save", marked_line(SCRIPT, "# kept"));
    assert!(text.contains(&kept), "{kept} is not said:\n{text}");
}

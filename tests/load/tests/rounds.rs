//! A few rounds of faults on every change; `cargo xtask rounds` has as many as one likes, with a
//! real agent and real ranks.

use std::process::{Command, Output};

use memtape_tests::memtape;
use serde_json::Value;

fn rounds(arguments: &[&str]) -> (Value, Output) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_memtape-load"));
    program.args(["rounds", "--simulated", "--rounds", "1"]).args(arguments);
    let output = program.arg("--memtape").arg(memtape()).output().expect("it runs");
    (serde_json::from_slice(&output.stdout).expect("one object"), output)
}

#[test]
fn nothing_acknowledged_is_lost_in_rounds_of_faults() {
    let (found, output) = rounds(&["--kind", "kill", "--kind", "two", "--kind", "lost"]);
    assert_eq!(found["ok"], true, "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    for kind in ["kill", "two", "lost"] {
        let figures = &found["figures"][kind];
        println!("{kind}: seed {}, {figures}", found["figures"]["seed"]);
        assert!(figures["records"].as_u64() > Some(0), "{figures:#}");
    }
}

#[test]
fn rounds_fail_on_a_bucket_that_ignores_conditions() {
    let (found, output) = rounds(&["--kind", "two", "--ignore-conditions"]);
    assert_eq!(found["ok"], false, "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
}

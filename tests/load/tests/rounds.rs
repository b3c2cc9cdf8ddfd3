//! A few rounds of faults on every change; `cargo xtask rounds` has as many as one likes, with a
//! real agent and real ranks.

use std::process::Command;

use memtape_tests::memtape;
use serde_json::Value;

#[test]
fn nothing_acknowledged_is_lost_in_rounds_of_faults() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_memtape-load"));
    program.args(["rounds", "--simulated", "--rounds", "1", "--memtape"]).arg(memtape());
    let kinds = ["kill", "partition", "lost"];
    let output = program.args(kinds.iter().flat_map(|kind| ["--kind", kind])).output();
    let output = output.expect("it runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(found["ok"], true, "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    for kind in kinds {
        let figures = &found["figures"][kind];
        println!("{kind}: seed {}, {figures}", found["figures"]["seed"]);
        assert!(figures["records"].as_u64() > Some(0), "{figures:#}");
    }
}

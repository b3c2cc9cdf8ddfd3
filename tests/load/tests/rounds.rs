//! A few rounds of faults on every change; `cargo xtask rounds` has as many as one likes.

use std::process::Command;

use memtape_tests::memtape;
use serde_json::Value;

#[test]
fn nothing_acknowledged_is_lost_in_rounds_of_faults() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_memtape-load"));
    program.args(["rounds", "--rounds", "1", "--memtape"]).arg(memtape());
    let kinds = ["kill", "partition", "two", "lost"];
    let output = program.args(kinds.iter().flat_map(|kind| ["--kind", kind])).output();
    let output = output.expect("it runs");
    let found: Value = serde_json::from_slice(&output.stdout).expect("one object");
    assert_eq!(found["ok"], true, "{found:#}\n{}", String::from_utf8_lossy(&output.stderr));
    let all = kinds.map(|kind| &found["figures"][kind]);
    println!("seed {}: {all:#?}", found["figures"]["seed"]);
    // Rounds in which nothing is compared lose nothing. A leak may take more than one round until
    // it is acted on.
    for compared in ["records", "incidents", "captures", "audit_entries", "deaths", "actions"] {
        let most = all.iter().filter_map(|figures| figures[compared].as_u64()).max();
        assert!(most > Some(0), "no {compared} were compared");
    }
    for figures in all {
        assert!(figures["records"].as_u64() > Some(0), "{figures:#}");
        assert!(figures["deaths"].as_u64() > Some(0), "{figures:#}");
    }
}

//! What a real training process takes of its host is reported exactly: pinned, shared and private
//! memory, and the workers of its DataLoader; and its devices' bytes add up.

use std::process::Command;
use std::time::Duration;

use memtape_tests::cluster::Cluster;
use memtape_tests::processes::{Process, wait_for};
use memtape_tests::{library, memtape, torch};
use serde_json::Value;

const SCRIPT: &str = "tests/torch/host_side.py";
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn a_rank_is_reported_with_its_host_memory() {
    let Some(torch) = torch("the host side of a rank is reported") else { return };
    let cluster = Cluster::start(&["node-a"]);
    library();
    let inner = torch.command(1, "1G");
    let mut command = Command::new(memtape());
    command.args(["run", "--job", "host", "--dir"]).arg(cluster.tapes("node-a")).arg("--");
    command.arg(inner.get_program()).args(inner.get_args()).arg(SCRIPT);
    command.current_dir(memtape_tests::root()).env("MEMTAPE_ROLE", "pp1");
    let mut job = Process::start(&mut command);
    let line = job.line_with("expected ", PATIENCE);
    let line = line.trim_start_matches("expected ");
    let expected: Value = serde_json::from_str(line).expect("a JSON object");
    let number = |name: &str| expected[name].as_u64().expect("a number");
    let workers = number("workers");

    let is_reported = |rank: &Value| {
        let reported = &rank["host"]["workers"];
        let parts = reported["anon_parts_bytes"].as_u64()?;
        let is_all = reported["count"] == workers && parts >= workers * number("of_worker");
        (is_all && rank["pinned_bytes"] == expected["pinned"]).then_some(parts)
    };
    let mut seen = Value::Null;
    let parts = wait_for("all of it", PATIENCE, || {
        seen = cluster.ask(&["ranks", "host"])["ranks"][0].take();
        is_reported(&seen)
    });
    let host = |name: &str| seen["host"][name].as_u64().unwrap_or_else(|| panic!("{seen:#}"));
    // Python and PyTorch take some of each kind themselves.
    let is_about = |found: u64, least: u64| (least..least + (1 << 30)).contains(&found);
    assert!(is_about(host("anon_bytes"), number("private")), "{seen:#}");
    assert!(is_about(host("shmem_bytes"), number("shared")), "{seen:#}");
    // What a fork still shares counts once over all, and not for each worker.
    let whole = seen["host"]["workers"]["anon_bytes"].as_u64().expect("bytes");
    assert!(parts < whole && whole >= workers * number("private"), "{parts} of {whole}");
    assert_eq!((&seen["role"], &seen["host"]["missing"]), (&"pp1".into(), &"".into()));

    let ledger = &seen["devices"][0]["ledger"];
    let layers = ledger["layers"].as_array().expect("layers");
    let known: i64 = layers.iter().filter_map(|layer| layer["bytes"].as_i64()).sum();
    let rest = ledger["unaccounted_bytes"].as_i64().expect("a rest");
    assert_eq!(Some(known + rest), ledger["device_bytes"].as_i64(), "{ledger:#}");
    let text = String::from_utf8(cluster.memtape(&["ranks", "host"]).stdout).expect("text");
    assert!(text.contains("PINNED") && text.contains("UNACCOUNTED"), "{text}");
    job.kill();
}

//! What a coordinator may do about incidents is in its log from the start on.

use std::process::Command;
use std::time::Duration;

use memtape_tests::memtape;
use memtape_tests::processes::Process;

const PATIENCE: Duration = Duration::from_secs(60);

const POLICY: &str = r#"
[nodes]
keep-out = "off"

[[rule]]
jobs = ["train-*"]
classes = ["leak"]
mode = "act"
"#;

#[test]
fn the_log_has_the_policy_at_the_start() {
    let scratch = tempfile::tempdir().expect("a temporary folder");
    let policy = scratch.path().join("policy.toml");
    std::fs::write(&policy, POLICY).expect("a file");
    let mut command = Command::new(memtape());
    command.args(["coordinator", "--listen", "127.0.0.1:0"]);
    command.args(["--restart-command", "true", "--policy"]).arg(policy);
    let mut coordinator =
        Process::start(command.arg("--data-dir").arg(scratch.path().join("data")));
    let line = coordinator.line_with("the policy is loaded", PATIENCE);
    for part in [
        "default_mode=\"dry-run\"",
        "rules=1",
        "rules_that_act=1",
        "keep_out=\"off\"",
        "targets=\"command\"",
    ] {
        assert!(line.contains(part), "{line}");
    }
}

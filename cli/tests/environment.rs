//! What variables of the environment do to a training that `memtape run` starts.

use std::process::Command;

#[test]
fn a_training_starts_with_an_empty_variable_and_whatever_its_total_steps_are() {
    let (memtape, folder) = (env!("CARGO_BIN_EXE_memtape"), tempfile::tempdir().expect("a folder"));
    for (name, value) in [
        ("MEMTAPE_TOTAL_STEPS", ""),
        ("MEMTAPE_TOTAL_STEPS", "0"),
        ("MEMTAPE_TOTAL_STEPS", " 5000"),
        ("MEMTAPE_TOTAL_STEPS", "many"),
        ("MEMTAPE_ACTIONS", ""),
        ("MEMTAPE_TLS_DIR", ""),
        ("MEMTAPE_TOKEN_FILE", ""),
    ] {
        let mut command = Command::new(memtape);
        command.arg("run").arg("--dir").arg(folder.path());
        command.args(["--", "sh", "-c", &format!("echo \"value:${name}\"")]);
        // Any file: the loader goes on without it.
        command.env("MEMTAPE_LIBRARY", memtape).env(name, value);
        let output = command.output().expect("memtape runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, format!("value:{value}\n"), "{name} {output:?}");
    }
}

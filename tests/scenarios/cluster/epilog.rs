//! The epilog of Slurm, `deploy/slurm/epilog.sh`.

use std::process::Command;

use memtape_tests::root;

#[test]
fn the_epilog_reads_the_maps_once_and_heeds_agents_of_root_alone() {
    let test = root().join("tests/slurm/epilog_test.py");
    let output = Command::new("python3").arg(test).output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

//! The admission policy of the chart, `deploy/helm/memtape/templates/admission.yaml`.

use std::process::Command;

use memtape_tests::{left_out, root, torch};

#[test]
fn the_chart_refuses_pods_that_reach_tapes_of_others() {
    const WHAT: &str = "the admission policy of the chart";
    let Some(torch) = torch(WHAT) else { return };
    let python = || Command::new(&torch.python);
    if !python().args(["-c", "import celpy"]).status().expect("python").success() {
        left_out(WHAT, "cel-python for Python");
        return;
    }
    let output = python().arg(root().join("tests/chart/policy_test.py")).output().expect("python");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

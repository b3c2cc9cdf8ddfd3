//! The program that drains nodes of Ray, `deploy/ray/drain_node.py`: its rules beside a stand-in,
//! and the whole of it beside a real Ray.

use std::process::Command;

use memtape_tests::{left_out, root};

/// Runs a class of the program's own tests.
fn test(class: &str) {
    let mut python = Command::new("python3");
    python.arg(root().join("tests/ray/drain_node_test.py")).arg(class);
    let output = python.output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nodes_of_ray_are_drained_only_where_they_are_idle() {
    test("Rules");
}

#[test]
fn real_ray_drains_idle_nodes_once() {
    if std::env::var_os("MEMTAPE_TEST_RAY").is_none() {
        left_out("draining nodes of a real Ray", "tests/ray/cluster");
        return;
    }
    test("RealRay");
}

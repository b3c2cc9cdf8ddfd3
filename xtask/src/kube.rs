//! `cargo xtask kube`: what a restart does to Kubernetes, and the chart with its coordinators,
//! against a real API server.
//!
//! `tests/kube/build` takes etcd and builds kube-apiserver, once, from Debian's packages, and
//! `tests/chart/build` a renderer of the chart.
//! `tests/kube/cluster` runs both programs for the tests named `real_kubernetes`. There are no
//! controllers and no kubelet: the tests do what those would.

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::process::{BUILD, Steps, call, cargo, command, root, run};
use crate::report::Found;

/// The tests of the restart target and of the chart, among others.
const TESTS: [&str; 6] = ["test", "--locked", "--workspace", "--lib", "--test", "scenarios"];

/// Runs the tests against a server of their own.
pub(crate) fn ask(steps: &mut Steps) -> Result<Found> {
    let started = Instant::now();
    steps.take("kube-apiserver", call("tests/kube/build", &[]))?;
    steps.take("renderer of the chart", call("tests/chart/build", &[]))?;
    steps.take("build of the programs", cargo(&BUILD))?;
    // Built before the server runs.
    steps.take("build", cargo(&[&TESTS[..], &["--no-run"]].concat()))?;
    let mut beside = command(root().join("tests/kube/cluster"));
    beside.arg(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    beside.args(TESTS).arg("real_kubernetes");
    let asked = run("real Kubernetes", beside);
    let (is_good, passed, left_out) = (asked.is_good, asked.tests.passed, asked.left_out.len());
    steps.0.push(asked);
    ensure!(!is_good || passed > 0 && left_out == 0, "no test has asked the server");
    Ok(Found::tests(steps, started.elapsed()))
}

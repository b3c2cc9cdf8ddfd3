//! `cargo xtask test`: everything that must hold before a change is merged.
//!
//! PyTorch is fetched while the first build runs, because on a fresh machine both take minutes.
//! A step that fails does not keep the later ones from being tried: one run tells all.

use std::path::Path;
use std::time::Instant;

use crate::model;
use crate::report::Report;
use crate::s3;
use crate::step::{cargo, command, root, run};
use crate::torch;

pub(crate) fn run_all() -> Report {
    let started = Instant::now();
    let python = torch::python();
    let is_ready = torch::is_ready(&python);
    let mut steps = std::thread::scope(|scope| {
        let fetching = (!is_ready).then(|| scope.spawn(|| run("fetch PyTorch", torch::install())));
        let mut steps = vec![
            run("format", cargo(&["fmt", "--all", "--check"])),
            run("fake CUDA", fake_cuda()),
            run("build", cargo(&["build", "--locked", "-p", "memtape", "-p", "memtape-recorder"])),
            run("lints", cargo(&LINTS)),
        ];
        // Without it the store's tests of S3 fail, and say what is missing.
        if !s3::is_ready() {
            run("fetch an S3 server", s3::install());
        }
        // Where it cannot be had, the tests say so and check what they can without it.
        if !root().join("target/viz/VERSION").is_file() {
            run("fetch PyTorch's viewer", viewer());
        }
        steps.extend(fetching.map(|fetching| fetching.join().expect("a step does not panic")));
        steps
    });
    steps.push(run("tests", tests(&python)));
    steps.push(run("compat", cargo(&COMPAT)));
    steps.push(run("loom", model::loom()));
    steps.push(run("shuttle", model::shuttle()));
    Report { command: "test", steps, took: started.elapsed() }
}

const LINTS: [&str; 8] =
    ["clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];

/// The oldest release, and the one that the tests have whole: `cargo xtask compat` tries them all.
const COMPAT: [&str; 8] =
    ["run", "--locked", "--quiet", "--package=xtask", "--", "compat", "2.0.1", "2.11.0"];

fn fake_cuda() -> std::process::Command {
    let mut make = command("make");
    make.args(["--silent", "-C", "tests/fake_cuda"]);
    make
}

/// PyTorch's MemoryViz.js, which opens an exported pickle in one of the tests.
fn viewer() -> std::process::Command {
    let mut fetch = command("python3");
    fetch.args(["tests/viz/fetch.py", "target/viz"]);
    fetch
}

fn tests(python: &Path) -> std::process::Command {
    let mut tests = cargo(&["test", "--locked", "--workspace", "--no-fail-fast", "--quiet"]);
    // Without PyTorch half of the promises would go unchecked: that is a failure here.
    tests.env("MEMTAPE_TEST_PYTHON", python).env("MEMTAPE_TEST_TORCH", "1");
    tests.env("MEMTAPE_TEST_S3", "1");
    tests
}

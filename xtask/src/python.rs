//! The virtual environments of Python that the commands use; `environment.py` makes them. One of
//! them has the PyTorch that the tests run on (a minute and 5 GB).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::process::{Steps, call, command, root};

/// The tests are written for this version; its CUDA calls are the ones the fake runtime answers.
/// py-spy samples the workers of real data loaders; NVRx' health check is asked over gRPC;
/// cel-python evaluates the chart's admission policy; DuckDB reads the
/// store's tables. The last three are the frameworks whose quick
/// starts the tests run.
const TORCH: [&str; 10] = [
    "torch==2.11.0",
    "numpy",
    "py-spy==0.4.3",
    "grpcio",
    "protobuf",
    "cel-python==0.5.0",
    "duckdb==2.0.1",
    "accelerate==1.15.0",
    "lightning==2.6.6",
    "transformers==5.23.0",
];

/// Frameworks that only `cargo xtask programs` and `cargo xtask docs --all` need, which install
/// them: Ray takes two minutes and 500 MB.
pub(crate) const PROGRAMS: [&str; 2] = ["deepspeed==0.19.8", "torchmetrics==1.9.0"];
pub(crate) const QUICK_STARTS: [&str; 2] = ["deepspeed==0.19.8", "ray[train]==2.60.0"];

/// The environment with it.
const TORCH_AT: &str = "target/venv";

/// Pythons to make it with: the first whose frames the recorder can read.
const PYTHONS: [&str; 4] = ["python3.12", "python3.11", "python3", "python"];

/// Makes the environment in this folder, unless it has these packages.
pub(crate) fn environment(folder: &str, packages: &[&str]) -> Command {
    let mut make = call("python3", &["xtask/environment.py", folder]);
    make.args(packages);
    make
}

/// The interpreter with PyTorch; whether it is ready is another question.
pub(crate) fn torch() -> PathBuf {
    named_by_hand().unwrap_or_else(|| root().join(TORCH_AT).join("bin/python"))
}

/// An interpreter that was named by hand is taken as it is.
fn named_by_hand() -> Option<PathBuf> {
    std::env::var_os("MEMTAPE_TEST_PYTHON").map(PathBuf::from)
}

/// True when nothing has to be installed.
pub(crate) fn is_torch_ready() -> bool {
    let check = || environment(TORCH_AT, &TORCH).arg("--check").status();
    named_by_hand().is_some() || check().is_ok_and(|status| status.success())
}

/// Makes the environment with PyTorch, as one command.
pub(crate) fn install_torch() -> Command {
    let maker = PYTHONS.iter().find(|maker| has_known_frames(maker)).unwrap_or(&"python3");
    let mut make = call(maker, &["xtask/environment.py", TORCH_AT]);
    make.args(TORCH);
    make
}

/// Fetches PyTorch where it is not there, and these frameworks into its environment.
pub(crate) fn fetch_torch(steps: &mut Steps, frameworks: &[&str]) -> Result<()> {
    if !is_torch_ready() {
        steps.take("fetch PyTorch", install_torch())?;
    }
    if named_by_hand().is_some() || frameworks.is_empty() {
        return Ok(());
    }
    // With the others' versions named again, no framework can replace them.
    let mut add = environment(TORCH_AT, &[&TORCH, frameworks].concat());
    add.arg("--add");
    steps.take("fetch frameworks", add)
}

/// A script with PyTorch on the fake CUDA runtime, whose one device has this memory.
pub(crate) fn on_fake_cuda(memory: &str, script: &str) -> Command {
    let mut run = command(root().join("tests/fake_cuda/run"));
    run.args(["-n", "1", "-b", memory, "--"]).arg(torch()).arg(script);
    run
}

/// There, and of a version whose frames the recorder can read.
fn has_known_frames(maker: &str) -> bool {
    let asked = "import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))";
    let mut ask = call(maker, &["-c", asked]);
    ask.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

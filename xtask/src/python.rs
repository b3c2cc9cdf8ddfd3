//! Virtual environments of Python below `target/`, each made once for one purpose; one of them has
//! the PyTorch that the tests run on (a minute and 5 GB).

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::process::{Steps, call, command, output, root};

/// Makes an environment and installs into it. One that is half made, by a run that was
/// interrupted, is made again. Some distributions ship Python without the pip that an environment
/// gets by itself; then the outer pip installs into it.
const MAKE: &str = r#"set -e
maker=$1 folder=$2; shift 2
if "$maker" -m venv --clear "$folder" 2>/dev/null; then
    pip="$folder/bin/python -m pip"
else
    "$maker" -m venv --clear --without-pip "$folder"
    pip="$maker -m pip --python $folder/bin/python"
fi
$pip install --quiet --disable-pip-version-check "$@""#;

/// Installs into an environment that is there.
const ADD: &str = r#"set -e
maker=$1 folder=$2; shift 2
if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    pip="$folder/bin/python -m pip"
else
    pip="$maker -m pip --python $folder/bin/python"
fi
$pip install --quiet --disable-pip-version-check "$@""#;

/// Prints `True` when every package is there, in the version behind its name, if one is. A local
/// version such as 2.11.0+cu130 is the same release; extras in brackets are not looked at.
const VERSIONS: &str = "import importlib.metadata as m, sys\n\
    named = (p.partition('==')[::2] for p in sys.argv[1:])\n\
    print(all(m.version(n.split('[')[0]).split('+')[0] == v or not v for n, v in named))";

/// The tests are written for this version; its CUDA calls are the ones the fake runtime answers.
/// py-spy samples the workers of real data loaders; NVRx' health check is asked over gRPC.
const TORCH: [&str; 5] = ["torch==2.11.0", "numpy", "py-spy==0.4.3", "grpcio", "protobuf"];

/// Frameworks whose quick starts the tests run (less than a minute and 300 MB, while the first
/// build runs).
const LAUNCHED: [&str; 3] = ["accelerate==1.15.0", "lightning==2.6.6", "transformers==5.23.0"];

/// Frameworks that only `cargo xtask programs` and `cargo xtask docs --all` need, which install
/// them: Ray takes two minutes and 500 MB.
const PROGRAMS: [&str; 2] = ["deepspeed==0.19.8", "torchmetrics==1.9.0"];
const QUICK_STARTS: [&str; 2] = ["deepspeed==0.19.8", "ray[train]==2.60.0"];

/// The environment with it.
const TORCH_AT: &str = "target/venv";

/// Pythons to make it with: the first whose frames the recorder can read.
const PYTHONS: [&str; 4] = ["python3.12", "python3.11", "python3", "python"];

/// Makes the environment with `maker`'s Python and installs these packages, as one command.
pub(crate) fn make(maker: &str, folder: &str, packages: &[&str]) -> Command {
    let mut shell = command("sh");
    shell.args(["-c", MAKE, "sh", maker, folder]).args(packages);
    shell
}

/// True when the environment has exactly these versions, written as `name==version`.
pub(crate) fn has(folder: &str, packages: &[&str]) -> bool {
    has_all(&mut command(root().join(folder).join("bin/python")), packages)
}

fn has_all(python: &mut Command, packages: &[&str]) -> bool {
    let said = python.args(["-c", VERSIONS]).args(packages).output();
    said.is_ok_and(|said| said.stdout == b"True\n")
}

/// The interpreter with PyTorch; whether it is ready is another question.
pub(crate) fn torch() -> PathBuf {
    std::env::var_os("MEMTAPE_TEST_PYTHON")
        .map_or_else(|| root().join(TORCH_AT).join("bin/python"), PathBuf::from)
}

/// True when nothing has to be installed. An interpreter that was named by hand is taken as it is.
pub(crate) fn is_torch_ready() -> bool {
    std::env::var_os("MEMTAPE_TEST_PYTHON").is_some() || has(TORCH_AT, &tested())
}

/// What the tests need.
fn tested() -> Vec<&'static str> {
    TORCH.into_iter().chain(LAUNCHED).collect()
}

/// Makes the environment with PyTorch, as one command.
pub(crate) fn install_torch() -> Command {
    let maker = PYTHONS.iter().find(|maker| has_known_frames(maker)).unwrap_or(&"python3");
    make(maker, TORCH_AT, &tested())
}

/// Fetches PyTorch where it is not there.
pub(crate) fn fetch_torch(steps: &mut Steps) -> Result<()> {
    if is_torch_ready() { Ok(()) } else { steps.take("fetch PyTorch", install_torch()) }
}

/// Fetches the frameworks of the real programs into the environment with PyTorch.
pub(crate) fn fetch_frameworks(steps: &mut Steps) -> Result<()> {
    fetch(steps, &PROGRAMS)
}

/// Fetches the frameworks of all quick starts into the environment with PyTorch.
pub(crate) fn fetch_quick_starts(steps: &mut Steps) -> Result<()> {
    fetch(steps, &QUICK_STARTS)
}

/// Fetches packages where they are not there. An interpreter that was named by hand is taken as it
/// is.
fn fetch(steps: &mut Steps, packages: &[&str]) -> Result<()> {
    let is_by_hand = std::env::var_os("MEMTAPE_TEST_PYTHON").is_some();
    if is_by_hand || has(TORCH_AT, packages) {
        return Ok(());
    }
    // With the others' versions named again, no framework can replace them.
    let mut add = command("sh");
    add.args(["-c", ADD, "sh", "python3", TORCH_AT]).args(tested()).args(packages);
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
    let asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])";
    output(&mut call(maker, &["-c", asked]))
        .is_ok_and(|text| matches!(text.trim(), "3.11" | "3.12"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared() {
        let folder = tempfile::tempdir().expect("a folder");
        for package in ["torch-2.11.0+cu130", "numpy-2.4.1", "moto-5.2.5"] {
            let folder = folder.path().join(format!("{package}.dist-info"));
            std::fs::create_dir(&folder).expect("a folder");
            let (name, version) = package.split_once('-').expect("a version");
            let text = format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n");
            std::fs::write(folder.join("METADATA"), text).expect("a file");
        }
        for (packages, expected) in [
            (&["torch==2.11.0", "numpy"][..], true),
            (&["moto==5.2.5"], true),
            (&["moto[server]==5.2.5"], true),
            (&["torch==2.11.1", "numpy"], false),
            (&["torch==2.1.0"], false),
            (&["torch==2.11.0", "absent-package"], false),
        ] {
            let mut python = command("python3");
            assert_eq!(has_all(python.env("PYTHONPATH", folder.path()), packages), expected);
        }
    }
}

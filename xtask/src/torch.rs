//! The Python with PyTorch that the tests run on: a virtual environment in `target/venv`.
//!
//! It is made once (a minute and 5 GB) and left alone as long as the versions are right.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{command, root};
use crate::venv;

/// The tests are written for this version; its CUDA calls are the ones the fake runtime answers.
const TORCH: &str = "2.11.0";

/// Pythons to make the environment with: the first whose frames the recorder can read.
const PYTHONS: [&str; 4] = ["python3.12", "python3.11", "python3", "python"];

/// Prints the versions, without the seconds that importing torch takes.
const VERSIONS: &str =
    "import importlib.metadata as m; print(m.version('torch'), m.version('numpy'))";

/// The interpreter to test with; whether it is ready is another question.
pub(crate) fn python() -> PathBuf {
    std::env::var_os("MEMTAPE_TEST_PYTHON")
        .map_or_else(|| root().join("target/venv/bin/python"), PathBuf::from)
}

/// True when nothing has to be installed.
pub(crate) fn is_ready(python: &Path) -> bool {
    // One that was named by hand is taken as it is.
    std::env::var_os("MEMTAPE_TEST_PYTHON").is_some()
        || said(command(python).args(["-c", VERSIONS])).is_some_and(|text| is_right(&text))
}

/// Makes the environment and installs into it, as one command.
pub(crate) fn install() -> Command {
    let maker = PYTHONS.iter().find(|maker| has_known_frames(maker)).unwrap_or(&"python3");
    venv::make(maker, "target/venv", &[&format!("torch=={TORCH}"), "numpy"])
}

/// There, and of a version whose frames the recorder can read.
fn has_known_frames(maker: &str) -> bool {
    let asked = "import sys, venv; print('%d.%d' % sys.version_info[:2])";
    said(command(maker).args(["-c", asked]))
        .is_some_and(|text| matches!(text.trim(), "3.11" | "3.12"))
}

fn is_right(versions: &str) -> bool {
    let words: Vec<&str> = versions.split_whitespace().collect();
    let [torch, _numpy] = words.as_slice() else { return false };
    // A local version such as 2.11.0+cu130 is the same release.
    torch.split('+').next() == Some(TORCH)
}

fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared() {
        for (text, expected) in [
            ("2.11.0 2.4.1\n", true),
            ("2.11.0+cu130 2.4.1\n", true),
            ("2.11.1 2.4.1\n", false),
            ("2.1.0 2.4.1\n", false),
            ("2.11.0\n", false),
            ("", false),
        ] {
            assert_eq!(is_right(text), expected, "{text:?}");
        }
    }
}

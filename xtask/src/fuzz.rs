//! `cargo xtask fuzz [SECONDS] [--only NAME…]`: the fuzz targets of `fuzz/`, one after the other.
//!
//! cargo-fuzz is installed into `target/tools` once. The targets are built with the compiler of the
//! repository: `RUSTC_BOOTSTRAP` lets it take the flags that libFuzzer needs. What is found is left
//! in `fuzz/artifacts`; a new corpus is kept in `target/fuzz/corpus`, so that the small one in the
//! repository stays as it is.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::process::{Steps, command, root, run};
use crate::report::Found;

/// Memory that one input may take.
const RSS_MIB_MAX: u32 = 3_000;

/// Seconds that one input may take, with all the fuzzer's checks.
const INPUT_SECONDS_MAX: u32 = 20;

/// Each target with the longest input that it gets, in bytes.
const TARGETS: [(&str, u32); 12] = [
    ("bytes", 12_304),
    ("lies", 512),
    ("pickle", 4_096),
    ("messages", 4_096),
    ("snapshot", 4_096),
    ("requests", 2_048),
    ("roles", 2_048),
    ("certificates", 4_096),
    ("spool", 4_096),
    ("streams", 4_096),
    ("tokens", 4_096),
    ("policy", 2_048),
];

/// Runs all targets, or those whose name contains one of these, each for this many seconds.
pub(crate) fn run_all(steps: &mut Steps, seconds: u64, only: &[String]) -> Found {
    let started = Instant::now();
    let tool = steps.tool("cargo-fuzz@0.13.2", &[]);
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|of| name.contains(of));
    for (name, bytes_max) in TARGETS.into_iter().filter(|(name, _)| is_wanted(name)) {
        steps.0.push(run(name, target(&tool, name, bytes_max, seconds)));
    }
    Found::tests(steps, started.elapsed())
}

fn target(tool: &Path, name: &str, bytes_max: u32, seconds: u64) -> Command {
    let corpus = root().join("target/fuzz/corpus").join(name);
    // A folder that cannot be made is reported by the fuzzer itself.
    let _ = std::fs::create_dir_all(&corpus);
    let mut fuzz = command(tool);
    fuzz.env("CARGO_TARGET_DIR", root().join("target/fuzz"))
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["run", name])
        .arg(corpus)
        .arg(root().join("fuzz/corpus").join(name))
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={bytes_max}"))
        .arg(format!("-rss_limit_mb={RSS_MIB_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    fuzz
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that is not in the list is never run, and one without a corpus begins with nothing.
    #[test]
    fn every_target_is_run_and_has_a_corpus() {
        let names = |folder: &str, ending: &str| {
            let entries = std::fs::read_dir(root().join("fuzz").join(folder)).expect("a folder");
            let names = entries.map(|entry| entry.expect("an entry").file_name());
            let mut names: Vec<String> = names
                .map(|name| name.to_string_lossy().trim_end_matches(ending).to_string())
                .collect();
            names.sort();
            names
        };
        let mut listed: Vec<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
        listed.sort();
        assert_eq!(names("fuzz_targets", ".rs"), listed);
        assert_eq!(names("corpus", ""), listed);
    }
}

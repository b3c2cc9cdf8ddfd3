//! `cargo xtask fuzz [SECONDS]`: the fuzz targets of `fuzz/`, one after the other.
//!
//! Needs a nightly compiler and cargo-fuzz (`cargo install cargo-fuzz`), looked for in
//! `target/tools/bin` too. What is found is left in `fuzz/artifacts`; a new corpus is kept in
//! `target/fuzz/corpus`, so that the small one in the repository stays as it is.

use std::process::Command;
use std::time::Instant;

use crate::process::{Steps, command, root, run};
use crate::report::Found;

/// Memory that reading one tape or pickle may take.
const RSS_MIB_MAX: u32 = 3_000;

/// Seconds that reading one tape or pickle may take, with all the fuzzer's checks.
const INPUT_SECONDS_MAX: u32 = 20;

/// Runs all targets, each for this many seconds.
pub(crate) fn run_all(steps: &mut Steps, seconds: u64) -> Found {
    let started = Instant::now();
    steps.0.extend([
        run("fuzz any bytes", target("bytes", 12_304, seconds)),
        run("fuzz lies", target("lies", 512, seconds)),
        run("fuzz pickles", target("pickle", 4_096, seconds)),
    ]);
    Found::tests(steps, started.elapsed())
}

fn target(name: &str, bytes_max: u32, seconds: u64) -> Command {
    let corpus = root().join("target/fuzz/corpus").join(name);
    // A folder that cannot be made is reported by the fuzzer itself.
    let _ = std::fs::create_dir_all(&corpus);
    let mut fuzz = command("cargo");
    let tools = root().join("target/tools/bin");
    let path = std::env::var("PATH").unwrap_or_default();
    fuzz.env("PATH", format!("{path}:{}", tools.display()))
        .env("CARGO_TARGET_DIR", root().join("target/fuzz"))
        .env_remove("RUSTUP_TOOLCHAIN")
        .args(["+nightly", "fuzz", "run", name])
        .arg(corpus)
        .arg(root().join("fuzz/corpus").join(name))
        .arg("--")
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={bytes_max}"))
        .arg(format!("-rss_limit_mb={RSS_MIB_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"));
    fuzz
}

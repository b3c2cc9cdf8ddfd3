//! `cargo xtask programs`: real PyTorch programs through the whole product, and what was found.
//!
//! tests/programs does it and makes the table; here it is built, and given what to run.

use std::process::Stdio;

use anyhow::Result;
use serde_json::json;

use crate::process::{Steps, built, cargo, command, json_of};
use crate::python;
use crate::report::Found;

/// Runs the programs whose name contains one of these, or all.
pub(crate) fn run_all(steps: &mut Steps, only: &[String]) -> Result<Found> {
    python::fetch_torch(steps)?;
    python::fetch_frameworks(steps)?;
    let mut build = cargo(&["build", "--locked", "-p", "memtape", "-p", "memtape-recorder"]);
    build.args(["-p", "memtape-tests", "--bin", "memtape-programs"]);
    steps.take("build", build)?;
    let mut programs = command(built("debug").join("memtape-programs"));
    programs
        .arg("--json")
        .env("MEMTAPE_TEST_PYTHON", python::torch())
        .env("MEMTAPE_TEST_TORCH", "1");
    programs.args(only.iter().flat_map(|name| ["--only", name]));
    // A row for each program as it ends; the figures come last.
    let (is_good, found) = json_of(&mut programs, Stdio::inherit())?;
    let (figures, rows) = (&found["figures"], &found["rows"]);
    let count = |name: &str| figures[name].as_u64().unwrap_or(0);
    let text = format!(
        "{}\n{} programs, {} as expected; {} of {} lines; {} false incidents\n",
        found["table"].as_str().unwrap_or_default(),
        count("programs"),
        count("right"),
        count("lines_right"),
        count("lines"),
        count("false_incidents")
    );
    Ok(Found { is_good, text, object: json!({ "figures": figures, "rows": rows }) })
}

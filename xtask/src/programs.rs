//! `cargo xtask programs`: real PyTorch programs through the whole product, and what was found.
//!
//! tests/programs does it and makes the table; here it is built, and given what to run.

use serde_json::{Value, json};

use crate::report::Outcome;
use crate::step::{built, cargo, command, json_of, run, say};
use crate::torch;

/// Runs the programs whose name contains one of these, or all.
pub(crate) fn run_all(only: &[&str]) -> Outcome {
    let python = torch::python();
    if !torch::is_ready(&python) {
        let fetched = run("fetch PyTorch", torch::install());
        if !fetched.is_good {
            return failed("PyTorch cannot be had");
        }
    }
    let mut build = cargo(&["build", "--locked", "-p", "memtape", "-p", "memtape-recorder"]);
    build.args(["-p", "memtape-tests", "--bin", "memtape-programs"]);
    if !run("build", build).is_good {
        return failed("it does not build");
    }
    let mut programs = command(built("debug").join("memtape-programs"));
    programs.arg("--json").env("MEMTAPE_TEST_PYTHON", &python).env("MEMTAPE_TEST_TORCH", "1");
    programs.args(only.iter().flat_map(|name| ["--only", name]));
    // A row for each program as it ends; the figures come last.
    match json_of(programs.stderr(std::process::Stdio::inherit())) {
        Ok((is_good, found)) => outcome(is_good, &found),
        Err(why) => failed(&why),
    }
}

fn outcome(is_good: bool, found: &Value) -> Outcome {
    let (figures, rows) = (&found["figures"], &found["rows"]);
    let object = json!({ "command": "programs", "ok": is_good, "figures": figures, "rows": rows });
    let table = found["table"].as_str().unwrap_or_default();
    let count = |name: &str| figures[name].as_u64().unwrap_or(0);
    let verdict = format!(
        "{} programs, {} as expected; {} of {} lines; {} false incidents\n",
        count("programs"),
        count("right"),
        count("lines_right"),
        count("lines"),
        count("false_incidents")
    );
    Outcome { is_good, text: format!("{table}\n{verdict}"), json: format!("{object}\n") }
}

fn failed(why: &str) -> Outcome {
    say(&format!("{why}\n"));
    let object = json!({ "command": "programs", "ok": false, "figures": {}, "error": why });
    Outcome { is_good: false, text: format!("{why}\n"), json: format!("{object}\n") }
}

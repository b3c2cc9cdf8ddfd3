//! `cargo xtask eval`: what the detector and the diagnosis find in thousands of labelled jobs.
//!
//! tests/eval does it; here it is built as it is released, because many jobs are played, and its
//! options and its output are handed through.

use std::process::ExitCode;

use crate::process::{Steps, command, released};

/// Builds it and runs it.
pub(crate) fn eval(arguments: &[String], is_json: bool) -> ExitCode {
    if let Err(why) = Steps::default().build(&["memtape-eval"]) {
        eprintln!("xtask: {why:#}");
        return ExitCode::FAILURE;
    }
    let is_about_cost = arguments.iter().any(|argument| argument == "--cost");
    let program = if is_about_cost { "memtape-eval-cost" } else { "memtape-eval" };
    let mut run = command(released(program));
    run.args(is_json.then_some("--json")).args(arguments);
    match run.status() {
        Ok(status) => status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("xtask: {program}: {error}");
            ExitCode::FAILURE
        }
    }
}

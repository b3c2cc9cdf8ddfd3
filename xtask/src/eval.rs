//! `cargo xtask eval`: what the detector and the diagnosis find in thousands of labelled jobs.
//!
//! tests/eval does it; here it is built as it is released, because many jobs are played, and its
//! options and its output are handed through.

use std::process::{ExitCode, Stdio};

use crate::bench::cluster::build;
use crate::step::{command, released};

/// Is this what was asked for? Options of other commands are numbers and switches; those of this
/// one are its own.
pub(crate) fn is_meant(arguments: &[String]) -> bool {
    arguments.iter().find(|argument| !argument.starts_with('-')).is_some_and(|it| it == "eval")
        && !arguments.iter().any(|argument| argument == "--help" || argument == "-h")
}

/// Builds it and runs it.
pub(crate) fn eval(arguments: &[String]) -> ExitCode {
    let mut steps = Vec::new();
    if let Err(why) = build(&mut steps, &["memtape-eval"]) {
        eprintln!("xtask: {why}");
        return ExitCode::FAILURE;
    }
    let is_about_cost = arguments.iter().any(|argument| argument == "--cost");
    let program = if is_about_cost { "memtape-eval-cost" } else { "memtape-eval" };
    let mut run = command(released(program));
    let mut is_command = true;
    // The first word is the command's own name; the rest is for the harness.
    run.args(arguments.iter().filter(|argument| {
        let is_name = is_command && argument.as_str() == "eval";
        is_command &= !is_name;
        !is_name
    }));
    match run.stdout(Stdio::inherit()).stderr(Stdio::inherit()).status() {
        Ok(status) => match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) => ExitCode::from(code),
            None => ExitCode::FAILURE,
        },
        Err(error) => {
            eprintln!("xtask: {program}: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_knows_its_own_name() {
        let check = |line: &str, expected: bool| {
            let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
            assert_eq!(is_meant(&arguments), expected, "{line}");
        };
        check("eval", true);
        check("--json eval --families apart", true);
        check("eval --help", false);
        check("sim --seed 3", false);
        check("", false);
    }
}

//! `cargo xtask`: the one door to everything that is more than `cargo test`.
//!
//! Each command is one module. It says what it does on stderr and its result on stdout: plain
//! text, or with `--json` one object with the command's `figures`. The exit code is 0 when all is
//! well, 1 when something failed, 64 for a command line that makes no sense.

mod api;
mod bench;
mod compat;
mod docs;
mod eval;
mod fuzz;
mod kube;
mod process;
mod programs;
mod python;
mod release;
mod report;
mod sim;
mod supply_chain;
mod test;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand, value_parser};

use crate::process::Steps;
use crate::report::Found;

/// Exit code for a bad command line (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

/// Everything that is more than `cargo test`.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Line {
    /// Print one JSON object with the figures instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must hold before a change is merged: format, lints, all tests, those with
    /// PyTorch on the fake CUDA runtime included.
    Test,
    /// The Python wheel, for every machine of the last ten years, or `dev`: one from the debug
    /// build, for this machine only.
    Wheel {
        #[arg(value_parser = ["dev"])]
        build: Option<String>,
    },
    /// Everything that is published, in target/artifacts: the wheel, an archive with the binary,
    /// the bill of materials, and their checksums. Checks each; publishes nothing.
    Release,
    /// What things cost, measured.
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Whole clusters in one thread, with virtual time and faults.
    Sim(sim::Choice),
    /// What the detector and the diagnosis find in labelled jobs, healthy and faulty.
    ///
    /// Beside them other detectors. The options are those of memtape-eval: [--families
    /// tuned|apart|all] [--family NAME] [--seeds N] [--baselines] [--small] [--export DIR];
    /// `--cost` measures what the detector costs for 16,384 ranks.
    Eval {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Everything that others write against any bytes: tapes, messages, requests, files.
    Fuzz {
        /// For each target.
        #[arg(default_value_t = 60)]
        seconds: u64,
        /// Targets whose name contains one of these.
        #[arg(long, num_args = 1.., value_name = "NAME")]
        only: Vec<String>,
    },
    /// Requests that the API's document allows and forbids, to a real coordinator with the demo's
    /// content.
    Api {
        /// Requests of each operation.
        #[arg(long, default_value_t = 100, value_parser = count())]
        examples: u64,
    },
    /// What a restart does to Kubernetes, against a real API server, which is built from Debian's
    /// packages the first time.
    Kube,
    /// The hooks against the real libraries of PyTorch 2.0 to the newest, or of these versions.
    Compat { versions: Vec<String> },
    /// Real PyTorch programs, each with a fault or a benign pattern that people meet, through the
    /// whole product on the fake CUDA runtime, and what was found.
    Programs {
        /// Those whose name contains one of these.
        #[arg(long, num_args = 1.., value_name = "NAME")]
        only: Vec<String>,
    },
    /// The documents as a site, in target/docs/site, and whether a link in it is dead.
    Docs(docs::Choice),
}

fn main() -> ExitCode {
    let line = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let mut steps = Steps::default();
    let (name, found) = match line.command {
        Command::Eval { arguments } => return eval::eval(&arguments, line.json),
        Command::Test => ("test", Ok(test::run_all(&mut steps))),
        Command::Wheel { build: None } => ("wheel", wheel::build(&mut steps, &wheel::DIST)),
        Command::Wheel { build: Some(_) } => ("wheel", wheel::build(&mut steps, &wheel::DEV)),
        Command::Release => ("release", release::make(&mut steps)),
        Command::Bench(bench) => bench.run(&mut steps),
        Command::Sim(choice) => choice.run(&mut steps),
        Command::Fuzz { seconds, only } => ("fuzz", Ok(fuzz::run_all(&mut steps, seconds, &only))),
        Command::Api { examples } => ("api", api::ask(&mut steps, examples)),
        Command::Kube => ("kube", kube::ask(&mut steps)),
        Command::Compat { versions } => ("compat", compat::try_all(&mut steps, &versions)),
        Command::Programs { only } => ("programs", programs::run_all(&mut steps, &only)),
        Command::Docs(choice) => choice.run(&mut steps),
    };
    let found = found.unwrap_or_else(|error| Found::failure(&error));
    print(&if line.json { found.json(name, &steps) } else { found.text });
    if found.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A number of things: at least one.
fn count() -> clap::builder::RangedU64ValueParser {
    value_parser!(u64).range(1..)
}

/// Writes to stdout; a reader that went away is no failure.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_commands() {
        let check = |line: &str, is_good: bool| {
            let words = std::iter::once("xtask").chain(line.split_whitespace());
            let found = Line::try_parse_from(words).map(|_| ());
            assert_eq!(found.is_ok(), is_good, "{line}: {found:?}");
        };
        for good in [
            "test",
            "--json test",
            "wheel dev --json",
            "release --json",
            "bench cluster --ranks 512 --storm --json",
            "bench census --json",
            "bench analyze --events 1000 --runs 1",
            "sim --seeds 10 --first 3",
            "sim --mutations",
            "sim --stage act --seeds 200",
            "eval --families apart --small --json",
            "eval --json --cost",
            "fuzz 5",
            "fuzz 5 --only requests roles",
            "api --examples 20",
            "kube --json",
            "compat 2.0.1 2.11.0",
            "programs --only ema leak --json",
            "docs --json",
            "docs --reference",
        ] {
            check(good, true);
        }
        for bad in [
            "",
            "other",
            "bench",
            "bench cluster --ranks",
            "bench cluster --ranks none",
            "bench cluster --ranks 0",
            "sim --seed 0",
            "test --ranks 8",
            "test --fast",
            "test --only ema",
            "wheel release",
            "fuzz long",
            "api --examples 0",
            "docs --all --reference",
        ] {
            check(bad, false);
        }
    }
}

//! `cargo xtask`: commands for everything that is more than `cargo test`.
//!
//! A command builds what it needs and runs a program that does the work; those of Python are in
//! this folder and in `tests/`. Progress goes to stderr and the result to stdout: plain text, or
//! with `--json` one object with the command's `figures`. The exit code is 0 when all is well, 1
//! when something failed, 64 for a bad command line.

mod api;
mod bench;
mod docs;
mod fuzz;
mod kube;
mod process;
mod python;
mod report;
mod rounds;
mod supply_chain;
mod test;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand, value_parser};

use crate::process::{BUILD, Steps, built, call, cargo, command, released};
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
    Sim(Simulations),
    /// Three coordinators on one bucket under load, and a fault in each round: nothing that was
    /// acknowledged is lost, and nothing is done twice.
    Rounds(rounds::Rounds),
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
    /// The documents as a site, in target/docs/site.
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
        Command::Eval { arguments } => return eval(&arguments, line.json),
        Command::Test => ("test", Ok(test::run_all(&mut steps))),
        Command::Wheel { build } => {
            let build = build.as_deref().unwrap_or("dist");
            ("wheel", Found::of_program(&mut call("python3", &["xtask/wheel.py", build])))
        }
        Command::Release => {
            let bill = steps.tool("cargo-cyclonedx@0.5.9", &[]);
            let mut release = call("python3", &["xtask/release.py"]);
            ("release", Found::of_program(release.arg(bill)))
        }
        Command::Bench(bench) => bench.run(&mut steps),
        Command::Sim(choice) => ("sim", choice.run(&mut steps)),
        Command::Rounds(rounds) => ("rounds", rounds.run(&mut steps)),
        Command::Fuzz { seconds, only } => ("fuzz", Ok(fuzz::run_all(&mut steps, seconds, &only))),
        Command::Api { examples } => ("api", api::ask(&mut steps, examples)),
        Command::Kube => ("kube", kube::ask(&mut steps)),
        Command::Compat { versions } => ("compat", compat(&mut steps, &versions)),
        Command::Programs { only } => ("programs", programs(&mut steps, &only)),
        Command::Docs(choice) => ("docs", choice.run(&mut steps)),
    };
    let found = found.unwrap_or_else(|error| Found::failure(&error));
    print(&if line.json { found.json(name, &steps) } else { found.text });
    if found.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds tests/eval as it is released, because many jobs are played, and hands its options and
/// its output through.
fn eval(arguments: &[String], is_json: bool) -> ExitCode {
    if Steps::default().build(&["memtape-eval"]).is_err() {
        return ExitCode::FAILURE;
    }
    let is_cost = |argument: &&String| *argument == "--cost";
    let is_about_cost = arguments.iter().any(|argument| is_cost(&argument));
    let program = if is_about_cost { "memtape-eval-cost" } else { "memtape-eval" };
    let mut run = command(released(program));
    run.args(is_json.then_some("--json"));
    let code = run.args(arguments.iter().filter(|argument| !is_cost(argument))).status();
    let code = code.ok().and_then(|status| u8::try_from(status.code()?).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Tries the hooks with each release: tests/compat/compat.py does it.
fn compat(steps: &mut Steps, versions: &[String]) -> Result<Found> {
    steps.take("build", cargo(&BUILD))?;
    Found::of_program(&mut test::compat(versions))
}

/// Runs the programs whose name contains one of these, or all: tests/support/programs does it and
/// makes the table. A row is shown for each program as it ends.
fn programs(steps: &mut Steps, only: &[String]) -> Result<Found> {
    python::fetch_torch(steps, &python::PROGRAMS)?;
    let mut build = cargo(&["build", "--locked", "-p", "memtape", "-p", "memtape-recorder"]);
    build.args(["-p", "memtape-tests", "--bin", "memtape-programs"]);
    steps.take("build", build)?;
    let mut programs = call(built("debug").join("memtape-programs"), &["--json", "--jobs", "2"]);
    programs.env("MEMTAPE_TEST_PYTHON", python::torch()).env("MEMTAPE_TEST_TORCH", "1");
    Found::of_program(programs.args(only.iter().flat_map(|name| ["--only", name])))
}

/// Which simulations.
#[derive(clap::Args, Debug)]
struct Simulations {
    /// How many; 1,000 unless said, with `--mutations` 4,000.
    #[arg(long, value_parser = count())]
    seeds: Option<u64>,
    /// The first of them.
    #[arg(long, default_value_t = 1, value_parser = count())]
    first: u64,
    /// This one alone, with all that happens printed.
    #[arg(long, value_parser = count())]
    seed: Option<u64>,
    /// The coordinator acts on a job, and is killed at this stage of the restart.
    #[arg(long, value_parser = ["plan", "precondition", "act", "observe"])]
    stage: Option<String>,
    /// Several coordinators on one bucket, in place of a training cluster.
    #[arg(long, conflicts_with = "stage")]
    coordinators: bool,
    /// Each rule that is broken on purpose must be found: a simulation that finds nothing may not
    /// see anything.
    #[arg(long)]
    mutations: bool,
}

impl Simulations {
    /// Simulates them as tests/sim is released, because a long run has many seeds.
    fn run(&self, steps: &mut Steps) -> Result<Found> {
        let is_of_source = self.mutations && !self.coordinators;
        let mut run = if is_of_source {
            call("python3", &["tests/sim/mutations.py"])
        } else {
            steps.build(&["memtape-sim"])?;
            call(released("memtape-sim"), &["--json"])
        };
        run.args(self.coordinators.then_some("--coordinators"));
        run.args((self.coordinators && self.mutations).then_some("--mutations"));
        let mut option = |name: &str, value: Option<String>| {
            run.args(value.into_iter().flat_map(|value| [name.to_string(), value]));
        };
        let text = |number: Option<u64>| number.map(|number| number.to_string());
        option("--seeds", text(self.seeds.filter(|_| self.seed.is_none())));
        if !is_of_source {
            option("--stage", self.stage.clone());
            option("--seed", text(self.seed));
            option("--first", text(Some(self.first).filter(|_| self.seed.is_none())));
        }
        Found::of_program(&mut run)
    }
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
    fn the_programs_of_python_keep_their_rules() {
        for arguments in [
            &["xtask/programs_test.py"][..],
            &["tests/compat/compat_test.py"],
            &["tests/sim/mutations.py", "--check"],
        ] {
            let output = call("python3", arguments).output().expect("python3");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {errors}");
        }
    }

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
            "sim --coordinators --mutations",
            "eval --families apart --small --json",
            "eval --json --cost",
            "rounds",
            "rounds --kind kill --kind lost --rounds 100 --seed 7 --bucket-ms 100 --json",
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
            "sim --stage act --coordinators",
            "test --ranks 8",
            "test --fast",
            "test --only ema",
            "wheel release",
            "rounds --rounds 0",
            "fuzz long",
            "api --examples 0",
            "docs --all --reference",
        ] {
            check(bad, false);
        }
    }
}

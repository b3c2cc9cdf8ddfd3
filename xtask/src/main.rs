//! `cargo xtask`: the one door to everything that is more than `cargo test`.
//!
//! Each command is one module. It says what it does on stderr and its result on stdout: plain
//! text, or with `--json` one object with the command's `figures`. The exit code is 0 when all is
//! well, 1 when something failed, 64 for a command line that makes no sense.

mod bench;
mod compat;
mod descendants;
mod elf;
mod eval;
mod fuzz;
mod line;
mod model;
mod mutations;
mod programs;
mod report;
mod s3;
mod sim;
mod step;
mod test;
mod torch;
mod venv;
mod wheel;

use std::process::ExitCode;

use crate::line::Line;

const USAGE: &str = "\
usage: cargo xtask COMMAND [--json]

  test    everything that must hold before a change is merged: format, lints, all tests, those
          with PyTorch on the fake CUDA runtime included
  wheel   the Python wheel, for every machine of the last ten years
          `wheel dev` makes one from the debug build, for this machine only
  bench recorder
          what recording costs PyTorch, beside PyTorch's own history
  bench cluster [--ranks N] [--storm]
          thousands of simulated agents against one coordinator on this machine: 1 record per
          second and rank, for 512 to 16,384 ranks or for this many
          `--storm`: every agent uploads 1 MiB of one capture at the same moment
  bench capture
          how long a capture of 64 ranks takes, and one rank's snapshot beside PyTorch's own
  bench disturbance
          step times of a training job with captures, back to back, and without
  bench analyze [--events N] [--runs N]
          `memtape analyze` on a snapshot of 1 GB, or of this many events, beside pickle.load
  bench store
          what keeping step records costs, beside a plain sled and redb
  sim [--seeds N] [--first S] [--seed S] [--mutations]
          whole clusters in one thread, with virtual time and faults, N of them from seed S on, or
          one seed with all that happens; `--mutations`: each rule that is broken on purpose must
          be found
  eval [--families tuned|apart|all] [--family NAME] [--seeds N] [--baselines] [--ablations]
       [--small] [--export DIR] [--cost]
          what the detector and the diagnosis find in labelled jobs, healthy and faulty; beside
          them other detectors, or themselves with one gate off; `--export`: the jobs as files;
          `--cost`: what the detector costs for 16,384 ranks
  fuzz [SECONDS]
          the readers of tapes and pickles against whatever may lie there; needs nightly and
          cargo-fuzz
  compat [VERSION…]
          the hooks against the real libraries of PyTorch 2.0 to the newest, or of these versions
  programs [--only NAME…]
          real PyTorch programs, each with a fault or a benign pattern that people meet, through the
          whole product on the fake CUDA runtime, and what was found; all, or those of these names

  --json  print one JSON object with the figures instead of text
";

/// Exit code for a bad command line (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if eval::is_meant(&arguments) {
        return eval::eval(&arguments);
    }
    let line = match Line::of(arguments) {
        Ok(line) => line,
        Err(why) => return usage_error(&why),
    };
    if line.asks_for_help() {
        print(USAGE);
        return ExitCode::SUCCESS;
    }
    let ranks = line.number("--ranks");
    let outcome = match line.words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["test"] => test::run_all().outcome(),
        ["wheel"] => wheel::build(&wheel::DIST),
        ["wheel", "dev"] => wheel::build(&wheel::DEV),
        ["bench", "recorder"] => bench::recorder::bench(),
        ["bench", "analyze"] => {
            bench::analyze::bench(line.number("--events"), line.number("--runs"))
        }
        ["bench", "capture"] => bench::capture::bench(),
        ["bench", "disturbance"] => bench::disturbance::bench(),
        ["bench", "cluster"] if line.has("--storm") => bench::cluster::storm(ranks),
        ["bench", "cluster"] => bench::cluster::bench(ranks),
        ["bench", "store"] => bench::store::bench(),
        ["compat", versions @ ..] => compat::try_all(versions),
        ["programs", names @ ..] => programs::run_all(names),
        ["sim"] if line.has("--mutations") => mutations::try_all(line.number("--seeds")),
        ["sim"] => sim::simulate(&sim::Choice {
            seed: line.number("--seed"),
            first: line.number("--first"),
            seeds: line.number("--seeds"),
        }),
        ["fuzz"] => fuzz::run_all(None).outcome(),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => {
            fuzz::run_all(seconds.parse().ok()).outcome()
        }
        [] => return usage_error("name a command"),
        [other, ..] => return usage_error(&format!("there is no command {other:?} of that form")),
    };
    print(if line.has("--json") { &outcome.json } else { &outcome.text });
    if outcome.is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage_error(why: &str) -> ExitCode {
    eprintln!("xtask: {why}; `cargo xtask --help` lists the commands");
    ExitCode::from(EXIT_USAGE)
}

/// Writes to stdout; a reader that went away is no failure.
fn print(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

//! `cargo xtask bench`: what things cost, measured. The programs that measure are in `tests/bench`,
//! `tests/load` and `tests/store_bench`; here they are built and run.
//!
//! Times differ from machine to machine: it is the figures beside each other that tell. Whether a
//! goal is met is one of the figures, and no failure.

mod capture;
mod cluster;
mod recorder;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::process::{Steps, built, call, cargo, command, released, root, say};
use crate::python;
use crate::report::Found;

/// Ranks of a storm, unless another number is asked for: 2,048 agents, 2 GiB.
const STORM_RANKS: u64 = 16_384;

/// A training job that fits on one core: steps of a few milliseconds.
const DISTURBED: &str =
    "--ranks 1 --backend gloo --width 512 --batch 256 --rounds 24 --steps 150 --apart --json";

/// What is measured.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Bench {
    /// What recording costs PyTorch, beside PyTorch's own history.
    Recorder,
    /// What the optimizer hook costs a step, with and without an instruction that waits.
    Hook,
    /// Thousands of simulated agents against one coordinator on this machine: 1 record per second
    /// and rank, for 512 to 16,384 ranks or for this many.
    Cluster {
        #[arg(long, value_parser = crate::count())]
        ranks: Option<u64>,
        /// Every agent uploads 1 MiB of one capture at the same moment.
        #[arg(long, conflicts_with = "tls")]
        storm: bool,
        /// Each size twice: without certificates, and with mutual TLS, roles and owners of jobs.
        #[arg(long)]
        tls: bool,
    },
    /// Agents and captures while the network, users and stolen certificates attack at once:
    /// acknowledgements before, during and after, and the memory that it takes.
    Siege {
        /// Ranks whose agents report.
        #[arg(long, default_value_t = 1_024, value_parser = crate::count())]
        ranks: u64,
        /// Seconds of each part.
        #[arg(long, default_value_t = 40, value_parser = crate::count())]
        seconds: u64,
    },
    /// How long a capture of 64 ranks takes, and one rank's snapshot beside PyTorch's own.
    Capture,
    /// What counting a rank's live blocks by line costs, and the bytes of its messages.
    Census,
    /// Step times of a training job with captures, back to back, and without.
    Disturbance,
    /// `memtape analyze` on a large snapshot, beside pickle.load.
    Analyze {
        /// The default makes a file of about 1 GB.
        #[arg(long, default_value_t = 8_100_000, value_parser = crate::count())]
        events: u64,
        /// Times that each is run; the median counts.
        #[arg(long, default_value_t = 3, value_parser = crate::count())]
        runs: u64,
    },
    /// What keeping step records costs, beside a plain sled and redb.
    Store,
}

impl Bench {
    /// Measures, and says what it found.
    pub(crate) fn run(&self, steps: &mut Steps) -> (&'static str, Result<Found>) {
        match *self {
            Self::Recorder => ("bench recorder", recorder::bench(steps)),
            Self::Hook => ("bench hook", hook(steps)),
            Self::Cluster { ranks, storm: true, .. } => {
                let ranks = ranks.unwrap_or(STORM_RANKS).to_string();
                ("bench cluster --storm", load(steps, &["storm", "--ranks", &ranks]))
            }
            Self::Cluster { ranks, tls, .. } => {
                ("bench cluster", cluster::bench(steps, ranks, tls))
            }
            Self::Siege { ranks, seconds } => {
                let (ranks, seconds) = (ranks.to_string(), seconds.to_string());
                let siege = ["siege", "--ranks", &ranks, "--seconds", &seconds];
                ("bench siege", load(steps, &siege))
            }
            Self::Capture => ("bench capture", capture::bench(steps)),
            Self::Census => ("bench census", load(steps, &["census"])),
            Self::Disturbance => ("bench disturbance", disturbance(steps)),
            Self::Analyze { events, runs } => ("bench analyze", analyze(steps, events, runs)),
            Self::Store => ("bench store", store()),
        }
    }
}

/// What the optimizer hook costs a step, in one process on the fake CUDA runtime.
fn hook(steps: &mut Steps) -> Result<Found> {
    python::fetch_torch(steps, &[])?;
    steps.take("library", recorder::library())?;
    let tapes = tapes()?;
    let mut script = python::on_fake_cuda("1G", "tests/bench/hook.py");
    script.env("LD_PRELOAD", built("dist").join("libmemtape.so"));
    script.env("MEMTAPE_DIR", tapes.path()).env("MEMTAPE_ACTIONS", "gc");
    Found::of_program(script.env("PYTHONPATH", root().join("python")))
}

/// Step times of a training job while captures are taken, with one rank on the fake CUDA runtime,
/// whose "GPU" is a core of its own. On a machine with GPUs the script is run by itself.
fn disturbance(steps: &mut Steps) -> Result<Found> {
    steps.build(&["memtape", "memtape-recorder"])?;
    python::fetch_torch(steps, &[])?;
    say("training with and without captures …\n");
    let mut script = python::on_fake_cuda("4G", "tests/gpu/disturbance.py");
    script.arg("--memtape").arg(released("")).args(DISTURBED.split(' '));
    Found::of_program(&mut script)
}

/// `memtape analyze` on a large snapshot, written once for each number of events, beside
/// `pickle.load`, which is what every other tool begins with.
fn analyze(steps: &mut Steps, events: u64, runs: u64) -> Result<Found> {
    steps.build(&["memtape"])?;
    let file = folder()?.join(format!("snapshot-{events}.pickle"));
    if !file.exists() {
        let unfinished = file.with_extension("unfinished");
        let mut write = call("python3", &["tests/bench/big_snapshot.py"]);
        write.arg(&unfinished).arg(events.to_string());
        steps.take("write a snapshot", write)?;
        fs::rename(&unfinished, &file)?;
    }
    say("memtape analyze and pickle.load, in turn …\n");
    let mut script = call("python3", &["tests/bench/analyze.py"]);
    Found::of_program(script.arg(released("memtape")).arg(&file).arg(runs.to_string()))
}

/// What keeping step records costs Memtape, beside a plain sled with a key for each record, and
/// redb, in the same run on the same disk.
fn store() -> Result<Found> {
    say("the program is built and run: some minutes …\n");
    let run = ["run", "--locked", "--release", "--quiet", "--package=memtape-store-bench"];
    Found::of_program(&mut cargo(&run))
}

/// Builds the generator of loads and what it loads, and runs it.
fn load(steps: &mut Steps, arguments: &[&str]) -> Result<Found> {
    steps.build(&["memtape", "memtape-load"])?;
    say(&format!("memtape-load {} …\n", arguments.join(" ")));
    Found::of_program(&mut generator(arguments))
}

/// The generator of loads.
fn generator(arguments: &[&str]) -> Command {
    let mut generator = command(released("memtape-load"));
    generator.args(arguments).arg("--memtape").arg(released("memtape"));
    generator
}

/// Where everything is built and written.
fn folder() -> Result<PathBuf> {
    let folder = root().join("target/bench");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// A folder for tapes beside the real ones, because their memory is part of their cost.
fn tapes() -> Result<TempDir> {
    tempfile::Builder::new().prefix("memtape-bench-").tempdir_in("/dev/shm").context("/dev/shm")
}

/// The first file of a folder of tapes.
fn only_tape(folder: &Path) -> Result<PathBuf> {
    let mut tapes = fs::read_dir(folder)?.flatten();
    let tape = tapes.next().with_context(|| format!("no tape in {}", folder.display()))?;
    Ok(tape.path())
}

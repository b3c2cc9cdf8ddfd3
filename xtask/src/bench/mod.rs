//! `cargo xtask bench`: what things cost, measured. One module for each thing.
//!
//! Times differ from machine to machine: it is the figures beside each other that tell. Whether a
//! goal is met is one of the figures, and no failure.

mod analyze;
mod capture;
mod census;
mod cluster;
mod disturbance;
mod hook;
mod recorder;
mod store;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Steps, command, json_of, released, root};
use crate::report::Found;

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
    /// Agents and captures while others hold 16,384 connections, 2,000 uploads and 1,000 answers
    /// open: acknowledgements before, during and after, and the memory that it takes.
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
            Self::Hook => ("bench hook", hook::bench(steps)),
            Self::Cluster { ranks, storm: true, .. } => {
                ("bench cluster --storm", cluster::storm(steps, ranks))
            }
            Self::Cluster { ranks, tls, .. } => {
                ("bench cluster", cluster::bench(steps, ranks, tls))
            }
            Self::Siege { ranks, seconds } => {
                ("bench siege", cluster::siege(steps, ranks, seconds))
            }
            Self::Capture => ("bench capture", capture::bench(steps)),
            Self::Census => ("bench census", census::bench(steps)),
            Self::Disturbance => ("bench disturbance", disturbance::bench(steps)),
            Self::Analyze { events, runs } => {
                ("bench analyze", analyze::bench(steps, events, runs))
            }
            Self::Store => ("bench store", store::bench()),
        }
    }
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

/// Runs the generator of loads; its one line of figures.
fn generate(arguments: &[&str]) -> Result<Value> {
    let mut generator = command(released("memtape-load"));
    generator.args(arguments).arg("--memtape").arg(released("memtape"));
    let (is_good, figures) = json_of(&mut generator, Stdio::inherit())?;
    ensure!(is_good, "memtape-load {} failed", arguments.join(" "));
    Ok(figures)
}

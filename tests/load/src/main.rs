//! The load generator: thousands of simulated agents against a real coordinator.
//!
//! `memtape-load hold` and `memtape-load storm` start a coordinator on a temporary folder, connect
//! agents of eight ranks each over gRPC on loopback, and print one JSON object with what they
//! found and whether it is sound. `memtape-load siege` attacks the coordinator meanwhile,
//! `memtape-load crash` kills it and takes its disk;
//! `memtape-load rounds` has three on one bucket;
//! `memtape-load capture` does it with real agents and ranks. `memtape-load snapshot` and
//! `memtape-load census` read tapes and start no coordinator. `cargo xtask bench cluster`, `bench
//! siege`, `bench capture` and `bench census` build and run them.
//!
//! The agents share the machine's cores with the coordinator, as a benchmark on one machine must;
//! their own use is reported beside it.

#![forbid(unsafe_code)]

mod agent;
mod capture;
mod census;
mod coordinator;
mod crash;
mod figures;
mod fleet;
mod hold;
mod job;
mod readback;
mod rounds;
mod shards;
mod siege;
mod snapshot;
mod storm;
mod trust;
mod upload;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use serde_json::{Value, json};

/// Thousands of simulated agents against a real coordinator.
#[derive(clap::Parser)]
struct Options {
    /// The `memtape` binary.
    #[arg(long, global = true, default_value = "target/release/memtape")]
    memtape: PathBuf,
    /// With certificates, roles and owners of jobs.
    #[arg(long, global = true)]
    tls: bool,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(clap::Subcommand)]
enum Mode {
    /// Ranks that report once a second.
    Hold(hold::Load),
    /// Agents that upload at the same moment.
    Storm(storm::Storm),
    /// Agents that report while others hold the coordinator's connections open.
    Siege(siege::Siege),
    /// Kills, full disks, folders that are removed, clocks that jump, and backups.
    Crash(crash::Crash),
    /// Several coordinators on one bucket, and a fault in each round.
    Rounds(rounds::Rounds),
    /// Captures with real agents and ranks.
    Capture(capture::Wish),
    /// The snapshot of a rank out of its tape.
    Snapshot {
        #[arg(long)]
        tape: PathBuf,
    },
    /// Censuses of a rank.
    Census,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(figures) => {
            println!("{}", json!({ "ok": is_sound(&options.mode, &figures), "figures": figures }));
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("memtape-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Nothing was lost, and what was asked for was done. A size that was not held is a finding about
/// the machine.
fn is_sound(mode: &Mode, figures: &Value) -> bool {
    let is_whole = figures["lost"] == 0 && figures["streams_broken"] == 0;
    match mode {
        Mode::Hold(_) => is_whole,
        Mode::Storm(_) => {
            figures["rss_bytes"].as_u64() <= figures["bound_bytes"].as_u64()
                && figures["snapshots"].as_u64() > Some(0)
                && figures["snapshots"] == figures["agents"]
                && figures["lost"] == 0
        }
        // One rank of each agent has a snapshot.
        Mode::Siege(_) => {
            let mut phases = ["before", "during", "after"].into_iter();
            let is_aligned = |phase| figures[phase]["capture_aligned"] == figures["agents"];
            is_whole
                && figures["all_attackers_there"] == true
                && figures["rss_bytes"].as_u64() <= figures["memory_bytes_max"].as_u64()
                && phases.all(is_aligned)
        }
        Mode::Crash(_) => {
            let lost_nothing = |fault| figures[fault].is_string() || figures[fault]["lost"] == 0;
            ["kills", "disk_full", "clock", "restored"].into_iter().all(lost_nothing)
                && figures["restored"]["newer_store_refused"] == true
        }
        Mode::Rounds(_) => {
            figures["unfinished"].is_null()
                && figures.as_object().is_some_and(|all| all.values().all(is_no_failure))
        }
        Mode::Capture(_) => figures["aligned_min"] == figures["ranks"],
        Mode::Snapshot { .. } | Mode::Census => true,
    }
}

/// Is this no kind of rounds of which one failed?
fn is_no_failure(figure: &Value) -> bool {
    figure["failed"].as_u64().unwrap_or(0) == 0
}

fn run(options: &Options) -> anyhow::Result<Value> {
    // For reqwest; it fails only when a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    raise_file_limit();
    let binary = coordinator::Binary {
        path: options.memtape.clone(),
        arguments: Vec::new(),
        bucket: None,
        listen: coordinator::ANY_PORT.to_string(),
        trust: options.tls.then(|| trust::Trust::new(&[]).map(Arc::new)).transpose()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match &options.mode {
            Mode::Hold(load) => hold::hold(&binary, *load).await,
            Mode::Storm(storm) => storm::storm(&binary, *storm).await,
            Mode::Siege(siege) => siege::siege(&binary, *siege).await,
            Mode::Crash(wish) => crash::crash(&binary, wish).await,
            Mode::Rounds(wish) => rounds::rounds(&binary, wish).await,
            Mode::Capture(wish) => capture::capture(&binary, *wish).await,
            Mode::Snapshot { tape } => snapshot::snapshot(tape),
            Mode::Census => census::census(),
        }
    })
}

/// A number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, std::num::ParseIntError> {
    text.parse().map(Duration::from_secs)
}

/// One connection for each agent: as many files as we may have.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused is no harm: connecting says so then.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

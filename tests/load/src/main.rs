//! The load generator: thousands of simulated agents against a real coordinator.
//!
//! `memtape-load hold` and `memtape-load storm` start a coordinator on a temporary folder, connect
//! agents of eight ranks each over gRPC on loopback, and print one JSON object with what they
//! found. `memtape-load siege` attacks the coordinator meanwhile; `memtape-load capture` does it
//! with real agents and ranks. `memtape-load snapshot` and `memtape-load census` read tapes and
//! start no coordinator. `cargo xtask bench cluster`, `bench siege`, `bench capture` and `bench
//! census` build and run them, and put the figures into words.
//!
//! The agents share the machine's cores with the coordinator, as a benchmark on one machine must;
//! their own use is reported beside it.

#![forbid(unsafe_code)]

mod agent;
mod capture;
mod census;
mod coordinator;
mod figures;
mod fleet;
mod hold;
mod job;
mod readback;
mod siege;
mod snapshot;
mod storm;
mod trust;
mod upload;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};

const USAGE: &str = "\
usage: memtape-load hold  --memtape FILE --ranks N [--seconds S] [--jobs N] [--tls 0|1]
       memtape-load storm --memtape FILE --ranks N [--snapshot-bytes N]
       memtape-load siege --memtape FILE --ranks N [--seconds S] [--idle N] [--uploads N]
                          [--readers N] [--snapshot-bytes N]
       memtape-load capture --memtape FILE --ranks N [--captures N]
       memtape-load snapshot --tape FILE
       memtape-load census
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((mode, options)) = arguments.split_first() else {
        eprint!("{USAGE}");
        return ExitCode::from(64);
    };
    match run(mode, options) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("memtape-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mode: &str, options: &[String]) -> anyhow::Result<serde_json::Value> {
    let options = Options::of(options)?;
    if mode == "snapshot" {
        return snapshot::snapshot(&options.path("--tape")?);
    }
    if mode == "census" {
        return census::census();
    }
    // For reqwest; it fails only when a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    raise_file_limit();
    let has_tls = options.number("--tls", Some(0))? != 0;
    let binary = coordinator::Binary {
        path: options.path("--memtape")?,
        arguments: Vec::new(),
        trust: has_tls.then(|| trust::Trust::new(&[]).map(Arc::new)).transpose()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match mode {
            "hold" => {
                let load = hold::Load {
                    ranks: options.number("--ranks", None)?,
                    jobs: options.number("--jobs", Some(1))?,
                    time: Duration::from_secs(options.number("--seconds", Some(70))?.into()),
                };
                hold::hold(&binary, load).await
            }
            "storm" => {
                let storm = storm::Storm {
                    ranks: options.number("--ranks", None)?,
                    snapshot_bytes: options.number("--snapshot-bytes", Some(1 << 20))? as usize,
                };
                storm::storm(&binary, storm).await
            }
            "siege" => {
                let siege = siege::Siege {
                    ranks: options.number("--ranks", None)?,
                    phase: Duration::from_secs(options.number("--seconds", Some(30))?.into()),
                    idle: options.number("--idle", Some(16_384))?,
                    uploads: options.number("--uploads", Some(2_000))?,
                    readers: options.number("--readers", Some(1_000))?,
                    snapshot_bytes: options.number("--snapshot-bytes", Some(4 << 20))? as usize,
                };
                siege::siege(&binary, siege).await
            }
            "capture" => {
                let wish = capture::Wish {
                    ranks: options.number("--ranks", None)?,
                    captures: options.number("--captures", Some(20))?,
                };
                capture::capture(&binary, wish).await
            }
            other => bail!("there is no {other:?}\n{USAGE}"),
        }
    })
}

/// Options by their names, each with a value.
struct Options(BTreeMap<String, String>);

impl Options {
    fn of(arguments: &[String]) -> anyhow::Result<Self> {
        let pairs = arguments.chunks(2).map(|pair| match pair {
            [name, value] => Ok((name.clone(), value.clone())),
            rest => bail!("{rest:?} has no value\n{USAGE}"),
        });
        Ok(Self(pairs.collect::<Result<_, _>>()?))
    }

    fn number(&self, name: &str, default: Option<u32>) -> anyhow::Result<u32> {
        match self.0.get(name) {
            Some(text) => text.parse().with_context(|| format!("{name} must be a number")),
            None => default.with_context(|| format!("{name} is missing\n{USAGE}")),
        }
    }

    fn path(&self, name: &str) -> anyhow::Result<PathBuf> {
        self.0.get(name).map(PathBuf::from).with_context(|| format!("{name} is missing\n{USAGE}"))
    }
}

/// One connection for each agent: as many files as we may have.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused is no harm: connecting says so then.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

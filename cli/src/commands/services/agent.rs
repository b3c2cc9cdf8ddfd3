//! `memtape agent`: the service that runs once per node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use memtape_agent::Config;
use serde_json::json;

use crate::args::Mistakes;
use crate::args::{byte_count, duration};
use crate::globals::Globals;
use crate::output;

use crate::runtime;

/// `memtape agent`.
#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// Name of this node, unique in the cluster [default: the hostname].
    #[arg(long, env = "MEMTAPE_NODE")]
    pub(crate) node: Option<String>,
    /// Address of a port that answers /healthz, /readyz and /metrics, with counts alone, and
    /// /node-check: is GPU memory not given back? [default: none].
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_HEALTH_LISTEN")]
    pub(crate) health_listen: Option<SocketAddr>,
    /// Folder with tapes; may be given several times [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(long = "tape-dir", value_name = "DIR")]
    pub(crate) tape_dirs: Vec<PathBuf>,
    /// Time between two reports, such as 250ms; the coordinator may set another [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) report_interval: Option<Duration>,
    /// Most bytes that the tapes of dead processes may take [default: 8GiB].
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) dead_tape_bytes_max: Option<u64>,
    /// Time after which tapes of dead processes are deleted [default: 24h].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) dead_tape_age_max: Option<Duration>,
    /// Most bytes of memory that all work on tapes may take together, at least 512MiB: rewinds wait
    /// for their part, and a rank whose state takes more is left out of captures [default: 1GiB].
    #[arg(
        long,
        env = "MEMTAPE_MEMORY_BYTES_MAX",
        value_name = "BYTES",
        value_parser = byte_count
    )]
    pub(crate) memory_bytes_max: Option<u64>,
    /// Folder on a disk for data that waits until the coordinator answers [default:
    /// $STATE_DIRECTORY/spool, or /var/lib/memtape-agent/spool for root, or
    /// ~/.local/state/memtape/agent/spool].
    #[arg(long, env = "MEMTAPE_SPOOL_DIR", value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,
    /// Most bytes in the spool folder; 0 turns the spool off [default: 1GiB].
    #[arg(long, env = "MEMTAPE_SPOOL_BYTES_MAX", value_name = "BYTES", value_parser = byte_count)]
    pub(crate) spool_bytes_max: Option<u64>,
    /// The program py-spy: samples the DataLoader workers of a rank for 5 s when their memory
    /// grows, to name the line that they run most often [default: none].
    #[arg(long, env = "MEMTAPE_PY_SPY", value_name = "PROGRAM")]
    pub(crate) py_spy: Option<PathBuf>,
    /// Further options, variables and fields whose values are shown as [redacted] in the command
    /// lines of ranks, such as licence for --my-licence=…; passwords, tokens and keys are known
    /// [default: none].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_REDACT")]
    pub(crate) redact: Vec<String>,
}

/// Runs the agent until Ctrl-C or SIGTERM.
/// Fails with all invalid settings at once, or with the service's own error.
pub(crate) fn run(args: AgentArgs, globals: &Globals) -> anyhow::Result<()> {
    let json = globals.json;
    let coordinator = globals.coordinator_url()?;
    let config = Config { tls_dir: globals.tls_dir.clone(), ..config(args, &coordinator) };
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    runtime::log(json)?;
    if json {
        output::print_json(&json!({
            "node": config.node, "coordinator": config.coordinator, "tape_dirs": config.tape_dirs,
        }))?;
    }
    runtime::block_on(async move { Ok(memtape_agent::run(config, runtime::shutdown()?).await?) })
}

pub(in crate::commands) fn config(args: AgentArgs, coordinator: &str) -> Config {
    let default = Config::default();
    let spool_bytes_max = args.spool_bytes_max.unwrap_or(default.spool_bytes_max);
    let spool_dir = args.spool_dir.or(default.spool_dir.clone());
    Config {
        spool_dir: spool_dir.filter(|_| spool_bytes_max > 0),
        spool_bytes_max,
        memory_bytes_max: args.memory_bytes_max.unwrap_or(default.memory_bytes_max),
        py_spy: args.py_spy,
        redacted_names: args.redact,
        health_listen: args.health_listen,
        node: args.node.unwrap_or(default.node),
        coordinator: coordinator.to_string(),
        tape_dirs: if args.tape_dirs.is_empty() { default.tape_dirs } else { args.tape_dirs },
        report_interval: args.report_interval.unwrap_or(default.report_interval),
        dead_tape_bytes_max: args.dead_tape_bytes_max.unwrap_or(default.dead_tape_bytes_max),
        dead_tape_age_max: args.dead_tape_age_max.unwrap_or(default.dead_tape_age_max),
        ..default
    }
}

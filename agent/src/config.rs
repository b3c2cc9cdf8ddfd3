//! The settings of an agent: each field is an option of `memtape agent`, with its variable of the
//! environment, default and bounds; its sentence is the help of the option.
//!
//! Values are checked before anything is opened. The bounds that are no matter of taste stand as
//! constants beside the code that keeps them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::FromArgMatches as _;
use clap::builder::{OsStr, Resettable};
use memtape_core::limits::{
    CENSUS_BYTES_MAX, REPORT_INTERVAL_SECONDS_MAX, SNAPSHOT_BYTES_MAX, TRACE_EVENTS_MAX,
};
use memtape_core::settings::{byte_count, byte_count_from, duration, duration_within};

/// Settings of one agent.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Config {
    /// Name of this node, unique in the cluster [default: the hostname].
    #[arg(long, env = "MEMTAPE_NODE", default_value = hostname(), hide_default_value = true)]
    pub node: String,
    /// Where the coordinator listens, as `https://host:port`, or `http://` where it has no TLS; of
    /// a cluster, all its coordinators, separated by commas.
    #[arg(skip = COORDINATOR_DEFAULT.to_string())]
    pub coordinator: String,
    /// Folder with this agent's certificate and key, and the authorities of the coordinator's
    /// certificate; read again when it changes. None is for a coordinator without TLS.
    #[arg(skip)]
    pub tls_dir: Option<PathBuf>,
    /// Address of a port that answers /healthz, /readyz and /metrics, with counts alone, and
    /// /node-check: is GPU memory not given back? [default: none].
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Folder with tapes; may be given several times [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(
        long = "tape-dir",
        value_name = "DIR",
        default_value = tape_dir(),
        hide_default_value = true
    )]
    pub tape_dirs: Vec<PathBuf>,
    /// Each pod has a folder in the tape folder, NAMESPACE_NAME_UID, which says whose the tapes
    /// in it are; tapes beside these folders are refused. The Helm chart sets it.
    #[arg(long)]
    pub pod_folders: bool,
    /// Time between two reports, such as 250ms, between 50 ms and 60 s; the coordinator may set
    /// another.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration_within(REPORT_INTERVAL_MIN..=REPORT_INTERVAL_MAX),
        default_value = "1s"
    )]
    pub report_interval: Duration,
    /// Most bytes that the tapes of dead processes may take. The oldest are deleted first.
    #[arg(long, value_name = "BYTES", value_parser = byte_count, default_value = "8GiB")]
    pub dead_tape_bytes_max: u64,
    /// Time after which tapes of dead processes are deleted.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "24h")]
    pub dead_tape_age_max: Duration,
    /// Tapes rewound at the same time for a capture, at least 1. Each takes a core and memory for
    /// a copy of its live table.
    #[arg(skip = 2_usize)]
    pub rewinds_max: usize,
    /// Most bytes of memory that all work on tapes may take together, at least 512MiB: rewinds wait
    /// for their part, and a rank whose state takes more is left out of captures.
    #[arg(
        long,
        env = "MEMTAPE_MEMORY_BYTES_MAX",
        value_name = "BYTES",
        value_parser = byte_count_from(MEMORY_BYTES_MIN),
        default_value = "1GiB"
    )]
    pub memory_bytes_max: u64,
    /// Snapshots of captures held for uploading, together, in bytes, of that memory; when they are
    /// more, further rewinds wait.
    #[arg(skip = 512_u64 << 20)]
    pub upload_bytes_max: u64,
    /// Newest events that a capture carries for each device.
    #[arg(skip = TRACE_EVENTS_MAX)]
    pub trace_events_max: usize,
    /// Folder on a disk for data that waits until the coordinator answers [default:
    /// $STATE_DIRECTORY/spool, or /var/lib/memtape-agent/spool for root, or
    /// ~/.local/state/memtape/agent/spool].
    #[arg(
        long,
        env = "MEMTAPE_SPOOL_DIR",
        value_name = "DIR",
        default_value = spool_dir(),
        hide_default_value = true
    )]
    pub spool_dir: Option<PathBuf>,
    /// Most bytes in the spool folder; 0 turns the spool off. When it is full, step records are
    /// dropped first, then snapshots of captures, facts about ranks last.
    #[arg(
        long,
        env = "MEMTAPE_SPOOL_BYTES_MAX",
        value_name = "BYTES",
        value_parser = byte_count,
        default_value = "1GiB"
    )]
    pub spool_bytes_max: u64,
    /// The program py-spy: samples the DataLoader workers of a rank for 5 s when their memory
    /// grows, to name the line that they run most often [default: none].
    #[arg(long, env = "MEMTAPE_PY_SPY", value_name = "PROGRAM")]
    pub py_spy: Option<PathBuf>,
    /// Further options, variables and fields whose values are shown as [redacted] in the command
    /// lines of ranks, such as licence for --my-licence=…; passwords, tokens and keys are known
    /// [default: none].
    #[arg(long = "redact", value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_REDACT")]
    pub redacted_names: Vec<String>,
}

/// The coordinator on the same machine.
const COORDINATOR_DEFAULT: &str = "http://127.0.0.1:7771";

/// Smallest accepted [`Config::memory_bytes_max`].
const MEMORY_BYTES_MIN: u64 = 512 << 20;

/// Smallest accepted [`Config::spool_bytes_max`] of a spool.
const SPOOL_BYTES_MIN: u64 = 1 << 20;

/// Where the spool lies for root.
const SPOOL_DIR_OF_ROOT: &str = "/var/lib/memtape-agent/spool";

/// Shortest accepted [`Config::report_interval`].
pub(crate) const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Longest accepted [`Config::report_interval`].
pub(crate) const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(REPORT_INTERVAL_SECONDS_MAX);

/// Where tapes lie unless `MEMTAPE_DIR` says otherwise.
pub(crate) const TAPE_DIR_DEFAULT: &str = "/dev/shm/memtape";

impl Default for Config {
    /// The settings without any option; of the environment only what finds the folders.
    fn default() -> Self {
        let command = <Self as clap::Args>::augment_args(clap::Command::new("agent"));
        let command = command.mut_args(|arg| arg.env(None::<&'static str>)).no_binary_name(true);
        let matches = command.get_matches_from([""; 0]);
        Self::from_arg_matches(&matches).expect("every option has a default or is left out")
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn tape_dir() -> OsString {
    let set = std::env::var_os("MEMTAPE_DIR").filter(|value| !value.is_empty());
    set.unwrap_or_else(|| TAPE_DIR_DEFAULT.into())
}

/// Where a service of this user keeps its state; no default where that is unknown.
fn spool_dir() -> Resettable<OsStr> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let dir = if let Some(state) = variable("STATE_DIRECTORY") {
        Some(PathBuf::from(state).join("spool"))
    } else if rustix::process::geteuid().is_root() {
        Some(SPOOL_DIR_OF_ROOT.into())
    } else {
        let of_home = || Some(PathBuf::from(variable("HOME")?).join(".local/state"));
        let state = variable("XDG_STATE_HOME").map(PathBuf::from).or_else(of_home);
        state.map(|state| state.join("memtape/agent/spool"))
    };
    dir.map_or(Resettable::Reset, |dir| Resettable::Value(dir.into_os_string().into()))
}

impl Config {
    /// Memory for rewinds and for snapshots that wait: what the one census at a time and the one
    /// snapshot that is read from the spool leave.
    pub(crate) fn capture_bytes_max(&self) -> u64 {
        let others = CENSUS_BYTES_MAX.saturating_add(SNAPSHOT_BYTES_MAX as u64);
        self.memory_bytes_max.saturating_sub(others)
    }

    /// The folder of the spool; none where the spool is off.
    pub(crate) fn spool(&self) -> Option<&PathBuf> {
        self.spool_dir.as_ref().filter(|_| self.spool_bytes_max > 0)
    }

    /// Every mistake in the settings, one line each; empty when they are sound.
    pub fn mistakes(&self) -> Vec<String> {
        let mut addresses = self.coordinator.split(',');
        let is_tls = addresses.clone().all(|address| address.starts_with("https://"));
        let is_plain = addresses.all(|address| address.starts_with("http://"));
        let rules = [
            (self.node.trim().is_empty(), "--node is empty: give this node a name"),
            (self.tape_dirs.is_empty(), "--tape-dir is empty: name at least one folder"),
            (
                self.tape_dirs.iter().any(|path| path.is_file()),
                "--tape-dir has a file: name the folder that tapes are in",
            ),
            (
                self.py_spy.as_ref().is_some_and(|it| it.components().count() > 1 && !it.is_file()),
                "--py-spy is not a file: name the program, such as /usr/local/bin/py-spy",
            ),
            (self.rewinds_max == 0, "rewinds_max must be at least 1"),
            (self.upload_bytes_max == 0, "upload_bytes_max must be at least 1"),
            (
                self.spool().is_some() && self.spool_bytes_max < SPOOL_BYTES_MIN,
                "--spool-bytes-max must be at least 1 MiB",
            ),
            (
                !is_tls && !is_plain,
                "--coordinator must be a URL such as https://coordinator:7771, or several of one \
                 scheme, separated by commas",
            ),
            (
                is_tls && self.tls_dir.is_none(),
                "a coordinator with TLS wants this agent's certificate: name its folder with \
                 --tls-dir (`memtape tls issue` makes one)",
            ),
            (
                !is_tls && self.tls_dir.is_some(),
                "the certificate is for TLS: write the coordinator's address with https://",
            ),
        ];
        rules.iter().filter(|(broken, _)| *broken).map(|(_, line)| line.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(change: impl FnOnce(&mut Config), mistakes: &[&str]) {
        let mut config = Config::default();
        change(&mut config);
        let found = config.mistakes();
        assert_eq!(found.len(), mistakes.len(), "{found:?}");
        for (line, expected) in found.iter().zip(mistakes) {
            assert!(line.contains(expected), "{line:?} says nothing of {expected:?}");
        }
    }

    #[test]
    fn every_mistake_is_named() {
        check(|_| (), &[]);
        check(|config| config.node = " ".into(), &["--node"]);
        check(|config| config.coordinator = "10.0.0.1:7771".into(), &["URL"]);
        check(|config| config.coordinator = "https://c:7771".into(), &["certificate"]);
        check(|config| config.tls_dir = Some("/etc/memtape/tls".into()), &["https://"]);
        check(|config| config.py_spy = Some("/absent/py-spy".into()), &["--py-spy"]);
        let small = |config: &mut Config| config.spool_bytes_max = 1 << 10;
        check(
            |config| {
                config.spool_dir = Some("/spool".into());
                small(config);
            },
            &["--spool-bytes-max"],
        );
        check(
            |config| {
                config.spool_dir = None;
                small(config);
            },
            &[],
        );
        check(
            |config| {
                config.tape_dirs.clear();
                config.rewinds_max = 0;
                config.upload_bytes_max = 0;
            },
            &["--tape-dir", "rewinds_max", "upload_bytes_max"],
        );
    }
}

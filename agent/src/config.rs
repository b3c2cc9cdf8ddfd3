//! The settings of an agent, with their defaults.
//!
//! All values are checked before anything is opened, and every mistake is reported at once. The
//! bounds that are no matter of taste stand as constants beside the code that keeps them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use memtape_core::limits::{
    CENSUS_BYTES_MAX, REPORT_INTERVAL_SECONDS_MAX, SNAPSHOT_BYTES_MAX, TRACE_EVENTS_MAX,
};

/// Settings of one agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of this node, unique in the cluster. Default: the hostname.
    pub node: String,
    /// Where the coordinator listens, as `https://host:port`, or `http://` where it has no TLS.
    /// Default: `http://127.0.0.1:7771`.
    pub coordinator: String,
    /// Folder with this agent's certificate and key, and the authorities of the coordinator's
    /// certificate; read again when it changes. Default: none, for a coordinator without TLS.
    pub tls_dir: Option<PathBuf>,
    /// Address that answers `/healthz`, `/readyz` and `/metrics`, with counts alone, and
    /// `/node-check`: is GPU memory not given back? Default: none.
    pub health_listen: Option<SocketAddr>,
    /// TapeFolders searched for tapes (`*.tape`, not below). They need not exist yet. Default:
    /// `$MEMTAPE_DIR`, or else `/dev/shm/memtape`.
    pub tape_dirs: Vec<PathBuf>,
    /// Time between two looks at the tapes; a coordinator may ask for another one. Shorter finds
    /// a death sooner and costs more reports; longer than about a minute loses step records of
    /// fast jobs. Between 50 ms and 60 s. Default: 1 s.
    pub report_interval: Duration,
    /// Tapes of dead processes are deleted, oldest first, while together they occupy more bytes
    /// of memory than this. Too little loses the evidence before it is asked for; too much
    /// takes the memory from the next attempt. Default: 8 GiB.
    pub dead_tape_bytes_max: u64,
    /// Tapes of processes that have been dead for longer than this are deleted. Default: 24 h.
    pub dead_tape_age_max: Duration,
    /// Tapes rewound at the same time for a capture, at least 1. Each takes a core and memory for
    /// a copy of its live table. Default: 2.
    pub rewinds_max: usize,
    /// Memory that all work on tapes may take together, in bytes, at least 512 MiB: censuses,
    /// rewinds, encoding, and snapshots until they are uploaded. A rewind waits for its part of
    /// it; a rank whose state takes more than all of it has no part in a capture. Default: 1 GiB.
    pub memory_bytes_max: u64,
    /// Snapshots of captures held for uploading, together, in bytes, of that memory; when they are
    /// more, further rewinds wait. Default: 512 MiB.
    pub upload_bytes_max: u64,
    /// Newest events that a capture carries for each device. Default: 65,536.
    pub trace_events_max: usize,
    /// Folder of this agent's own, on a disk, for what has to be kept while no coordinator is
    /// there; none keeps nothing. Default: `$STATE_DIRECTORY/spool` where systemd gives one,
    /// `/var/lib/memtape-agent/spool` for root, else `$XDG_STATE_HOME/memtape/agent/spool` or
    /// `~/.local/state/memtape/agent/spool`.
    pub spool_dir: Option<PathBuf>,
    /// Bytes that may lie in that folder, at least 1 MiB. When it is full, step records are
    /// dropped first, then snapshots of captures, facts about ranks last. Default: 1 GiB.
    pub spool_bytes_max: u64,
    /// The program py-spy, by its path or its name in `$PATH`. With it, a capture samples the
    /// stacks of a rank's worker processes for some seconds, when the coordinator has found growth
    /// of their memory. The program runs with the agent's rights. Default: none, and nothing is
    /// sampled.
    pub py_spy: Option<PathBuf>,
    /// Options, variables and fields whose values are taken out of command lines before they leave
    /// the node, beside those that are known. Default: none.
    pub redacted_names: Vec<String>,
}

/// Smallest accepted [`Config::memory_bytes_max`].
const MEMORY_BYTES_MIN: u64 = 512 << 20;

/// Smallest accepted [`Config::spool_bytes_max`].
const SPOOL_BYTES_MIN: u64 = 1 << 20;

/// Where the spool lies for root.
const SPOOL_DIR_OF_ROOT: &str = "/var/lib/memtape-agent/spool";

/// Shortest accepted [`Config::report_interval`].
pub(crate) const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Longest accepted [`Config::report_interval`].
pub(crate) const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(REPORT_INTERVAL_SECONDS_MAX);

/// Where tapes lie unless `MEMTAPE_DIR` says otherwise.
pub(crate) const TAPE_DIR_DEFAULT: &str = "/dev/shm/memtape";

impl Config {
    /// Memory for rewinds and for snapshots that wait: what the one census at a time and the one
    /// snapshot that is read from the spool leave.
    pub(crate) fn capture_bytes_max(&self) -> u64 {
        let others = CENSUS_BYTES_MAX.saturating_add(SNAPSHOT_BYTES_MAX as u64);
        self.memory_bytes_max.saturating_sub(others)
    }
}

impl Default for Config {
    fn default() -> Self {
        let tape_dir = std::env::var_os("MEMTAPE_DIR").filter(|value| !value.is_empty());
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self {
            node: hostname,
            coordinator: "http://127.0.0.1:7771".to_string(),
            tls_dir: None,
            health_listen: None,
            tape_dirs: vec![tape_dir.unwrap_or_else(|| TAPE_DIR_DEFAULT.into()).into()],
            report_interval: Duration::from_secs(1),
            dead_tape_bytes_max: 8 << 30,
            dead_tape_age_max: Duration::from_secs(24 * 60 * 60),
            rewinds_max: 2,
            memory_bytes_max: 1 << 30,
            upload_bytes_max: 512 << 20,
            trace_events_max: TRACE_EVENTS_MAX,
            spool_dir: spool_dir(),
            spool_bytes_max: 1 << 30,
            py_spy: None,
            redacted_names: Vec::new(),
        }
    }
}

/// Where a service of this user keeps its state; none where that is unknown.
fn spool_dir() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(state) = variable("STATE_DIRECTORY") {
        return Some(PathBuf::from(state).join("spool"));
    }
    if rustix::process::geteuid().is_root() {
        return Some(SPOOL_DIR_OF_ROOT.into());
    }
    let of_user = variable("XDG_STATE_HOME").map(PathBuf::from);
    let state = of_user.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".local/state")))?;
    Some(state.join("memtape/agent/spool"))
}

impl Config {
    /// Every mistake in the settings, one line each; empty when they are sound.
    pub fn mistakes(&self) -> Vec<String> {
        let interval_is_sound =
            (REPORT_INTERVAL_MIN..=REPORT_INTERVAL_MAX).contains(&self.report_interval);
        let is_tls = self.coordinator.starts_with("https://");
        let rules = [
            (self.node.trim().is_empty(), "node is empty: give this node a name"),
            (self.tape_dirs.is_empty(), "tape_dirs is empty: name at least one folder"),
            (
                self.tape_dirs.iter().any(|path| path.is_file()),
                "tape_dirs has a file: name the folder that tapes are in",
            ),
            (!interval_is_sound, "report_interval must be between 50 ms and 60 s"),
            (
                self.py_spy.as_ref().is_some_and(|it| it.components().count() > 1 && !it.is_file()),
                "py_spy is not a file: name the program, such as /usr/local/bin/py-spy",
            ),
            (self.rewinds_max == 0, "rewinds_max must be at least 1"),
            (self.upload_bytes_max == 0, "upload_bytes_max must be at least 1"),
            (self.memory_bytes_max < MEMORY_BYTES_MIN, "memory_bytes_max must be at least 512 MiB"),
            (
                self.spool_dir.is_some() && self.spool_bytes_max < SPOOL_BYTES_MIN,
                "spool_bytes_max must be at least 1 MiB",
            ),
            (
                !is_tls && !self.coordinator.starts_with("http://"),
                "coordinator must be a URL such as https://coordinator:7771",
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
        check(|config| config.node = " ".into(), &["node"]);
        check(|config| config.coordinator = "10.0.0.1:7771".into(), &["URL"]);
        check(|config| config.coordinator = "https://c:7771".into(), &["certificate"]);
        check(|config| config.tls_dir = Some("/etc/memtape/tls".into()), &["https://"]);
        check(|config| config.report_interval = Duration::ZERO, &["report_interval"]);
        check(|config| config.py_spy = Some("/absent/py-spy".into()), &["py_spy"]);
        let small = |config: &mut Config| config.spool_bytes_max = 1 << 10;
        check(
            |config| {
                config.spool_dir = Some("/spool".into());
                small(config);
            },
            &["spool_bytes_max"],
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
                config.memory_bytes_max = 1 << 20;
            },
            &["tape_dirs", "rewinds_max", "upload_bytes_max", "memory_bytes_max"],
        );
    }
}

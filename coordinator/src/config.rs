//! The configuration of a coordinator, with its defaults.
//!
//! All values are checked before anything is opened, and every mistake is reported at once. The
//! bounds that are no matter of taste stand as constants beside the code that keeps them.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use memtape_core::incident::PAGE_WITHIN_SECONDS;
use memtape_core::limits::{
    CAPTURE_DEADLINE_SECONDS_MAX, RANKS_MAX, RANKS_PER_JOB_MAX, REPORT_INTERVAL_SECONDS_MAX,
};
use memtape_core::policy::Mode;
use memtape_core::{capacity, capture, detector};

use crate::restart::RestartConfig;
use crate::restart::webhook::is_http_url;
use crate::store;

/// Settings of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Address of gRPC, HTTP API and page, all on one port; port 0 takes a free one. One beyond the
    /// loopback needs `tls_dir` and `access_file`, or `is_insecure`. Default: `127.0.0.1:7771`.
    pub listen: SocketAddr,
    /// Folder with the port's certificate and key, and the authorities of its clients'
    /// certificates; read again when it changes. Default: none, and no TLS.
    pub tls_dir: Option<PathBuf>,
    /// File that says who gets which role over whose jobs; read again when it changes. Default:
    /// none, and everybody may do everything.
    pub access_file: Option<PathBuf>,
    /// The port may be reached from elsewhere without TLS or without roles. Default: false.
    pub is_insecure: bool,
    /// Address of a port that answers `/healthz` and `/readyz` alone, so that a flood of the main
    /// port does not fail them. Default: none.
    pub health_listen: Option<SocketAddr>,
    /// Names under which browsers and programs reach the page and the API, without ports; localhost
    /// and addresses always do. Default: none.
    pub hosts: Vec<String>,
    /// Folder of the store; made when it is not there. One coordinator at a time can have it.
    /// Default: `memtape-data`.
    pub data_dir: PathBuf,
    /// Bytes of memory that the coordinator may take: how many ranks it remembers follows from it.
    /// At least 64 MiB. Default: the limit of its cgroup, or the machine's memory.
    pub memory_bytes_max: Option<u64>,
    /// Refuse a folder without a store: one that should be there is lost. Default: false.
    pub expects_store: bool,
    /// How often agents shall report. Shorter finds growth and deaths sooner and costs more
    /// messages. Between 50 ms and 60 s. Default: 1 s.
    pub report_interval: Duration,
    /// When growth counts as such. Defaults: those of the detector.
    pub detector: detector::Limits,
    /// Deadline, least distance, reach and bytes of captures. Defaults: 30 s, 60 s, 256 steps,
    /// 16 GiB of one attempt in an hour.
    pub capture: capture::Limits,
    /// Certain growth that all ranks share pages when the memory is full within this time. Default:
    /// 12 h.
    pub page_within: Duration,
    /// When a capture is taken without growth and without a request. Defaults: after an OOM
    /// and a death, 8 failed `cudaMalloc` calls of a rank within a minute, 97 % of a device held,
    /// and every hour a healthy state, from step 300 on.
    pub triggers: capture::TriggerLimits,
    /// Snapshots of captures kept, together, in bytes. When they are more, the oldest captures that
    /// no open incident needs are deleted. Default: 64 GiB.
    pub snapshots_bytes_max: u64,
    /// Where snapshots of captures go, if not to the data folder: `s3://BUCKET/PREFIX`. Endpoint,
    /// region and credentials come from the usual `AWS_…` environment variables. Two coordinators
    /// must not share a prefix. Default: none.
    pub snapshots_url: Option<String>,
    /// Captures closed longer ago than this are deleted, unless an open incident needs them. Only
    /// time in which a coordinator runs counts.
    /// Default: 90 days.
    pub captures_age_max: Duration,
    /// Step records kept, in bytes on disk, give or take 64 MiB. When they are more, the oldest
    /// are deleted. Default: 64 GiB.
    pub steps_bytes_max: u64,
    /// Step records older than this are deleted, an hour of them at a time. Only time in which a
    /// coordinator runs counts. Default: 14 days.
    pub steps_age_max: Duration,
    /// Whether and how to ask the orchestrator for a restart.
    pub restart: RestartConfig,
    /// Where to send traces and metrics (OTLP over gRPC), as `http://host:4317`; none sends
    /// nothing. Default: none.
    pub otlp_endpoint: Option<String>,
}

/// Shortest and longest accepted [`Config::report_interval`].
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(REPORT_INTERVAL_SECONDS_MAX);

/// Smallest accepted [`Config::memory_bytes_max`].
const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Longest accepted deadline of a capture: agents keep snapshots in memory until then.
const DEADLINE_NS_MAX: u64 = CAPTURE_DEADLINE_SECONDS_MAX * 1_000_000_000;

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7771)),
            health_listen: None,
            tls_dir: None,
            access_file: None,
            is_insecure: false,
            hosts: Vec::new(),
            data_dir: PathBuf::from("memtape-data"),
            memory_bytes_max: None,
            expects_store: false,
            report_interval: Duration::from_secs(1),
            detector: detector::Limits::default(),
            page_within: Duration::from_secs(PAGE_WITHIN_SECONDS),
            capture: capture::Limits::default(),
            triggers: capture::TriggerLimits::default(),
            snapshots_bytes_max: 64 << 30,
            snapshots_url: None,
            captures_age_max: Duration::from_secs(90 * 24 * 3600),
            steps_bytes_max: 64 << 30,
            steps_age_max: Duration::from_secs(14 * 24 * 3600),
            restart: RestartConfig::default(),
            otlp_endpoint: None,
        }
    }
}

impl Config {
    /// How often agents report, in nanoseconds.
    pub(crate) fn interval_ns(&self) -> u64 {
        u64::try_from(self.report_interval.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Ranks of all jobs that are remembered.
    pub(crate) fn ranks_max(&self) -> usize {
        self.memory_bytes_max.map_or(RANKS_MAX, capacity::ranks_within)
    }

    /// The limits of captures, within what messages can name.
    pub(crate) fn capture_limits(&self) -> capture::Limits {
        let ranks_max = self.capture.ranks_max.min(RANKS_PER_JOB_MAX as usize);
        capture::Limits { ranks_max, ..self.capture.clone() }
    }

    /// Every mistake in the settings, one line each; empty when they are sound.
    pub fn mistakes(&self) -> Vec<String> {
        let interval_is_sound =
            (REPORT_INTERVAL_MIN..=REPORT_INTERVAL_MAX).contains(&self.report_interval);
        let deadline_is_sound = (1..=DEADLINE_NS_MAX).contains(&self.capture.deadline_ns);
        let snapshots_are_sound = self.snapshots_url.as_deref().is_none_or(store::is_snapshots_url);
        let restarts = self.restart.policy.restarts();
        let targets = self.restart.targets();
        let node_targets = self.restart.node_targets();
        let keeps_out = self.restart.policy.keep_out == Mode::Act;
        let is_open = !self.listen.ip().is_loopback() && !self.is_insecure;
        let rules = [
            (
                is_open && (self.tls_dir.is_none() || self.access_file.is_none()),
                "an address beyond the loopback needs --tls-dir and --access-file (`memtape tls \
                 init` makes both), or --insecure in a network that you trust",
            ),
            (
                self.tls_dir.is_some() && self.access_file.is_none(),
                "TLS without roles lets everybody in: name a file of roles with --access-file",
            ),
            (self.data_dir.as_os_str().is_empty(), "data_dir is empty: name a folder"),
            (
                self.memory_bytes_max.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN),
                "memory_bytes_max must be at least 64 MiB",
            ),
            (!interval_is_sound, "report_interval must be between 50 ms and 60 s"),
            (!deadline_is_sound, "the deadline of captures must be between 1 ns and 600 s"),
            (self.capture.ranks_max == 0, "the number of ranks in a capture must be at least 1"),
            (self.restart.timeout.is_zero(), "the timeout of restart targets must not be zero"),
            (
                !snapshots_are_sound,
                "the store of snapshots must be a URL such as s3://bucket/prefix",
            ),
            (
                restarts && targets.is_empty() && self.restart.signal.is_none(),
                "restarts are to be made, but no target is configured: name one, such as \
                 --restart-signal SIGTERM, or leave `restart` out of the remedies of a policy file",
            ),
            (
                keeps_out && node_targets.is_empty(),
                "nodes are to be kept out, but neither Slurm nor Kubernetes nor a command \
                 (--keep-out-command) is configured",
            ),
            (
                self.restart.signal.is_some() && !targets.is_empty(),
                "a signal and another restart target would restart a job twice: name one",
            ),
            (
                self.otlp_endpoint.as_deref().is_some_and(|url| !is_http_url(url)),
                "the OTLP endpoint must be a URL such as http://127.0.0.1:4317",
            ),
        ];
        let wrong = rules.iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, why)| *why);
        let all = targets.iter().chain(&node_targets);
        let of_targets = all.filter_map(|target| target.mistake());
        of_targets.chain(wrong).map(String::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::restart::webhook::Webhook;

    #[test]
    fn every_mistake_is_reported() {
        let check = |change: fn(&mut Config), expected: &[&str]| {
            let mut config = Config::default();
            change(&mut config);
            let mistakes = config.mistakes();
            assert_eq!(mistakes.len(), expected.len(), "{mistakes:?}");
            for (mistake, expected) in mistakes.iter().zip(expected) {
                assert!(mistake.contains(expected), "{mistake:?} has no {expected:?}");
            }
        };
        check(|_| {}, &[]);
        check(|config| config.data_dir = PathBuf::new(), &["data_dir"]);
        check(|config| config.report_interval = Duration::from_millis(1), &["report_interval"]);
        check(|config| config.capture.deadline_ns = 0, &["deadline"]);
        check(|config| config.memory_bytes_max = Some(1 << 20), &["memory_bytes_max"]);
        check(|config| config.restart.policy.terms.mode = Mode::Act, &["no target"]);
        check(|config| config.restart.policy.keep_out = Mode::Act, &["neither Slurm"]);
        check(
            |config| {
                config.restart.webhook = Some(Webhook { url: "ftp://x".to_string(), secret: None });
                config.otlp_endpoint = Some("collector:4317".to_string());
            },
            &["webhook", "OTLP"],
        );
        check(
            |config| {
                config.restart.keep_out_command = vec!["true".to_string()];
                config.restart.policy.keep_out = Mode::Act;
            },
            &[],
        );
    }
}

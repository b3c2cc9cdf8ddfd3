//! The settings of a coordinator: each field is an option of `memtape coordinator`, with its
//! variable of the environment, default and bounds; its sentence is the help of the option.
//!
//! Values are checked before anything is opened. The bounds that are no matter of taste stand as
//! constants beside the code that keeps them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::FromArgMatches as _;
use clap::builder::FalseyValueParser;
use memtape_core::capacity::{Division, MEMORY_BYTES_MIN};
use memtape_core::capture;
use memtape_core::limits::{
    CAPTURE_DEADLINE_SECONDS_MAX, RANKS_PER_JOB_MAX, REPORT_INTERVAL_SECONDS_MAX,
};
use memtape_core::paging::Horizons;
use memtape_core::placement::{Address, SHARDS_MAX};
use memtape_core::policy::Mode;
use memtape_core::settings::{
    byte_count, byte_count_from, duration, duration_text, duration_within,
};

use crate::restart::RestartConfig;
use memtape_store as store;

/// Settings of one coordinator.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Config {
    /// Address for agents, the API and the web page. One beyond this machine needs --tls-dir and
    /// --access-file.
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_LISTEN", default_value = "127.0.0.1:7771")]
    pub listen: SocketAddr,
    /// File that says who gets which role over whose jobs; read again when it changes [default:
    /// none, and everybody may do everything].
    #[arg(long, value_name = "FILE", env = "MEMTAPE_ACCESS_FILE")]
    pub access_file: Option<PathBuf>,
    /// Folder with the port's certificate and key, and the authorities of its clients'
    /// certificates; read again when it changes. None is no TLS.
    #[arg(skip)]
    pub tls_dir: Option<PathBuf>,
    /// Listen beyond this machine without TLS or without roles: everyone who reaches the port sees
    /// every job and can pretend to be an agent.
    #[arg(long = "insecure", env = "MEMTAPE_INSECURE", value_parser = FalseyValueParser::new())]
    pub is_insecure: bool,
    /// Address of a port that answers /healthz and /readyz alone [default: none]. The main port
    /// answers them, too.
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_COORDINATOR_HEALTH_LISTEN")]
    pub health_listen: Option<SocketAddr>,
    /// Folder whose Python files the page shows to operators, beside the lines of a job whose owner
    /// they belong to; in a cluster, one that the nodes share. May be repeated [default: none].
    #[arg(
        long = "source-dir",
        value_name = "DIR",
        env = "MEMTAPE_SOURCE_DIRS",
        value_delimiter = ':'
    )]
    pub source_dirs: Vec<PathBuf>,
    /// Names under which users reach the page and the API, beside localhost and IP addresses.
    #[arg(long = "host", value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_HOSTS")]
    pub hosts: Vec<String>,
    /// Folder of the store.
    #[arg(long, value_name = "DIR", env = "MEMTAPE_DATA_DIR", default_value = "memtape-data")]
    pub data_dir: PathBuf,
    /// Keep the store in this bucket in place of a folder: s3://BUCKET/PREFIX. Endpoint, region and
    /// keys are in the AWS_ variables. Of the coordinators with the same one, one works, and the
    /// others wait to take over. file:///PATH is for trying it out on one machine.
    #[arg(
        long = "cluster",
        value_name = "URL",
        env = "MEMTAPE_CLUSTER",
        conflicts_with = "data_dir"
    )]
    pub cluster_url: Option<String>,
    /// Shards of the cluster, 1 to 64 [default: 1]: as many coordinators work, and further ones
    /// wait. The first start decides. Each job is in one shard, by its name.
    #[arg(
        long,
        value_name = "NUMBER",
        env = "MEMTAPE_CLUSTER_SHARDS",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(SHARDS_MAX)),
        requires = "cluster_url"
    )]
    pub cluster_shards: Option<u16>,
    /// URL at which agents and the other coordinators of the cluster reach this one [default: that
    /// of --listen].
    #[arg(long, value_name = "URL", env = "MEMTAPE_CLUSTER_ADDRESS", requires = "cluster_url")]
    pub cluster_address: Option<String>,
    /// Keep the signs of life of the shards' owners in Leases of Kubernetes with this name, in the
    /// namespace of the pod [default: in the bucket]. The same for all coordinators of a cluster.
    #[arg(long, value_name = "NAME", env = "MEMTAPE_CLUSTER_LEASES", requires = "cluster_url")]
    pub cluster_leases: Option<String>,
    /// Name of this coordinator's pod: it has the label memtape.io/serves=true while the
    /// coordinator owns a shard.
    #[arg(long, value_name = "NAME", env = "MEMTAPE_CLUSTER_POD", requires = "cluster_leases")]
    pub cluster_pod: Option<String>,
    /// Write the tables of the shard's store into the bucket at this interval, 10 s at least, for
    /// questions about many jobs: Parquet files below PREFIX/tables [default: never].
    #[arg(
        long,
        value_name = "TIME",
        env = "MEMTAPE_CLUSTER_TABLES_EVERY",
        value_parser = duration_within(TABLES_INTERVAL_MIN..=TABLES_INTERVAL_MAX),
        requires = "cluster_url"
    )]
    pub cluster_tables_every: Option<Duration>,
    /// Most memory that the coordinator may take, at least 256 MiB [default: the limit of its
    /// cgroup, or the machine's memory], beside what it takes without any client. It has as many
    /// connections as have room in a part of it, and remembers as many ranks as in the rest.
    #[arg(long, value_name = "BYTES", value_parser = byte_count_from(MEMORY_BYTES_MIN))]
    pub memory_bytes_max: Option<u64>,
    /// Refuse to start without a store in the data folder, or without a cluster at the URL: one
    /// that should be there is lost.
    #[arg(
        long = "expect-store",
        env = "MEMTAPE_EXPECT_STORE",
        value_parser = FalseyValueParser::new()
    )]
    pub expects_store: bool,
    /// Time between two reports of an agent, between 50 ms and 60 s.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration_within(REPORT_INTERVAL_MIN..=REPORT_INTERVAL_MAX),
        default_value = "1s"
    )]
    pub report_interval: Duration,
    /// Time after which a capture is closed, even if ranks are missing, at most 600 s.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration_within(Duration::from_millis(1)..=CAPTURE_DEADLINE_MAX),
        default_value = time(capture::Limits::default().deadline_ns)
    )]
    pub capture_deadline: Duration,
    /// Page about growth that all ranks share (one rank without peers is all), or of host memory,
    /// when the memory is full within this time.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration,
        default_value = time(Horizons::default().page_seconds * 1_000_000_000)
    )]
    pub page_within: Duration,
    /// Make a ticket of growth that all ranks share (one rank without peers is all), or of host
    /// memory, when the memory is full within this time, or before the job itself ends.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration,
        default_value = time(Horizons::default().ticket_seconds * 1_000_000_000)
    )]
    pub ticket_within: Duration,
    /// Least time between two automatic captures of a job.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration,
        default_value = time(capture::Limits::default().interval_ns_min)
    )]
    pub capture_interval: Duration,
    /// Steps between a capture and the earlier state it is compared with.
    #[arg(
        long,
        value_name = "STEPS",
        default_value_t = capture::Limits::default().before_steps
    )]
    pub capture_before: u64,
    /// A node that has not answered a capture is asked again after this long.
    #[arg(skip = Duration::from_nanos(capture::Limits::default().retry_ns))]
    pub capture_retry: Duration,
    /// When a capture is taken without growth and without a request.
    #[arg(skip)]
    pub triggers: capture::TriggerLimits,
    /// Most bytes that the snapshots of captures may take. The oldest captures that no open
    /// incident needs are deleted first.
    #[arg(long, value_name = "BYTES", value_parser = byte_count, default_value = "64GiB")]
    pub snapshots_bytes_max: u64,
    /// Store snapshots here [default: in the data folder]: s3://BUCKET/PREFIX. Endpoint,
    /// region and credentials come from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on.
    /// Two coordinators must not share a prefix.
    #[arg(long, value_name = "URL", env = "MEMTAPE_SNAPSHOTS_URL")]
    pub snapshots_url: Option<String>,
    /// Time that captures are kept, unless an open incident needs them. Only time in which a
    /// coordinator runs counts.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "2160h")]
    pub captures_age_max: Duration,
    /// Most bytes that step records may take on disk, give or take 64 MiB. The owner who has most,
    /// on the node that has most, gives way.
    #[arg(long, value_name = "BYTES", value_parser = byte_count, default_value = "64GiB")]
    pub steps_bytes_max: u64,
    /// Time that step records are kept. Only time in which a coordinator runs counts.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "336h")]
    pub steps_age_max: Duration,
    /// Whether and how to ask the orchestrator for a restart.
    #[command(flatten)]
    pub restart: RestartConfig,
    /// URL that gets traces and metrics (OTLP over gRPC), such as http://host:4317 [default: none].
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

/// Shortest and longest accepted [`Config::report_interval`].
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(REPORT_INTERVAL_SECONDS_MAX);

/// Shortest and longest accepted [`Config::cluster_tables_every`].
const TABLES_INTERVAL_MIN: Duration = Duration::from_secs(10);
const TABLES_INTERVAL_MAX: Duration = Duration::from_secs(366 * 86_400);

/// Longest accepted deadline of a capture: agents keep snapshots in memory until then.
const CAPTURE_DEADLINE_MAX: Duration = Duration::from_secs(CAPTURE_DEADLINE_SECONDS_MAX);

/// A time in nanoseconds as an option writes it.
fn time(ns: u64) -> String {
    duration_text(Duration::from_nanos(ns))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Default for Config {
    /// The settings without any option, whatever the environment holds.
    fn default() -> Self {
        let command = <Self as clap::Args>::augment_args(clap::Command::new("coordinator"));
        let command = command.mut_args(|arg| arg.env(None::<&'static str>)).no_binary_name(true);
        let matches = command.get_matches_from([""; 0]);
        Self::from_arg_matches(&matches).expect("every option has a default or is left out")
    }
}

impl Config {
    /// How often agents report, in nanoseconds.
    pub(crate) fn interval_ns(&self) -> u64 {
        nanoseconds(self.report_interval)
    }

    /// URL at which others reach this coordinator.
    #[cfg(feature = "cluster")]
    pub(crate) fn address(&self) -> String {
        let scheme = if self.tls_dir.is_some() { "https" } else { "http" };
        let own = || format!("{scheme}://{}", self.listen);
        self.cluster_address.clone().unwrap_or_else(own)
    }

    /// The parts of the memory.
    pub(crate) fn memory(&self) -> Division {
        Division::of(self.memory_bytes_max)
    }

    /// The limits of captures, within what messages can name.
    pub(crate) fn capture_limits(&self) -> capture::Limits {
        capture::Limits {
            deadline_ns: nanoseconds(self.capture_deadline),
            interval_ns_min: nanoseconds(self.capture_interval),
            before_steps: self.capture_before,
            retry_ns: nanoseconds(self.capture_retry),
            ranks_max: RANKS_PER_JOB_MAX as usize,
            ..capture::Limits::default()
        }
    }

    /// How near the end of memory growth must be to page, or to be a ticket.
    pub(crate) fn horizons(&self) -> Horizons {
        Horizons {
            page_seconds: self.page_within.as_secs(),
            ticket_seconds: self.ticket_within.as_secs(),
        }
    }

    /// Every mistake in the settings, one line each; empty when they are sound.
    pub fn mistakes(&self) -> Vec<String> {
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
            (self.restart.kubernetes && !cfg!(feature = "kubernetes"), not_built!("Kubernetes")),
            (
                self.cluster_leases.is_some() && !cfg!(feature = "kubernetes"),
                not_built!("Kubernetes"),
            ),
            (self.snapshots_url.is_some() && !cfg!(feature = "s3"), not_built!("S3")),
            (self.cluster_url.is_some() && !cfg!(feature = "cluster"), not_built!("clusters")),
            (
                self.cluster_url.is_none()
                    && (self.cluster_shards.is_some() || self.cluster_tables_every.is_some()),
                "--cluster-shards and --cluster-tables-every are for a cluster: name it with \
                 --cluster",
            ),
            (
                self.cluster_url.is_some() && self.snapshots_url.is_some(),
                "a cluster keeps snapshots in its own bucket: leave out the store of snapshots",
            ),
            (self.otlp_endpoint.is_some() && !cfg!(feature = "otlp"), not_built!("OTLP")),
            (self.data_dir.as_os_str().is_empty(), "--data-dir is empty: name a folder"),
            (
                !self.source_dirs.iter().all(|folder| folder.is_absolute() && folder.is_dir()),
                "--source-dir names no folder that is there: name it with its absolute path",
            ),
            (
                !snapshots_are_sound,
                "the store of snapshots must be a URL such as s3://bucket/prefix",
            ),
            (
                restarts && targets.is_empty() && self.restart.signal.is_none(),
                "the policy restarts jobs, but no restart target is set: name one, such as \
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
                self.otlp_endpoint
                    .as_deref()
                    .is_some_and(|url| !url.starts_with("http://") && !url.starts_with("https://")),
                "the OTLP endpoint must be a URL such as http://127.0.0.1:4317",
            ),
        ];
        let all = rules.into_iter().chain(self.rules_of_address());
        all.filter(|(is_wrong, _)| *is_wrong).map(|(_, why)| why.to_string()).collect()
    }

    /// What is wrong with the URL that the other coordinators of a cluster get.
    fn rules_of_address(&self) -> [(bool, &'static str); 5] {
        let address = self.cluster_address.as_deref().and_then(Address::parse);
        // The port may be one that the kernel chooses.
        let own = format!("http://{}", SocketAddr::new(self.listen.ip(), 1));
        let has_own = self.cluster_address.is_none() && Address::parse(&own).is_some();
        [
            (
                self.cluster_url.is_some()
                    && self.cluster_address.is_none()
                    && self.listen.ip().is_unspecified()
                    || address.is_some_and(Address::is_unspecified),
                "agents and other coordinators cannot connect to an address of all interfaces: \
                 name this coordinator's own URL with --cluster-address",
            ),
            (
                self.cluster_url.is_some() && address.is_none() && !has_own,
                "--cluster-address must be a URL such as https://one:7771, with its port and \
                 nothing behind it",
            ),
            (
                address.is_some_and(|address| !address.is_https) && self.tls_dir.is_some(),
                "--cluster-address must begin with https://: --tls-dir gives this port TLS",
            ),
            (
                address.is_some_and(|address| address.is_https) && self.tls_dir.is_none(),
                "--cluster-address must begin with http://: without --tls-dir this port has no TLS",
            ),
            (
                address.is_some_and(Address::is_loopback) && !self.listen.ip().is_loopback(),
                "--cluster-address leads every other machine to itself: name a host or an address \
                 of this one, or listen on the loopback as well",
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        check(|config| config.data_dir = PathBuf::new(), &["--data-dir"]);
        check(|config| config.cluster_shards = Some(2), &["name it with --cluster"]);
        check(|config| config.cluster_tables_every = Some(Duration::from_secs(60)), &["--cluster"]);
        let check_address = |listen: &str, url: &str, tls: bool, expected: &[&str]| {
            let config = Config {
                listen: listen.parse().unwrap(),
                cluster_url: Some("s3://bucket/prefix".to_string()),
                cluster_address: Some(url.to_string()),
                tls_dir: tls.then(PathBuf::new),
                access_file: Some(PathBuf::new()),
                is_insecure: !tls,
                ..Config::default()
            };
            let mistakes = config.mistakes();
            assert_eq!(mistakes.len(), expected.len(), "{url}: {mistakes:?}");
            for (mistake, expected) in mistakes.iter().zip(expected) {
                assert!(mistake.contains(expected), "{mistake:?} has no {expected:?}");
            }
        };
        let (all, own) = ("0.0.0.0:7771", "127.0.0.1:7771");
        check_address(all, "http://one:7771", false, &[]);
        check_address(all, "https://10.0.0.1:7771", true, &[]);
        check_address(own, "http://127.0.0.1:7771", false, &[]);
        for url in ["one:7771", "https://one", "https://one:7771/", "https://me@one:7771", ""] {
            check_address(all, url, true, &["such as https://one:7771"]);
        }
        check_address(all, "http://one:7771", true, &["must begin with https://"]);
        check_address(all, "https://one:7771", false, &["must begin with http://"]);
        check_address(own, "http://0.0.0.0:7771", false, &["all interfaces"]);
        check_address(all, "http://[::]:7771", false, &["all interfaces"]);
        for url in ["http://127.0.0.1:7771", "http://localhost:7771", "http://[::1]:7771"] {
            check_address(all, url, false, &["leads every other machine to itself"]);
        }
        check(|config| config.restart.policy.rest.mode = Mode::Act, &["no restart target"]);
        check(|config| config.restart.policy.keep_out = Mode::Act, &["neither Slurm"]);
        check(|config| config.otlp_endpoint = Some("collector:4317".to_string()), &["OTLP"]);
        check(
            |config| {
                config.restart.keep_out_command = Some("true".to_string());
                config.restart.policy.keep_out = Mode::Act;
            },
            &[],
        );
    }
}

//! `memtape coordinator`: the service that runs once per cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::FalseyValueParser;
use memtape_coordinator::{Config, RestartConfig, Webhook};
use memtape_core::action::remedy::Signal;
use memtape_core::capture;
use memtape_core::policy::budgets::{Budget, Limits};
use memtape_core::policy::terms::Terms;
use memtape_core::policy::{Mode, Settings};

use serde_json::json;

use crate::args::{Hidden, Mistakes, byte_count, duration};
use crate::globals::Globals;
use crate::output;
use crate::policy_file;
use crate::runtime;
use crate::secret_file;

/// `memtape coordinator`.
#[derive(Debug, clap::Args)]
pub(crate) struct CoordinatorArgs {
    /// Address for agents, the API and the web page. One beyond this machine needs --tls-dir and
    /// --access-file.
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_LISTEN", default_value = "127.0.0.1:7771")]
    pub(crate) listen: SocketAddr,
    /// File that says who gets which role over whose jobs; read again when it changes [default:
    /// none, and everybody may do everything].
    #[arg(long, value_name = "FILE", env = "MEMTAPE_ACCESS_FILE")]
    pub(crate) access_file: Option<PathBuf>,
    /// Listen beyond this machine without TLS or without roles: everyone who reaches the port sees
    /// every job and can pretend to be an agent.
    #[arg(long, env = "MEMTAPE_INSECURE", value_parser = FalseyValueParser::new())]
    pub(crate) insecure: bool,
    /// Address of a port that answers /healthz and /readyz alone [default: none]. The main port
    /// answers them, too.
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_COORDINATOR_HEALTH_LISTEN")]
    pub(crate) health_listen: Option<SocketAddr>,
    /// Names under which users reach the page and the API, beside localhost and IP addresses.
    #[arg(long = "host", value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_HOSTS")]
    pub(crate) hosts: Vec<String>,
    /// Folder of the store.
    #[arg(long, value_name = "DIR", env = "MEMTAPE_DATA_DIR", default_value = "memtape-data")]
    pub(crate) data_dir: PathBuf,
    /// Most memory that the coordinator may take [default: the limit of its cgroup, or the
    /// machine's memory]. It remembers as many ranks as have room in it.
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) memory_bytes_max: Option<u64>,
    /// Refuse to start without a store in that folder: one that should be there is lost.
    #[arg(long, env = "MEMTAPE_EXPECT_STORE", value_parser = FalseyValueParser::new())]
    pub(crate) expect_store: bool,
    /// Time between two reports of an agent [default: 1s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) report_interval: Option<Duration>,
    /// Time after which a capture is closed, even if ranks are missing [default: 30s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) capture_deadline: Option<Duration>,
    /// Page about growth that all ranks share when the memory is full within this time [default:
    /// 12h].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) page_within: Option<Duration>,
    /// Least time between two automatic captures of a job [default: 60s].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) capture_interval: Option<Duration>,
    /// Steps between a capture and the earlier state it is compared with [default: 256].
    #[arg(long, value_name = "STEPS")]
    pub(crate) capture_before: Option<u64>,
    /// Most bytes that the snapshots of captures may take [default: 64GiB].
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) snapshots_bytes_max: Option<u64>,
    /// Store snapshots here [default: in the data folder]: s3://BUCKET/PREFIX. Endpoint,
    /// region and credentials come from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on.
    #[arg(long, value_name = "URL", env = "MEMTAPE_SNAPSHOTS_URL")]
    pub(crate) snapshots_url: Option<String>,
    /// Time that captures are kept [default: 2160h].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) captures_age_max: Option<Duration>,
    /// Most bytes that step records may take on disk [default: 64GiB].
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) steps_bytes_max: Option<u64>,
    /// Time that step records are kept [default: 336h].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) steps_age_max: Option<Duration>,
    /// File with the mode, remedies, limits and approval for each job and class [default: none].
    /// --restart, --restart-horizon, --restart-cooldown and the budgets are refused beside it.
    #[arg(long, value_name = "FILE", env = "MEMTAPE_POLICY", conflicts_with_all = POLICY_OPTIONS)]
    pub(crate) policy: Option<PathBuf>,
    /// Whether to act on a job before it runs out of memory [default: dry-run].
    #[arg(long, value_enum, env = "MEMTAPE_RESTART")]
    pub(crate) restart: Option<RestartMode>,
    /// Signal that restarts a job: every rank gets it at once, where the job was started with
    /// `memtape run --actions signal` [default: none]. Another restart target beside it is refused.
    #[arg(long, value_enum, value_name = "SIGNAL", env = "MEMTAPE_RESTART_SIGNAL")]
    pub(crate) restart_signal: Option<SignalName>,
    /// Command that restarts a job, run by sh -c with MEMTAPE_JOB, MEMTAPE_RANK and more set
    /// [default: none]. When it ends with another status than 0, nothing was restarted, and it is
    /// run again later.
    #[arg(long, value_name = "CMD", env = "MEMTAPE_RESTART_COMMAND")]
    pub(crate) restart_command: Option<String>,
    /// Environment variables that the commands to restart a job and to keep a node out get beside
    /// PATH, HOME, USER, LANG, LC_ALL and TZ [default: none].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_RESTART_ENV")]
    pub(crate) restart_env: Vec<String>,
    /// URL that gets a POST to restart a job [default: none]. The request is signed if there is a
    /// secret. Put a URL with a token in a file: every user can read command lines.
    #[arg(long, value_name = "URL", env = "MEMTAPE_RESTART_WEBHOOK", hide_env_values = true)]
    pub(crate) restart_webhook: Option<Hidden>,
    /// File with that URL.
    #[arg(long, value_name = "FILE", conflicts_with = "restart_webhook")]
    pub(crate) restart_webhook_file: Option<PathBuf>,
    /// File with the secret of the webhook's signature; overrides MEMTAPE_WEBHOOK_SECRET.
    #[arg(long, value_name = "FILE")]
    pub(crate) restart_webhook_secret_file: Option<PathBuf>,
    /// Secret of the webhook's signature. Not an option: every user can read command lines.
    #[arg(long, hide = true, env = "MEMTAPE_WEBHOOK_SECRET", hide_env_values = true)]
    pub(crate) restart_webhook_secret: Option<Hidden>,
    /// Restart by scontrol requeue, if the job runs on the node of the incident, as the user that
    /// the rank belongs to. The coordinator's user may requeue it: its owner, or a Slurm operator.
    #[arg(long, env = "MEMTAPE_RESTART_SLURM", value_parser = FalseyValueParser::new())]
    pub(crate) restart_slurm: bool,
    /// Restart by Kubernetes, with KUBECONFIG or the service account: suspend and resume the
    /// TrainJob, JobSet, Job or PyTorchJob of the pod, or its Workload of Kueue; else delete the
    /// pod, if a controller replaces it.
    #[arg(long, env = "MEMTAPE_RESTART_KUBERNETES", value_parser = FalseyValueParser::new())]
    pub(crate) restart_kubernetes: bool,
    /// Command that keeps a node out whose GPU memory was not given back, as the policy file says,
    /// run by sh -c with MEMTAPE_NODE, MEMTAPE_ACTION and MEMTAPE_WHY set [default: none]. When it
    /// ends with another status than 0, nothing was done. `deploy/ray` has one for Ray.
    #[arg(long, value_name = "CMD", env = "MEMTAPE_KEEP_OUT_COMMAND")]
    pub(crate) keep_out_command: Option<String>,
    /// Least time between two restarts of one job [default: 30m].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) restart_cooldown: Option<Duration>,
    /// Most restarts of one job a day [default: 3].
    #[arg(long, value_name = "COUNT")]
    pub(crate) restart_budget: Option<u32>,
    /// Most restarts of all jobs of one owner an hour [default: 5].
    #[arg(long, value_name = "COUNT")]
    pub(crate) restart_budget_owner: Option<u32>,
    /// Most restarts of all jobs an hour [default: 10].
    #[arg(long, value_name = "COUNT")]
    pub(crate) restart_budget_cluster: Option<u32>,
    /// Restart only if the device will be full within this time [default: 30m].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) restart_horizon: Option<Duration>,
    /// URL that gets traces and metrics (OTLP over gRPC), such as http://host:4317 [default: none].
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// The options whose values a policy file has.
const POLICY_OPTIONS: [&str; 6] = [
    "restart",
    "restart_cooldown",
    "restart_budget",
    "restart_budget_owner",
    "restart_budget_cluster",
    "restart_horizon",
];

/// A signal to every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum SignalName {
    /// For programs that handle it. Lightning under Slurm saves a checkpoint and requeues the job.
    /// A program without a handler ends.
    SigUsr1,
    /// For programs that handle it.
    SigUsr2,
    /// The process ends. torchrun starts the worker group again only with --max-restarts 1 or more
    /// (its default is 0).
    SigTerm,
    /// As Ctrl-C.
    SigInt,
}

impl From<SignalName> for Signal {
    fn from(name: SignalName) -> Self {
        match name {
            SignalName::SigUsr1 => Self::SigUsr1,
            SignalName::SigUsr2 => Self::SigUsr2,
            SignalName::SigTerm => Self::SigTerm,
            SignalName::SigInt => Self::SigInt,
        }
    }
}

/// What a restart target may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RestartMode {
    /// Do nothing.
    Off,
    /// Only show the actions that would be taken.
    DryRun,
    /// Take them: garbage collections, emptied caches, restarts.
    Act,
}

/// Runs the coordinator until Ctrl-C or SIGTERM. With `--json` it prints one object with its
/// address as soon as it listens.
/// Fails when settings are invalid, or the address or the store cannot be opened.
pub(crate) fn run(args: CoordinatorArgs, globals: &Globals) -> anyhow::Result<()> {
    let warnings = warnings(&args, std::env::args());
    let config = Config { tls_dir: globals.tls_dir.clone(), ..config(args)? };
    let json = globals.json;
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    runtime::log(json)?;
    for warning in warnings {
        eprintln!("memtape: warning: {warning}");
    }
    let scheme = if config.tls_dir.is_some() { "https" } else { "http" };
    let on_bound = move |address: SocketAddr| {
        let url = format!("{scheme}://{address}");
        let line = if json { json!({ "listening": url }).to_string() } else { url };
        // A closed stdout does not end the service.
        let _ = output::print(&line);
    };
    runtime::block_on(async move {
        memtape_coordinator::run(config, runtime::shutdown()?, on_bound).await
    })
}

pub(in crate::commands) fn config(args: CoordinatorArgs) -> anyhow::Result<Config> {
    let default = Config::default();
    let restart = restart(&args, default.restart)?;
    let capture = capture::Limits {
        deadline_ns: args.capture_deadline.map_or(default.capture.deadline_ns, nanoseconds),
        interval_ns_min: args.capture_interval.map_or(default.capture.interval_ns_min, nanoseconds),
        before_steps: args.capture_before.unwrap_or(default.capture.before_steps),
        ..default.capture
    };
    Ok(Config {
        listen: args.listen,
        tls_dir: default.tls_dir,
        health_listen: args.health_listen,
        access_file: args.access_file,
        is_insecure: args.insecure,
        hosts: args.hosts,
        data_dir: args.data_dir,
        memory_bytes_max: args.memory_bytes_max,
        expects_store: args.expect_store,
        report_interval: args.report_interval.unwrap_or(default.report_interval),
        detector: default.detector,
        page_within: args.page_within.unwrap_or(default.page_within),
        capture,
        triggers: default.triggers,
        snapshots_bytes_max: args.snapshots_bytes_max.unwrap_or(default.snapshots_bytes_max),
        snapshots_url: args.snapshots_url,
        captures_age_max: args.captures_age_max.unwrap_or(default.captures_age_max),
        steps_bytes_max: args.steps_bytes_max.unwrap_or(default.steps_bytes_max),
        steps_age_max: args.steps_age_max.unwrap_or(default.steps_age_max),
        restart,
        otlp_endpoint: args.otlp_endpoint,
    })
}

fn restart(args: &CoordinatorArgs, default: RestartConfig) -> anyhow::Result<RestartConfig> {
    let terms = Terms {
        mode: match args.restart {
            None => default.policy.terms.mode,
            Some(RestartMode::Off) => Mode::Off,
            Some(RestartMode::DryRun) => Mode::DryRun,
            Some(RestartMode::Act) => Mode::Act,
        },
        horizon_ns: args.restart_horizon.map_or(default.policy.terms.horizon_ns, nanoseconds),
        ..default.policy.terms
    };
    let budgets = budgets(args, default.policy.budgets);
    // Acting on nodes is asked for by the policy file alone.
    let keep_out = if terms.mode == Mode::Off { Mode::Off } else { default.policy.keep_out };
    let policy = Settings { terms, budgets, keep_out, ..default.policy };
    let file = args.policy.as_deref().map(|file| policy_file::read(file, &policy)).transpose()?;
    let policy = file.unwrap_or(policy);
    let shell = |command: &String| vec!["sh".to_string(), "-c".to_string(), command.clone()];
    let in_file = |file: &Option<PathBuf>| file.as_deref().map(secret_file::read).transpose();
    let of_option = |option: &Option<Hidden>| option.clone().map(|Hidden(text)| text);
    let secret = in_file(&args.restart_webhook_secret_file)?;
    let secret = secret.or_else(|| of_option(&args.restart_webhook_secret));
    let url = in_file(&args.restart_webhook_file)?;
    let url = url.or_else(|| of_option(&args.restart_webhook));
    Ok(RestartConfig {
        policy,
        command: args.restart_command.as_ref().map(shell).unwrap_or_default(),
        command_env: args.restart_env.clone(),
        webhook: url.map(|url| Webhook { url, secret }),
        slurm: args.restart_slurm,
        kubernetes: args.restart_kubernetes,
        keep_out_command: args.keep_out_command.as_ref().map(shell).unwrap_or_default(),
        signal: args.restart_signal.map(Signal::from),
        timeout: default.timeout,
    })
}

fn budgets(args: &CoordinatorArgs, default: Limits) -> Limits {
    let budget = |option: Option<u32>, default: Budget| Budget {
        restarts_max: option.unwrap_or(default.restarts_max),
        ..default
    };
    Limits {
        job: budget(args.restart_budget, default.job),
        owner: budget(args.restart_budget_owner, default.owner),
        cluster: budget(args.restart_budget_cluster, default.cluster),
        cooldown_ns: args.restart_cooldown.map_or(default.cooldown_ns, nanoseconds),
        retry_ns: default.retry_ns,
    }
}

/// What is said at the start about secrets that other users can read: in files, and in a URL on the
/// command line.
fn warnings(args: &CoordinatorArgs, mut words: impl Iterator<Item = String>) -> Vec<String> {
    let files = [&args.restart_webhook_file, &args.restart_webhook_secret_file];
    let files = files.into_iter().flatten().filter_map(|file| secret_file::warning(file));
    let url = args.restart_webhook.as_ref().map(|Hidden(url)| url).filter(|url| {
        let may_hold_secret = url.contains(['?', '@']);
        may_hold_secret && words.any(|word| word.contains(url.as_str()))
    });
    let url = url.map(|_| {
        "every user can read the URL of --restart-webhook in the list of processes: put it into \
         a file, and name that with --restart-webhook-file"
            .to_string()
    });
    files.chain(url).collect()
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;
    use crate::commands::{Cli, Command};

    fn parsed(line: &str) -> Config {
        let cli = Cli::try_parse_from(line.split(' ')).expect(line);
        let Command::Coordinator(args) = cli.command else { panic!("another command: {line}") };
        config(*args).expect("sound settings")
    }

    #[test]
    fn without_options_it_is_the_default() {
        assert_eq!(parsed("memtape coordinator"), Config::default());
    }

    #[test]
    fn secrets_that_others_can_read_are_reported_and_not_printed() {
        let check = |line: &str, is_on_line: bool, expected: usize| {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            let Command::Coordinator(args) = cli.command else { panic!("another: {line}") };
            let words = line.split(' ').map(String::from).filter(|_| is_on_line);
            let found = warnings(&args, words);
            assert_eq!(found.len(), expected, "{found:?}");
            assert!(!format!("{found:?}{args:?}").contains("hush"), "{args:?}");
        };
        check("memtape coordinator --restart-webhook http://x/?token=hush", true, 1);
        check("memtape coordinator --restart-webhook=http://me:hush@x/", true, 1);
        // The variable of the option is not on the command line.
        check("memtape coordinator --restart-webhook http://x/?token=hush", false, 0);
        check("memtape coordinator --restart-webhook http://x/restart", true, 0);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("url");
        std::fs::write(&file, "http://x/?token=hush").expect("written");
        let line = format!("memtape coordinator --restart-webhook-file {}", file.display());
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("set");
        check(&line, true, 1);
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
        check(&line, true, 0);
    }

    #[test]
    fn options_reach_the_settings() {
        let config = parsed(
            "memtape coordinator --listen 127.0.0.1:0 --data-dir d --capture-deadline 5s \
             --capture-before 64 --restart act --restart-command scontrol --restart-cooldown 1m \
             --restart-budget-owner 7 --restart-budget-cluster 9 --restart-webhook http://x",
        );
        assert_eq!(config.capture.deadline_ns, 5_000_000_000);
        assert_eq!(config.capture.before_steps, 64);
        assert_eq!(config.restart.policy.terms.mode, Mode::Act);
        assert_eq!(config.restart.policy.keep_out, Mode::DryRun);
        let budgets = &config.restart.policy.budgets;
        assert_eq!(budgets.cooldown_ns, 60_000_000_000);
        assert_eq!((budgets.job.restarts_max, budgets.owner.restarts_max), (3, 7));
        assert_eq!(budgets.cluster.restarts_max, 9);
        assert_eq!(config.restart.command, ["sh", "-c", "scontrol"]);
        assert_eq!(config.mistakes(), Vec::<String>::new());
        let slurm =
            parsed("memtape coordinator --restart act --restart-slurm --restart-kubernetes");
        assert!(slurm.restart.slurm && slurm.restart.kubernetes);
        assert_eq!(slurm.mistakes(), Vec::<String>::new());
        let keeps_out = parsed("memtape coordinator --restart act --keep-out-command drain");
        assert_eq!(keeps_out.restart.keep_out_command, ["sh", "-c", "drain"]);
        assert_eq!(keeps_out.mistakes().len(), 1, "it restarts no job: {:?}", keeps_out.mistakes());
        let without_hook = parsed("memtape coordinator --restart act").mistakes();
        assert_eq!(without_hook.len(), 1, "{without_hook:?}");
    }
}

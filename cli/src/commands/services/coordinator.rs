//! `memtape coordinator`: the service that runs once per cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memtape_coordinator::Config;
use memtape_core::policy::budgets::{Budget, Budgets};
use memtape_core::policy::rule::Rule;
use memtape_core::policy::{Mode, Settings};
use memtape_core::settings::{duration, duration_text};

use serde_json::json;

use crate::args::Mistakes;
use crate::globals::Globals;
use crate::output;
use crate::policy_file;
use crate::runtime;

/// `memtape coordinator`: the settings of the service, and those that come from files.
#[derive(Debug, clap::Args)]
pub(crate) struct CoordinatorArgs {
    #[command(flatten)]
    config: Config,
    /// File with the mode, remedies, limits and approval for each job and class [default: none].
    /// --restart, --restart-horizon, --restart-cooldown and the budgets are refused beside it.
    #[arg(long, value_name = "FILE", env = "MEMTAPE_POLICY", conflicts_with_all = POLICY_OPTIONS)]
    policy: Option<PathBuf>,
    /// Whether to act on a job before it runs out of memory.
    #[arg(
        long,
        env = "MEMTAPE_RESTART",
        value_parser = mode_parser(),
        default_value = Mode::DryRun.as_str()
    )]
    restart: Mode,
    /// Least time between two restarts of one job.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration,
        default_value = time(Settings::default().budgets.cool_down_ns)
    )]
    restart_cooldown: Duration,
    /// Most restarts of one job a day.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = Settings::default().budgets.job.restarts_max
    )]
    restart_budget: u32,
    /// Most restarts of all jobs of one owner an hour.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = Settings::default().budgets.owner.restarts_max
    )]
    restart_budget_owner: u32,
    /// Most restarts of all jobs an hour.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = Settings::default().budgets.cluster.restarts_max
    )]
    restart_budget_cluster: u32,
    /// Restart only if the device will be full within this time.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = duration,
        default_value = time(Rule::default().horizon_ns)
    )]
    restart_horizon: Duration,
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

/// Reads how far the policy may go, each mode with its sentence in the help.
fn mode_parser() -> impl TypedValueParser<Value = Mode> {
    let values = [
        (Mode::Off, "Do nothing"),
        (Mode::DryRun, "Only show the actions that would be taken"),
        (Mode::Act, "Take them: garbage collections, emptied caches, restarts"),
    ];
    let values = values.map(|(mode, about)| PossibleValue::new(mode.as_str()).help(about));
    PossibleValuesParser::new(values)
        .try_map(|name| name.parse::<Mode>().map_err(|_| "unknown mode"))
}

/// Runs the coordinator until Ctrl-C or SIGTERM. With `--json` it prints one object with its
/// address as soon as it listens.
/// Fails when settings are invalid, or the address or the store cannot be opened.
pub(crate) fn run(args: CoordinatorArgs, globals: &Globals) -> anyhow::Result<()> {
    let config = Config { tls_dir: globals.tls_dir.clone(), ..config(args)? };
    let json = globals.json;
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    runtime::log(json)?;
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

/// The settings of the service, with what the files hold.
/// Fails when a file cannot be read.
pub(in crate::commands) fn config(mut args: CoordinatorArgs) -> anyhow::Result<Config> {
    args.config.restart.policy = policy(&args)?;
    Ok(args.config)
}

fn policy(args: &CoordinatorArgs) -> anyhow::Result<Settings> {
    if let Some(file) = &args.policy {
        return policy_file::read(file);
    }
    let Settings { rules, rest, budgets, keep_out } = args.config.restart.policy.clone();
    let budget = |restarts_max, default: Budget| Budget { restarts_max, ..default };
    let budgets = Budgets {
        job: budget(args.restart_budget, budgets.job),
        owner: budget(args.restart_budget_owner, budgets.owner),
        cluster: budget(args.restart_budget_cluster, budgets.cluster),
        cool_down_ns: nanoseconds(args.restart_cooldown),
        ..budgets
    };
    let (mode, horizon_ns) = (args.restart, nanoseconds(args.restart_horizon));
    // Acting on nodes is asked for by the policy file alone.
    let keep_out = if mode == Mode::Off { Mode::Off } else { keep_out };
    Ok(Settings { rules, rest: Rule { mode, horizon_ns, ..rest }, budgets, keep_out })
}

/// A time in nanoseconds as an option writes it.
fn time(ns: u64) -> String {
    duration_text(Duration::from_nanos(ns))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::commands::{Cli, Command};

    fn parsed(line: &str) -> Config {
        let cli = Cli::try_parse_from(line.split(' ')).expect(line);
        let Command::Coordinator(args) = cli.command else { panic!("another command: {line}") };
        config(*args).expect("sound settings")
    }

    #[test]
    fn options_left_out_have_their_defaults() {
        assert_eq!(parsed("memtape coordinator"), Config::default());
    }

    #[test]
    fn options_reach_the_settings() {
        let config = parsed(
            "memtape coordinator --restart act --restart-command scontrol --restart-cooldown 1m \
             --restart-budget-owner 7 --restart-budget-cluster 9",
        );
        assert_eq!(config.restart.policy.rest.mode, Mode::Act);
        assert_eq!(config.restart.policy.keep_out, Mode::DryRun);
        let budgets = &config.restart.policy.budgets;
        assert_eq!(budgets.cool_down_ns, 60_000_000_000);
        assert_eq!((budgets.job.restarts_max, budgets.owner.restarts_max), (3, 7));
        assert_eq!(budgets.cluster.restarts_max, 9);
        assert_eq!(config.restart.command.as_deref(), Some("scontrol"));
        assert_eq!(config.mistakes(), Vec::<String>::new());
        let slurm =
            parsed("memtape coordinator --restart act --restart-slurm --restart-kubernetes");
        assert!(slurm.restart.slurm && slurm.restart.kubernetes);
        assert_eq!(slurm.mistakes(), Vec::<String>::new());
        let keeps_out = parsed("memtape coordinator --restart act --keep-out-command drain");
        assert_eq!(keeps_out.restart.keep_out_command.as_deref(), Some("drain"));
        assert_eq!(keeps_out.mistakes().len(), 1, "it restarts no job: {:?}", keeps_out.mistakes());
        let without_hook = parsed("memtape coordinator --restart act").mistakes();
        assert_eq!(without_hook.len(), 1, "{without_hook:?}");
    }
}

//! `memtape coordinator`: the service that runs once per cluster.

use std::net::SocketAddr;
use std::time::Duration;

use memtape_coordinator::{Config, RestartConfig, Webhook};
use memtape_core::capture;
use memtape_core::policy::{Mode, Settings};
use serde_json::json;

use crate::args::{CoordinatorArgs, RestartMode};
use crate::{Mistakes, output};

use super::service;

/// Runs the coordinator until it is asked to stop. With `--json`, one object with the address is
/// printed as soon as it listens.
///
/// # Errors
/// When the address or the store cannot be had, or settings make no sense.
pub(crate) fn run(args: CoordinatorArgs, json: bool) -> anyhow::Result<()> {
    let config = config(args);
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(Mistakes(mistakes).into());
    }
    service::log(json)?;
    let on_bound = move |address: SocketAddr| {
        let url = format!("http://{address}");
        let line = if json { json!({ "listening": url }).to_string() } else { url };
        // Nobody may be reading; the service matters more.
        let _ = output::print(&line);
    };
    service::block_on(async move {
        memtape_coordinator::run(config, service::shutdown()?, on_bound).await
    })
}

fn config(args: CoordinatorArgs) -> Config {
    let default = Config::default();
    let restart = restart(&args, default.restart);
    let capture = capture::Limits {
        deadline_ns: args.capture_deadline.map_or(default.capture.deadline_ns, nanoseconds),
        interval_ns_min: args.capture_interval.map_or(default.capture.interval_ns_min, nanoseconds),
        before_steps: args.capture_before.unwrap_or(default.capture.before_steps),
        ..default.capture
    };
    Config {
        listen: args.listen,
        data_dir: args.data_dir,
        report_interval: args.report_interval.unwrap_or(default.report_interval),
        detector: default.detector,
        capture,
        triggers: default.triggers,
        bodies_bytes_max: args.bodies_bytes_max.unwrap_or(default.bodies_bytes_max),
        bodies_url: args.bodies_url,
        captures_age_max: args.captures_age_max.unwrap_or(default.captures_age_max),
        steps_bytes_max: args.steps_bytes_max.unwrap_or(default.steps_bytes_max),
        steps_age_max: args.steps_age_max.unwrap_or(default.steps_age_max),
        restart,
        otlp_endpoint: args.otlp_endpoint,
    }
}

fn restart(args: &CoordinatorArgs, default: RestartConfig) -> RestartConfig {
    let policy = Settings {
        mode: match args.restart {
            RestartMode::Off => Mode::Off,
            RestartMode::DryRun => Mode::DryRun,
            RestartMode::Act => Mode::Act,
        },
        cooldown_ns: args.restart_cooldown.map_or(default.policy.cooldown_ns, nanoseconds),
        budget: args.restart_budget.unwrap_or(default.policy.budget),
        horizon_ns: args.restart_horizon.map_or(default.policy.horizon_ns, nanoseconds),
        ..default.policy
    };
    let shell = |command: &String| vec!["sh".to_string(), "-c".to_string(), command.clone()];
    let secret = args.restart_webhook_secret.clone();
    RestartConfig {
        policy,
        command: args.restart_command.as_ref().map(shell).unwrap_or_default(),
        webhook: args.restart_webhook.clone().map(|url| Webhook { url, secret }),
        timeout: default.timeout,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(line: &str) -> Config {
        let cli = Cli::try_parse_from(line.split(' ')).expect(line);
        let Command::Coordinator(args) = cli.command else { panic!("another command: {line}") };
        config(*args)
    }

    #[test]
    fn without_options_it_is_the_default() {
        assert_eq!(parsed("memtape coordinator"), Config::default());
    }

    #[test]
    fn options_reach_the_settings() {
        let config = parsed(
            "memtape coordinator --listen 127.0.0.1:0 --data-dir d --capture-deadline 5s \
             --capture-before 64 --restart act --restart-command scontrol --restart-cooldown 1m \
             --restart-webhook http://x",
        );
        assert_eq!(config.capture.deadline_ns, 5_000_000_000);
        assert_eq!(config.capture.before_steps, 64);
        assert_eq!(config.restart.policy.mode, Mode::Act);
        assert_eq!(config.restart.policy.cooldown_ns, 60_000_000_000);
        assert_eq!(config.restart.command, ["sh", "-c", "scontrol"]);
        assert_eq!(config.mistakes(), Vec::<String>::new());
        let without_hook = parsed("memtape coordinator --restart act").mistakes();
        assert_eq!(without_hook.len(), 1, "{without_hook:?}");
    }
}

//! `memtape coordinator`: the service that runs once per cluster.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use memtape_coordinator::Config;
use memtape_core::policy::rule::Rule;
use memtape_core::policy::{Mode, Settings};

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
    /// --restart is refused beside it.
    #[arg(long, value_name = "FILE", env = "MEMTAPE_POLICY", conflicts_with = "restart")]
    policy: Option<PathBuf>,
    /// Whether to act on a job before it runs out of memory.
    #[arg(
        long,
        env = "MEMTAPE_RESTART",
        value_parser = mode_parser(),
        default_value = Mode::DryRun.as_str()
    )]
    restart: Mode,
}

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
    let policy = args.config.restart.policy.clone();
    let mode = args.restart;
    // Acting on nodes is asked for by the policy file alone.
    let keep_out = if mode == Mode::Off { Mode::Off } else { policy.keep_out };
    Ok(Settings { rest: Rule { mode, ..policy.rest }, keep_out, ..policy })
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
        let config = parsed("memtape coordinator --restart act --restart-command scontrol");
        assert_eq!(config.restart.policy.rest.mode, Mode::Act);
        assert_eq!(config.restart.policy.keep_out, Mode::DryRun);
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

//! `memtape`: the one binary. Runs training with the recorder inside, runs the services, asks them.
//!
//! This file parses the command line, starts the one command, and turns its error into one line
//! on stderr and an exit code: 0 is success, 1 a failure, 64 a command line or setting that makes
//! no sense. A reader that went away (`memtape jobs | head`) is success.
//! Commands are in `commands/`, the demo's machinery in `demo/`; nothing here decides anything.

mod analysis;
mod args;
mod client;
mod clock;
mod collectives;
mod commands;
mod demo;
mod export;
mod ledger;
mod library;
mod output;
mod parent;
mod ranks;
mod render;
mod snapshots;
mod tape_file;

use std::process::ExitCode;

use args::{Cli, Command};
use clap::Parser;
use clap::error::ErrorKind;

/// Exit code for a bad command line or setting (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage_error(&error),
    };
    match start(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("memtape: {}", output::one_line(&format!("{error:#}")));
            ExitCode::from(if error.is::<Mistakes>() { EXIT_USAGE } else { 1 })
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    if let Some(parent) = cli.die_with_parent {
        parent::die_with(parent, &cli.command)?;
    }
    // One process-wide choice of TLS implementation, before any HTTP client is made. It fails
    // only when it was made before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (json, coordinator) = (cli.json, cli.coordinator);
    let client = || client::Client::new(&coordinator);
    match cli.command {
        Command::Run(args) => commands::run::run(args, json),
        Command::Agent(args) => commands::agent::run(args, &coordinator, json),
        Command::Coordinator(args) => commands::coordinator::run(*args, json),
        Command::Store(command) => commands::store::run(&command, json),
        Command::Demo(args) => demo::run(args, json),
        Command::DemoRank(args) => demo::training::run(args),
        Command::Tape(args) => commands::tape::run(&args, json),
        Command::Analyze(args) => commands::analyze::run(&args, json),
        Command::Diff(args) => commands::diff::run(&args, json),
        Command::Export(args) => commands::export::run(&args, client()?, json),
        Command::Jobs => commands::list::jobs(client()?, json),
        Command::Ranks(args) => commands::list::ranks(args.job.as_deref(), client()?, json),
        Command::Incidents(args) => commands::list::incidents(&args, client()?, json),
        Command::Captures(args) => commands::list::captures(&args, client()?, json),
        Command::Show(args) => commands::show::run(&args, client()?, json),
        Command::Capture(args) => commands::capture::run(&args, client()?, json),
    }
}

/// Settings that make no sense, one line each.
#[derive(Debug)]
struct Mistakes(Vec<String>);

impl std::fmt::Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("; "))
    }
}

impl std::error::Error for Mistakes {}

fn usage_error(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return match output::print(&error.to_string()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprintln!("{error}");
        return ExitCode::from(EXIT_USAGE);
    }
    eprintln!("memtape: {}", args::mistake(error));
    ExitCode::from(EXIT_USAGE)
}

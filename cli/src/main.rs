//! `memtape`: the one binary. Runs training with the recorder inside, runs the services, asks them.
//!
//! This file parses the command line, starts the one command, and turns its error into one line
//! on stderr and an exit code: 0 is success, 1 a failure, 64 a command line or setting that makes
//! no sense, 126 and 127 what shells say about a command that `memtape run` cannot start.
//! A closed pipe (`memtape jobs | head`) is success.
//! Commands are in `commands/`, the demo's machinery in `demo/`.

mod args;
mod client;
mod clock;
mod commands;
mod demo;
mod export;
mod globals;
mod library;
mod output;
mod parent;
mod plain_file;
mod policy_file;
mod python;
mod read;
#[cfg(test)]
mod reference;
mod render;
mod report;
mod room;
mod runtime;
mod secret_file;
mod terminal;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ColorChoice, FromArgMatches};

use crate::args::Mistakes;
use crate::commands::Cli;
use crate::commands::command_line::{command_line, refuse_meaningless};
use crate::commands::run::NotStarted;

/// Exit code for a bad command line or setting (`EX_USAGE` of sysexits).
const EXIT_USAGE: u8 = 64;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = command_line().try_get_matches_from(&words).and_then(|matches| {
        let meaningless = refuse_meaningless(&matches);
        Ok((Cli::from_arg_matches(&matches)?, meaningless))
    });
    let started = match parsed {
        Ok((cli, meaningless)) => meaningless.map_err(Into::into).and_then(|()| start(cli)),
        Err(error) => {
            let words = words.iter().map(|word| word.to_string_lossy().into_owned());
            return usage_error(&error, &words.collect::<Vec<_>>());
        }
    };
    match started {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Stderr may be closed: the exit code stays.
            let _ = writeln!(std::io::stderr(), "memtape: {}", output::error_line(&error));
            ExitCode::from(exit_code(&error))
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    if let Some(parent) = cli.globals.die_with_parent {
        parent::die_with(parent, &cli.command)?;
    }
    terminal::decide(cli.globals.color, cli.globals.json);
    // One process-wide choice of TLS implementation, before any HTTP client is made. It fails
    // only when it was made before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    cli.command.run(&cli.globals)
}

fn exit_code(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<NotStarted>() {
        Some(not_started) => not_started.exit_code(),
        None if error.is::<Mistakes>() => EXIT_USAGE,
        None => 1,
    }
}

fn usage_error(error: &clap::Error, words: &[String]) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        terminal::decide(ColorChoice::Auto, false);
        let text = error.render();
        let text = match terminal::is_coloured() {
            true => text.ansi().to_string(),
            false => text.to_string(),
        };
        return match output::print_as_it_is(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let is_bare = error.kind() == ErrorKind::MissingSubcommand && words.len() < 2;
    if is_bare || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let help = if is_bare { command_line().render_help() } else { error.render() };
        // The exit code says that nothing was done; a closed stdout changes nothing.
        let _ = output::print_as_it_is(&help.to_string());
        return ExitCode::from(EXIT_USAGE);
    }
    eprintln!("memtape: {}", args::mistake(error, &command_line(), words));
    ExitCode::from(EXIT_USAGE)
}

//! Any words on the command line: each is parsed, or refused in one line.
//!
//! The words are made from the options that there are, with values that parsers fear. What a
//! service makes of the accepted ones is settings, or a list of mistakes.

use clap::{ArgAction, FromArgMatches};
use proptest::prelude::*;

use super::command_line::{command_line, refuse_meaningless};
use super::services::coordinator;
use super::{Cli, Command};
use crate::args::mistake;

/// Values at the edge of what a parser takes.
const VALUES: [&str; 26] = [
    "",
    "0",
    "1",
    "-1",
    "60s",
    "24h",
    "18446744073709551615",
    "18446744073709551615ms",
    "18446744073709551s",
    "213503982334d",
    "99999999999999999999",
    "16777215TiB",
    "8GiB",
    "1e308",
    "NaN",
    "act",
    "127.0.0.1:0",
    "[::]:65536",
    "http://[",
    "https://u:p@h:1/?q=%00",
    "file:///",
    "a,b,,c",
    "=",
    "--",
    "\u{202e}\u{0}\n",
    "ä/../🦀",
];

/// The command with this number among those without commands below, and the words that name it.
fn named(whole: &clap::Command, number: usize) -> (Vec<String>, &clap::Command) {
    let mut found = Vec::new();
    let mut open = vec![(Vec::new(), whole)];
    while let Some((words, command)) = open.pop() {
        if command.get_subcommands().next().is_none() {
            found.push((words, command));
            continue;
        }
        for below in command.get_subcommands() {
            open.push(([words.clone(), vec![below.get_name().to_string()]].concat(), below));
        }
    }
    found.swap_remove(number % found.len())
}

fn check(number: usize, choices: &[(usize, usize, String)]) -> Result<(), TestCaseError> {
    let whole = command_line();
    let (path, command) = named(&whole, number);
    let options: Vec<&clap::Arg> = command.get_arguments().collect();
    let mut words = [vec!["memtape".to_string()], path].concat();
    for (option, value, text) in choices {
        let value = VALUES.get(*value).map_or(text.clone(), |value| (*value).to_string());
        let Some(option) = options.get(*option % options.len().max(1)) else { continue };
        match (option.get_long(), option.get_action()) {
            (Some(long), ArgAction::Set | ArgAction::Append) => {
                words.push(format!("--{long}={value}"));
            }
            (Some(long), _) => words.push(format!("--{long}")),
            (None, _) => words.push(value),
        }
    }
    let parsed = command_line().try_get_matches_from(&words).and_then(|matches| {
        // Refused or not, the words are read.
        let _ = refuse_meaningless(&matches);
        Cli::from_arg_matches(&matches)
    });
    match parsed {
        Err(error) => {
            let line = mistake(&error, &whole, &words);
            prop_assert!(!line.contains('\n') && !line.is_empty(), "{words:?}: {line:?}");
        }
        Ok(Cli { command: Command::Coordinator(args), .. }) => {
            if let Ok(config) = coordinator::config(*args) {
                lines(&config.mistakes())?;
            }
        }
        Ok(Cli { command: Command::Agent(config), .. }) => lines(&config.mistakes())?,
        Ok(_) => {}
    }
    Ok(())
}

fn lines(mistakes: &[String]) -> Result<(), TestCaseError> {
    for line in mistakes {
        prop_assert!(!line.is_empty() && !line.contains('\n'), "{line:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_words_are_parsed_or_refused_in_one_line(
        number in any::<usize>(),
        choices in prop::collection::vec((any::<usize>(), 0..32_usize, ".{0,12}"), 0..6),
    ) {
        check(number, &choices)?;
    }
}

//! The whole command line: the options of many commands, only where they mean something.
//!
//! The options of [`crate::globals`] are accepted before and after the name of a command. A command
//! in which one means nothing does not show it, and refuses it: see [`meaningless`].

use clap::builder::{OsStr, Resettable};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory};

use super::Cli;
use crate::args::Mistakes;

/// The options that mean nothing for a command below `memtape store`: a backup asks a coordinator.
fn meaningless_for_store(command: &str) -> &'static [&'static str] {
    match command {
        "backup" | "export" => &["color"],
        _ => &["coordinator", "tls_dir", "token_file", "color"],
    }
}

/// The options that mean nothing for a command.
fn meaningless(command: &str) -> &'static [&'static str] {
    match command {
        "run" => &["color"],
        "tls" => &["coordinator", "tls_dir", "token_file", "color"],
        "coordinator" => &["coordinator", "token_file", "color"],
        "agent" => &["token_file", "color"],
        "store" => &["color"],
        "export" | "report" => &["color"],
        "demo" | "tape" => &["coordinator", "tls_dir", "token_file"],
        "completions" | "help" => &["coordinator", "tls_dir", "token_file", "json", "color"],
        _ => &[],
    }
}

/// What `--json` does, where it is not what it does elsewhere.
fn json_help(command: &str) -> Option<&'static str> {
    match command {
        "agent" | "coordinator" => Some("Log lines of JSON instead of text"),
        "run" => Some("Before the command starts, print one JSON object to stderr: folder, names"),
        "demo" => Some("Print lines of JSON instead of text"),
        _ => None,
    }
}

/// The whole command line, with each option only where it means something.
pub(crate) fn command_line() -> clap::Command {
    let globals = Cli::command();
    let mut command = globals.clone();
    let names: Vec<String> = command.get_subcommands().map(|it| it.get_name().into()).collect();
    for name in &names {
        command = command.mut_subcommand(name, |mut of| {
            for &option in meaningless(name) {
                // Of two options of one id, the one of the subcommand applies there.
                of = of.arg(hidden(option, &globals));
            }
            if name == "store" {
                of = of.mut_subcommands(|below| {
                    let options = meaningless_for_store(below.get_name());
                    options.iter().fold(below, |below, option| below.arg(hidden(option, &globals)))
                });
            }
            match json_help(name) {
                Some(help) => of.arg(flag("json").help(help)),
                None => of,
            }
        });
    }
    without_empty_variables(command)
}

/// The command without its variables that are empty: they count as absent.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let value = |arg: &Arg| arg.get_env().and_then(std::env::var_os);
    let checked = |arg: Arg| match value(&arg).is_some_and(|value| value.is_empty()) {
        true => arg.env(Resettable::<OsStr>::Reset),
        false => arg,
    };
    command.mut_args(checked).mut_subcommands(without_empty_variables)
}

fn flag(id: &'static str) -> Arg {
    Arg::new(id).long(id).global(true).action(ArgAction::SetTrue)
}

/// The option of the globals with this id, which parses its value alike.
fn hidden(id: &'static str, globals: &clap::Command) -> Arg {
    let known = globals.get_arguments().find(|known| known.get_id() == id);
    let parser = known.map(|known| known.get_value_parser().clone());
    let option = match id {
        "json" => flag(id),
        _ => Arg::new(id).long(id.replace('_', "-")).global(true).value_name("VALUE"),
    };
    match parser {
        Some(parser) => option.value_parser(parser),
        None => option,
    }
    .hide(true)
}

/// Refuses an option that was written in front of or behind a command in which it means nothing.
/// The environment may set it for other commands.
pub(crate) fn refuse_meaningless(matches: &ArgMatches) -> Result<(), Mistakes> {
    let Some((name, below)) = matches.subcommand() else { return Ok(()) };
    let lowest = below.subcommand().filter(|_| name == "store");
    let (shown, options) = match lowest {
        Some((lower, _)) => (format!("store {lower}"), meaningless_for_store(lower)),
        None => (name.to_string(), meaningless(name)),
    };
    let levels = [Some(matches), Some(below), lowest.map(|(_, matches)| matches)];
    let is_written = |id: &str| {
        let mut levels = levels.iter().flatten();
        levels.any(|it| it.value_source(id) == Some(ValueSource::CommandLine))
    };
    match options.iter().find(|id| is_written(id)) {
        Some(id) => Err(Mistakes::one(format!(
            "--{option} means nothing for memtape {shown}: leave it out; see memtape {shown} \
             --help",
            option = id.replace('_', "-")
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help_of(name: &str) -> String {
        let mut command = command_line();
        command.build();
        let found = command.find_subcommand_mut(name).expect(name);
        found.render_long_help().to_string()
    }

    #[test]
    fn help_shows_options_only_where_they_mean_something() {
        for name in ["demo", "tape", "coordinator"] {
            assert!(!help_of(name).contains("--coordinator"), "{name}: {}", help_of(name));
        }
        let with_coordinator =
            ["jobs", "ranks", "lines", "incidents", "show", "capture", "export", "agent", "run"];
        for name in with_coordinator {
            let help = help_of(name);
            assert!(help.contains("--coordinator") && help.contains("127.0.0.1:7771"), "{help}");
        }
        assert!(!help_of("completions").contains("--json"));
        assert!(help_of("agent").contains("Log lines of JSON"));
        assert!(help_of("jobs").contains("--json"));
    }

    #[test]
    fn options_without_meaning_are_refused_where_they_are_written() {
        let check = |line: &str, expected: Option<&str>| {
            let matches = command_line().try_get_matches_from(line.split(' ')).expect(line);
            let error = refuse_meaningless(&matches).err().map(|error| error.to_string());
            assert_eq!(error.is_some(), expected.is_some(), "{line}: {error:?}");
            if let (Some(error), Some(words)) = (error, expected) {
                assert!(error.contains(words), "{line}: {error}");
            }
        };
        check("memtape analyze a --json", None);
        check("memtape --json analyze a", None);
        check("memtape tape a --coordinator x", Some("--coordinator means nothing"));
        check("memtape --coordinator x tape a", Some("memtape tape"));
        check("memtape run --json -- env --coordinator x", None);
        check("memtape jobs --coordinator x --color never", None);
        check("memtape store backup F --coordinator x --tls-dir d --token-file t", None);
        check("memtape --coordinator x store backup F", None);
        check("memtape --coordinator x store export --parquet D", None);
        check("memtape store check F --coordinator x", Some("memtape store check"));
        check("memtape --tls-dir d store restore F D", Some("--tls-dir means nothing"));
        check("memtape completions bash --json", Some("--json"));
    }
}

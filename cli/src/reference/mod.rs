//! docs/reference/command-line.md and environment.md are what the commands declare.
//!
//! `cargo xtask docs --reference` writes the pages again. Hidden commands and options are left
//! out; the variables of hidden options are not, because a secret is given by its variable only.

mod environment;
#[path = "../../../tape/tests/golden_files/mod.rs"]
mod golden_files;

use std::fmt::Write;
use std::path::Path;

use clap::Command;

use crate::commands::command_line;

/// Width of the help in the page.
const COLUMNS: usize = 100;

#[test]
fn the_command_line_reference_matches_the_commands() {
    check("command-line.md", &command_line());
}

#[test]
fn the_environment_reference_matches_the_variables_read() {
    check("environment.md", &environment::page(&commands()));
}

/// The page is this text; `MEMTAPE_GOLDEN=make` writes it.
fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(name);
    golden_files::check(&path, text, "cargo xtask docs --reference");
}

/// The commands as a machine without any setting shows them.
fn commands() -> Command {
    let mut command = without_values(command_line::command_line()).term_width(COLUMNS);
    command.build();
    command
}

/// Values of this process's environment are no part of the reference.
fn without_values(command: Command) -> Command {
    let command = command.mut_args(|arg| arg.hide_env_values(true));
    command.mut_subcommands(without_values)
}

fn command_line() -> String {
    let mut page = String::from(
        "# Command line\n\nMade from the declarations of the commands by a test; do not edit this \
         file.\nEach section is what `memtape COMMAND --help` prints.\n",
    );
    add_help(&commands(), &mut page);
    page
}

fn add_help(command: &Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_string();
    let help = command.clone().render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    write!(page, "\n## {name}\n\n```text\n{}\n```\n", text.trim_end()).expect("a string grows");
    for inner in command.get_subcommands() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            add_help(inner, page);
        }
    }
}

//! `memtape completions SHELL`: completions of commands and options, made from the command line's
//! own definition.

use clap::Command;
use clap_complete::{Shell, generate};

use crate::output;

/// `memtape completions`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell. bash: write the output to /etc/bash_completion.d/memtape, or source it in
    /// ~/.bashrc; zsh: to _memtape in a folder of $fpath; fish: to
    /// ~/.config/fish/completions/memtape.fish.
    #[arg(value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Prints the completions.
pub(crate) fn run(args: &CompletionsArgs, command_line: &Command) -> anyhow::Result<()> {
    output::print_as_it_is(&text(args.shell, command_line))
}

fn text(shell: Shell, command_line: &Command) -> String {
    let mut script = Vec::new();
    generate(shell, &mut visible(command_line), "memtape", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A command line without what is hidden in it.
fn visible(command_line: &Command) -> Command {
    // Afterwards each command has the options of all commands that mean something for it.
    let mut built = command_line.clone();
    built.build();
    copy(&built)
}

fn copy(of: &Command) -> Command {
    // clap adds these again.
    let is_claps = |name: &str| matches!(name, "help" | "version");
    let arguments = of.get_arguments().filter(|it| !it.is_hide_set());
    let arguments = arguments.filter(|it| !is_claps(it.get_id().as_str()));
    let below = of.get_subcommands().filter(|it| !it.is_hide_set() && !is_claps(it.get_name()));
    let mut command = Command::new(of.get_name().to_string())
        .args(arguments.map(|it| it.clone().global(false)))
        .subcommands(below.map(copy));
    if let Some(version) = of.get_version() {
        command = command.version(version.to_string());
    }
    if let Some(about) = of.get_about() {
        command = command.about(about.clone());
    }
    match of.get_long_about() {
        Some(about) => command.long_about(about.clone()),
        None => command,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::command_line::command_line;

    #[test]
    fn completions_have_commands_and_options_and_nothing_hidden() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = text(shell, &command_line());
            for word in ["incidents", "analyze", "doctor", "since", "coordinator"] {
                assert!(text.contains(word), "{shell:?}: {word}");
            }
            for word in ["demo-rank", "die-with-parent"] {
                assert!(!text.contains(word), "{shell:?}: {word}");
            }
        }
    }

    #[test]
    fn shells_accept_their_completions() {
        // A shell that is not installed cannot be asked.
        let script = text(Shell::Bash, &command_line());
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), script).expect("written");
        let checked = std::process::Command::new("bash").arg("-n").arg(file.path()).status();
        assert!(checked.is_ok_and(|status| status.success()));
    }
}

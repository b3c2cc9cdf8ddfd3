//! `memtape completions SHELL`: completions of commands and options, made from the command line's
//! own definition.

use clap_complete::{Shell, generate};

use crate::commands::man::visible;
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
pub(crate) fn run(args: &CompletionsArgs, command_line: &clap::Command) -> anyhow::Result<()> {
    output::print_as_it_is(&text(args.shell, command_line))
}

fn text(shell: Shell, command_line: &clap::Command) -> String {
    let mut script = Vec::new();
    generate(shell, &mut visible(command_line), "memtape", &mut script);
    String::from_utf8_lossy(&script).into_owned()
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

//! `memtape man [DIR]`: manual pages, made from the command line's own definition.

use std::path::PathBuf;

use anyhow::Context;
use clap::Command;

use crate::output;

/// `memtape man`.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write memtape.1, memtape-run.1 and so on into this folder [default: print memtape.1].
    #[arg(value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

/// Prints the page of the program, or writes the pages of all commands.
/// Fails when the folder cannot be written.
pub(crate) fn run(args: &ManArgs, command_line: &Command) -> anyhow::Result<()> {
    let command = visible(command_line);
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return output::print_as_it_is(&String::from_utf8_lossy(&page));
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write manual pages into {}", dir.display()))?;
    let dir = output::clean(&dir.display().to_string());
    output::print(&format!("{dir}: manual pages; read one with  man -l {dir}/memtape.1"))
}

/// A command line without what is hidden in it.
pub(crate) fn visible(command_line: &Command) -> Command {
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
    fn every_visible_command_has_a_page() {
        let temp = tempfile::tempdir().expect("a folder");
        let dir = temp.path().join("man1");
        run(&ManArgs { dir: Some(dir.clone()) }, &command_line()).expect("written");
        for of in command_line().get_subcommands() {
            let page = dir.join(format!("memtape-{}.1", of.get_name()));
            assert_eq!(page.is_file(), !of.is_hide_set(), "{}", page.display());
        }
        let page = std::fs::read_to_string(dir.join("memtape-tape.1")).expect("a page");
        assert!(page.contains("\\-\\-oom") && !page.contains("\\-\\-coordinator"), "{page}");
    }
}

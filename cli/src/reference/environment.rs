//! docs/reference/environment.md: variables of options, which the commands declare, and the others,
//! which stand here. A test of the repository compares the page with the sources.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Command};

/// A variable that no option declares, which program reads it, and what it does.
struct Variable(&'static str, &'static str, &'static str);

const OTHERS: [Variable; 21] = [
    Variable("MEMTAPE_ATTEMPT", "recorder", "number of the job's attempt; before the launcher's"),
    Variable("MEMTAPE_BLOCKS", "recorder", "live blocks that a device has room for: 131,072"),
    Variable("MEMTAPE_COLLECTIVES", "recorder", "`0` does not read PyTorch's flight recorder"),
    Variable("MEMTAPE_CPU", "recorder", "`1` records CPU tensors"),
    Variable("MEMTAPE_CUPTI", "recorder", "`1` records memory that is taken from the driver"),
    Variable("MEMTAPE_DETAIL", "recorder", "`1` is `memtape run --detail`"),
    Variable("MEMTAPE_DIR", "recorder, agent, CLI", "folder of the tapes: `/dev/shm/memtape`"),
    Variable("MEMTAPE_DISABLE", "recorder", "`1` records nothing"),
    Variable(
        "MEMTAPE_ENDS_AT",
        "recorder",
        "Unix time in seconds when the job ends; before Slurm's",
    ),
    Variable("MEMTAPE_EVENTS", "recorder", "events that a device has room for: 524,288"),
    Variable("MEMTAPE_HINTS", "recorder", "settings that `memtape run --apply-hints` set"),
    Variable("MEMTAPE_JOB", "recorder", "name of the job; before the launcher's"),
    Variable("MEMTAPE_LIBRARY", "CLI", "the library that `memtape run` preloads"),
    Variable("MEMTAPE_LOG", "agent, coordinator", "what is logged: `debug`, `memtape_agent=debug`"),
    Variable("MEMTAPE_RANK", "recorder", "number of the rank; before the launcher's"),
    Variable("MEMTAPE_ROLE", "recorder", "role in the job's parallelism: ranks of one are peers"),
    Variable("MEMTAPE_RUN", "recorder", "name of the job where no launcher has one"),
    Variable("MEMTAPE_STACKS", "recorder", "`0` records no stacks"),
    Variable("MEMTAPE_TOKEN", "CLI", "token for the coordinator, where no file is named"),
    Variable("MEMTAPE_TOTAL_STEPS", "recorder", "last step: `memtape run --total-steps`"),
    Variable("MEMTAPE_WORLD_SIZE", "recorder", "number of ranks; before the launcher's"),
];

/// What the coordinator sets for a restart command.
const OF_RESTARTS: [&str; 14] = [
    "MEMTAPE_ACTION",
    "MEMTAPE_JOB",
    "MEMTAPE_ATTEMPT",
    "MEMTAPE_RANK",
    "MEMTAPE_NODE",
    "MEMTAPE_OWNER_UID",
    "MEMTAPE_NAMESPACE",
    "MEMTAPE_SLURM_JOB",
    "MEMTAPE_POD",
    "MEMTAPE_POD_UID",
    "MEMTAPE_INCIDENT",
    "MEMTAPE_CLASS",
    "MEMTAPE_SENTENCE",
    "MEMTAPE_WHY",
];

/// The page.
pub(super) fn page(commands: &Command) -> String {
    let mut page = String::from(
        "# Environment\n\nMade from the declarations of the commands by a test; do not edit this \
         file.\n\n## Variables\n\nAn empty one counts as absent.\n\n\
         | variable | read by | meaning, and the default |\n|---|---|---|\n",
    );
    for Variable(name, reader, meaning) in OTHERS {
        writeln!(page, "| `{name}` | {reader} | {meaning} |").expect("a string grows");
    }
    page += "\n## Options\n\nEach of these sets an option; the command line is stronger.\n\n\
             | variable | option | meaning |\n|---|---|---|\n";
    let mut options = BTreeMap::new();
    collect(commands, &mut options);
    for (name, (option, meaning)) in options {
        writeln!(page, "| `{name}` | {option} | {meaning} |").expect("a string grows");
    }
    page += "\n## Commands\n\nThe programs of `memtape coordinator --restart-command` and \
             `--keep-out-command` are started with these; those of a job are empty for the \
             second.\n\n";
    for name in OF_RESTARTS {
        writeln!(page, "- `{name}`").expect("a string grows");
    }
    page
}

/// The variable of each option, with what is said about it.
fn collect(command: &Command, found: &mut BTreeMap<String, (String, String)>) {
    for arg in command.get_arguments() {
        let Some(name) = arg.get_env().and_then(|name| name.to_str()) else { continue };
        found.entry(name.to_string()).or_insert_with(|| (option(command, arg), meaning(arg)));
    }
    command.get_subcommands().for_each(|inner| collect(inner, found));
}

/// The option with its command. A secret has a hidden option, and is given by its variable only.
fn option(command: &Command, arg: &Arg) -> String {
    let of = command.get_bin_name().unwrap_or(command.get_name());
    match arg.get_long().filter(|_| !arg.is_hide_set()) {
        Some(long) => format!("`{of} --{long}`"),
        None => format!("`{of}`"),
    }
}

fn meaning(arg: &Arg) -> String {
    let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

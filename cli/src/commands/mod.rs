//! The commands. Each is one file with its options and its `run`; this one registers them.

#[cfg(test)]
mod any_words;
pub(crate) mod apply_hints;
pub(crate) mod attended;
pub(crate) mod command_line;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod run;

/// The commands that read or write files: tapes, captures and PyTorch's memory snapshots.
pub(crate) mod files {
    pub(crate) mod analyze;
    pub(crate) mod diff;
    pub(crate) mod export;
    pub(crate) mod report;
    pub(crate) mod tape;
    pub(crate) mod tapes;
}

/// The commands that ask a running coordinator.
pub(crate) mod queries {
    pub(crate) mod capture;
    pub(crate) mod filters;
    pub(crate) mod hints;
    pub(crate) mod incident;
    pub(crate) mod lines;
    pub(crate) mod list;
    pub(crate) mod names;
    pub(crate) mod policy;
    pub(crate) mod runs;
    pub(crate) mod show;
}

/// The commands about who may do what: certificates, tokens, and the audit.
pub(crate) mod access {
    pub(crate) mod audit;
    pub(crate) mod tls;
    pub(crate) mod token;
}

/// The commands that run the services, and `memtape store` for the store of a stopped coordinator.
pub(crate) mod services {
    pub(crate) mod agent;
    pub(crate) mod coordinator;
    pub(crate) mod store;
}

use crate::commands::access::{audit, tls, token};
use crate::commands::command_line::command_line;
use crate::commands::files::{analyze, diff, export, report, tape};
use crate::commands::queries::{capture, hints, incident, lines, list, policy, show};
use crate::commands::services::{agent, coordinator, store};
use crate::demo::{self, training};
use crate::globals::Globals;

/// A flight recorder for GPU memory in distributed PyTorch training.
#[derive(Debug, clap::Parser)]
#[command(name = "memtape", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run a training command with the recorder inside.
    Run(run::RunArgs),
    /// Run the agent of this node.
    Agent(Box<memtape_agent::Config>),
    /// Run the coordinator of the cluster.
    Coordinator(Box<coordinator::CoordinatorArgs>),
    /// Check, back up, move or rebuild the store of a coordinator.
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Make certificates for the coordinator, agents and users, with a small authority.
    #[command(subcommand)]
    Tls(tls::TlsCommand),
    /// Make, list and revoke tokens of programs and users.
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Show who did what, when and from where.
    Audit(audit::AuditArgs),
    /// Run the whole system on this machine, with a rank that leaks or has another fault.
    Demo(demo::DemoArgs),
    /// List the jobs.
    Jobs(list::JobsArgs),
    /// List the ranks of a job.
    Ranks(list::RanksArgs),
    /// Show which lines of code hold the live memory of a job, of a rank of a capture, or of tapes.
    Lines(lines::LinesArgs),
    /// List incidents.
    Incidents(list::IncidentsArgs),
    /// Acknowledge, silence or assign an incident, or add a note to it.
    Incident(incident::IncidentArgs),
    /// List captures.
    Captures(list::CapturesArgs),
    /// List what was done about jobs and nodes, or would be, and whether it helped.
    Actions(list::ActionsArgs),
    /// List the shards of the cluster, the coordinators that own them, and those without an answer.
    Cluster(list::ClusterArgs),
    /// Show an incident, a capture, or the state of one rank.
    Show(show::ShowArgs),
    /// Take a synchronized snapshot of all ranks of a job.
    Capture(capture::CaptureArgs),
    /// Show what the coordinator would do about a job, approve a restart, or check a policy file.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Show what could be changed in a job so that it takes less memory.
    Hints(hints::HintsArgs),
    /// Export the snapshot of a rank, from a capture or a file, for other tools.
    Export(export::ExportArgs),
    /// Write one page about an incident, a capture or snapshot files, to attach to a ticket.
    Report(report::ReportArgs),
    /// Show a tape, or list the tapes of a folder.
    Tape(tape::TapeArgs),
    /// Diagnose PyTorch's own memory snapshots, tapes and captures.
    Analyze(analyze::AnalyzeArgs),
    /// Compare two snapshots, tapes, captures or runs, line by line.
    Diff(diff::DiffArgs),
    /// Check what recording and watching need on this machine.
    Doctor(doctor::DoctorArgs),
    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
    /// One rank of the demo.
    #[command(hide = true)]
    DemoRank(training::DemoRankArgs),
}

impl Command {
    /// Runs the command.
    /// An error is one line for the user.
    pub(crate) fn run(self, globals: &Globals) -> anyhow::Result<()> {
        match self {
            Self::Run(args) => run::run(args, globals),
            Self::Agent(args) => agent::run(*args, globals),
            Self::Coordinator(args) => coordinator::run(*args, globals),
            Self::Store(command) => store::run(&command, globals),
            Self::Tls(command) => tls::run(&command, globals),
            Self::Token(command) => token::run(&command, globals),
            Self::Audit(args) => audit::run(&args, globals),
            Self::Policy(command) => policy::run(&command, globals),
            Self::Hints(args) => hints::run(&args, globals),
            Self::Demo(args) => demo::run(args, globals),
            Self::Jobs(args) => list::jobs(&args, globals),
            Self::Ranks(args) => list::ranks(&args, globals),
            Self::Lines(args) => lines::run(&args, globals),
            Self::Incidents(args) => list::incidents(&args, globals),
            Self::Incident(args) => incident::run(&args, globals),
            Self::Captures(args) => list::captures(&args, globals),
            Self::Actions(args) => list::actions(&args, globals),
            Self::Cluster(args) => list::cluster(&args, globals),
            Self::Show(args) => show::run(&args, globals),
            Self::Capture(args) => capture::run(&args, globals),
            Self::Export(args) => export::run(&args, globals),
            Self::Report(args) => report::run(&args, globals),
            Self::Tape(args) => tape::run(&args, globals),
            Self::Analyze(args) => analyze::run(&args, globals),
            Self::Diff(args) => diff::run(&args, globals),
            Self::Doctor(args) => doctor::run(&args, globals),
            Self::Completions(args) => completions::run(&args, &command_line()),
            Self::DemoRank(args) => training::run(args),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::args::mistake;

    #[test]
    fn clap_finds_no_contradiction() {
        command_line().debug_assert();
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        let matches = command_line().try_get_matches_from(line.split(' '));
        matches.and_then(|it| Cli::from_arg_matches(&it))
    }

    #[test]
    fn command_lines_are_understood() {
        let check = |line: &str, good: bool| {
            assert_eq!(parse(line).is_ok(), good, "{line}: {:?}", parse(line).err());
        };
        check("memtape jobs --json", true);
        check("memtape --json jobs", true);
        check("memtape ranks", true);
        check("memtape ranks j", true);
        check("memtape ranks j --watch", true);
        check("memtape ranks j --watch 5", true);
        check("memtape ranks j k", false);
        check("memtape lines", true);
        check("memtape lines cap-1 --rank 2 --from 3 --to 9", true);
        check("memtape incidents j --rank 2 --class leak --since 2h --open", true);
        check("memtape diff --run a#0 b --from 9 --to 90 --limit peak=5% --limit line=1MiB", true);
        check("memtape diff a b --limit peak=5%", false);
        check("memtape diff --run a b --limit peek=5%", false);
        check("memtape incidents --class leek", false);
        check("memtape incident inc-1", false);
        check("memtape incident inc-1 --acknowledge --silence 2h --assign o --note n", true);
        check("memtape incident inc-1 --silence 2h --silence-until-step 9", false);
        check("memtape incident inc-1 --end-silence --unacknowledge", true);
        check("memtape captures j --trigger growth --since 2d --watch 1", true);
        check("memtape actions", true);
        check("memtape actions j --all --watch 2", true);
        check("memtape cluster --watch 2", true);
        check("memtape hints", true);
        check("memtape hints j --json", true);
        check("memtape run --apply-hints --coordinator x -- true", true);
        check("memtape show", false);
        check("memtape capture j --step 0", false);
        check("memtape capture j --step 12 --wait", true);
        check("memtape export", false);
        check("memtape export cap-1 --rank 3 --format pickle -o x", true);
        check("memtape export f.tape --step 4 --format json", true);
        check("memtape export f.tape --step 4 --oom", false);
        check("memtape export cap-1 --rank 3 --format flamegraph --against peers", true);
        check("memtape export f --format flamegraph --since-step 4 --step 9", true);
        check("memtape report", false);
        check("memtape report inc-1 -o r.html --no-source", true);
        check("memtape report a.pickle b.pickle", true);
        check("memtape run", false);
        check("memtape demo --ranks 0", false);
        check("memtape demo --ranks 8 --leak-rank 5 --exit --json", true);
        check("memtape demo --leak-rank none --for 60s", true);
        check("memtape demo --leak-rank some", false);
        check("memtape demo --scenario desync --exit", true);
        check("memtape demo --scenario flood", false);
        check("memtape demo --python p", false);
        check("memtape demo --torch --python p", true);
        check("memtape coordinator --listen nowhere", false);
        check("memtape frobnicate", false);
        check("memtape analyze", false);
        check("memtape analyze a b --over-time --all --fail-on leak,pressure", true);
        check("memtape diff a", false);
        check("memtape diff a b --json", true);
    }

    #[test]
    fn the_command_after_run_is_left_alone() {
        let check = |line: &str, expected: &[&str], json: bool| {
            let cli = parse(line).expect(line);
            let Command::Run(run) = cli.command else { panic!("not run: {line}") };
            assert_eq!(
                (run.command.as_slice(), cli.globals.json),
                (expected.iter().map(|word| word.to_string()).collect::<Vec<_>>().as_slice(), json,)
            );
        };
        check(
            "memtape run -- python train.py --json -x",
            &["python", "train.py", "--json", "-x"],
            false,
        );
        check("memtape run --json -- env", &["env"], true);
        check("memtape run --detail -- --odd-name -x", &["--odd-name", "-x"], false);
        check("memtape run --detail x -- --y", &["x", "--", "--y"], false);
        check(
            "memtape run torchrun --nproc-per-node 4 t.py",
            &["torchrun", "--nproc-per-node", "4", "t.py"],
            false,
        );
    }

    #[test]
    fn unknown_options_are_refused_in_one_line() {
        let check = |line: &str, expected: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            let error = command_line().try_get_matches_from(&words).expect_err(line);
            assert_eq!(mistake(&error, &command_line(), &words), expected, "{line}");
        };
        check(
            "memtape run --detial -- true",
            "unknown option --detial (did you mean --detail?); see memtape run --help",
        );
        check("memtape run -q python x.py", "unknown option -q; see memtape run --help");
        check("memtape --frob jobs", "unknown option --frob; see memtape --help");
        check("memtape job", "unknown command job (did you mean jobs?); see memtape --help");
        check(
            "memtape analyse x",
            "unknown command analyse (did you mean analyze?); see memtape --help",
        );
        check(
            "memtape version",
            "unknown command version (did you mean --version?); see memtape --help",
        );
        check("memtape --json", "no command is given; see memtape --help");
        check(
            "memtape store chekc x",
            "unknown command chekc (did you mean check?); see memtape store --help",
        );
        check(
            "memtape show cap-1 --rank x",
            "invalid value 'x' for '--rank <RANK>': it must be a whole number; see memtape show \
             --help",
        );
        check(
            "memtape demo --ranks 99",
            "invalid value '99' for '--ranks <RANKS>': 99 is not in 1 to 64; see memtape demo \
             --help",
        );
        check(
            "memtape run --total-steps 0 -- true",
            "invalid value '0' for '--total-steps <N>': it must be 1 or more; see memtape run \
             --help",
        );
        check(
            "memtape coordinator --listen x",
            "invalid value 'x' for '--listen <ADDR>': it must be an address and a port, such as \
             127.0.0.1:7771; see memtape coordinator --help",
        );
        check("memtape show", "missing: <ID|FILE>; see memtape show --help");
        check(
            "memtape export cap-1 --format pickel",
            "invalid value 'pickel' for '--format <FORMAT>' [possible values: pickle, json, \
             flamegraph] (did you mean pickle?); see memtape export --help",
        );
        check("memtape show a b", "unexpected argument 'b' found; see memtape show --help");
    }
}

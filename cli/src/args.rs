//! The command line, as clap reads it. Values are checked here as far as they can be without
//! looking at the machine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::output::one_line;

/// A flight recorder for GPU memory in distributed PyTorch training.
#[derive(Debug, Parser)]
#[command(name = "memtape", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Where the coordinator answers.
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "MEMTAPE_COORDINATOR",
        default_value = "http://127.0.0.1:7771"
    )]
    pub(crate) coordinator: String,

    /// Print one JSON object instead of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Die when this process, which must be the parent, dies. For the demo's children.
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) die_with_parent: Option<u32>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a training command with the recorder inside.
    Run(RunArgs),
    /// Run the agent of this node.
    Agent(AgentArgs),
    /// Run the coordinator of the cluster.
    Coordinator(Box<CoordinatorArgs>),
    /// Look after the store of a coordinator that is not running.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Show the whole system on this machine, with a rank that leaks.
    Demo(DemoArgs),
    /// List the jobs.
    Jobs,
    /// List the ranks of a job.
    Ranks(RanksArgs),
    /// List incidents.
    Incidents(JobFilter),
    /// List captures.
    Captures(JobFilter),
    /// Show an incident or a capture.
    Show(ShowArgs),
    /// Take a synchronized snapshot of all ranks of a job.
    Capture(CaptureArgs),
    /// Write one rank's part of a capture, or a tape, for other tools.
    Export(ExportArgs),
    /// Read a tape after the fact, or list those there are.
    Tape(TapeArgs),
    /// Say what is wrong from PyTorch's own memory snapshots, with no service running.
    Analyze(AnalyzeArgs),
    /// Show what one such snapshot holds more or less than another, line by line.
    Diff(DiffArgs),
    /// One rank of the demo.
    #[command(hide = true)]
    DemoRank(DemoRankArgs),
}

/// `memtape store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read all of it and say what is wrong; nothing is changed. The exit code is 1 then.
    Check(StoreArgs),
    /// Make the index anew from the journal and the steps; the old one is kept beside it.
    Rebuild(StoreArgs),
}

/// Which store.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// The coordinator's data folder.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// `memtape run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Folder for the tapes [default: $MEMTAPE_DIR or /dev/shm/memtape].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Name of the job, stronger than what a launcher says.
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Record requested sizes, streams, pools and every segment, too: PyTorch then does a little
    /// more for each block.
    #[arg(long)]
    pub(crate) detail: bool,
    /// The command and its arguments. What begins with a dash before it is an option of
    /// `memtape run`, unless it comes after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// `memtape agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// Name of this node, unique in the cluster [default: the hostname].
    #[arg(long, env = "MEMTAPE_NODE")]
    pub(crate) node: Option<String>,
    /// Folder to search for tapes; may be given several times [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(long = "tape-dir", value_name = "DIR")]
    pub(crate) tape_dirs: Vec<PathBuf>,
    /// Time between two reports, such as 1s or 250ms.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) report_interval: Option<Duration>,
    /// Tapes of dead processes may keep this many bytes of memory.
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) dead_tape_bytes_max: Option<u64>,
    /// Tapes of dead processes are deleted after this time, such as 24h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) dead_tape_age_max: Option<Duration>,
    /// Folder on a disk for what has to be kept while no coordinator is there [default:
    /// $STATE_DIRECTORY/spool, or /var/lib/memtape-agent/spool for root, or
    /// ~/.local/state/memtape/agent/spool].
    #[arg(long, env = "MEMTAPE_SPOOL_DIR", value_name = "DIR")]
    pub(crate) spool_dir: Option<PathBuf>,
    /// Bytes that may lie in that folder; 0 keeps nothing [default: 1 GiB].
    #[arg(long, env = "MEMTAPE_SPOOL_BYTES_MAX", value_name = "BYTES", value_parser = byte_count)]
    pub(crate) spool_bytes_max: Option<u64>,
}

/// `memtape coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorArgs {
    /// Address for agents, API and page. There is no authentication: keep it inside the cluster.
    #[arg(long, value_name = "ADDR", env = "MEMTAPE_LISTEN", default_value = "127.0.0.1:7771")]
    pub(crate) listen: SocketAddr,
    /// Folder of the store.
    #[arg(long, value_name = "DIR", env = "MEMTAPE_DATA_DIR", default_value = "memtape-data")]
    pub(crate) data_dir: PathBuf,
    /// How often agents shall report, such as 1s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) report_interval: Option<Duration>,
    /// A capture is closed after this time, with a list of who is missing.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) capture_deadline: Option<Duration>,
    /// Least time between two captures that nobody asked for by hand.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) capture_interval: Option<Duration>,
    /// How many steps back the earlier state lies that a capture is compared with.
    #[arg(long, value_name = "STEPS")]
    pub(crate) capture_before: Option<u64>,
    /// The bodies of captures may take this many bytes, such as 64GiB.
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) bodies_bytes_max: Option<u64>,
    /// Where the bodies of captures go instead of the data folder: s3://BUCKET/PREFIX. Endpoint,
    /// region and credentials come from AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and so on.
    #[arg(long, value_name = "URL", env = "MEMTAPE_BODIES_URL")]
    pub(crate) bodies_url: Option<String>,
    /// Captures are kept for this time, such as 2160h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) captures_age_max: Option<Duration>,
    /// Step records may take this many bytes on disk, such as 64GiB.
    #[arg(long, value_name = "BYTES", value_parser = byte_count)]
    pub(crate) steps_bytes_max: Option<u64>,
    /// Step records are kept for this time, such as 336h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) steps_age_max: Option<Duration>,
    /// Whether to ask the orchestrator for a restart before a job runs out of memory.
    #[arg(long, value_enum, env = "MEMTAPE_RESTART", default_value_t = RestartMode::DryRun)]
    pub(crate) restart: RestartMode,
    /// Command that asks for a restart, run by sh -c with MEMTAPE_JOB, MEMTAPE_RANK and more set.
    #[arg(long, value_name = "CMD", env = "MEMTAPE_RESTART_COMMAND")]
    pub(crate) restart_command: Option<String>,
    /// URL to post a request for a restart to. It is signed if MEMTAPE_WEBHOOK_SECRET is set.
    #[arg(long, value_name = "URL", env = "MEMTAPE_RESTART_WEBHOOK")]
    pub(crate) restart_webhook: Option<String>,
    /// Secret of the webhook's signature. An option would show it to everybody on the machine.
    #[arg(long, hide = true, env = "MEMTAPE_WEBHOOK_SECRET", hide_env_values = true)]
    pub(crate) restart_webhook_secret: Option<String>,
    /// Least time between two restarts of one job.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) restart_cooldown: Option<Duration>,
    /// At most this many restarts of one job a day.
    #[arg(long, value_name = "COUNT")]
    pub(crate) restart_budget: Option<u32>,
    /// Restart only when the device will be full within this time.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) restart_horizon: Option<Duration>,
    /// Where to send traces and metrics (OTLP over gRPC), as http://host:4317.
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub(crate) otlp_endpoint: Option<String>,
}

/// How far the restart hook may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestartMode {
    /// It does nothing.
    Off,
    /// It shows what it would do.
    DryRun,
    /// It acts.
    Act,
}

/// `memtape demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Number of ranks.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
    /// The rank that leaks, or none [default: 2, or the last rank where there are fewer].
    #[arg(long, value_name = "RANK|none", value_parser = leak_rank)]
    pub(crate) leak_rank: Option<LeakRank>,
    /// Stop as soon as there is a result.
    #[arg(long)]
    pub(crate) exit: bool,
    /// Give up on an incident after this time; with --leak-rank none, watch for this long.
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) limit: Option<Duration>,
    /// Port of the coordinator; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Keep the store in this folder, and leave it there.
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Train with real PyTorch: on GPUs where there are any, else on the fake CUDA runtime.
    #[arg(long)]
    pub(crate) torch: bool,
    /// The Python that has torch [default: target/venv/bin/python if it exists, else python3].
    #[arg(long, value_name = "PATH", requires = "torch")]
    pub(crate) python: Option<PathBuf>,
}

/// Which rank of the demo leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeakRank(pub(crate) Option<u32>);

/// `memtape demo-rank`: identity and tape folder come from the environment, as for real ranks.
#[derive(Debug, Args)]
pub(crate) struct DemoRankArgs {
    /// Keep one tensor a step from this step on.
    #[arg(long)]
    pub(crate) leak_from: Option<u64>,
    /// Length of a step.
    #[arg(long, value_parser = duration, default_value = "30ms")]
    pub(crate) step_time: Duration,
    /// Stop after this many steps.
    #[arg(long)]
    pub(crate) steps: Option<u64>,
    /// CLOCK_MONOTONIC at which step 1 begins on every rank, in nanoseconds.
    #[arg(long, default_value_t = 0)]
    pub(crate) start_ns: u64,
}

/// `memtape ranks`.
#[derive(Debug, Args)]
pub(crate) struct RanksArgs {
    /// The job; may be left out when there is only one that has not ended.
    pub(crate) job: Option<String>,
}

/// `memtape incidents` and `memtape captures`.
#[derive(Debug, Args)]
pub(crate) struct JobFilter {
    /// Only those of this job.
    #[arg(long)]
    pub(crate) job: Option<String>,
}

/// `memtape show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// An incident (inc-…) or a capture (cap-…).
    pub(crate) id: String,
    /// Of a capture: where the bytes of this rank's devices were.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
}

/// `memtape capture`.
#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// The job.
    pub(crate) job: String,
    /// The step at whose end the ranks are shown [default: the newest that all have finished].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) step: Option<u64>,
    /// Wait until the capture is closed and show it.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// `memtape export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// A capture (cap-…), or an incident (inc-…) for its capture.
    #[arg(required_unless_present = "tape", conflicts_with = "tape")]
    pub(crate) id: Option<String>,
    /// The rank [default: the incident's].
    #[arg(long, conflicts_with = "tape")]
    pub(crate) rank: Option<u32>,
    /// Read this tape, not a capture.
    #[arg(long, value_name = "FILE")]
    pub(crate) tape: Option<PathBuf>,
    /// The state at the end of this step of the tape [default: the newest state].
    #[arg(long, requires = "tape", conflicts_with = "id")]
    pub(crate) step: Option<u64>,
    /// The state of the tape when a request last failed for good.
    #[arg(long, requires = "tape", conflicts_with_all = ["id", "step"])]
    pub(crate) oom: bool,
    /// What to write.
    #[arg(long, value_enum, default_value_t = Format::Pickle)]
    pub(crate) format: Format,
    /// File to write, - for stdout [default: a name made of id, rank and format].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Formats of `memtape export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// PyTorch's snapshot pickle, for pytorch.org/memory_viz.
    Pickle,
    /// Everything, as JSON.
    Json,
}

impl Format {
    /// The usual ending of a file's name.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Pickle => "pickle",
            Self::Json => "json",
        }
    }
}

/// `memtape tape`.
#[derive(Debug, Args)]
pub(crate) struct TapeArgs {
    /// The tape's file; of a folder, its tapes are listed [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(value_name = "FILE|DIR")]
    pub(crate) file: Option<PathBuf>,
    /// How many of the last steps, events and marks and of the largest stacks to show.
    #[arg(long, default_value_t = 10)]
    pub(crate) last: usize,
    /// Show the steps up to this one, and live blocks as they were at its end [default: now; the
    /// last finished step of a process that has exited, whose memory is gone now].
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Show live blocks as they were when a request last failed for good.
    #[arg(long, conflicts_with = "step")]
    pub(crate) oom: bool,
}

/// `memtape analyze`.
#[derive(Debug, Args)]
pub(crate) struct AnalyzeArgs {
    /// Snapshots that torch.cuda.memory._dump_snapshot wrote, packed or not; folders with such
    /// files; - for stdin. Files of several ranks are compared with each other.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// The files are moments of one rank, not several ranks; in the order of their newest event.
    #[arg(long)]
    pub(crate) over_time: bool,
    /// Show all lines, ranks and notes, not one screen of them.
    #[arg(long)]
    pub(crate) all: bool,
    /// Exit with an error if this is found, such as leak; or any. For CI.
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub(crate) fail_on: Vec<String>,
}

/// `memtape diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The snapshot to begin with: an earlier moment, or a healthy rank; - for stdin.
    #[arg(value_name = "A")]
    pub(crate) from: PathBuf,
    /// The snapshot to compare with it.
    #[arg(value_name = "B")]
    pub(crate) to: PathBuf,
    /// Show all lines and stacks, not one screen of them.
    #[arg(long)]
    pub(crate) all: bool,
}

/// What is wrong with a command line, and what to do, in one line.
pub(crate) fn mistake(error: &clap::Error) -> String {
    let said = |kind| error.get(kind).map(ToString::to_string);
    // `Usage: memtape run [OPTIONS] <CMD>...`
    let usage = said(ContextKind::Usage).unwrap_or_default();
    let is_name = |word: &&str| word.starts_with(|c: char| c.is_ascii_lowercase());
    let names: Vec<&str> = usage.split_whitespace().skip(1).take_while(is_name).collect();
    let command = if names.is_empty() { "memtape".to_string() } else { names.join(" ") };
    let option = said(ContextKind::InvalidArg).filter(|word| word.starts_with('-'));
    if let (ErrorKind::UnknownArgument, Some(option)) = (error.kind(), option) {
        let near = said(ContextKind::SuggestedArg);
        let near = near.map_or(String::new(), |near| format!(" (did you mean {near}?)"));
        return one_line(&format!("unknown option {option}{near}; see {command} --help"));
    }
    // clap puts usage and tips into further paragraphs.
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    one_line(&format!("{}; see {command} --help", first.trim_start_matches("error: ")))
}

fn leak_rank(text: &str) -> Result<LeakRank, String> {
    match text {
        "none" => Ok(LeakRank(None)),
        number => number
            .parse()
            .map(|rank| LeakRank(Some(rank)))
            .map_err(|_| "it must be the number of a rank, or none".to_string()),
    }
}

/// Reads `60s`, `250ms`, `5m`, `24h`; a number alone is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| "it must be a time such as 60s".to_string())?;
    let ms = match unit {
        "ms" => Some(1),
        "" | "s" => Some(1000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    ms.and_then(|ms: u64| ms.checked_mul(number))
        .map(Duration::from_millis)
        .ok_or_else(|| "it must be a time such as 250ms, 60s, 5m or 24h".to_string())
}

/// Reads `1048576`, `512KiB`, `8GiB`.
pub(crate) fn byte_count(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => Some(0),
        "KiB" => Some(10),
        "MiB" => Some(20),
        "GiB" => Some(30),
        "TiB" => Some(40),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    number
        .zip(shift)
        .and_then(|(number, shift)| number.checked_mul(1 << shift))
        .ok_or_else(|| "it must be a size such as 512MiB or 8GiB".to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_finds_no_contradiction() {
        Cli::command().debug_assert();
    }

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())
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
        check("memtape show", false);
        check("memtape capture j --step 0", false);
        check("memtape capture j --step 12 --wait", true);
        check("memtape export", false);
        check("memtape export cap-1 --rank 3 --format pickle -o x", true);
        check("memtape export --tape f --step 4 --format json", true);
        check("memtape export cap-1 --tape f", false);
        check("memtape export cap-1 --step 4", false);
        check("memtape run", false);
        check("memtape demo --ranks 0", false);
        check("memtape demo --ranks 8 --leak-rank 5 --exit --json", true);
        check("memtape demo --leak-rank none --for 60s", true);
        check("memtape demo --leak-rank some", false);
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
                (run.command.as_slice(), cli.json),
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
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(mistake(&error), expected, "{line}");
        };
        check(
            "memtape run --detial -- true",
            "unknown option --detial (did you mean --detail?); see memtape run --help",
        );
        check("memtape run -q python x.py", "unknown option -q; see memtape run --help");
        check("memtape --frob jobs", "unknown option --frob; see memtape --help");
        check("memtape show a b", "unexpected argument 'b' found; see memtape show --help");
    }

    #[test]
    fn times_and_sizes() {
        let ms = |text: &str| duration(text).ok().map(|time| time.as_millis());
        for (text, expected) in [
            ("60s", Some(60_000)),
            ("60", Some(60_000)),
            ("250ms", Some(250)),
            ("5m", Some(300_000)),
            ("24h", Some(86_400_000)),
            ("", None),
            ("s", None),
            ("1.5s", None),
            ("-3s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
        ] {
            assert_eq!(ms(text), expected, "{text}");
        }
        for (text, expected) in [
            ("0", Some(0)),
            ("512KiB", Some(524_288)),
            ("8GiB", Some(8 << 30)),
            ("8GB", None),
            ("99999999999TiB", None),
        ] {
            assert_eq!(byte_count(text).ok(), expected, "{text}");
        }
    }
}

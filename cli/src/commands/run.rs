//! `memtape run -- CMD…`: runs a training command with the recorder inside.
//!
//! It sets environment variables and becomes the command (exec). Signals, exit code and process id
//! are the command's own; no process of Memtape remains. Only at a terminal a second process stays
//! beside the command, to say at its end what was recorded: [`attended`].

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use memtape_core::limits::TAPE_ITEMS_MAX;
use memtape_core::tape::mailbox::{Offer, Offers};
use rustix::fs::{Access, access};
use serde_json::json;

use crate::commands::{apply_hints, attended};
use crate::globals::Globals;
use crate::output::{clean, shell_word};
use crate::{clock, library, room};

/// `memtape run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Folder for the tapes [default: $MEMTAPE_DIR or /dev/shm/memtape].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Name of the job [default: the launcher's job id, or the script's name and the time].
    #[arg(long, value_name = "NAME")]
    pub(crate) job: Option<String>,
    /// Also record requested sizes, streams, pools and segments. This costs PyTorch a little time
    /// for each block.
    #[arg(long)]
    pub(crate) detail: bool,
    /// Further options, variables and fields whose values are recorded as [redacted] in the command
    /// line, such as licence for --my-licence=…; passwords, tokens and keys are known [default:
    /// none].
    #[arg(long, value_name = "NAMES", value_delimiter = ',', env = "MEMTAPE_REDACT")]
    pub(crate) redact: Vec<String>,
    /// What may be asked of the ranks while they run: gc (Python's garbage collection),
    /// empty-cache (torch.cuda.empty_cache), checkpoint (the function of memtape.on_checkpoint),
    /// signal (SIGUSR1, SIGUSR2, SIGTERM, SIGINT) [default: nothing].
    #[arg(
        long,
        value_name = "ACTIONS",
        value_delimiter = ',',
        env = "MEMTAPE_ACTIONS",
        value_parser = offer
    )]
    pub(crate) actions: Vec<Offer>,
    /// Number of the last step of each process: the program's own where it calls memtape.step(n);
    /// else steps count from 1 at the start of the process, also of one that goes on from a
    /// checkpoint. Growth that fills the memory later does not page [default:
    /// $MEMTAPE_TOTAL_STEPS, or not known].
    #[arg(long, value_name = "N")]
    pub(crate) total_steps: Option<NonZeroU64>,
    /// Ask the coordinator for hints about the job's last attempt, and set those that are settings
    /// of PyTorch's allocator in the command's environment. What PYTORCH_CUDA_ALLOC_CONF or
    /// PYTORCH_ALLOC_CONF has stays.
    #[arg(long)]
    pub(crate) apply_hints: bool,
    /// The command and its arguments. Options before the command belong to `memtape run`, unless
    /// they come after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

/// The default folder for tapes, the same as the recorder's.
pub(crate) const TAPE_DIR_DEFAULT: &str = "/dev/shm/memtape";

/// Becomes the command, or ends with its exit code; returns only on an error.
/// Fails when the library is missing, the folder is not writable, or the command cannot be run.
pub(crate) fn run(args: RunArgs, globals: &Globals) -> anyhow::Result<()> {
    for name in ["MEMTAPE_EVENTS", "MEMTAPE_BLOCKS"] {
        check_size(name, std::env::var_os(name).as_deref())?;
    }
    for name in ["MEMTAPE_TOTAL_STEPS", "MEMTAPE_ENDS_AT"] {
        if let Some(warning) = not_a_number(name, std::env::var_os(name).as_deref()) {
            eprintln!("memtape: warning: {warning}");
        }
    }
    let dir = tape_dir(args.dir);
    let library = library::find()?;
    make_tape_dir(&dir)?;
    if let Some(warning) = room::no_room(&dir).filter(|_| globals.die_with_parent.is_none()) {
        eprintln!("memtape: warning: {}", clean(&warning));
    }
    let run_name = std::env::var("MEMTAPE_RUN")
        .ok()
        .filter(|name| !name.trim().is_empty())
        .unwrap_or_else(|| run_name(&args.command, clock::unix_seconds()));
    // Only a terminal gets the line at the end.
    let is_attended = globals.die_with_parent.is_none() && !globals.json;
    if is_attended && std::io::stderr().is_terminal() {
        std::process::exit(attended::run(&dir, &run_name, args.job)?.into());
    }
    let Some((program, rest)) = args.command.split_first() else { bail!("give a command to run") };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_PRELOAD", library::preload(&library, std::env::var_os("LD_PRELOAD")))
        .env("MEMTAPE_DIR", &dir)
        .env("MEMTAPE_RUN", &run_name);
    if let Some(job) = &args.job {
        command.env("MEMTAPE_JOB", job);
    }
    if !args.redact.is_empty() {
        command.env("MEMTAPE_REDACT", args.redact.join(","));
    }
    if !args.actions.is_empty() {
        let offers: Offers = args.actions.iter().copied().collect();
        let names: Vec<&str> = offers.iter().map(Offer::as_str).collect();
        command.env("MEMTAPE_ACTIONS", names.join(","));
    }
    if let Some(steps) = args.total_steps {
        command.env("MEMTAPE_TOTAL_STEPS", steps.to_string());
    }
    if args.detail {
        command.env("MEMTAPE_DETAIL", "1");
    }
    let hints = args.apply_hints.then(|| apply_hints::ask(args.job.as_deref(), globals));
    if let Some(hints) = &hints {
        command.envs(hints.variables.iter().map(|(name, value)| (name, value)));
    }
    if globals.json {
        // Standard output is the command's.
        let mut line = json!({ "library": library, "dir": dir, "run": run_name, "job": args.job });
        if let Some(hints) = &hints {
            line["hints"] = json!(hints.lines);
        }
        eprintln!("{line}");
    } else {
        let lines = hints.iter().flat_map(|hints| &hints.lines);
        lines.for_each(|line| eprintln!("memtape: {}", clean(line)));
    }
    let error = command.exec();
    Err(NotStarted::new(&command, error).into())
}

/// Reads the name of an action.
fn offer(name: &str) -> Result<Offer, NoSuchAction> {
    name.trim().parse().map_err(|_| NoSuchAction)
}

/// A name that no action has.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the actions are gc, empty-cache, checkpoint and signal")]
struct NoSuchAction;

/// True when the folder of devices has one of NVIDIA's drivers: `nvidiactl` on servers, `dxg` in
/// WSL, the others on Jetson boards.
pub(crate) fn has_gpu(devices: &Path) -> bool {
    ["nvidiactl", "nvidia0", "dxg", "nvgpu", "nvhost-gpu"]
        .iter()
        .any(|name| devices.join(name).exists())
}

/// The command could not be started.
#[derive(Debug)]
pub(crate) struct NotStarted {
    program: String,
    error: io::Error,
}

impl NotStarted {
    pub(crate) fn new(command: &Command, error: io::Error) -> Self {
        Self { program: command.get_program().to_string_lossy().into_owned(), error }
    }

    /// What a shell exits with: 127 when there is no such command, 126 when it is no program.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.error.kind() == ErrorKind::NotFound { 127 } else { 126 }
    }
}

impl std::fmt::Display for NotStarted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let program = &self.program;
        match self.error.kind() {
            ErrorKind::NotFound if program.contains('/') => {
                write!(f, "cannot run {program}: there is no such file, or its interpreter is gone")
            }
            ErrorKind::NotFound => {
                write!(f, "cannot run {program}: no such command; check its spelling and PATH")
            }
            ErrorKind::PermissionDenied => write!(
                f,
                "cannot run {program}: it is not executable; chmod +x makes it so, or name its \
                 interpreter, as in: memtape run -- python3 {}",
                shell_word(program)
            ),
            _ => write!(f, "cannot run {program}: {}", self.error),
        }
    }
}

impl std::error::Error for NotStarted {}

/// Checks a size of the tape here, because the recorder silently takes its default for a bad one.
fn check_size(name: &str, value: Option<&OsStr>) -> anyhow::Result<()> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(()) };
    let number = value.to_str().and_then(|text| text.trim().parse().ok());
    if number.is_none_or(|number| !(1..=TAPE_ITEMS_MAX).contains(&number)) {
        bail!("{name}={} must be a number from 1 to {TAPE_ITEMS_MAX}", value.display());
    }
    Ok(())
}

/// Why the recorder will not take a number: a job starts without it.
fn not_a_number(name: &str, value: Option<&OsStr>) -> Option<String> {
    let value = value.filter(|value| !value.is_empty())?;
    let number: Option<u64> = value.to_str().and_then(|text| text.trim().parse().ok());
    let is_bad = number.is_none_or(|number| number == 0);
    is_bad.then(|| {
        let value = value.display();
        format!("{name}={value} is left out: it must be a whole number of 1 or more")
    })
}

/// The given folder or the default, as an absolute path, because the command may change its
/// working directory.
pub(crate) fn tape_dir(asked: Option<PathBuf>) -> PathBuf {
    let from_environment =
        || std::env::var_os("MEMTAPE_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = asked.or_else(from_environment).unwrap_or_else(|| TAPE_DIR_DEFAULT.into());
    std::path::absolute(&dir).unwrap_or(dir)
}

/// Creates the folder if necessary, open to all users as /tmp is, and checks that it is writable.
fn make_tape_dir(dir: &Path) -> anyhow::Result<()> {
    if !dir.is_dir() {
        let made = memtape_agent::make_folder(dir);
        // Another job may have made it meanwhile.
        made.or_else(|error| if dir.is_dir() { Ok(()) } else { Err(error) }).with_context(
            || format!("cannot make the folder {} for tapes; choose one with --dir", dir.display()),
        )?;
    }
    access(dir, Access::WRITE_OK | Access::EXEC_OK).with_context(|| {
        format!("cannot write into the folder {} for tapes; choose one with --dir", dir.display())
    })
}

/// The name of a job without a launcher's name: its script and the time.
fn run_name(command: &[String], unix_seconds: u64) -> String {
    format!("{}-{}", script_name(command), clock::compact(unix_seconds))
}

/// The script's name without its folder and ending; a module's name; else the program's.
fn script_name(command: &[String]) -> String {
    let stem = |path: &str| {
        let stem = Path::new(path).file_stem();
        stem.map_or(String::new(), |stem| stem.to_string_lossy().into_owned())
    };
    let script = command.iter().find(|word| word.ends_with(".py")).map(|path| stem(path));
    let module = || {
        let after = command.iter().skip_while(|word| *word != "-m").nth(1);
        after.filter(|name| !name.starts_with("torch.distributed.")).cloned()
    };
    let program = || command.first().map(|path| stem(path));
    script.or_else(module).or_else(program).filter(|name| !name.is_empty()).unwrap_or("run".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_must_be_numbers() {
        let check = |value: &str| check_size("MEMTAPE_EVENTS", Some(OsStr::new(value)));
        for good in ["", "1", "4096", " 524288 ", "4194304"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
        for bad in ["0", "abc", "1e6", "-3", "4194305", "99999999999999999999"] {
            let line = check(bad).expect_err(bad).to_string();
            assert!(
                line.starts_with("MEMTAPE_EVENTS=") && line.ends_with("1 to 4194304"),
                "{line}"
            );
        }
        assert!(check_size("MEMTAPE_BLOCKS", None).is_ok());
        let left_out = |value: &str| not_a_number("MEMTAPE_ENDS_AT", Some(OsStr::new(value)));
        assert!([" 5000", "1", ""].iter().all(|value| left_out(value).is_none()));
        assert!(["0", "abc", "1_000", "-5", "1.5"].iter().all(|value| left_out(value).is_some()));
    }

    #[test]
    fn actions_have_names() {
        assert!(Offer::all().iter().all(|of| offer(of.as_str()).is_ok_and(|read| read == *of)));
        let line = offer("reboot").expect_err("no action").to_string();
        assert!(Offer::all().iter().all(|of| line.contains(of.as_str())), "{line}");
    }

    #[test]
    fn jobs_are_named_after_their_script() {
        let check = |line: &str, expected: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            assert_eq!(script_name(&words), expected, "{line}");
        };
        check("python train.py --lr 1", "train");
        check("torchrun --nproc-per-node 4 /app/src/pretrain.py x.py", "pretrain");
        check("python -m torch.distributed.run --nproc-per-node 2 a/b.py", "b");
        check("python -m pkg.train", "pkg.train");
        check("/opt/bin/trainer --x", "trainer");
        check("python -m torch.distributed.run app", "python");
        assert_eq!(run_name(&["python".into(), "t.py".into()], 1_795_244_404), "t-20261121-070004");
    }

    #[test]
    fn a_command_that_cannot_start_exits_as_in_a_shell() {
        let temp = tempfile::tempdir().expect("folder");
        let plain = temp.path().join("plain.py");
        std::fs::write(&plain, "print(1)").expect("file");
        let check = |program: &str, code: u8, words: &str| {
            let mut command = Command::new(program);
            let error = command.exec();
            let not_started = NotStarted::new(&command, error);
            assert_eq!(not_started.exit_code(), code, "{not_started}");
            assert!(not_started.to_string().contains(words), "{not_started}");
        };
        check("no-such-command-of-memtape", 127, "check its spelling");
        check("/no/such/file", 127, "no such file");
        check(&plain.display().to_string(), 126, "chmod +x");
    }

    #[test]
    fn a_gpu_is_detected_by_its_driver() {
        let temp = tempfile::tempdir().expect("folder");
        assert!(!has_gpu(temp.path()));
        std::fs::write(temp.path().join("nvidiactl"), "").expect("file");
        assert!(has_gpu(temp.path()));
    }

    #[test]
    fn the_folder_is_made_and_must_be_writable() {
        let temp = tempfile::tempdir().expect("folder");
        let deep = temp.path().join("a/b");
        make_tape_dir(&deep).expect("made");
        assert!(deep.is_dir());
        let file = temp.path().join("file");
        std::fs::write(&file, "").expect("file");
        let error = make_tape_dir(&file).expect_err("a file is no folder");
        assert!(format!("{error:#}").contains("--dir"), "{error:#}");
    }
}

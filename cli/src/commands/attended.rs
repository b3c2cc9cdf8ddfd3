//! `memtape run` for a person at a terminal: when the command ends, one line says where its tapes
//! are and what they hold, or why nothing was recorded.
//!
//! Another `memtape run` is started as a child that is tied to this process (`parent.rs`) and
//! becomes the command. It is in the same process group, so the terminal's signals and its job
//! control reach the command as they would without Memtape. Signals that another process sends to
//! this one are passed on; when it sends them to the whole group, the command may get them twice,
//! because a receiver does not see that. When this process is killed, the command is asked to end
//! (SIGTERM).
//! Without a terminal `memtape run` becomes the command at once, and this file has no part.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::{Context, anyhow};
use memtape_core::identity::Identity;
use rustix::process::{Pid, Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::Cause;

use crate::clock;
use crate::commands::files::tapes;
use crate::commands::run::has_gpu;

/// Signals that are passed on to the command.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Exit codes of a shell for a command that cannot be run.
const NOT_STARTED: [u8; 2] = [126, 127];

/// Runs this command line again below this process, says what was recorded, and returns the exit
/// code as a shell would. `run_name` is the job's name where no launcher has one, and `job` its
/// name of the command line.
/// Fails when no process can be started.
pub(crate) fn run(folder: &Path, run_name: &str, job: Option<String>) -> anyhow::Result<u8> {
    let begun_wall_ns = clock::wall_ns();
    let status = ended(run_name)?;
    let identity = Identity::from_environment(|name| match name {
        "MEMTAPE_JOB" if job.is_some() => job.clone(),
        "MEMTAPE_RUN" => Some(run_name.to_string()),
        _ => std::env::var(name).ok(),
    });
    let line = tapes::recorded_in(folder, begun_wall_ns..=clock::wall_ns(), &identity.job);
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    let code = code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX);
    match line {
        Some(line) => eprintln!("memtape: {line}"),
        // A command that cannot be run has its own line.
        None if NOT_STARTED.contains(&code) => {}
        None => eprintln!("memtape: nothing was recorded: {}", why_nothing()),
    }
    Ok(code)
}

/// Starts the command and waits for its end.
fn ended(run_name: &str) -> anyhow::Result<ExitStatus> {
    // Before the start, so that no signal is missed.
    let watched = PASSED_ON.into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = SignalsInfo::<WithOrigin>::new(watched).context("cannot watch signals")?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let mut child = Command::new(program)
        .arg(format!("--die-with-parent={}", getpid().as_raw_pid()))
        .args(std::env::args_os().skip(1))
        .env("MEMTAPE_RUN", run_name)
        .spawn()
        .context("cannot start a process")?;
    let (pid, handle) = (Pid::from_child(&child), signals.handle());
    let waits = std::thread::spawn(move || {
        let status = child.wait();
        handle.close();
        status
    });
    for origin in &mut signals {
        // The kernel sends what is typed at the terminal to the command as well.
        let is_sent = origin.cause != Cause::Kernel;
        if let Some(signal) = Signal::from_named_raw(origin.signal).filter(|_| is_sent) {
            // It may have ended since it was asked for.
            let _ = kill_process(pid, signal);
        }
    }
    let status = waits.join().map_err(|_| anyhow!("the thread that waits has ended"))?;
    status.context("cannot wait for the command")
}

/// Is the signal ignored? The command inherits that only if this process leaves it so.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & (1 << (signal - 1)) != 0
}

/// Why there is no tape.
fn why_nothing() -> &'static str {
    if std::env::var_os("MEMTAPE_DISABLE").is_some_and(|value| value == "1") {
        "MEMTAPE_DISABLE is 1"
    } else if has_gpu(Path::new("/dev")) {
        "no process took GPU memory through PyTorch; `memtape doctor` checks what recording needs"
    } else {
        "no process used a GPU, and no NVIDIA GPU is visible here"
    }
}

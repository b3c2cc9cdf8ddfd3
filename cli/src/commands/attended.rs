//! A command that `memtape run` watches for a person at a terminal: when it ends, one line says
//! where its tapes are and what they hold, or why nothing was recorded.
//!
//! The command is a child in the same process group, so the terminal's signals and its job control
//! reach it as they would without Memtape; what is sent to Memtape's own process is passed on.
//! Without a terminal `memtape run` becomes the command instead, and this file has no part.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::clock;
use crate::commands::files::tapes;
use crate::commands::run::{NotStarted, has_gpu};

/// Runs the command, says what was recorded, and returns the exit code as a shell would.
/// Fails when the command cannot be started.
pub(crate) fn run(command: &mut Command, folder: &Path) -> anyhow::Result<u8> {
    let begun_wall_ns = clock::wall_ns();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let status = runtime.context("cannot watch the command")?.block_on(ended(command))?;
    eprintln!("memtape: {}", recorded(folder, begun_wall_ns));
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

/// Starts the command and waits for its end.
async fn ended(command: &mut Command) -> anyhow::Result<ExitStatus> {
    let watched = |kind| signal(kind).context("cannot watch signals");
    // The terminal sends these to the command itself; here they only must not end the watch.
    let (_interrupt, _quit) = (watched(SignalKind::interrupt())?, watched(SignalKind::quit())?);
    let mut terminate = watched(SignalKind::terminate())?;
    let mut hangup = watched(SignalKind::hangup())?;
    let mut child = command.spawn().map_err(|error| NotStarted::new(command, error))?;
    let pid = Pid::from_child(&child);
    let mut end = tokio::task::spawn_blocking(move || child.wait());
    loop {
        let passed_on = tokio::select! {
            status = &mut end => return Ok(status??),
            _ = terminate.recv() => Signal::TERM,
            _ = hangup.recv() => Signal::HUP,
        };
        // It may have ended in this moment.
        let _ = kill_process(pid, passed_on);
    }
}

/// What the tapes say, or why there are none.
fn recorded(folder: &Path, begun_wall_ns: i64) -> String {
    if let Some(line) = tapes::began_since(folder, begun_wall_ns) {
        return line;
    }
    let why = if std::env::var_os("MEMTAPE_DISABLE").is_some_and(|value| value == "1") {
        "MEMTAPE_DISABLE is 1"
    } else if has_gpu(Path::new("/dev")) {
        "no process took GPU memory through PyTorch; `memtape doctor` checks what recording needs"
    } else {
        "no process used a GPU, and no NVIDIA GPU is visible here"
    };
    format!("nothing was recorded: {why}")
}

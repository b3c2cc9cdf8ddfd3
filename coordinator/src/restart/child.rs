//! A program that a target runs: no shell, few variables, bounded time and output.
//!
//! It is the first of a process group, which is killed whole when the program takes too long. Its
//! output is read to the end, so that a program that writes much does not fail by it, and only the
//! end is kept. A child of it that outlives it, and holds its output open, delays nothing.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use memtape_core::action::Outcome;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::time::timeout;

use crate::restart::target::{failed, refused};

/// Bytes kept of a program's standard output and standard error: their ends.
const STDOUT_BYTES_MAX: usize = 64 << 10;
const STDERR_BYTES_MAX: usize = 1024;

/// Time for output that is written already when its program has ended.
const OUTPUT_GRACE: Duration = Duration::from_millis(200);

/// Why there is no exit status.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChildError {
    #[error("{program} cannot be started: {source}")]
    NotStarted { program: String, source: std::io::Error },
    #[error("{program} took longer than {limit:?}")]
    TooLong { program: String, limit: Duration },
    #[error("{program} is lost: {source}")]
    Lost { program: String, source: std::io::Error },
}

impl ChildError {
    /// True if the program certainly did nothing.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Self::NotStarted { .. } => true,
            Self::TooLong { .. } | Self::Lost { .. } => false,
        }
    }

    /// Outcome of a target whose program has no exit status.
    pub(super) fn outcome(self) -> Outcome {
        if self.is_refusal() { refused(self) } else { failed(self) }
    }
}

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// The end of its standard output; empty where the caller gave it another.
    pub(super) stdout: String,
    /// The last line of its standard error that is not empty.
    pub(super) line: String,
}

/// A program with these variables of this process and no others.
pub(super) fn bare<'a>(program: &str, passed: impl IntoIterator<Item = &'a str>) -> Command {
    let passed = passed.into_iter();
    let passed = passed.filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)));
    let mut command = Command::new(program);
    command.env_clear().envs(passed).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// The process group of a running program, killed when this is dropped before the program ended.
#[derive(Debug)]
struct Group(Option<Pid>);

impl Group {
    fn has_ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(first) = self.0 {
            // The group may have ended already.
            let _ = kill_process_group(first, Signal::KILL);
        }
    }
}

/// Runs a program to its end, and no longer than `limit`.
pub(super) async fn run(mut command: Command, limit: Duration) -> Result<Ended, ChildError> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let spawned = command.stderr(Stdio::piped()).process_group(0).kill_on_drop(true).spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(source) => return Err(ChildError::NotStarted { program, source }),
    };
    let first = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let mut group = Group(first);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut kept, mut said) = (Vec::new(), Vec::new());
    let reading = async {
        let stdout = keep_end(stdout, &mut kept, STDOUT_BYTES_MAX);
        let stderr = keep_end(stderr, &mut said, STDERR_BYTES_MAX);
        tokio::join!(stdout, stderr);
    };
    let mut reading = Box::pin(reading);
    let mut is_read = false;
    let finished = timeout(limit, async {
        loop {
            tokio::select! {
                status = child.wait() => break status,
                () = &mut reading, if !is_read => is_read = true,
            }
        }
    });
    let status = match finished.await {
        Err(_) => return Err(ChildError::TooLong { program, limit }),
        Ok(Err(source)) => return Err(ChildError::Lost { program, source }),
        Ok(Ok(status)) => status,
    };
    group.has_ended();
    // It has ended in time: the wait for its output is not counted.
    if !is_read {
        let _ = timeout(OUTPUT_GRACE, &mut reading).await;
    }
    drop(reading);
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    let (stdout, line) = (String::from_utf8_lossy(&kept).into_owned(), line.to_string());
    Ok(Ended { status, stdout, line })
}

/// Reads to the end, and keeps the last `bytes_max` bytes.
async fn keep_end(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>, bytes_max: usize) {
    let Some(mut from) = from else { return };
    let mut part = [0; 8192];
    while let Ok(length @ 1..) = from.read(&mut part).await {
        kept.extend_from_slice(&part[..length]);
        kept.drain(..kept.len().saturating_sub(bytes_max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program's child holds the output open for longer than the limit, which is shorter than
    /// the wait for output. On a busy machine the program itself may take longer, too.
    #[tokio::test]
    async fn a_program_that_ends_in_time_is_not_a_timeout() {
        let limit = OUTPUT_GRACE * 9 / 10;
        for _ in 0..100 {
            let mut command = bare("sh", ["PATH"]);
            command.args(["-c", "sleep 2 & echo here; exit 3"]).stdout(Stdio::piped());
            match run(command, limit).await {
                Err(ChildError::TooLong { .. }) => {}
                ended => {
                    let ended = ended.unwrap();
                    assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(3), "here\n"));
                    return;
                }
            }
        }
        panic!("it took longer than {limit:?} 100 times");
    }
}

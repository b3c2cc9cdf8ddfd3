//! A command on this machine. It gets the facts in its environment. No shell is started here: the
//! command line passes `sh -c` and the operator's text.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use memtape_proto::api::ActionKind;
use tokio::io::AsyncReadExt;
use tokio::process;
use tokio::time::timeout;

use crate::restart::target::{Order, Running, Target};

/// Of a command's output this much is kept, its end.
const OUTPUT_BYTES_MAX: usize = 1024;

/// Of a command's output this much is read.
const READ_BYTES_MAX: u64 = 1 << 20;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CommandError {
    #[error("{program} cannot be started: {source}")]
    NotStarted { program: String, source: std::io::Error },
    #[error("{program} took longer than {limit:?}")]
    TooLong { program: String, limit: Duration },
    #[error("{program} is lost: {source}")]
    Lost { program: String, source: std::io::Error },
    #[error("{program} ended with {status}")]
    Failed { program: String, status: ExitStatus },
    #[error("{program} ended with {status}: {line}")]
    FailedSaying { program: String, status: ExitStatus, line: String },
}

/// A program with its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Command {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
}

impl Command {
    /// The target of a program and its arguments; none when there is no program.
    pub(crate) fn new(words: &[String], timeout: Duration) -> Option<Self> {
        let (program, arguments) = words.split_first()?;
        Some(Self { program: program.clone(), arguments: arguments.to_vec(), timeout })
    }
}

impl Target for Command {
    fn kind(&self) -> ActionKind {
        ActionKind::Command
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { Ok(run(self, order).await?) })
    }
}

async fn run(command: &Command, order: &Order) -> Result<String, CommandError> {
    let (program, limit) = (command.program.clone(), command.timeout);
    let spawned = process::Command::new(&program)
        .args(&command.arguments)
        .env("MEMTAPE_ACTION", &order.action)
        .env("MEMTAPE_JOB", &order.job)
        .env("MEMTAPE_ATTEMPT", order.attempt.to_string())
        .env("MEMTAPE_RANK", order.rank.to_string())
        .env("MEMTAPE_NODE", &order.node)
        .env("MEMTAPE_INCIDENT", &order.incident)
        .env("MEMTAPE_CLASS", &order.class)
        .env("MEMTAPE_WHY", &order.why)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(source) => return Err(CommandError::NotStarted { program, source }),
    };
    let stderr = child.stderr.take();
    let finished = timeout(limit, async {
        let mut said = Vec::new();
        if let Some(stderr) = stderr {
            let _ = stderr.take(READ_BYTES_MAX).read_to_end(&mut said).await;
        }
        (child.wait().await, said)
    });
    let (status, said) = match finished.await {
        Err(_) => return Err(CommandError::TooLong { program, limit }),
        Ok((Err(source), _)) => return Err(CommandError::Lost { program, source }),
        Ok((Ok(status), said)) => (status, said),
    };
    let said = String::from_utf8_lossy(&said[said.len().saturating_sub(OUTPUT_BYTES_MAX)..]);
    let line = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    match (status.success(), line) {
        (true, _) => Ok("done".to_string()),
        (false, "") => Err(CommandError::Failed { program, status }),
        (false, line) => {
            Err(CommandError::FailedSaying { program, status, line: line.to_string() })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn check(command: &[&str], seconds: u64, expected: Result<&str, &str>) {
        let words: Vec<String> = command.iter().map(ToString::to_string).collect();
        let command = Command::new(&words, Duration::from_secs(seconds)).unwrap();
        let order = Order { job: "j'$(x)".to_string(), rank: 3, ..Order::default() };
        let result = command.run(&order).await.map_err(|why| why.to_string());
        let result = result.as_deref().map_err(String::as_str);
        match (result, expected) {
            (Err(why), Err(part)) => assert!(why.contains(part), "{why:?} has no {part:?}"),
            _ => assert_eq!(result, expected),
        }
    }

    #[tokio::test]
    async fn commands_are_run_with_the_facts_and_a_limit() {
        check(&["true"], 5, Ok("done")).await;
        let facts = "test \"$MEMTAPE_JOB\" = \"j'\\$(x)\" && test $MEMTAPE_RANK = 3";
        check(&["sh", "-c", facts], 5, Ok("done")).await;
        check(&["sh", "-c", "echo no quota >&2; exit 3"], 5, Err("no quota")).await;
        check(&["false"], 5, Err("exit status: 1")).await;
        check(&["sleep", "60"], 0, Err("took longer")).await;
        check(&["/nowhere/restart"], 5, Err("cannot be started")).await;
    }
}

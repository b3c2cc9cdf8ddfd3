//! Slurm: checks the job of the rank, then requeues it.
//!
//! Slurm requeues a completed job as gladly as a running one, so the job is checked first. It must
//! run, on the node whose agent named it, as the user that the tape belongs to, and must have
//! started before the restart was decided. An agent proves its node by its certificate, but says
//! itself which job its ranks belong to; Slurm knows where a job runs.
//!
//! `squeue` is asked for fields that no user chooses. `scontrol show job` would write the job's
//! name among them, in which a user can write `JobState=RUNNING`.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use memtape_core::action::{Outcome, TargetKind};
use tokio::time::sleep;

use crate::restart::child::{ChildError, Ended, bare, run as run_child};
use crate::restart::target::{Done, Order, Running, Target, failed, outcome, refused};

pub(crate) mod nodes;

/// Variables that Slurm's programs get: where its settings are, if not in their usual place.
const PASSED: [&str; 2] = ["PATH", "SLURM_CONF"];

/// Fields of a job that `squeue` prints, separated by spaces: no field holds one.
const FIELDS: &str =
    "JobID:16,ArrayJobID:16,ArrayTaskID:16,State:20,UserID:16,RestartCnt:16,StartTime:24";

/// Looks at what came of a request: Slurm ends the steps of a job first, and a busy `slurmctld`
/// may carry out a request after `scontrol` has given up.
const CHECKS_MAX: usize = 10;

/// Why `squeue` shows no job.
#[derive(Debug, thiserror::Error)]
enum Unseen {
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error("{0} ended with {1}")]
    Exit(&'static str, ExitStatus),
    #[error("{0}")]
    Said(String),
    #[error("squeue printed no job in its fields: {0:?}")]
    Unreadable(String),
}

/// Slurm's programs on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Slurm {
    /// Time for each of them.
    timeout: Duration,
    /// Folder of Slurm's programs, if not on this process's `PATH`.
    path: Option<OsString>,
    /// Time between two polls for the result of a request.
    poll: Duration,
}

impl Slurm {
    /// The programs on the `PATH`, each with this much time.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, path: None, poll: Duration::from_millis(500) }
    }

    async fn ask(&self, program: &str, arguments: &[&str]) -> Result<Ended, ChildError> {
        let mut command = bare(program, PASSED);
        // Times as Unix time, messages in English.
        command.env("SLURM_TIME_FORMAT", "%s").env("LC_ALL", "C");
        if let Some(path) = &self.path {
            command.env("PATH", path);
        }
        command.args(arguments).stdout(Stdio::piped());
        run_child(command, self.timeout).await
    }

    /// Present state of the job on that node; none where it is not there.
    async fn look(&self, job: &str, node: &str) -> Result<Option<Job>, Unseen> {
        let (of_job, on_node) = (format!("--jobs={job}"), format!("--nodelist={node}"));
        let format = format!("--Format={FIELDS}");
        let arguments = ["--noheader", "--states=all", &of_job, &on_node, &format];
        Job::find(job, &self.printed("squeue", &arguments).await?)
    }

    /// Output of a program that shows the state of Slurm.
    async fn printed(&self, program: &'static str, arguments: &[&str]) -> Result<String, Unseen> {
        let ended = self.ask(program, arguments).await?;
        match ended.status.success() {
            true => Ok(ended.stdout),
            false if ended.line.is_empty() => Err(Unseen::Exit(program, ended.status)),
            false => Err(Unseen::Said(ended.line)),
        }
    }
}

/// A job as `squeue` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Job {
    /// Name of the job for `scontrol`: `4711`, or `4700_11` for a task of an array. The number of
    /// one task may mean all tasks of the array.
    name: String,
    state: String,
    uid: u32,
    restarts: u32,
    /// Unix time of the job's start, in seconds; none where it has not started.
    started: Option<i64>,
}

impl Job {
    /// The job of this number among lines of [`FIELDS`].
    fn find(number: &str, text: &str) -> Result<Option<Self>, Unseen> {
        let line = text.lines().find(|line| line.split_whitespace().next() == Some(number));
        let Some(line) = line else { return Ok(None) };
        Self::read(line).map(Some).ok_or_else(|| Unseen::Unreadable(line.trim().to_string()))
    }

    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [number, array, task, state, uid, restarts, started] = fields[..] else { return None };
        let name = match task.parse::<u32>() {
            Ok(task) => format!("{array}_{task}"),
            Err(_) => number.to_string(),
        };
        let (uid, restarts) = (uid.parse().ok()?, restarts.parse().ok()?);
        Some(Self { name, state: state.to_string(), uid, restarts, started: started.parse().ok() })
    }

    fn is_running(&self) -> bool {
        self.state == "RUNNING"
    }

    /// True if the job was not restarted since `before`.
    fn is_same_start(&self, before: &Self) -> bool {
        (self.restarts, self.started) == (before.restarts, before.started)
    }
}

impl Target for Slurm {
    fn kind(&self) -> TargetKind {
        TargetKind::Slurm
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(requeue(self, order).await) })
    }
}

async fn requeue(slurm: &Slurm, order: &Order) -> Done {
    let (job, node) = (&order.slurm_job, &order.node);
    if job.is_empty() || !job.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refused("the rank is in no Slurm job that its agent knows"));
    }
    check_node(node, "the rank's node")?;
    let before = match slurm.look(job, node).await {
        Ok(Some(before)) => before,
        Ok(None) => {
            let why = format!("job {job} does not run on node {node}: not requeued");
            return Err(refused(why));
        }
        Err(why) => {
            let why = format!("job {job} was not looked at, so it was not requeued: {why}");
            return Err(refused(why));
        }
    };
    check(&before, order)?;
    order.prove().await?;
    let asked = match slurm.ask("scontrol", &["requeue", &before.name]).await {
        Err(error) if error.is_refusal() => return Err(refused(error)),
        asked => asked,
    };
    let is_taken = asked.as_ref().is_ok_and(|ended| ended.status.success());
    let mut is_unchanged = true;
    for _ in 0..CHECKS_MAX {
        match slurm.look(job, node).await {
            Err(why) => {
                let why = format!("it is not known whether job {job} was requeued: {why}");
                return Err(failed(why));
            }
            Ok(Some(now)) if now == before => {}
            // It ends or is gone, maybe by itself.
            Ok(now) if !is_taken && now.as_ref().is_none_or(|it| it.is_same_start(&before)) => {
                is_unchanged = false;
            }
            // It ends, waits, which it does on no node, or runs again.
            Ok(_) => return Ok(format!("requeued job {}", before.name)),
        }
        sleep(slurm.poll).await;
    }
    let Ended { status, line, .. } = asked.map_err(ChildError::outcome)?;
    Err(match status.code() {
        Some(0) => failed(format!("Slurm took the request, but job {job} still runs as before")),
        // It also fails when the answer of a busy `slurmctld` is late.
        Some(_) if is_unchanged => refused(format!("job {job} was not requeued: {line}")),
        Some(_) | None => {
            failed(format!("scontrol ended with {status}, and the job may be requeued: {line}"))
        }
    })
}

/// Refuses a text that is not the name of one node: Slurm's programs take ranges, lists and files
/// in its place.
fn check_node(node: &str, which: &str) -> Result<(), Outcome> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !node.is_empty() && node.bytes().all(is_plain) {
        return Ok(());
    }
    Err(refused(format!("{which} has no name that Slurm can know: {node:?}")))
}

/// May the job be requeued in its present state?
fn check(found: &Job, order: &Order) -> Result<(), Outcome> {
    let (job, Job { state, uid, .. }) = (&order.slurm_job, found);
    if !found.is_running() {
        return Err(refused(format!("job {job} is {state}: not requeued")));
    }
    if let Some(expected) = order.owner_uid.filter(|expected| expected != uid) {
        return Err(refused(format!(
            "job {job} belongs to user id {uid}, the rank to {expected}: not requeued"
        )));
    }
    let decided = order.wall_ns.div_euclid(1_000_000_000);
    if found.started.is_some_and(|started| started <= decided) {
        return Ok(());
    }
    let why = format!("job {job} has started again since the restart was decided: not requeued");
    Err(refused(why))
}

#[cfg(test)]
mod tests;

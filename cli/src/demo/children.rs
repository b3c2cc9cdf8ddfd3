//! The demo's processes: this binary, started again. All of them write their logs into one folder.
//!
//! No process outlives the demo. Each child asks the kernel to be killed with its parent. Each
//! child leads a process group of its own, which is killed at the end. Orphaned grandchildren
//! (torchrun's workers) become children of the demo, which kills them too.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper, waitpid,
};

/// Time that a launcher has to stop its workers before all are killed.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
const POLL_TIME: Duration = Duration::from_millis(50);
/// Generations of orphaned processes that are killed at the end.
const GENERATIONS_MAX: usize = 8;

/// The running processes, in the order in which they were started.
#[derive(Debug)]
pub(crate) struct Children {
    binary: PathBuf,
    logs: PathBuf,
    running: Vec<Named>,
}

#[derive(Debug)]
struct Named {
    name: String,
    child: Child,
    /// `memtape run`, which has children of its own to stop.
    is_launcher: bool,
}

impl Children {
    /// No process yet; logs go into this folder.
    /// Fails when the path of this binary is unknown.
    pub(crate) fn new(logs: PathBuf) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("cannot find the path of this program")?;
        set_child_subreaper(Pid::from_raw(1)).context("cannot adopt grandchildren")?;
        Ok(Self { binary, logs, running: Vec::new() })
    }

    /// Starts `memtape` with these arguments, and these variables beside this process's own. The
    /// log is named `name`.
    /// Fails when the log cannot be created or the process cannot be started.
    pub(crate) fn start(
        &mut self,
        name: &str,
        arguments: &[String],
        variables: &[(&str, String)],
    ) -> anyhow::Result<()> {
        let log = self.log(name)?;
        self.spawn(name, arguments, variables, Stdio::from(log)).map(drop)
    }

    /// Starts `memtape`, and returns the first line that it prints. Further output is dropped.
    /// Fails as [`Self::start`] does, and when the process ends without a line: with the last line
    /// of its log.
    pub(crate) fn start_and_read(
        &mut self,
        name: &str,
        arguments: &[String],
    ) -> anyhow::Result<String> {
        let stdout = self.spawn(name, arguments, &[], Stdio::piped())?;
        let mut line = String::new();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut line).context("cannot read a child's output")?;
        }
        if line.trim().is_empty() {
            bail!("{name} did not start: {}", self.last_log_line(name));
        }
        Ok(line.trim().to_string())
    }

    fn spawn(
        &mut self,
        name: &str,
        arguments: &[String],
        variables: &[(&str, String)],
        stdout: Stdio,
    ) -> anyhow::Result<Option<ChildStdout>> {
        let is_launcher = arguments.first().is_some_and(|command| command == "run");
        let mut command = Command::new(&self.binary);
        if is_launcher {
            // `python -m` imports from the working directory, where other users may have files.
            command.current_dir(&self.logs);
        }
        let mut child = command
            .arg(format!("--die-with-parent={}", std::process::id()))
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(self.log(name)?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let stdout = child.stdout.take();
        self.running.push(Named { name: name.to_string(), child, is_launcher });
        Ok(stdout)
    }

    fn log(&self, name: &str) -> anyhow::Result<File> {
        let path = self.logs.join(format!("{name}.log"));
        let log = File::options().create(true).append(true).open(&path);
        log.with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the processes that ended since the last call, with the last line of their logs.
    pub(crate) fn ended(&mut self) -> Vec<(String, ExitStatus, String)> {
        let mut ended = Vec::new();
        self.running.retain_mut(|named| match named.child.try_wait() {
            Ok(Some(status)) => {
                ended.push((named.name.clone(), status));
                false
            }
            _ => true,
        });
        let with_log = |(name, status): (String, ExitStatus)| {
            let line = self.last_log_line(&name);
            (name, status, line)
        };
        ended.into_iter().map(with_log).collect()
    }

    /// Kills one process (SIGKILL), and waits for its end.
    pub(crate) fn kill(&mut self, name: &str) {
        if let Some(index) = self.running.iter().position(|named| named.name == name) {
            let mut named = self.running.remove(index);
            end_group(&named.child, Signal::KILL);
            let _ = named.child.wait();
        }
    }

    fn last_log_line(&self, name: &str) -> String {
        let text = std::fs::read(self.logs.join(format!("{name}.log"))).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        crate::output::one_line(last.unwrap_or("its log is empty"))
    }

    fn stop_all(&mut self) {
        for named in &self.running {
            let signal = if named.is_launcher { Signal::TERM } else { Signal::KILL };
            end_group(&named.child, signal);
        }
        let polls = STOP_TIME_MAX.as_millis() / POLL_TIME.as_millis();
        for mut named in self.running.drain(..) {
            for _ in 0..polls {
                if !matches!(named.child.try_wait(), Ok(None)) {
                    break;
                }
                sleep(POLL_TIME);
            }
            end_group(&named.child, Signal::KILL);
            let _ = named.child.wait();
        }
        // When an orphan is killed, its own children become children of this process.
        for _ in 0..GENERATIONS_MAX {
            for pid in adopted() {
                let _ = kill_process(pid, Signal::KILL);
                let _ = waitpid(Some(pid), WaitOptions::empty());
            }
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.stop_all();
    }
}

fn end_group(child: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        let _ = kill_process_group(pid, signal);
    }
}

/// Orphaned processes that became children of this process.
fn adopted() -> Vec<Pid> {
    let mut pids = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let numbers = text.split_whitespace().filter_map(|pid| pid.parse().ok());
        pids.extend(numbers.filter_map(Pid::from_raw));
    }
    pids
}

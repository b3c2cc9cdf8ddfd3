//! One of the coordinators of a cluster, as a process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// A coordinator of the cluster. Its process is killed when it is dropped.
#[derive(Debug)]
pub(super) struct Member {
    /// Its access key for the bucket.
    pub(super) key: &'static str,
    /// Where it listens while it owns the cluster.
    pub(super) address: String,
    memtape: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    log: PathBuf,
    child: Option<Child>,
}

impl Member {
    /// Describes one that does not run yet. Its log goes into a file of this folder.
    pub(super) fn new(
        memtape: &Path,
        key: &'static str,
        address: String,
        (arguments, variables): (Vec<String>, Vec<(String, String)>),
        folder: &Path,
    ) -> Self {
        let (memtape, log) = (memtape.to_path_buf(), folder.join(format!("{key}.log")));
        Self { key, address, memtape, arguments, variables, log, child: None }
    }

    /// Its URL.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts the process, unless it runs.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        if !self.has_ended()? {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.memtape);
        command.args(["coordinator", "--listen", &self.address]).args(&self.arguments);
        command.args(["--die-with-parent", &std::process::id().to_string()]);
        command.envs(self.variables.iter().cloned());
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn();
        self.child = Some(child.with_context(|| format!("cannot run {:?}", self.memtape))?);
        Ok(())
    }

    /// Has it ended, or was it never started?
    pub(super) fn has_ended(&mut self) -> anyhow::Result<bool> {
        self.child.as_mut().map_or(Ok(true), |child| Ok(child.try_wait()?.is_some()))
    }

    /// Kills it, and waits for its end.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends a signal to the process that was started last.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("it does not run")?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("no process id")?, signal)?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

//! Restart targets: who is asked for a restart, or to keep a node out, one file for each.
//!
//! The policy decides, a target only carries out. A new target is a file here that implements
//! [`Target`], and in this file its module, its setting in [`RestartConfig`] and its entry in
//! [`RestartConfig::targets`] or [`RestartConfig::node_targets`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use memtape_core::action::remedy::Signal;
use memtape_core::policy;
use memtape_core::policy::terms::Terms;
use memtape_proto::api::ActionKind;

use crate::restart::command::Command;
use crate::restart::kubernetes::Kubernetes;
use crate::restart::kubernetes::nodes::Taint;
use crate::restart::slurm::Slurm;
use crate::restart::slurm::nodes::Drain;
use crate::restart::target::Target;
use crate::restart::webhook::{Caller, Webhook};

mod child;
mod command;
mod drain_reason;
mod kubernetes;
mod slurm;
pub(crate) mod target;
pub(crate) mod webhook;

/// When to ask for a restart, and whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartConfig {
    /// When to act. Default: the policy's own, but with `dry-run` in the place of `off`: nothing
    /// is done, and what would be done is shown.
    pub policy: policy::Settings,
    /// Program and arguments of the command; empty means none. It gets the environment variables
    /// `MEMTAPE_ACTION`, `MEMTAPE_JOB`, `MEMTAPE_ATTEMPT`, `MEMTAPE_RANK`, `MEMTAPE_NODE`,
    /// `MEMTAPE_OWNER_UID`, `MEMTAPE_NAMESPACE`, `MEMTAPE_SLURM_JOB`, `MEMTAPE_POD`,
    /// `MEMTAPE_POD_UID`, `MEMTAPE_INCIDENT`, `MEMTAPE_CLASS` and `MEMTAPE_WHY`; of this process's
    /// own, `PATH`, `HOME`, `USER`, `LANG`, `LC_ALL` and `TZ`. Default: none.
    pub command: Vec<String>,
    /// Environment variables of this process that both commands get, too. Default: none.
    pub command_env: Vec<String>,
    /// Where to post the request. Default: none.
    pub webhook: Option<Webhook>,
    /// Requeue the rank's Slurm job by `scontrol`. Default: false.
    pub slurm: bool,
    /// Suspend and resume the job of the rank's pod, or delete the pod, with the credentials of
    /// `KUBECONFIG` or of this pod's service account. Default: false.
    pub kubernetes: bool,
    /// Program and arguments of the command that keeps a node out, with the same variables; those
    /// of a job are empty. It restarts no job. Default: none.
    pub keep_out_command: Vec<String>,
    /// The signal that every rank gets, through its agent, if its job offers that. Default: none.
    pub signal: Option<Signal>,
    /// Time for a command, for each program of Slurm, for each request to Kubernetes, and for each
    /// try of the webhook. Default: 30 s.
    pub timeout: Duration,
}

impl Default for RestartConfig {
    fn default() -> Self {
        Self {
            policy: policy::Settings {
                terms: Terms { mode: policy::Mode::DryRun, ..Terms::default() },
                keep_out: policy::Mode::DryRun,
                ..policy::Settings::default()
            },
            command: Vec::new(),
            command_env: Vec::new(),
            webhook: None,
            slurm: false,
            kubernetes: false,
            keep_out_command: Vec::new(),
            signal: None,
            timeout: Duration::from_secs(30),
        }
    }
}

impl RestartConfig {
    /// The configured targets.
    pub(crate) fn targets(&self) -> Vec<Arc<dyn Target>> {
        // Without `..`: a setting that makes no target does not compile. Signals go through the
        // agents.
        let Self {
            policy: _,
            signal: _,
            keep_out_command: _,
            command,
            command_env,
            webhook,
            slurm,
            kubernetes,
            timeout,
        } = self;
        let command = Command::new(command, command_env, *timeout).map(shared);
        let webhook = webhook.clone().map(|to| shared(Caller { webhook: to, timeout: *timeout }));
        let slurm = slurm.then(|| shared(Slurm::new(*timeout)));
        let kubernetes = kubernetes.then(|| shared(Kubernetes::new(*timeout)));
        [command, webhook, slurm, kubernetes].into_iter().flatten().collect()
    }

    /// The configured targets that can keep a node out.
    pub(crate) fn node_targets(&self) -> Vec<Arc<dyn Target>> {
        let slurm = self.slurm.then(|| shared(Drain(Slurm::new(self.timeout))));
        let kubernetes = self.kubernetes.then(|| shared(Taint(Kubernetes::new(self.timeout))));
        let command = Command::new(&self.keep_out_command, &self.command_env, self.timeout);
        [slurm, kubernetes, command.map(shared)].into_iter().flatten().collect()
    }

    /// The names of all targets, of jobs and of nodes.
    pub(crate) fn target_names(&self) -> BTreeSet<&'static str> {
        let targets = self.targets().into_iter().chain(self.node_targets());
        let signal = self.signal.map(|_| ActionKind::Signal);
        targets.map(|target| target.kind()).chain(signal).map(Into::into).collect()
    }
}

fn shared(target: impl Target + 'static) -> Arc<dyn Target> {
    Arc::new(target)
}

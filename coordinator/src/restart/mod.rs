//! Restart targets: who is asked for a restart, or to keep a node out, one file for each.
//!
//! The policy decides, a target only carries out. A new target is a file here that implements
//! [`Target`], and in this file its module, its setting in [`RestartConfig`] and its entry in
//! [`RestartConfig::targets`] or [`RestartConfig::node_targets`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::{FalseyValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use memtape_core::action::TargetKind;
use memtape_core::action::remedy::Signal;
use memtape_core::policy;
use strum::VariantArray as _;

use crate::restart::command::Command;
#[cfg(feature = "kubernetes")]
use crate::restart::kubernetes::{Kubernetes, nodes::Taint};
use crate::restart::slurm::Slurm;
use crate::restart::slurm::nodes::Drain;
use crate::restart::target::Target;

mod child;
mod command;
mod drain_reason;
#[cfg(feature = "kubernetes")]
mod kubernetes;
pub(crate) mod proving;
mod slurm;
pub(crate) mod target;

/// When to ask for a restart, and whom.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct RestartConfig {
    /// When to act. Default: nothing is done, and what would be done is shown.
    #[arg(skip = policy::Settings::default())]
    pub policy: policy::Settings,
    /// Signal that restarts a job: every rank gets it at once, where the job was started with
    /// `memtape run --actions signal` [default: none]. Another restart target beside it is refused.
    #[arg(
        long = "restart-signal",
        value_name = "SIGNAL",
        env = "MEMTAPE_RESTART_SIGNAL",
        value_parser = signal_parser()
    )]
    pub signal: Option<Signal>,
    /// Command that restarts a job, run by sh -c with MEMTAPE_JOB, MEMTAPE_RANK and more set
    /// [default: none]. When it ends with another status than 0, nothing was restarted, and it is
    /// run again later.
    #[arg(long = "restart-command", value_name = "CMD", env = "MEMTAPE_RESTART_COMMAND")]
    pub command: Option<String>,
    /// Environment variables that the commands to restart a job and to keep a node out get beside
    /// PATH, HOME, USER, LANG, LC_ALL and TZ [default: none].
    #[arg(
        long = "restart-env",
        value_name = "NAMES",
        value_delimiter = ',',
        env = "MEMTAPE_RESTART_ENV"
    )]
    pub command_env: Vec<String>,
    /// Restart by scontrol requeue, if the job runs on the node of the incident, as the user that
    /// the rank belongs to. The coordinator's user may requeue it: its owner, or a Slurm operator.
    #[arg(
        long = "restart-slurm",
        env = "MEMTAPE_RESTART_SLURM",
        value_parser = FalseyValueParser::new()
    )]
    pub slurm: bool,
    /// Restart by Kubernetes, with KUBECONFIG or the service account: suspend and resume the
    /// TrainJob, JobSet, Job or PyTorchJob of the pod, or its Workload of Kueue; else delete the
    /// pod, if a controller replaces it.
    #[arg(
        long = "restart-kubernetes",
        env = "MEMTAPE_RESTART_KUBERNETES",
        value_parser = FalseyValueParser::new()
    )]
    pub kubernetes: bool,
    /// Command that keeps a node out whose GPU memory was not given back, as the policy file says,
    /// run by sh -c with MEMTAPE_NODE, MEMTAPE_ACTION and MEMTAPE_WHY set [default: none]. When it
    /// ends with another status than 0, nothing was done. `deploy/ray` has one for Ray.
    #[arg(long = "keep-out-command", value_name = "CMD", env = "MEMTAPE_KEEP_OUT_COMMAND")]
    pub keep_out_command: Option<String>,
    /// Time for a command, for each program of Slurm, and for each request to Kubernetes.
    #[arg(skip = Duration::from_secs(30))]
    pub timeout: Duration,
}

/// Reads the signals by their names, each with its sentence in the help.
fn signal_parser() -> impl TypedValueParser<Value = Signal> {
    let about = |signal: &Signal| match signal {
        Signal::SigUsr1 => {
            "For programs that handle it. Lightning under Slurm saves a checkpoint and requeues \
             the job. A program without a handler ends"
        }
        Signal::SigUsr2 => "For programs that handle it",
        Signal::SigTerm => {
            "The process ends. torchrun starts the worker group again only with --max-restarts 1 \
             or more (its default is 0)"
        }
        Signal::SigInt => "As Ctrl-C",
    };
    let value = |signal: &Signal| PossibleValue::new(<&str>::from(*signal)).help(about(signal));
    PossibleValuesParser::new(Signal::VARIANTS.iter().map(value)).map(|name| {
        let is = |signal: &&Signal| <&str>::from(**signal) == name;
        *Signal::VARIANTS.iter().find(is).expect("the name is one of the possible ones")
    })
}

impl Default for RestartConfig {
    fn default() -> Self {
        crate::Config::default().restart
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
            command_env: _,
            command,
            slurm,
            kubernetes,
            timeout,
        } = self;
        let command = self.shell(command.as_ref());
        let slurm = slurm.then(|| shared(Slurm::new(*timeout)));
        #[cfg(feature = "kubernetes")]
        let kubernetes = kubernetes.then(|| shared(Kubernetes::new(*timeout)));
        #[cfg(not(feature = "kubernetes"))]
        let kubernetes = kubernetes.then_some(None).flatten();
        [command, slurm, kubernetes].into_iter().flatten().collect()
    }

    /// The configured targets that can keep a node out.
    pub(crate) fn node_targets(&self) -> Vec<Arc<dyn Target>> {
        let slurm = self.slurm.then(|| shared(Drain(Slurm::new(self.timeout))));
        #[cfg(feature = "kubernetes")]
        let kubernetes = self.kubernetes.then(|| shared(Taint(Kubernetes::new(self.timeout))));
        #[cfg(not(feature = "kubernetes"))]
        let kubernetes = None;
        let command = self.shell(self.keep_out_command.as_ref());
        [slurm, kubernetes, command].into_iter().flatten().collect()
    }

    fn shell(&self, line: Option<&String>) -> Option<Arc<dyn Target>> {
        let (passed, timeout) = (self.command_env.clone(), self.timeout);
        line.map(|line| shared(Command { line: line.clone(), passed, timeout }))
    }

    /// The names of all targets, of jobs and of nodes.
    pub(crate) fn target_names(&self) -> BTreeSet<&'static str> {
        let targets = self.targets().into_iter().chain(self.node_targets());
        let signal = self.signal.map(|_| TargetKind::Signal);
        targets.map(|target| target.kind()).chain(signal).map(Into::into).collect()
    }
}

fn shared(target: impl Target + 'static) -> Arc<dyn Target> {
    Arc::new(target)
}

//! Kinds of actions, and the targets that carry them out.

use strum::VariantArray as _;

use crate::diagnosis::Class;
use crate::tape::mailbox;

crate::tape::names! {
    /// Kind of action. Kinds for a job come mildest first.
    ///
    /// The first two are carried out inside the ranks, at one step on all of them, and the attempt
    /// goes on. A restart ends the attempt. Which of them may help is decided here by the class of
    /// the incident; of a restart the diagnosis says more ([`crate::diagnosis::RestartAnswer`]).
    #[derive(Default)]
    pub enum ActionKind in "kebab-case" {
        /// Run Python's garbage collector in every rank.
        Gc,
        /// Give the allocator's unused memory back to the device, in every rank.
        EmptyCache,
        /// Ask the orchestrator for a restart of the job.
        #[default]
        Restart,
        /// Ask the orchestrator to keep a node out whose GPU memory was not given back.
        KeepOut,
    }
}

crate::tape::names! {
    /// Target that carries an action out.
    #[derive(Default)]
    pub enum TargetKind in "snake_case" {
        /// A command.
        Command,
        /// Slurm, which requeues the job, or drains the node.
        Slurm,
        /// Kubernetes, which suspends and resumes the job, replaces the pod, or taints the node.
        Kubernetes,
        /// A signal to every rank.
        Signal,
        /// Inside the ranks: no restart.
        Ranks,
        /// Not at all: none is configured, or nothing is done.
        #[default]
        None,
    }
}

impl ActionKind {
    /// Kinds of actions on a job, mildest first.
    pub fn of_jobs() -> impl Iterator<Item = Self> {
        Self::VARIANTS.iter().copied().filter(|kind| *kind != Self::KeepOut)
    }

    /// Name of the action as a command.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Gc => "collect garbage",
            Self::EmptyCache => "empty the cache",
            Self::Restart => "restart",
            Self::KeepOut => "keep node out",
        }
    }

    /// Name of completed actions, as a noun in the plural.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Gc => "garbage collections",
            Self::EmptyCache => "emptied caches",
            Self::Restart => "restarts",
            Self::KeepOut => "nodes kept out",
        }
    }

    /// True when it is carried out inside the ranks, and the attempt goes on.
    pub fn is_inside(self) -> bool {
        self.asked_of_ranks().is_some_and(|asked| asked != mailbox::Remedy::Checkpoint)
    }

    /// Remedy requested from the ranks: for a restart, the checkpoint before it.
    pub fn asked_of_ranks(self) -> Option<mailbox::Remedy> {
        match self {
            Self::Gc => Some(mailbox::Remedy::Gc),
            Self::EmptyCache => Some(mailbox::Remedy::EmptyCache),
            Self::Restart => Some(mailbox::Remedy::Checkpoint),
            Self::KeepOut => None,
        }
    }

    /// True when it may help against a class. A leak may be cycles that the captures do not show.
    pub(crate) fn suits(self, class: Class) -> bool {
        match self {
            Self::Gc => matches!(class, Class::ReferenceCycles | Class::Leak),
            Self::EmptyCache => matches!(class, Class::Fragmentation | Class::DeferredFrees),
            Self::Restart | Self::KeepOut => true,
        }
    }
}

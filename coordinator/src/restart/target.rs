//! Restart targets: the trait, and the inputs of a target.

use std::fmt::{Debug, Display};
use std::pin::Pin;

use memtape_core::action::Outcome;
use memtape_core::action::TargetKind;
use memtape_core::limits::NODES_KEPT_OUT_MAX;
use memtape_core::policy::gpu_memory::may_keep_out;

use crate::restart::proving::Prover;

/// Something that can restart a job.
pub(crate) trait Target: Debug + Send + Sync {
    /// Name of the target in records and in the API.
    fn kind(&self) -> TargetKind;

    /// Asks for a restart; returns what came of it, in one line for the record of the action. It is
    /// [`Outcome::Refused`] only where it is sure that nothing was restarted. Right before each
    /// request that begins a change, it proves by [`Order::prove`] that this coordinator may make
    /// it.
    fn run<'a>(&'a self, order: &'a Order) -> Running<'a>;

    /// Finishes an action that an earlier process left half done, because it was killed during
    /// [`Self::run`]. Starts nothing. Returns none where nothing was left, or where `run` leaves
    /// nothing to finish. Reads only [`Order::action`] and [`Order::namespace`]; where pod and pod
    /// UID are known, waits for their end, too.
    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        let _ = order;
        Box::pin(async { None })
    }
}

/// A target at work.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Outcome> + Send + 'a>>;

/// A target that finishes an action left half done.
pub(crate) type Resuming<'a> = Pin<Box<dyn Future<Output = Option<Outcome>> + Send + 'a>>;

/// Result of a target, in one line; else an [`Outcome::Refused`], where certainly nothing was done,
/// or an [`Outcome::Failed`].
pub(super) type Done = Result<String, Outcome>;

/// Outcome of a target.
pub(super) fn outcome(done: Done) -> Outcome {
    done.map_or_else(|outcome| outcome, |said| Outcome::Finished { said })
}

/// Outcome where certainly nothing was done.
pub(super) fn refused(why: impl Display) -> Outcome {
    Outcome::Refused { why: why.to_string() }
}

/// Outcome where the action may have been done.
pub(super) fn failed(why: impl Display) -> Outcome {
    Outcome::Failed { why: why.to_string() }
}

/// Refuses to keep one more node out where too many are.
pub(super) fn admit_one_more(kept_out: usize) -> Result<(), Outcome> {
    if may_keep_out(kept_out) {
        return Ok(());
    }
    Err(refused(format!(
        "{kept_out} nodes are kept out already, and at most {NODES_KEPT_OUT_MAX} may be: nothing \
         was done"
    )))
}

/// The input of a target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Order {
    pub(crate) action: String,
    pub(crate) incident: String,
    pub(crate) job: String,
    pub(crate) attempt: u32,
    pub(crate) rank: u32,
    pub(crate) node: String,
    /// User id of the job's owner; none where it is not known.
    pub(crate) owner_uid: Option<u32>,
    /// Kubernetes namespace; empty where there is none.
    pub(crate) namespace: String,
    /// Id of the rank's Slurm job, from the kernel; empty where there is none.
    pub(crate) slurm_job: String,
    /// Name and UID of the rank's pod, from the kernel and the kubelet; empty where there is none.
    pub(crate) pod: String,
    pub(crate) pod_uid: String,
    pub(crate) class: String,
    pub(crate) sentence: String,
    pub(crate) why: String,
    pub(crate) wall_ns: i64,
    /// Given with the order to its target.
    pub(crate) prover: Prover,
}

impl Order {
    /// Proves that this coordinator still owns the store that has the action.
    ///
    /// # Errors
    /// The outcome of an action that was not asked for.
    pub(super) async fn prove(&self) -> Result<(), Outcome> {
        self.prover.prove().await
    }
}

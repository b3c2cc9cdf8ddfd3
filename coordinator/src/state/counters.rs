//! Counters: completed work, and everything that was refused, dropped or lost, by its reason.
//!
//! All tasks share them. They only grow, and `/metrics` shows them.

use std::array::from_fn;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use memtape_core::action::{TargetKind, VerdictKind};
use strum::{EnumCount, IntoStaticStr, VariantArray};

/// Something that was done.
#[derive(Clone, Copy, Debug, EnumCount, Eq, PartialEq)]
pub(crate) enum Count {
    Reports,
    Steps,
    CapturesComplete,
    CapturesPartial,
    CapturesRefused,
    /// Captures deleted because they were too old, took too many bytes, or were too many.
    CapturesByAge,
    CapturesByBytes,
    CapturesByNumber,
    Snapshots,
    SnapshotBytes,
    Incidents,
    ActionsTaken,
    ActionsDryRun,
    ActionsDeclined,
    ActionsFailed,
    /// Seconds of training that actions saved, at most.
    TrainingSecondsSaved,
    /// Tables of the shard in the bucket of its cluster.
    TablesWritten,
    TablesFailed,
}

/// Defines the reasons of losses, each with its meaning and what to do about it.
macro_rules! losses {
    ($($name:ident: $meaning:literal, $remedy:literal;)*) => {
        /// Why something is not there; by these names in the metrics.
        #[derive(Clone, Copy, Debug, EnumCount, Eq, IntoStaticStr, PartialEq, VariantArray)]
        #[strum(serialize_all = "snake_case")]
        pub(crate) enum Loss { $(#[doc = concat!($meaning, ".")] $name),* }

        /// Each reason, its meaning and what to do, for the page of the metrics.
        pub fn losses() -> impl Iterator<Item = [&'static str; 3]> {
            [$([Loss::$name.into(), $meaning, $remedy]),*].into_iter()
        }
    };
}

losses! {
    BadMessage: "An agent's message broke a bound; its stream was closed",
        "Compare the versions: the log names the node and the bound";
    UnknownTape: "A message about a tape that was not announced on its stream's node",
        "Nothing, if rare; else find out what on that node reports tapes of others";
    NoRoom: "A job or rank beyond the number that is remembered, or a rank beyond its bound",
        "See docs/limits.md: raise `--memory-bytes-max`, or end jobs";
    NodeFull: "A rank, a further device of one, or a job beyond the number of one node",
        "See docs/limits.md: find out who starts them on the node";
    NodeChangesTooMany: "A begin or change of a rank beyond its node's rate of changes",
        "Find out which job on the node restarts all the time";
    AgentCapturesTooMany: "An agent-initiated capture beyond the rate of its node or job",
        "Mend the job: its processes die or run out of memory all the time";
    BadRank: "A rank of a report that broke a bound",
        "Compare the versions: the log names the node and the bound";
    CensusesLeftOut: "Censuses beyond the memory that a rank, its node or all ranks may take",
        "Raise `--memory-bytes-max`; diagnoses of these ranks know fewer lines";
    SettingsLeftOut: "Settings of the allocator that PyTorch has not, of an announced rank",
        "Correct PYTORCH_CUDA_ALLOC_CONF of the job";
    SlowAgent: "An agent did not take its messages; its stream was closed",
        "Look at the load and the network of the node that the log names";
    AgentRefused: "A refused agent: too many, too often, its name is taken, or it lacks the role",
        "Read its log; give its certificate the role agent for its node";
    AgentNotAsked: "A request to an agent, unsent: no proof in time that the store is still owned",
        "Look at the disk or the bucket: the log has the error";
    StepsMissed: "Step records that were overwritten on the tape before they were read",
        "Look at the load of the node: its agent reads too late";
    StepsThinned: "Step records not kept: their node or owner sent more than its rate",
        "Nothing: a thinner series is kept; see docs/store.md";
    ConnectionOverdue: "A closed connection: no call was in progress, or its client did not read",
        "Nothing, unless a client complains";
    ConnectionGivenUp: "A closed idle connection: another one needed its place",
        "If frequent, raise `--memory-bytes-max`, or run fewer clients";
    ConnectionDistrusted: "A closed or refused connection: its certificate or role is not valid",
        "Renew the certificate, unless the role was taken away";
    CallerRefused: "A caller was refused: unproven, or without a role",
        "`memtape audit` names callers: give a role or token, or stop the caller";
    RequestsTooMany: "A request beyond a caller's rate of requests",
        "Ask less often; answers of status 429 say when to come again";
    ShardMissing: "A shard that an answer of the whole cluster lacks: its owner gave none",
        "`memtape cluster` says which, and why";
    TableFull: "A series that the full table of steps in the bucket lacks, whole or in part",
        "See docs/limits.md: lower `--steps-age-max`, or use more shards for the next cluster";
    SlowDownload: "A download that was ended because its client read too slowly",
        "Repeat it from a faster network";
    SlowUpload: "An upload that was ended because its snapshot came too slowly",
        "Look at the network of the node; the agent tries again";
    DecisionNotAudited: "A decision to do nothing, not audited: its owner had many lately",
        "Nothing: `memtape actions` has the decision";
    RefusalNotAudited: "A refusal that was not audited: its caller or network had many lately",
        "Stop the caller: the audit has its first refusals";
    AuditEntry: "An entry of the audit that could not be written",
        "Look at the disk of `--data-dir`; the log has the error";
    StaleSnapshot: "A snapshot that came too late, twice, or was never asked for",
        "Nothing, if rare; else raise the deadline of captures";
    BadSnapshot: "A snapshot that was too large, or differed from its answer",
        "Compare the versions; `memtape show` has the detail of the rank's part";
    Forgotten: "An incident beyond the number that may be open, or an old record",
        "Nothing, if rare; else see docs/limits.md for who has most";
    SpooledSteps: "Step records that full spools dropped while agents were disconnected",
        "Reconnect agents sooner, or give the spool more bytes";
    SpooledSnapshots: "Snapshots of agent-initiated captures that a spool dropped",
        "Reconnect agents sooner, or give the spool more bytes";
    SpooledFacts: "Ends of ranks and announcements of captures that a spool dropped",
        "Reconnect agents sooner";
    TapeCopies: "Files that agents refused: copies of another tape",
        "Delete the copies";
    TapesWithWrongHolder: "Refused files: a process that they do not name holds their lock",
        "Find that process: it may pass its tape off as another's";
    TapesOfOtherBoots: "Refused files: made before the node was started",
        "Delete them, or keep tapes in /dev/shm";
    TapesWithoutRoom: "Refused files: further ones of their user exceed the quota",
        "Delete the user's old tapes; the agent's log names the user";
    StaleCaptureMessage: "A message about a capture that was stale, unknown or repeated",
        "Nothing, if rare; else look at the network of the nodes";
    TriggerTooSoon: "A trigger of a capture too soon after another, or of a rank too many",
        "Nothing: the capture before has the snapshots";
    SampleRefused: "A sample not judged: too many series, or steps in reverse",
        "Let steps of a rank only grow, or report the job's number of devices";
}

/// All counters.
#[derive(Debug)]
pub(crate) struct Counters {
    counts: [AtomicU64; Count::COUNT],
    losses: [AtomicU64; Loss::COUNT],
    /// Verdicts about actions, by how they were carried out.
    verdicts: [[AtomicU64; VerdictKind::VARIANTS.len()]; TargetKind::VARIANTS.len()],
}

impl Default for Counters {
    fn default() -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { counts: from_fn(zero), losses: from_fn(zero), verdicts: Default::default() }
    }
}

impl Counters {
    pub(crate) fn add(&self, count: Count, more: u64) {
        saturate(&self.counts[count as usize], more);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// Counts a verdict about an action of this kind.
    pub(crate) fn prove(&self, kind: TargetKind, verdict: VerdictKind) {
        let of_kind = self.verdicts.get(kind as usize);
        if let Some(counter) = of_kind.and_then(|of_kind| of_kind.get(verdict as usize)) {
            saturate(counter, 1);
        }
    }

    /// Every verdict about every kind of action, with its count.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = (TargetKind, VerdictKind, u64)> {
        TargetKind::VARIANTS.iter().zip(&self.verdicts).flat_map(|(kind, of_kind)| {
            let verdicts = VerdictKind::VARIANTS.iter().zip(of_kind);
            verdicts.map(|(verdict, count)| (*kind, *verdict, count.load(Relaxed)))
        })
    }

    pub(crate) fn lose(&self, loss: Loss, more: u64) {
        saturate(&self.losses[loss as usize], more);
    }

    /// Raises a counter to the sum that other counts have reached.
    pub(crate) fn raise(&self, loss: Loss, sum: u64) {
        self.losses[loss as usize].fetch_max(sum, Relaxed);
    }

    /// Every reason with its count.
    pub(crate) fn losses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let count = |loss: &Loss| self.losses[*loss as usize].load(Relaxed);
        Loss::VARIANTS.iter().map(move |loss| (loss.into(), count(loss)))
    }
}

/// Adds to a counter, which stays at its maximum instead of wrapping around.
fn saturate(counter: &AtomicU64, more: u64) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |known| Some(known.saturating_add(more)));
}

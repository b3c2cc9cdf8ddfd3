//! Effects that the parts of the state want outside of themselves, as data.
//!
//! A part changes its own fields only. Everything else it asks its [`Context`] for with an
//! [`Effect`]; the loop in
//! `coordinator.rs` carries effects out in the order in which they were asked for. This file does
//! nothing itself.

use std::collections::VecDeque;
use std::sync::Arc;

use memtape_core::action::{ActionKind, Outcome, TargetKind, VerdictKind};
use memtape_core::capture::{Reason, Refusal};
use memtape_core::diagnosis::Diagnosis;
use memtape_core::incident::{Failure, NotCompared, ThreadRefused};
use memtape_proto::remedies::RemedyRequest;
use tokio::sync::oneshot;

pub(crate) use crate::quota::Share;
use crate::restart::target::{Order, Target};
use crate::state::comparison::Comparison;
use crate::state::counters::{Count, Loss};
use memtape_disk::clock::Now;
use memtape_store::Changes;
use memtape_store::Done;
use memtape_store::records::{End, Record, Source, StepRecord};

/// Step records of one or more series.
pub(crate) type Batch = Vec<(Source, Vec<StepRecord>)>;

/// Channel for the answer to a user's request for a capture.
pub(crate) type CaptureReply = oneshot::Sender<Result<String, CaptureRefused>>;

/// Channel for the answer to a user's request about the thread of an incident.
pub(crate) type ThreadReply = oneshot::Sender<Result<(), ThreadNotChanged>>;

/// Something to be done outside of the parts.
pub(crate) enum Effect {
    /// Write records; records that the store cannot take now are written later.
    Write(Changes, After),
    /// Write records, or report at once that the store cannot take them.
    TryWrite(Changes, Done),
    /// Keep the step records of a report, then acknowledge it to its agent.
    KeepSteps { node: String, report: u64, batch: Batch, share: Share },
    /// Delete the step records of an attempt.
    ForgetSteps { serial: u32 },
    /// A stored snapshot belongs to no capture.
    ReleaseSnapshot(blake3::Hash),
    /// Ask an agent for snapshots.
    AskAgent { node: String, request: SnapshotRequest },
    /// Ask an agent for something that its ranks do, or to take it back: that `begins` nothing.
    CallRanks { node: String, request: RemedyRequest, begins: bool },
    /// Ask an agent to connect again, and to announce all its tapes then.
    AskToComeAgain { node: String },
    /// Hand out work that takes its time.
    Start(Work),
    /// Count a verdict about an action.
    Prove { target: TargetKind, verdict: VerdictKind },
    /// Count something that was done.
    Count(Count, u64),
    /// Count something that was refused, dropped or lost.
    Lose(Loss, u64),
    /// Ask for a capture; the answer goes to the asker.
    RequestCapture { serial: u32, reason: Reason, step: Option<u64>, asker: Asker },
    /// A capture is closed.
    CaptureClosed { serial: u32, capture: String },
    /// A capture is deleted.
    CaptureForgotten { capture: String },
    /// A job has a new attempt.
    AttemptBegun { job: String },
    /// A rank died, or could not get memory.
    RankFailed { serial: u32, failure: Failure },
    /// The process of a rank has ended, in any way.
    RankEnded { serial: u32, rank: u32, end: End },
    /// All ranks of an attempt have ended.
    AttemptEnded { serial: u32 },
    /// An attempt that had ended goes on.
    AttemptResumed { serial: u32 },
    /// Write an action that the coordinator takes by itself into the audit, with the node whose
    /// agent caused it.
    Audit { action: &'static str, subject: String, node: Option<String> },
    /// An incident was diagnosed: a restart may help.
    ConsiderRestart { incident: String },
}

/// The follow-up of a written record.
pub(crate) enum After {
    Nothing,
    /// Free the agent's memory, whether the write succeeds or not.
    Free(Share),
    /// The snapshots belong to no capture any more.
    ReleaseSnapshots(Vec<blake3::Hash>),
    /// Reports to the loop that a change of an action is stored: what follows from it may be done.
    TellAction {
        action: String,
    },
    /// Reports to the loop that an incident is stored.
    TellStored {
        incident: String,
        updated_wall_ns: i64,
    },
}

/// Which snapshots an agent is asked for.
pub(crate) struct SnapshotRequest {
    pub(crate) capture: String,
    pub(crate) tape_ids: Vec<String>,
    pub(crate) step: u64,
    pub(crate) before_step: u64,
    pub(crate) deadline_ns: u64,
    /// The tape whose rank's worker processes are sampled.
    pub(crate) sample_workers: Option<String>,
}

/// The origin of a request for a capture.
pub(crate) enum Asker {
    Trigger,
    Incident(String),
    User(CaptureReply),
}

/// Why a user's request for a capture fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureRefused {
    #[error("there is no job {0:?}")]
    NoJob(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("capture {id} began, and is not stored yet: {why}")]
    NotStored { id: String, why: memtape_store::Error },
}

/// Why a user's request about the thread of an incident fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThreadNotChanged {
    #[error(transparent)]
    Refused(#[from] ThreadRefused),
    #[error("the thread is changed, and not stored yet: {0}")]
    NotStored(memtape_store::Error),
}

/// Slow work outside the loop.
#[derive(Debug)]
pub(crate) enum Work {
    /// Compare the snapshots of a capture.
    Compare(Box<Comparison>),
    /// Ask the orchestrator for a restart, or to keep a node out.
    Act { kind: ActionKind, target: Arc<dyn Target>, order: Box<Order> },
    /// Finish an action that a killed coordinator left half done, or check its result.
    Resume { kind: ActionKind, target: Arc<dyn Target>, order: Box<Order> },
}

/// The result of a piece of work.
#[derive(Debug)]
pub(crate) enum WorkDone {
    Compared { incident: String, capture: String, result: Result<Box<Diagnosis>, NotCompared> },
    Acted { action: String, outcome: Outcome },
    Resumed { action: String, outcome: Option<Outcome> },
}

/// Context of every input of a part: the time, and the queue for its effects.
pub(crate) struct Context {
    pub(crate) now: Now,
    /// Effects that wait to be carried out.
    effects: VecDeque<Effect>,
}

impl Context {
    pub(crate) fn new(now: Now) -> Self {
        Self { now, effects: VecDeque::new() }
    }

    pub(crate) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// The next effect to carry out.
    pub(crate) fn pop(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Writes a record without waiting for it.
    pub(crate) fn put<R: Record>(&mut self, record: &R) {
        self.write(Changes::of(record));
    }

    /// Writes records without waiting for them.
    pub(crate) fn write(&mut self, changes: Changes) {
        self.write_then(changes, After::Nothing);
    }

    pub(crate) fn write_then(&mut self, changes: Changes, after: After) {
        self.push(Effect::Write(changes, after));
    }

    /// Writes an action into the audit; `node` caused it, unless it has a budget.
    pub(crate) fn audit(&mut self, action: &'static str, subject: String, node: Option<&str>) {
        self.push(Effect::Audit { action, subject, node: node.map(str::to_string) });
    }

    pub(crate) fn count(&mut self, count: Count) {
        self.push(Effect::Count(count, 1));
    }

    pub(crate) fn lose(&mut self, loss: Loss) {
        self.push(Effect::Lose(loss, 1));
    }
}

//! Everything that can happen to a coordinator: one closed set.

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::ingest::streams::StreamId;
use crate::ingest::wire::Outgoing;
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::effects::{CaptureReply, Share, WorkDone};
use crate::state::jobs::reports::AgentRefused;
use crate::state::messages::{Hello, Incoming};
use crate::state::view::View;

/// A question about the state; the loop answers it between two events, so it must be short.
pub(crate) type Question = Box<dyn FnOnce(&View<'_>) + Send>;

/// Everything that can happen to a coordinator.
pub(crate) enum Event {
    /// An agent opened a stream; the answer is the stream, or why the agent is refused. `end` is
    /// cancelled when the stream is closed.
    Attached {
        hello: Hello,
        outgoing: mpsc::Sender<Outgoing>,
        end: CancellationToken,
        reply: oneshot::Sender<Result<StreamId, AgentRefused>>,
    },
    /// A message of an agent; its reservation of memory is held until it is stored.
    Said { stream: StreamId, message: Incoming, share: Share },
    /// A stream is over.
    Gone { stream: StreamId },
    /// The agent of one of these nodes begins to send a snapshot.
    UploadBegun {
        capture: String,
        tape_id: String,
        nodes: Vec<String>,
        reply: oneshot::Sender<Upload>,
    },
    /// A snapshot is stored and synced; nothing refers to it yet.
    SnapshotStored { snapshot: StoredSnapshot, reply: oneshot::Sender<Result<(), UploadRefused>> },
    /// A snapshot came and could not be kept.
    SnapshotFailed { capture: String, tape_id: String, why: String },
    /// A question about the state.
    Asked(Question),
    /// A user wants a capture of a job's newest attempt.
    CaptureWanted { job: String, step: Option<u64>, reply: CaptureReply },
    /// A piece of work is done.
    Worked(WorkDone),
    /// An incident is stored, in its state at `updated_wall_ns`.
    IncidentStored { incident: String, updated_wall_ns: i64 },
    /// A change of an action is stored.
    ActionStored { action: String },
    /// A person approves a restart because of an incident.
    Approved { incident: String },
    /// Time has passed.
    Tick,
}

/// Maximum number of events in the queue of the loop; senders wait beyond it.
pub(crate) const EVENTS_MAX: usize = 1024;

//! Everything that can happen to a coordinator: one closed set.

use std::net::SocketAddr;
use std::time::Duration;

use memtape_core::incident::ThreadRequest;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::ingest::streams::{StreamId, ToAgent, Unsent};
use crate::quota::Permit;
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::effects::{CaptureReply, Share, ThreadReply, WorkDone};
use crate::state::jobs::agents::AgentRefused;
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
        from: SocketAddr,
        outgoing: ToAgent,
        end: CancellationToken,
        reply: oneshot::Sender<Result<StreamId, AgentRefused>>,
    },
    /// A message of an agent; its reservation of memory is held until it is stored. `turn` is the
    /// node's permit to have an event in the queue, so that nodes take turns.
    Said { stream: StreamId, message: Box<Incoming>, share: Share, turn: Permit },
    /// A stream is over.
    Gone { stream: StreamId, turn: Permit },
    /// A message to an agent could not be sent.
    Unsent(Unsent),
    /// The agent of one of these nodes begins to send a snapshot.
    UploadBegun {
        capture: String,
        tape_id: String,
        nodes: Vec<String>,
        reply: oneshot::Sender<Upload>,
        turn: Permit,
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
    /// A person acknowledges, silences or assigns an incident, or adds a note to it.
    ThreadChanged { id: String, who: String, request: Box<ThreadRequest>, reply: ThreadReply },
    /// Time has passed.
    Tick,
}

/// Maximum number of events in each queue of the loop; senders wait beyond it.
pub(crate) const EVENTS_MAX: usize = 1024;

/// Time of the loop that events have before a further request goes first, in times of the last one.
const EVENTS_PER_REQUEST: u32 = 4;

/// The queues of the loop. Events of agents and of tasks go before requests of clients, until they
/// had [`EVENTS_PER_REQUEST`] times the time of the last request: requests that take long, however
/// many, leave the events most of the loop, and events never starve the requests.
pub(crate) struct Queues {
    events: mpsc::Receiver<Event>,
    requests: mpsc::Receiver<Event>,
    /// Time that the events have before the next request goes first.
    owed: Duration,
    /// When the loop began with an event or a request, and whether it is a request.
    begun: Option<(Instant, bool)>,
}

impl Queues {
    /// Makes the queues; the senders are those of events and of requests.
    pub(crate) fn new() -> (mpsc::Sender<Event>, mpsc::Sender<Event>, Self) {
        let (of_events, events) = mpsc::channel(EVENTS_MAX);
        let (of_requests, requests) = mpsc::channel(EVENTS_MAX);
        (of_events, of_requests, Self { events, requests, owed: Duration::ZERO, begun: None })
    }

    /// The next event, or none when all senders are gone. May be cancelled.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        match self.begun.take() {
            Some((begun, true)) => self.owed = begun.elapsed() * EVENTS_PER_REQUEST,
            Some((begun, false)) => self.owed = self.owed.saturating_sub(begun.elapsed()),
            None => {}
        }
        let request = self.owed.is_zero().then(|| self.requests.try_recv().ok()).flatten();
        let (next, is_request) = match request {
            Some(request) => (Some(request), true),
            None => tokio::select! {
                biased;
                Some(event) = self.events.recv() => (Some(event), false),
                Some(request) = self.requests.recv() => (Some(request), true),
                else => (None, false),
            },
        };
        self.begun = Some((Instant::now(), is_request));
        next
    }
}

#[cfg(test)]
mod tests;

//! Everything that can happen to a coordinator: one closed set, and the answers to it.

use memtape_core::diagnosis::Diagnosis;
use tokio::sync::{mpsc, oneshot};

use crate::clock::Now;
use crate::coordinator::Coordinator;
use crate::ingest::admission::Share;
use crate::ingest::wire::Outgoing;
use crate::state::jobs::StreamId;
use crate::state::messages::{Hello, Incoming};

/// What an HTTP request wants to know. The loop runs it between two events, so it must be short.
pub(crate) type Question = Box<dyn FnOnce(&mut Coordinator, Now) + Send>;

/// Everything that can happen to a coordinator.
pub(crate) enum Event {
    /// An agent said who it is; the answer is the name of its stream, or why it is refused.
    Attached {
        hello: Hello,
        outgoing: mpsc::Sender<Outgoing>,
        reply: oneshot::Sender<Result<StreamId, String>>,
    },
    /// An agent said something on its stream; the share of memory is held until that is stored.
    Said { stream: StreamId, message: Incoming, share: Share },
    /// A stream is over.
    Gone { stream: StreamId },
    /// An agent begins to send a body.
    UploadBegun { capture: String, tape_id: String, reply: oneshot::Sender<Upload> },
    /// A body is stored and synced; nothing refers to it yet.
    BodyStored {
        capture: String,
        tape_id: String,
        bytes: u64,
        hash: blake3::Hash,
        reply: oneshot::Sender<Result<(), BodyRefused>>,
    },
    /// A body came and could not be kept.
    BodyFailed { capture: String, tape_id: String, why: String },
    /// An HTTP request has a question.
    Asked(Question),
    /// The states of a capture were compared.
    Diagnosed { incident: String, capture: String, result: Result<Box<Diagnosis>, String> },
    /// A restart hook came to its end.
    Acted { action: String, outcome: String, is_failure: bool },
    /// An incident, as it was at this moment, is stored.
    IncidentStored { incident: String, updated_wall_ns: i64 },
    /// Time has passed.
    Tick,
}

/// May a body be sent?
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Upload {
    /// Yes; the answer promised this size and hash, if it has come already.
    Wanted { promised: Option<(u64, Option<[u8; 32]>)> },
    /// It is stored already, and synced.
    Stored { hash: blake3::Hash },
    /// Not now: the store cannot be written.
    Later,
    /// No: the capture is over, or the tape is not in it.
    Refused,
}

impl Upload {
    /// Is this the body that was announced? True where nothing was.
    pub(crate) fn is_as_promised(&self, bytes: u64, hash: &blake3::Hash) -> bool {
        let Self::Wanted { promised: Some((promised, promised_hash)) } = self else { return true };
        *promised == bytes && promised_hash.is_none_or(|promised| promised == *hash.as_bytes())
    }
}

/// Why a stored body does not become part of a capture.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum BodyRefused {
    /// Nobody waits for it; sending it again does not help.
    Stale(&'static str),
    /// The store cannot be written now.
    Store(String),
}

/// Events waiting for the loop; those who send them wait when they are more.
pub(crate) const EVENTS_MAX: usize = 1024;

//! Messages as the spool keeps them: the bytes that will be sent.

use memtape_core::capture::Answer;
use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body;
use prost::Message as _;

use super::{Outgoing, RankReport, RankUp, message, raw_answer};

/// A message that was kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    /// A rank's announcement.
    Up(RankUp),
    /// A rank's end: its tape, and the message.
    Down(String, Outgoing),
    /// Step records.
    Steps(Vec<RankReport>),
    /// An agent-initiated capture's announcement.
    Capture(InitiatedCapture),
}

/// Why the agent takes a state by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trigger {
    /// A request failed for good.
    OutOfMemory,
    /// The process was killed.
    Death,
}

/// The announcement of a state that the agent took by itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InitiatedCapture(v1::AgentCapture);

impl InitiatedCapture {
    /// An announcement.
    pub(crate) fn new(
        (capture_id, tape_id): (&str, &str),
        (reason, seen_wall_ns): (Trigger, i64),
        answer: &Answer,
        hash: Option<blake3::Hash>,
    ) -> Self {
        let reason = match reason {
            Trigger::OutOfMemory => v1::AgentCaptureReason::OutOfMemory,
            Trigger::Death => v1::AgentCaptureReason::Death,
        };
        let answer = Some(raw_answer(capture_id, tape_id, answer, hash));
        Self(v1::AgentCapture { answer, reason: reason.into(), seen_wall_ns })
    }

    /// Its name.
    pub(crate) fn capture_id(&self) -> &str {
        self.0.answer.as_ref().map_or("", |answer| &answer.capture_id)
    }

    /// Whose state.
    pub(crate) fn tape_id(&self) -> &str {
        self.0.answer.as_ref().map_or("", |answer| &answer.tape_id)
    }

    /// Why it was taken.
    pub(crate) fn reason(&self) -> Trigger {
        match self.0.reason() {
            v1::AgentCaptureReason::OutOfMemory => Trigger::OutOfMemory,
            v1::AgentCaptureReason::Death | v1::AgentCaptureReason::Unspecified => Trigger::Death,
        }
    }

    /// Of its snapshot, if there is one.
    pub(crate) fn hash(&self) -> Option<[u8; 32]> {
        self.0.answer.as_ref()?.snapshot_hash.as_slice().try_into().ok()
    }

    /// The snapshot is no more.
    pub(crate) fn drop_snapshot(&mut self) {
        let Some(answer) = &mut self.0.answer else { return };
        (answer.snapshot_bytes, answer.snapshot_hash) = (0, Vec::new());
        let why = "its snapshot found no room on the agent's disk";
        let before = if answer.detail.is_empty() { "" } else { "; " };
        answer.detail = format!("{}{before}{why}", answer.detail);
    }

    /// As it is sent.
    pub(crate) fn message(&self) -> Outgoing {
        message(Body::AgentCapture(self.0.clone()))
    }
}

/// Step records alone, as they are kept.
pub(crate) fn steps_message(ranks: Vec<RankReport>) -> Outgoing {
    let ranks = ranks.into_iter().map(RankReport::into_raw).collect();
    message(Body::Report(v1::Report { ranks, ..v1::Report::default() }))
}

/// The bytes of a message.
pub(crate) fn encode(message: &Outgoing) -> Vec<u8> {
    message.0.encode_to_vec()
}

/// Understands those bytes; none for what this version never keeps.
pub(crate) fn kept(bytes: &[u8]) -> Option<Kept> {
    let message = v1::AgentMessage::decode(bytes).ok()?;
    Some(match message.body.clone()? {
        Body::RankUp(up) => Kept::Up(RankUp(up)),
        Body::RankDown(down) => Kept::Down(down.tape_id, Outgoing(message)),
        Body::Report(report) => Kept::Steps(report.ranks.into_iter().map(RankReport).collect()),
        Body::AgentCapture(capture) => Kept::Capture(InitiatedCapture(capture)),
        Body::Hello(_) | Body::CaptureAnswer(_) | Body::RemedyAnswer(_) => return None,
    })
}

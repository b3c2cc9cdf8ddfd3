//! Messages as the spool keeps them: the bytes that will be sent.

use memtape_core::capture::Part;
use memtape_proto::v1;
use prost::Message as _;

use super::{AgentCapture, AgentCaptureReason, Outgoing, capture_answer, raw};

/// The announcement of a capture that the agent takes by itself.
pub(crate) fn agent_capture(
    (capture_id, tape_id): (&str, &str),
    (reason, seen_wall_ns): (AgentCaptureReason, i64),
    answer: &Part,
) -> AgentCapture {
    let answer = Some(capture_answer(capture_id, tape_id, answer));
    AgentCapture { answer, reason: reason.into(), seen_wall_ns }
}

/// Removes the snapshot from an agent-initiated capture.
pub(crate) fn drop_snapshot(capture: &mut AgentCapture) {
    let Some(answer) = &mut capture.answer else { return };
    (answer.snapshot_bytes, answer.snapshot_hash) = (0, Vec::new());
    let why = "its snapshot found no room on the agent's disk";
    let before = if answer.detail.is_empty() { "" } else { "; " };
    answer.detail = format!("{}{before}{why}", answer.detail);
}

/// The bytes of a message.
pub(crate) fn encode(message: Outgoing) -> Vec<u8> {
    raw(message).encode_to_vec()
}

/// Decodes kept bytes; none for a message that this version never keeps.
pub(crate) fn kept(bytes: &[u8]) -> Option<Outgoing> {
    let message = v1::AgentMessage::decode(bytes).ok()?.body?;
    let is_kept = match &message {
        Outgoing::RankUp(_) | Outgoing::RankDown(_) | Outgoing::Report(_) => true,
        Outgoing::AgentCapture(capture) => capture.answer.is_some(),
        Outgoing::Hello(_) | Outgoing::CaptureAnswer(_) | Outgoing::RemedyAnswer(_) => false,
    };
    is_kept.then_some(message)
}

//! Remedies: what the coordinator asks for, and what the agent answers.

use std::time::Duration;

use memtape_core::action::remedy::{Answer, Ask};
use memtape_core::identity::cut;
use memtape_core::limits::NAME_BYTES_MAX;
use memtape_proto::{remedies, v1};

use super::Outgoing;
pub(crate) use memtape_proto::remedies::BadAsk;

/// Asks ranks of this node for a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemedyRequest {
    /// Which action.
    pub(crate) call_id: String,
    /// Which tapes.
    pub(crate) tape_ids: Vec<String>,
    /// What is asked for, or why it cannot be.
    pub(crate) ask: Result<Ask, BadAsk>,
    /// Time after it was read in which it may be begun.
    pub(crate) valid: Duration,
    /// CLOCK_MONOTONIC when it was read from the stream; none is now.
    pub(crate) read_ns: Option<u64>,
}

pub(super) fn request(raw: v1::RemedyRequest) -> RemedyRequest {
    let ask = remedies::ask(&raw);
    let valid = Duration::from_millis(u64::from(raw.valid_ms));
    RemedyRequest { call_id: raw.call_id, tape_ids: raw.tape_ids, ask, valid, read_ns: None }
}

/// What became of an action for one tape.
pub(crate) fn remedy_answer(call_id: &str, tape_id: &str, answer: &Answer) -> Outgoing {
    Outgoing::RemedyAnswer(v1::RemedyAnswer {
        call_id: call_id.to_string(),
        tape_id: tape_id.to_string(),
        detail: cut(&answer.detail, NAME_BYTES_MAX).to_string(),
        ..remedies::answer(answer)
    })
}

//! Remedies: requests of the coordinator and answers of the agent.

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
    /// Id of the call.
    pub(crate) call_id: String,
    /// Ids of the tapes.
    pub(crate) tape_ids: Vec<String>,
    /// The request, or the reason why it is invalid.
    pub(crate) ask: Result<Ask, BadAsk>,
    /// Time after the read in which the request may be begun.
    pub(crate) valid: Duration,
    /// CLOCK_MONOTONIC when the request was read from the stream; none is now.
    pub(crate) read_ns: Option<u64>,
}

pub(super) fn request(raw: v1::RemedyRequest) -> RemedyRequest {
    let ask = remedies::ask(&raw);
    let valid = Duration::from_millis(u64::from(raw.valid_ms));
    RemedyRequest { call_id: raw.call_id, tape_ids: raw.tape_ids, ask, valid, read_ns: None }
}

/// Builds the answer of one tape to a remedy.
pub(crate) fn remedy_answer(call_id: &str, tape_id: &str, answer: &Answer) -> Outgoing {
    Outgoing::RemedyAnswer(v1::RemedyAnswer {
        call_id: call_id.to_string(),
        tape_id: tape_id.to_string(),
        detail: cut(&answer.detail, NAME_BYTES_MAX).to_string(),
        ..remedies::answer(answer)
    })
}

//! Remedies: what the coordinator asks for, and what the agent answers.

use std::time::Duration;

use memtape_core::action::remedy::{Answer, Ask, Outcome, Signal};
use memtape_core::identity::cut;
use memtape_core::limits::NAME_BYTES_MAX;
use memtape_core::tape::mailbox::{Offer, Offers, Remedy, STEP_MAX};
use memtape_proto::v1;

use super::{Outgoing, message};

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

/// Why a request cannot be followed, whatever the ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadAsk {
    /// A remedy or a signal that this version does not have.
    #[error("this agent does not know the remedy: update the agent")]
    Unknown,
    /// A remedy without a step, or with one beyond its bound.
    #[error("the remedy has no step from 1 to {STEP_MAX}")]
    Step,
}

pub(super) fn request(raw: v1::RemedyRequest) -> RemedyRequest {
    let ask = ask(&raw);
    let valid = Duration::from_millis(u64::from(raw.valid_ms));
    RemedyRequest { call_id: raw.call_id, tape_ids: raw.tape_ids, ask, valid, read_ns: None }
}

fn ask(raw: &v1::RemedyRequest) -> Result<Ask, BadAsk> {
    let remedy = match raw.remedy() {
        v1::Remedy::Gc => Remedy::Gc,
        v1::Remedy::EmptyCache => Remedy::EmptyCache,
        v1::Remedy::Checkpoint => Remedy::Checkpoint,
        v1::Remedy::Withdraw => return Ok(Ask::Withdraw),
        v1::Remedy::Signal => {
            return match raw.signal() {
                v1::RemedySignal::Usr1 => Ok(Ask::Signal(Signal::SigUsr1)),
                v1::RemedySignal::Usr2 => Ok(Ask::Signal(Signal::SigUsr2)),
                v1::RemedySignal::Term => Ok(Ask::Signal(Signal::SigTerm)),
                v1::RemedySignal::Int => Ok(Ask::Signal(Signal::SigInt)),
                v1::RemedySignal::Unspecified => Err(BadAsk::Unknown),
            };
        }
        v1::Remedy::Unspecified => return Err(BadAsk::Unknown),
    };
    let is_step = (1..=STEP_MAX).contains(&raw.step);
    if is_step { Ok(Ask::Remedy { remedy, step: raw.step }) } else { Err(BadAsk::Step) }
}

/// What became of an action for one tape.
pub(crate) fn remedy_answer(call_id: &str, tape_id: &str, answer: &Answer) -> Outgoing {
    let outcome = match answer.outcome {
        Outcome::Armed => v1::RemedyOutcome::Armed,
        Outcome::Withdrawn => v1::RemedyOutcome::Withdrawn,
        Outcome::Done => v1::RemedyOutcome::Done,
        Outcome::Late => v1::RemedyOutcome::Late,
        Outcome::Failed => v1::RemedyOutcome::Failed,
        Outcome::Refused => v1::RemedyOutcome::Refused,
        Outcome::Signalled => v1::RemedyOutcome::Signalled,
    };
    message(v1::agent_message::Body::RemedyAnswer(v1::RemedyAnswer {
        call_id: call_id.to_string(),
        tape_id: tape_id.to_string(),
        outcome: outcome.into(),
        step: answer.step,
        took_ns: answer.took_ns,
        detail: cut(&answer.detail, NAME_BYTES_MAX).to_string(),
    }))
}

/// What a rank offers.
pub(super) fn offered(offers: Offers) -> Vec<i32> {
    let raw = |offer| match offer {
        Offer::Gc => v1::Remedy::Gc,
        Offer::EmptyCache => v1::Remedy::EmptyCache,
        Offer::Checkpoint => v1::Remedy::Checkpoint,
        Offer::Signal => v1::Remedy::Signal,
    };
    offers.iter().map(|offer| raw(offer).into()).collect()
}

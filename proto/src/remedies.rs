//! Remedies on the wire: offers of ranks, requests to them, and outcomes.
//!
//! Every value of `core` maps to one of the wire by a complete `match`; decoding searches this
//! mapping. A value of a later version decodes to none.

use memtape_core::action::remedy::{Answer, Ask, Outcome, Signal};
use memtape_core::tape::mailbox::{Offer, Offers, Remedy, STEP_MAX};
use strum::VariantArray;

use crate::v1;

pub use crate::v1::RemedyRequest;

/// Why a request cannot be followed by any rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadAsk {
    /// A remedy or a signal that this version does not have.
    #[error("this agent does not know the remedy: update the agent")]
    Unknown,
    /// A remedy without a step, or with one beyond its bound.
    #[error("the remedy has no step from 1 to {STEP_MAX}")]
    Step,
}

impl From<Offer> for v1::Remedy {
    fn from(offer: Offer) -> Self {
        match offer {
            Offer::Gc => Self::Gc,
            Offer::EmptyCache => Self::EmptyCache,
            Offer::Checkpoint => Self::Checkpoint,
            Offer::Signal => Self::Signal,
        }
    }
}

impl From<Signal> for v1::RemedySignal {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::SigUsr1 => Self::Usr1,
            Signal::SigUsr2 => Self::Usr2,
            Signal::SigTerm => Self::Term,
            Signal::SigInt => Self::Int,
        }
    }
}

impl From<Outcome> for v1::RemedyOutcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Armed => Self::Armed,
            Outcome::Withdrawn => Self::Withdrawn,
            Outcome::Done => Self::Done,
            Outcome::Late => Self::Late,
            Outcome::Failed => Self::Failed,
            Outcome::Refused => Self::Refused,
            Outcome::Signalled => Self::Signalled,
        }
    }
}

/// The value of `core` for a value of the wire; none for unknown ones.
fn known<T: VariantArray + Copy, W: PartialEq>(said: W, of: impl Fn(T) -> W) -> Option<T> {
    T::VARIANTS.iter().copied().find(|known| of(*known) == said)
}

/// Encodes the remedies that a rank offers.
pub fn offered(offers: Offers) -> Vec<i32> {
    offers.iter().map(|offer| v1::Remedy::from(offer).into()).collect()
}

/// Decodes the remedies that a rank offers.
pub fn offers(said: impl Iterator<Item = v1::Remedy>) -> Offers {
    said.filter_map(|said| known(said, v1::Remedy::from)).collect()
}

/// A request for this, without the call, the tapes and the time.
pub fn request(ask: Ask) -> v1::RemedyRequest {
    let (remedy, step, signal) = match ask {
        Ask::Remedy { remedy, step } => (remedy.offer().into(), step, None),
        Ask::Signal(signal) => (v1::Remedy::Signal, 0, Some(signal.into())),
        Ask::Withdraw => (v1::Remedy::Withdraw, 0, None),
    };
    let signal: v1::RemedySignal = signal.unwrap_or_default();
    v1::RemedyRequest {
        remedy: remedy.into(),
        step,
        signal: signal.into(),
        ..v1::RemedyRequest::default()
    }
}

/// Decodes a request.
///
/// # Errors
/// This version does not have it, or its step is out of bounds.
pub fn ask(raw: &v1::RemedyRequest) -> Result<Ask, BadAsk> {
    match raw.remedy() {
        v1::Remedy::Withdraw => Ok(Ask::Withdraw),
        v1::Remedy::Signal => {
            known(raw.signal(), v1::RemedySignal::from).map(Ask::Signal).ok_or(BadAsk::Unknown)
        }
        said => {
            let remedy = known(said, |remedy: Remedy| v1::Remedy::from(remedy.offer()));
            let (remedy, step) = (remedy.ok_or(BadAsk::Unknown)?, raw.step);
            let is_step = (1..=STEP_MAX).contains(&step);
            if is_step { Ok(Ask::Remedy { remedy, step }) } else { Err(BadAsk::Step) }
        }
    }
}

/// Encodes the outcome of a call for one rank, without the call and the tape.
pub fn answer(answer: &Answer) -> v1::RemedyAnswer {
    v1::RemedyAnswer {
        outcome: v1::RemedyOutcome::from(answer.outcome).into(),
        step: answer.step,
        took_ns: answer.took_ns,
        detail: answer.detail.clone(),
        ..v1::RemedyAnswer::default()
    }
}

/// Decodes the outcome of a call for one rank; an outcome of a later version is a refusal.
pub fn outcome(raw: &v1::RemedyAnswer) -> Outcome {
    known(raw.outcome(), v1::RemedyOutcome::from).unwrap_or(Outcome::Refused)
}

//! The two classes that are no growth: a request that failed, a process that died.
//!
//! What is said of them is worked out in `answer/failure.rs`; they never explain growth.

use super::facts::{Facts, Judge, Outlook, Phrase, RestartAnswer, Share};
use super::remedy::Remedy;

pub(crate) const OUT_OF_MEMORY: Judge = Judge { outlook: Outlook::Load, ..FAILURE };

pub(crate) const DIED: Judge = FAILURE;

const FAILURE: Judge = Judge {
    evaluate: |_, _, _| Facts::default().needs(Some(false), "", ""),
    confidence_ppm: |_, _| 0,
    outlook: Outlook::Fault,
    share: Share::Nothing,
    restart: RestartAnswer::Unknown,
    phrase: Phrase::Plain,
    remedy: |case, _| Remedy::unknown(case.past),
};

//! What an action does to a job, and whether it helped.
//!
//! The memory of the rank before an action is stored with the action, and the job's next attempt is
//! observed until enough steps show the memory after it ([`Observation`]). The verdict
//! ([`Verdict`]) has the figures of both, and [`Gain`] says what the action was worth. A
//! coordinator that was killed meanwhile goes on observing: what it needs is stored with the
//! action.
//!
//! [`remedy`] has what can be asked of a running rank, and its answers.
//!
//! This module decides nothing about whether to act ([`crate::policy`]), and carries out nothing.

pub mod call;
mod gain;
mod lifecycle;
mod observation;
pub mod remedy;
mod verdict;

pub use gain::Gain;
pub use lifecycle::{Event, Lifecycle, Next, Plan};
pub use observation::{Ended, FirstStep, Job, LineSeen, Observation, PROOF_STEPS, Seen, Subject};
pub use verdict::{Measure, Memory, Verdict, VerdictKind, Why};

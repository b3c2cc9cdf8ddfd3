//! An action on a job or a node: its kind, its outcome, and whether it helped.
//!
//! An [`Action`] is a decision of the policy and its record: it is stored, and every change of it
//! is made by [`Action::handle`]. The memory of the rank before an action is stored with it, and
//! the job's next attempt is observed until enough steps show the memory after it
//! ([`Observation`]). The verdict ([`Verdict`]) has the figures of both, and [`Gain`] quantifies
//! the benefit. A restarted coordinator goes on observing: the observation is stored with the
//! action.
//!
//! [`remedy`] has the requests to a running rank, and its answers.
//!
//! This module decides nothing about whether to act ([`crate::policy`]), and carries out nothing.

pub mod call;
mod gain;
mod kind;
mod machine;
mod observation;
mod outcome;
pub mod remedy;
mod verdict;

pub use gain::Gain;
pub use kind::{ActionKind, TargetKind};
pub use machine::{Action, Event, Next};
pub use observation::{Ended, FirstStep, Job, LineSeen, Observation, PROOF_STEPS, Seen, Subject};
pub use outcome::{Outcome, Progress};
pub use verdict::{Measure, Memory, Verdict, VerdictKind, Why};

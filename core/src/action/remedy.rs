//! Requests to the ranks of a running job, and the answers of agents.

use alloc::string::String;

use crate::tape::mailbox::{Offer, Remedy};

crate::tape::names! {
    /// A signal that an agent can send to a rank.
    pub enum Signal in "UPPERCASE" {
        /// SIGUSR1.
        SigUsr1,
        /// SIGUSR2.
        SigUsr2,
        /// SIGTERM.
        SigTerm,
        /// SIGINT.
        SigInt,
    }
}

/// A request to ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// The remedy, when exactly this many steps have ended.
    Remedy {
        /// Which.
        remedy: Remedy,
        /// After which step.
        step: u64,
    },
    /// The signal, at once.
    Signal(Signal),
    /// Withdraw an earlier request that is not begun.
    Withdraw,
}

crate::tape::names! {
    /// Outcome of the request for one rank.
    pub enum Outcome in "snake_case" {
        /// The rank will do it at its step; another answer follows.
        Armed,
        /// The request was withdrawn before the rank began.
        Withdrawn,
        /// The rank has carried the remedy out, at exactly its step.
        Done,
        /// The step had passed: nothing was done.
        Late,
        /// The remedy was begun and failed, or the process ended first.
        Failed,
        /// The remedy was not begun.
        Refused,
        /// The signal was sent.
        Signalled,
    }
}

/// An agent's answer about one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Outcome for the rank.
    pub outcome: Outcome,
    /// Steps finished then; of [`Outcome::Armed`] the step at which it will be done.
    pub step: u64,
    /// Duration of the remedy in the rank, in nanoseconds; 0 unless the rank carried it out.
    pub took_ns: u64,
    /// One line with the reason; empty where the outcome says it.
    pub detail: String,
}

impl Ask {
    /// Offer of a job that the request needs; none where it needs none.
    pub fn offer(self) -> Option<Offer> {
        match self {
            Self::Remedy { remedy, .. } => Some(remedy.offer()),
            Self::Signal(_) => Some(Offer::Signal),
            Self::Withdraw => None,
        }
    }
}

impl Outcome {
    /// No other answer follows.
    pub fn is_final(self) -> bool {
        match self {
            Self::Armed => false,
            Self::Withdrawn
            | Self::Done
            | Self::Late
            | Self::Failed
            | Self::Refused
            | Self::Signalled => true,
        }
    }
}

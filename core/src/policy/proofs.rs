//! Whether actions helped, as far as the policy needs it: two in a row that did not are enough.
//!
//! Attempts are told apart by serial numbers that are never used twice, because some orchestrators
//! give every attempt the same number. Verdicts are given elsewhere ([`crate::action`]).

use alloc::collections::VecDeque;
use alloc::string::{String, ToString};

use super::decision::Objection;
use super::remedy::Remedy;
use crate::limits::RESTARTS_REMEMBERED_MAX;

/// Times in a row that a remedy did not help, after which it is not tried in the same attempt.
const FAILURES_MAX: usize = 2;

/// The verdict about an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof<'a> {
    /// Name of the job.
    pub job: &'a str,
    /// What was done.
    pub remedy: Remedy,
    /// Serial number of the attempt that was acted on.
    pub serial: u32,
    /// Serial number of the next attempt; none where there was none.
    pub next: Option<u32>,
    /// When it was decided, on any clock: a restart by several targets has a proof for each.
    pub decided_ns: i64,
    /// Whether it helped.
    pub has_helped: bool,
}

/// The verdicts about the last actions.
#[derive(Debug, Default)]
pub(super) struct Proofs(VecDeque<Known>);

#[derive(Debug)]
struct Known {
    job: String,
    remedy: Remedy,
    serials: [Option<u32>; 2],
    decided_ns: i64,
    has_helped: bool,
}

impl Proofs {
    /// Remembers a verdict. The oldest is forgotten when there are too many.
    pub(super) fn add(&mut self, proof: &Proof<'_>) {
        let Proof { job, remedy, serial, next, decided_ns, has_helped } = *proof;
        let is_same = |known: &&mut Known| known.job == job && known.decided_ns == decided_ns;
        if let Some(known) = self.0.iter_mut().find(is_same) {
            known.has_helped |= has_helped;
            return;
        }
        if self.0.len() >= RESTARTS_REMEMBERED_MAX {
            self.0.pop_front();
        }
        let (job, serials) = (job.to_string(), [Some(serial), next]);
        self.0.push_back(Known { job, remedy, serials, decided_ns, has_helped });
    }

    /// The objection to a remedy in this attempt: it did not help before.
    pub(super) fn objection(&self, job: &str, serial: u32, remedy: Remedy) -> Option<Objection> {
        let is_meant = |known: &&Known| known.job == job && known.remedy == remedy;
        let of_job = || self.0.iter().rev().filter(is_meant);
        let failures = of_job().take_while(|known| !known.has_helped).count();
        let is_same = of_job().next().is_some_and(|last| last.serials.contains(&Some(serial)));
        (failures >= FAILURES_MAX && is_same).then_some(Objection::DidNotHelp { remedy, failures })
    }
}

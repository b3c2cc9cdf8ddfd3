//! The captures that reports of a rank may cause.

use memtape_core::capture::{Reason, Triggers};

use crate::state::jobs::attempt::{Attempt, Rank};
use memtape_disk::clock::Now;
use memtape_store::records::Totals;

impl Attempt {
    /// Is this rank proved, as far as the attempt itself shows?
    pub(crate) fn has_proved(&self, rank: u32) -> bool {
        self.proved().any(|of| of.record.rank == rank)
    }

    /// Shows the triggers the reasons in the reports of a rank. Those of a rank that is not proved
    /// trigger nothing: its incidents ask for captures of the rank alone.
    pub(super) fn notice(&mut self, now: Now, reasons: Vec<Reason>) {
        for reason in reasons {
            if reason.claimed_by().is_none_or(|rank| self.has_proved(rank)) {
                self.triggers.notice(now.mono_ns, reason);
            }
        }
    }
}

/// Shows the triggers the totals of a rank; the reasons for a capture in them.
pub(super) fn shown(now: Now, triggers: &mut Triggers, rank: &Rank) -> Vec<Reason> {
    let number = rank.record.rank;
    let share = |totals: &Totals| totals.reserved as f64 / totals.device_bytes.max(1) as f64;
    let fullest = rank.totals.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let reasons = [
        triggers.retries(now.mono_ns, number, rank.failures().1),
        fullest.and_then(|of| triggers.reserved(number, of.reserved, of.device_bytes)),
        triggers.stepped(now.mono_ns, rank.step),
    ];
    reasons.into_iter().flatten().collect()
}

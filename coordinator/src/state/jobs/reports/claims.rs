//! What reports of a rank may cause before anything is done because of them: captures, and the loss
//! of another attempt.

use memtape_core::capture::{Reason, Triggers};
use memtape_core::limits::JOBS_RUNNING_PER_NODE_MAX;

use crate::quota::holder;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::messages::RankUp;
use memtape_disk::clock::Now;
use memtape_store::records::Totals;

impl Jobs {
    /// May another attempt be forgotten for a newcomer? Not where its node or owner changes too
    /// much, and not where its node runs so much that one place less is not enough.
    pub(crate) fn may_make_room(&self, now: Now, node: &str, up: &RankUp) -> bool {
        self.changes.check(now.mono_ns, holder(node, up.owner.key())).is_ok()
            && self.running_of(node).count() <= JOBS_RUNNING_PER_NODE_MAX
    }
}

impl Attempt {
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
pub(super) fn shown(now: Now, triggers: &mut Triggers, rank: &Rank, is_oom: bool) -> Vec<Reason> {
    let number = rank.record.rank;
    let out_of_memory = is_oom.then_some(Reason::OutOfMemory { rank: number });
    if rank.presence != Presence::Here {
        return out_of_memory.into_iter().collect();
    }
    let share = |totals: &Totals| totals.reserved as f64 / totals.device_bytes.max(1) as f64;
    let fullest = rank.totals.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let reasons = [
        triggers.retries(now.mono_ns, number, rank.failures().1),
        fullest.and_then(|of| triggers.reserved(number, of.reserved, of.device_bytes)),
        triggers.stepped(now.mono_ns, rank.step),
        out_of_memory,
    ];
    reasons.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;

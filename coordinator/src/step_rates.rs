//! Rates at which step records are kept, by node and by owner on it; beyond them a thinner series.

use memtape_core::identity::owner::Owner;
use memtape_core::limits::{
    NODE_STEPS_AT_ONCE_MAX, NODE_STEPS_PER_SECOND_MAX, NODES_MAX, OWNER_STEPS_AT_ONCE_MAX,
    OWNER_STEPS_PER_SECOND_MAX, RANKS_MAX,
};
use memtape_core::rates::Rates;

use crate::quota::{SECOND_NS, holder};
use memtape_store::records::{Holder, StepRecord};

/// Step records beyond a rate after which half as many steps are kept, and how often that is done
/// before none is kept.
const THIN_RECORDS: u64 = 1 << 16;
const THIN_LEVELS: u64 = 12;

/// Rates at which step records of a node, and of each owner on it, are kept.
#[derive(Debug)]
pub(crate) struct StepRates {
    of_nodes: Rates<u64>,
    of_owners: Rates<Holder>,
}

impl Default for StepRates {
    fn default() -> Self {
        let rates = |per_second: u64, at_once| (SECOND_NS / per_second, at_once);
        let (nodes_ns, nodes) = rates(NODE_STEPS_PER_SECOND_MAX, NODE_STEPS_AT_ONCE_MAX);
        let (owners_ns, owners) = rates(OWNER_STEPS_PER_SECOND_MAX, OWNER_STEPS_AT_ONCE_MAX);
        Self {
            of_nodes: Rates::new(nodes_ns, nodes, NODES_MAX),
            of_owners: Rates::new(owners_ns, owners, RANKS_MAX),
        }
    }
}

impl StepRates {
    /// Leaves of some step records those that are kept: all, or, beyond the rates of their holder,
    /// those of every second, fourth, … step by its number. Returns how many are left out.
    pub(crate) fn thin(&mut self, now_ns: u64, of: Holder, rows: &mut Vec<StepRecord>) -> u64 {
        let all = rows.len();
        let level = self.level(now_ns, of, 0);
        rows.retain(|row| level < THIN_LEVELS && row.last_step.is_multiple_of(1 << level));
        self.level(now_ns, of, rows.len() as u64);
        (all - rows.len()) as u64
    }

    /// Takes permits; returns how often the number of kept steps is halved.
    fn level(&mut self, now_ns: u64, of: Holder, permits: u64) -> u64 {
        let node = self.of_nodes.overdraw(now_ns, &of.0, permits);
        let owner = self.of_owners.overdraw(now_ns, &of, permits);
        let missing = node.zip(owner).map_or(u64::MAX, |(node, owner)| node.max(owner));
        missing.div_ceil(THIN_RECORDS)
    }
}

/// An owner on a node, as the store knows it. The numbers are stored: other ones are other holders.
pub(crate) fn holder_numbers(node: &str, owner: &Owner) -> Holder {
    let number = |text: &str| {
        let hash = blake3::hash(text.as_bytes());
        hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    (number(node), number(&holder(node, owner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(first: u64) -> Vec<StepRecord> {
        let row = |step| StepRecord { last_step: step, ..StepRecord::default() };
        (first..first + 4096).map(row).collect()
    }

    #[test]
    fn a_backlog_of_hours_passes_and_a_flood_is_thinned_by_the_number_of_the_step() {
        let mut rates = StepRates::default();
        // 16 ranks with 10 steps a second were without a coordinator for 7 hours.
        for first in (0..16 * 10 * 7 * 3600).step_by(4096) {
            assert_eq!(rates.thin(7, (1, 1), &mut report(first)), 0);
        }
        // 200,000 a second for 1000 s: little more than the rate is kept.
        let (mut kept, mut last) = (0, Vec::new());
        for number in 0..48_828 {
            let mut rows = report(number * 4096);
            rates.thin(number * 20_480_000, (2, 2), &mut rows);
            kept += rows.len() as u64;
            last = rows;
        }
        let expected = OWNER_STEPS_AT_ONCE_MAX + 1000 * OWNER_STEPS_PER_SECOND_MAX;
        assert!((expected..expected * 6 / 5).contains(&kept), "{kept}");
        assert!(last.len() >= 4 && last.iter().all(|row| row.last_step.is_multiple_of(256)));
        // One that makes up the numbers of its steps has no more.
        let same = |row: &StepRecord| StepRecord { last_step: 1 << 40, ..*row };
        let mut kept = 0;
        for _ in 0..3 * OWNER_STEPS_AT_ONCE_MAX / 4096 {
            let mut rows = report(0).iter().map(same).collect();
            rates.thin(7, (3, 3), &mut rows);
            kept += rows.len() as u64;
        }
        assert!(kept <= OWNER_STEPS_AT_ONCE_MAX * 5 / 4, "{kept}");
        // Neither another owner of that node nor another node lost any.
        assert_eq!(rates.thin(7, (3, 4), &mut report(1)), 0);
    }
}

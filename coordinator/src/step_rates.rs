//! Thins step records beyond the rates of their node and of their owner on it.

use memtape_core::rates::{Holder, HolderRates};
use memtape_store::records::StepRecord;

/// Step records beyond a rate after which half as many steps are kept, and the number of halvings
/// after which no record is kept.
const THIN_RECORDS: u64 = 1 << 16;
const THIN_LEVELS: u64 = 12;

/// Leaves of some step records those that are kept: all, or, beyond the rates of their holder,
/// those of every second, fourth, … step by its number. Returns how many are left out.
pub(crate) fn thin(
    rates: &mut HolderRates,
    now_ns: u64,
    of: Holder,
    rows: &mut Vec<StepRecord>,
) -> u64 {
    let all = rows.len();
    let missing = rates.overdraw(now_ns, of, 0).unwrap_or(u64::MAX);
    let level = missing.div_ceil(THIN_RECORDS);
    rows.retain(|row| level < THIN_LEVELS && row.last_step.is_multiple_of(1 << level));
    // Where there are too many holders, nothing was kept.
    let _ = rates.overdraw(now_ns, of, rows.len() as u64);
    (all - rows.len()) as u64
}

#[cfg(test)]
mod tests {
    use memtape_core::limits::{OWNER_STEPS_AT_ONCE_MAX, OWNER_STEPS_PER_SECOND_MAX};

    use super::*;
    use crate::quota::step_records;

    fn report(first: u64) -> Vec<StepRecord> {
        let row = |step| StepRecord { last_step: step, ..StepRecord::default() };
        (first..first + 4096).map(row).collect()
    }

    #[test]
    fn a_backlog_of_hours_passes_and_a_flood_is_thinned_by_the_number_of_the_step() {
        let mut rates = step_records();
        // 16 ranks with 10 steps a second were without a coordinator for 7 hours.
        for first in (0..16 * 10 * 7 * 3600).step_by(4096) {
            assert_eq!(thin(&mut rates, 7, (1, 1), &mut report(first)), 0);
        }
        // 200,000 a second for 1000 s: little more than the rate is kept.
        let (mut kept, mut last) = (0, Vec::new());
        for number in 0..48_828 {
            let mut rows = report(number * 4096);
            thin(&mut rates, number * 20_480_000, (2, 2), &mut rows);
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
            thin(&mut rates, 7, (3, 3), &mut rows);
            kept += rows.len() as u64;
        }
        assert!(kept <= OWNER_STEPS_AT_ONCE_MAX * 5 / 4, "{kept}");
        // Neither another owner of that node nor another node lost any.
        assert_eq!(thin(&mut rates, 7, (3, 4), &mut report(1)), 0);
    }
}

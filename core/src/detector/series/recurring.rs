//! Conditions that recur: retries of the allocator, and segments that come and go. One bit for
//! each of the last 64 steps.

use super::super::constants::{CHURN_MIN, RETRIES_MIN};
use super::layers::Layer;
use crate::tape::StepRecord;

/// A condition is over when it holds in no more than this many of the last 64 steps.
const OVER_MAX: u32 = 2;

/// Least reserved bytes that come and go within a step that counts.
const CHURN_BYTES_MIN: u64 = 16 << 20;

/// The conditions of a device in its last 64 steps.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::detector) struct Recurring {
    last_step: u64,
    retries: u64,
    churn: u64,
    malloc_failures: u64,
    end_reserved: u64,
    was_seen: bool,
    pub(in crate::detector) has_retries: bool,
    pub(in crate::detector) has_churn: bool,
}

impl Recurring {
    /// Takes the newest record; ignores older ones.
    pub(in crate::detector) fn take(&mut self, record: &StepRecord) {
        if self.was_seen && record.last_step <= self.last_step {
            return;
        }
        let steps = record.last_step - self.last_step;
        let shift = |bits: u64| bits.checked_shl(u32::try_from(steps).unwrap_or(64)).unwrap_or(0);
        let tried = record.malloc_failures > self.malloc_failures && self.was_seen;
        // Bytes that moved within the step, and their net change at its end.
        let moved =
            record.peak_reserved.saturating_sub(record.floor_reserved.min(self.end_reserved));
        let net = record.end_reserved.abs_diff(self.end_reserved);
        let churned = moved.saturating_sub(net) >= CHURN_BYTES_MIN && self.was_seen && !tried;
        self.retries = shift(self.retries) | u64::from(tried);
        self.churn = shift(self.churn) | u64::from(churned);
        self.malloc_failures = self.malloc_failures.max(record.malloc_failures);
        self.end_reserved = record.end_reserved;
        (self.last_step, self.was_seen) = (record.last_step, true);
        let holds = |bits: u64, least: u32, held: bool| {
            bits.count_ones() >= if held { OVER_MAX + 1 } else { least }
        };
        self.has_retries = holds(self.retries, RETRIES_MIN, self.has_retries);
        self.has_churn = holds(self.churn, CHURN_MIN, self.has_churn);
    }

    /// Does the condition hold in at least half of the steps that make it recurring?
    pub(in crate::detector) fn is_likely(&self, layer: Layer) -> bool {
        match layer {
            Layer::Retries => self.retries() * 2 >= RETRIES_MIN,
            Layer::Churn => self.churn() * 2 >= CHURN_MIN,
            _ => false,
        }
    }

    /// Steps of the last 64 in which the allocator tried again.
    pub(in crate::detector) fn retries(&self) -> u32 {
        self.retries.count_ones()
    }

    /// Steps of the last 64 in which segments came and went.
    pub(in crate::detector) fn churn(&self) -> u32 {
        self.churn.count_ones()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn after(steps: u64, record: impl Fn(u64) -> StepRecord) -> Recurring {
        let mut recurring = Recurring::default();
        (1..=steps)
            .for_each(|step| recurring.take(&StepRecord { last_step: step, ..record(step) }));
        recurring
    }

    #[test]
    fn recurring_are_what_most_steps_do() {
        let churning = |step: u64, every: u64| StepRecord {
            floor_reserved: if step.is_multiple_of(every) { 100 * MIB } else { 900 * MIB },
            peak_reserved: 900 * MIB,
            end_reserved: 900 * MIB,
            ..StepRecord::default()
        };
        assert!(after(64, |step| churning(step, 1)).has_churn);
        assert!(!after(40, |step| churning(step, 1)).has_churn);
        assert!(!after(500, |step| churning(step, 2)).has_churn);
        let growing = |step: u64| StepRecord {
            floor_reserved: step * 50 * MIB,
            peak_reserved: step * 50 * MIB + 50 * MIB,
            end_reserved: step * 50 * MIB + 50 * MIB,
            ..StepRecord::default()
        };
        assert!(!after(99, growing).has_churn);
        // Emptied just before the step ends, or between two steps.
        let emptied = |_: u64| StepRecord { peak_reserved: 900 * MIB, ..StepRecord::default() };
        assert!(after(64, emptied).has_churn);
        let retrying =
            |step: u64| StepRecord { malloc_failures: step / 4, ..StepRecord::default() };
        assert!(after(64, retrying).has_retries);
        assert!(!after(20, retrying).has_retries);
        let once = |step: u64| StepRecord { malloc_failures: step.min(9), ..StepRecord::default() };
        assert!(after(12, once).has_retries);
        assert!(!after(99, once).has_retries, "it is over");
    }

    #[test]
    fn late_steps_and_long_spans_are_harmless() {
        let mut recurring = Recurring::default();
        for step in [5, 3, u64::MAX, 0] {
            recurring.take(&StepRecord {
                last_step: step,
                malloc_failures: step,
                ..StepRecord::default()
            });
        }
        assert_eq!((recurring.retries(), recurring.churn()), (1, 0));
    }
}

//! Bytes that captures have stored recently, in a leaky bucket.
//!
//! The size of a capture is not known before it is taken, so the bucket is checked before and
//! filled after, and one capture may overfill it.

use crate::capture::manifest::Manifest;
use crate::capture::reason::{Reason, Urgency};
use crate::capture::request::{Limits, Refusal};

/// Time of the last request, and the bytes, of captures of one extent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) last_ns: Option<u64>,
    pub(super) budget: Budget,
}

/// Bytes that still count at a point in time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    spent_bytes: u64,
    at_ns: u64,
}

impl Budget {
    /// Takes a closed capture: its stored snapshots count from now on.
    pub(super) fn spend(&mut self, now_ns: u64, manifest: &Manifest, limits: &Limits) {
        let stored = manifest.parts.iter().filter(|part| part.hash.is_some());
        let bytes = stored.fold(0_u64, |sum, part| sum.saturating_add(part.bytes));
        self.spent_bytes = self.left_over(now_ns, limits).saturating_add(bytes);
        self.at_ns = self.at_ns.max(now_ns);
    }

    /// May a capture be taken for this reason?
    pub(super) fn check(
        &self,
        now_ns: u64,
        reason: &Reason,
        limits: &Limits,
    ) -> Result<(), Refusal> {
        let bytes_max = match reason.urgency() {
            Urgency::Manual => return Ok(()),
            Urgency::Urgent => limits.bytes_max.saturating_mul(2),
            Urgency::Usual => limits.bytes_max,
        };
        let spent_bytes = self.left_over(now_ns, limits);
        if limits.bytes_max == 0 || spent_bytes < bytes_max {
            return Ok(());
        }
        let surplus = u128::from(spent_bytes - bytes_max) + 1;
        let wait_ns = surplus * u128::from(limits.bytes_window_ns) / u128::from(limits.bytes_max);
        let wait_ns = u64::try_from(wait_ns + 1).unwrap_or(u64::MAX);
        Err(Refusal::OverBudget { spent_bytes, wait_ns })
    }

    /// [`Limits::bytes_max`] leaks away in each window.
    fn left_over(&self, now_ns: u64, limits: &Limits) -> u64 {
        let passed_ns = u128::from(now_ns.saturating_sub(self.at_ns));
        let window_ns = u128::from(limits.bytes_window_ns.max(1));
        let leaked = passed_ns * u128::from(limits.bytes_max) / window_ns;
        self.spent_bytes.saturating_sub(u64::try_from(leaked).unwrap_or(u64::MAX))
    }
}

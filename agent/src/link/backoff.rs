//! Wait times between attempts to reach the coordinator.

use std::time::Duration;

/// First and longest wait.
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The middle of what [`backoff`] spreads by.
pub(crate) const MIDDLE: u64 = 500;

/// The wait after this many failures: doubled each time, spread by a quarter to both sides.
pub(crate) fn backoff(failures: u32, random: u64) -> Duration {
    let doubled = BACKOFF_MIN.saturating_mul(1 << failures.min(10));
    let wait = doubled.min(BACKOFF_MAX);
    let spread = wait / 2;
    wait - spread / 2 + spread.mul_f64((random % 1000) as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_spread() {
        for (failures, shortest_ms, longest_ms) in [
            (0, 150, 250),
            (1, 300, 500),
            (3, 1200, 2000),
            (6, 7500, 12500),
            (u32::MAX, 7500, 12500),
        ] {
            for random in [0, 1, 499, 999, u64::MAX] {
                let ms = backoff(failures, random).as_millis();
                assert!((shortest_ms..=longest_ms).contains(&ms), "{failures} {random}: {ms} ms");
            }
        }
    }
}

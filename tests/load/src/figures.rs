//! Numbers of a run: percentiles, and what was lost.

use serde_json::{Value, json};

/// The value below which this share of all lies; 0 of none. Sorts.
pub(crate) fn percentile(values: &mut [u32], share: f64) -> u32 {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
}

/// Percentiles of times in microseconds, in milliseconds.
pub(crate) fn latencies(micros: &mut [u32]) -> Value {
    let ms = |share| f64::from(percentile(micros, share)) / 1e3;
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(ms);
    json!({ "p50_ms": p50, "p99_ms": p99, "max_ms": max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        for (values, share, expected) in [
            (vec![], 0.5, 0),
            (vec![7], 0.99, 7),
            (vec![3, 1, 2], 0.5, 2),
            ((1..=100).collect(), 0.99, 99),
            ((1..=100).rev().collect(), 1.0, 100),
        ] {
            let mut values: Vec<u32> = values;
            assert_eq!(percentile(&mut values, share), expected, "{values:?} {share}");
        }
    }
}

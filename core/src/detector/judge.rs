//! The tests: does this course of values grow, and will it go on?
//!
//! Three ways lead to *growing*. Steady growth (every block adds about the same) is so unlike
//! noise that half a window is enough, unless the past moved far more. New growth is a full window
//! of records that rises by more than the values ever moved in a long past. Old growth, without
//! such a past, is two windows of records. Trend tests (Mann-Kendall, Page-Hinkley, a line and its
//! fit) were rejected: they answer to every drift.

use alloc::vec::Vec;

use super::envelope::{Track, WINDOW};

/// How sure a judgement must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Smallest rise that counts, in bytes.
    pub(super) rise_min: i64,
    /// Points of a steady rise; under noise one point more is about nine times less likely.
    pub(super) steady_points_min: usize,
    /// New highs among the points of a full window. Exchangeable noise has three or four.
    pub(super) records_min: usize,
    /// Two windows of records are enough without a long past. Not so for the shortest blocks: over
    /// so few steps a drift that will come back looks the same.
    pub(super) trusts_records: bool,
    /// Share of the rise that the second half of a window must hold, in percent: 50 is a line,
    /// less is a curve that flattens (a cache that fills).
    pub(super) second_half_percent_min: i64,
}

impl Rule {
    /// For a rank against its peers, who take away all that is common.
    pub(super) fn against_peers(rise_min: i64, scale: usize) -> Self {
        Self {
            rise_min,
            trusts_records: scale > 0,
            steady_points_min: 8,
            records_min: 9,
            second_half_percent_min: 40,
        }
    }

    /// For absolute values, which also move with the job.
    pub(super) fn strict(rise_min: i64, scale: usize) -> Self {
        Self {
            trusts_records: scale > 0,
            rise_min: rise_min.saturating_mul(2),
            steady_points_min: 12,
            records_min: 12,
            second_half_percent_min: 45,
        }
    }
}

/// What the values look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Nothing to see.
    Flat,
    /// Higher than ever, and not sure.
    Rising,
    /// Grows for sure.
    Growing {
        /// Points it rests on, the newest ones.
        points: usize,
        /// Rise over those points, in bytes.
        rise: i64,
        /// Typical rise from one point to the next, in bytes.
        per_point: i64,
    },
}

/// A step of a steady rise may differ from the typical one by a quarter.
const STEADY_DIVISOR: i64 = 4;

/// A rise may give back a quarter of itself on its way.
const GIVE_BACK_DIVISOR: i64 = 4;

/// Judges the newest points of a track, its window against what was before.
pub(super) fn judge(track: &Track, rule: &Rule) -> Course {
    let values = &track.values()[..];
    let (high, before) = (track.high(), track.moved_before());
    let (past, window) = values.split_at(values.len().saturating_sub(WINDOW));
    let Some(&last) = window.last() else { return Course::Flat };
    let over_high = last.saturating_sub(high.unwrap_or(i64::MIN / 2));
    if over_high < rule.rise_min / 2 {
        return Course::Flat;
    }
    let steady = steady_suffix(window);
    let rise = window.get(window.len() - steady.len()).map_or(0, |first| last - first);
    let is_unusual = before.is_none_or(|moved| over_high >= moved / 2);
    if steady.len() >= rule.steady_points_min && rise >= rule.rise_min && is_unusual {
        let per_point = median(steady.windows(2).map(difference).collect());
        return Course::Growing { points: steady.len(), rise, per_point };
    }
    let is_new = is_record_run(window, rule.records_min, rule)
        && before.is_some_and(|moved| over_high >= moved + moved / 2);
    let is_old = rule.trusts_records
        && past.len() == WINDOW
        && is_record_run(values, rule.records_min + 1, rule);
    if is_new || is_old {
        let half = WINDOW / 2;
        let across: Vec<i64> =
            window.iter().zip(window.iter().skip(half)).map(|(a, b)| b - a).collect();
        let per_point = median(across).max(rise_of(&window[half..])) / half as i64;
        return Course::Growing { points: WINDOW, rise: rise_of(window), per_point };
    }
    let lately = &window[window.len().saturating_sub(WINDOW / 2)..];
    let climbs = lately.len() >= 4 && lately.windows(2).all(|pair| difference(pair) >= 0);
    if climbs && rise_of(lately) >= rule.rise_min / 2 { Course::Rising } else { Course::Flat }
}

/// The longest run of newest points, each of which adds about the same.
fn steady_suffix(window: &[i64]) -> &[i64] {
    for start in 0..window.len().saturating_sub(1) {
        let run = &window[start..];
        let typical = median(run.windows(2).map(difference).collect());
        let spread = typical / STEADY_DIVISOR;
        let fits = |pair: &[i64]| (difference(pair) - typical).abs() <= spread;
        if typical > 0 && run.windows(2).all(fits) {
            return run;
        }
    }
    &window[window.len().saturating_sub(1)..]
}

/// One new high after the other, to the end, with little given back. `records_min` is for a window
/// and grows with the number of values.
fn is_record_run(values: &[i64], records_min: usize, rule: &Rule) -> bool {
    let (Some(&first), Some(&last)) = (values.first(), values.last()) else { return false };
    let rise = last - first;
    if values.len() < WINDOW || rise < rule.rise_min {
        return false;
    }
    // A jump among small noise is one record, not many.
    let material = rise / (4 * values.len() as i64);
    let (mut top, mut records, mut given_back) = (first, 0, 0);
    for &value in values {
        records += usize::from(value > top + material);
        top = top.max(value);
        given_back = given_back.max(top - value);
    }
    let second_half = last - values[values.len() / 2 - 1];
    records * WINDOW >= records_min * values.len()
        && given_back <= rise / GIVE_BACK_DIVISOR
        && second_half.saturating_mul(100) >= rise.saturating_mul(rule.second_half_percent_min)
}

fn rise_of(values: &[i64]) -> i64 {
    values.first().zip(values.last()).map_or(0, |(first, last)| last - first)
}

fn difference(pair: &[i64]) -> i64 {
    rise_of(pair)
}

/// The lower median; 0 of nothing.
fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: i64 = 1 << 20;

    fn course(values: &[i64]) -> &'static str {
        let mut track = Track::default();
        for (block, value) in (0..).zip(values) {
            track.push(block * 4, 4, value * MIB);
        }
        match judge(&track, &Rule::against_peers(4 * MIB, 1)) {
            Course::Flat => "flat",
            Course::Rising => "rising",
            Course::Growing { .. } => "growing",
        }
    }

    /// Takes `count` points of a function of the point's number.
    fn points(count: i64, value: impl Fn(i64) -> i64) -> Vec<i64> {
        (0..count).map(value).collect()
    }

    #[test]
    fn courses_are_told_apart() {
        let check = |expected: &str, values: &[i64]| assert_eq!(course(values), expected);
        check("flat", &[]);
        check("flat", &points(40, |_| 100));
        check("growing", &points(9, |n| n));
        check("rising", &points(7, |n| n));
        // Too little in all.
        check("flat", &points(4, |n| n / 3));
        // A jump, and a staircase of few steps.
        check("flat", &points(40, |n| if n < 30 { 0 } else { 500 }));
        check("flat", &points(40, |n| n / 8 * 100));
        // It fills up.
        check("rising", &points(40, |n| 900 - 900 * 10 / (10 + n * n / 8)));
        // Sawteeth, short and long.
        check("flat", &points(40, |n| n % 7 * 50));
        check("flat", &points(60, |n| n % 25 * 50));
        check("flat", &points(57, |n| n % 50 * 50));
        // Bursts, after two windows of them.
        let bursts = |n: i64| (n * 7 + n % 3 * 4) * 2;
        check("growing", &points(32, bursts));
        assert_ne!(course(&points(16, bursts)), "growing");
        // They are sure in one window after a long past that is quiet, not after a restless one.
        check("growing", &points(64, |n| bursts((n - 47).max(0))));
        check("flat", &points(64, |n| if n < 48 { n * 97 % 31 * 100 } else { bursts(n) }));
        // They give too much back.
        check("flat", &points(64, |n| (n - 47).max(0) * 10 - if n == 60 { 80 } else { 0 }));
        // A jump among noise is no run.
        check("flat", &points(64, |n| n * 31 % 7 + if n < 60 { 0 } else { 300 + n }));
        // It starts after a flat past.
        check("growing", &points(40, |n| (n - 25).max(0) * 3));
    }
}

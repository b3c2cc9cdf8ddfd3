//! The test of a level: does it climb, and will it go on?
//!
//! The newest values are divided into eighths. A level climbs when the lowest value of each eighth
//! lies well above that of the eighth before, the later half rises about as much as the earlier
//! one, and the last eighth stays above all values of the first. Whatever rises and falls within an
//! eighth does not show in its lowest value: evaluations, sawtooth cycles, stairs. Longer cycles
//! are seen at longer blocks of steps. A level that fills up adds less and less; a single jump adds
//! next to nothing in the other eighths; noise is ordered like this once in 40,000 times.
//!
//! Trend tests (Mann-Kendall, Page-Hinkley, a fitted line) were rejected: they report every drift.

use super::super::constants::{EVEN_DIVISOR, GOES_ON_QUARTERS, PARTS, TRACE_POINTS_MIN};
use super::super::series::{Layer, POINTS_MAX, WINDOW, Window};
use super::stairs::stairs;

/// Requirements of a judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::detector) struct Rule {
    /// Smallest rise that counts, in bytes.
    pub(super) rise_min: i64,
    /// Fewest values that are judged.
    pub(super) points_min: usize,
    /// Stairs of any kind count: no stack tells of what grows.
    pub(super) has_no_lines: bool,
}

impl Rule {
    /// Rule for a rank against its peers, whose medians already contain what all ranks share.
    pub(in crate::detector) fn against_peers(rise_min: i64) -> Self {
        Self { rise_min, points_min: WINDOW / 2, has_no_lines: false }
    }

    /// Rule for absolute values, which also vary with the job.
    pub(in crate::detector) fn absolute(rise_min: i64) -> Self {
        Self { rise_min: rise_min.saturating_mul(2), points_min: WINDOW, has_no_lines: false }
    }

    /// Rule for the peaks of a trace, which is judged once and may hold few steps.
    pub(super) fn of_trace(rise_min: i64) -> Self {
        Self { rise_min, points_min: TRACE_POINTS_MIN, has_no_lines: false }
    }

    /// The rule for this layer.
    pub(super) fn of(self, layer: Layer) -> Self {
        Self { has_no_lines: layer.has_no_lines(), ..self }
    }
}

/// Is it the work within the steps that grows, and not what stays between them?
pub(super) fn is_within_steps(floor_rise: i64, peak_rise: i64) -> bool {
    floor_rise <= peak_rise / 2
}

/// Trend of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trend {
    /// No rise that counts.
    Flat,
    /// Higher than ever, but not certain.
    Rising,
    /// A few stairs, and the newest may be the last.
    Stairs(Rise),
    /// A climb that goes on.
    Growing(Rise),
}

impl Trend {
    /// The growth that is worth a finding.
    pub(super) fn rise(self) -> Option<Rise> {
        match self {
            Self::Flat | Self::Rising => None,
            Self::Stairs(rise) | Self::Growing(rise) => Some(rise),
        }
    }

    /// Is it more than a few stairs?
    pub(super) fn climbs(self) -> bool {
        matches!(self, Self::Growing(_))
    }
}

/// Size of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rise {
    /// Number of newest points in which the growth was found.
    pub(super) points: usize,
    /// Rise from the first eighth of those points to the last, in bytes.
    pub(super) bytes: i64,
}

/// Judges the newest points of a level against those before.
pub(in crate::detector) fn judge(points: &Window, rule: &Rule) -> Trend {
    let values = points.values();
    let Some(&last) = values.last() else { return Trend::Flat };
    let newest = |count: usize| values.split_at(values.len().saturating_sub(count)).1;
    let over_high = last.saturating_sub(points.past.high().unwrap_or(i64::MIN / 2));
    if over_high < rule.rise_min / 2 {
        return Trend::Flat;
    }
    // The rise must exceed the past by a quarter of the climb; else an earlier wave returns.
    let stands_out = |rise: &Rise| rise.bytes >= rule.rise_min && over_high >= rise.bytes / 4;
    // Only the rule of a trace admits fewer points than half a window.
    let lengths = [values.len().min(WINDOW / 2), WINDOW, POINTS_MAX];
    let fits = |count: &usize| (rule.points_min..=values.len()).contains(count);
    let mut climbs = lengths.into_iter().filter(fits).filter_map(|count| climb(newest(count)));
    if let Some(rise) = climbs.find(stands_out) {
        return Trend::Growing(rise);
    }
    let longer = Some(values.len()).filter(|count| *count > WINDOW);
    let lengths = core::iter::once(values.len().min(WINDOW)).chain(longer);
    let mut found =
        lengths.filter(fits).filter_map(|count| stairs(newest(count), rule.has_no_lines));
    if let Some(rise) = found.find(stands_out) {
        return Trend::Stairs(rise);
    }
    let lately = newest(WINDOW / 2);
    let is_rising = lately.len() >= 4 && lately.windows(2).all(|pair| rise_of(pair) >= 0);
    if is_rising && rise_of(lately) >= rule.rise_min / 2 { Trend::Rising } else { Trend::Flat }
}

/// Does each eighth of the values lie above the one before, and the rise go on? Of fewer than eight
/// values each is a part.
fn climb(values: &[i64]) -> Option<Rise> {
    let count = PARTS.min(values.len());
    let size = values.len() / count.max(1);
    let parts = || values.chunks_exact(size.max(1)).take(count);
    let mut lows = [0; PARTS];
    for (low, part) in lows.iter_mut().zip(parts()) {
        *low = *part.iter().min()?;
    }
    let lows = lows.get(..count)?;
    let (first, later) = (lows.get(..count / 2)?, lows.get(count - count / 2..)?);
    let bytes = rise_of(lows);
    let least = (bytes / (count as i64 - 1).max(1) / EVEN_DIVISOR).max(1);
    let rises = lows.windows(2).all(|pair| rise_of(pair) >= least);
    let goes_on = rise_of(later) >= rise_of(first) / 4 * GOES_ON_QUARTERS;
    let high = parts().next()?.iter().max()?;
    let climbs = count > 1 && rises && goes_on && lows.last()? > high;
    climbs.then_some(Rise { points: values.len(), bytes })
}

fn rise_of(values: &[i64]) -> i64 {
    values.first().zip(values.last()).map_or(0, |(first, last)| last - first)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::super::series::Past;
    use super::*;

    const MIB: i64 = 1 << 20;

    fn trend(values: &[i64]) -> &'static str {
        let mut past = Past::default();
        let left = values.len().saturating_sub(WINDOW);
        values[..left].iter().for_each(|value| past.add(value * MIB));
        let value_at = |block: u64| values.get(block as usize).map(|value| value * MIB);
        let newest = values.len().saturating_sub(1) as u64;
        let window = Window::collect(newest, 0, past, value_at);
        match judge(&window, &Rule::against_peers(4 * MIB)) {
            Trend::Flat => "flat",
            Trend::Rising => "rising",
            Trend::Stairs(_) => "stairs",
            Trend::Growing(_) => "growing",
        }
    }

    /// `count` points of a function of the point's number.
    fn points(count: i64, value: impl Fn(i64) -> i64) -> Vec<i64> {
        (0..count).map(value).collect()
    }

    #[test]
    fn growth_is_distinguished_from_what_moves() {
        let check =
            |expected: &str, values: &[i64]| assert_eq!(trend(values), expected, "{values:?}");
        check("flat", &[]);
        check("flat", &points(40, |_| 100));
        check("growing", &points(9, |n| n));
        check("rising", &points(7, |n| n));
        // Too little in all.
        check("flat", &points(4, |n| n / 3));
        // One jump, and few.
        check("flat", &points(40, |n| if n < 30 { 0 } else { 500 }));
        check("flat", &points(40, |n| n / 14 * 100));
        // Stairs: the same rise every 4 points; no growth when they end, or give back.
        check("growing", &points(40, |n| n / 4 * 100));
        let no_growth = |values: &[i64]| assert_ne!(trend(values), "growing");
        no_growth(&points(44, |n| n.min(32) / 4 * 100));
        no_growth(&points(90, |n| n % 45 / 4 * 100));
        // It fills up.
        check("rising", &points(40, |n| 900 - 900 * 10 / (10 + n * n / 8)));
        // Sawtooth cycles, short and long.
        check("flat", &points(40, |n| n % 7 * 50));
        check("flat", &points(60, |n| n % 25 * 50));
        check("flat", &points(57, |n| n % 50 * 50));
        // Each cycle keeps a part.
        check("growing", &points(64, |n| n % 4 * 100 + n / 4 * 50));
        // Bursts, after two windows of them.
        let bursts = |n: i64| (n * 7 + n % 3 * 4) * 2;
        check("growing", &points(32, bursts));
        // A restless past shows that the rise is nothing new.
        check("flat", &points(64, |n| if n < 48 { n * 97 % 31 * 100 } else { bursts(n) }));
        // It gives too much back.
        no_growth(&points(64, |n| (n - 47).max(0) * 10 - if n == 60 { 80 } else { 0 }));
        // A jump among noise.
        no_growth(&points(64, |n| n * 31 % 7 + if n < 60 { 0 } else { 300 + n }));
        // It starts after a flat past.
        check("growing", &points(40, |n| (n - 25).max(0) * 3));
    }
}

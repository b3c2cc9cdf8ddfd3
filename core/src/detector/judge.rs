//! The tests: does this course of values grow, and will it go on?
//!
//! Five ways lead to *growing*. Steady growth (every block adds about the same) is so unlike
//! noise that half a window is enough, unless the past moved far more. A staircase (every so many
//! blocks the same jump, and nothing between) is a round trip that leaves something behind each
//! time: an evaluation, an epoch. A ratchet rises by many jumps, of any size and at any time,
//! and gives nothing back between them: an error that is caught now and then. New growth is a
//! full window of records that rises by more than the values ever moved in a long past. Old
//! growth, without such a past, is two windows of records. Trend tests (Mann-Kendall,
//! Page-Hinkley, a line and its fit) were rejected: they answer to every drift.

use super::window::{POINTS_MAX, WINDOW, Window};
use super::{Gates, Layer};

/// A staircase has at least so many jumps.
const JUMPS_MIN: usize = 4;

/// How sure a judgement must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// Smallest rise that counts, in bytes.
    pub(super) rise_min: i64,
    /// Points of a steady rise; under noise one point more is about nine times less likely.
    pub(super) steady_points_min: usize,
    /// Jumps of a staircase.
    pub(super) jumps_min: usize,
    /// Jumps of a course that gives nothing back.
    pub(super) ratchet_jumps_min: usize,
    /// New highs among the points of a full window. Exchangeable noise has three or four.
    pub(super) records_min: usize,
    /// Two windows of records are enough without a long past. Not so for the shortest blocks: over
    /// so few steps a drift that will come back looks the same.
    pub(super) trusts_records: bool,
    /// Share of the rise that the second half of a window must hold, in percent: 50 is a line,
    /// less is a curve that flattens (a cache that fills).
    pub(super) second_half_percent_min: i64,
    /// What of all this is asked.
    pub(super) gates: Gates,
}

impl Rule {
    /// For a rank against its peers, who take away all that is common.
    pub(super) fn against_peers(rise_min: i64, scale: usize, gates: Gates) -> Self {
        Self {
            rise_min,
            trusts_records: scale > 0,
            steady_points_min: 8,
            jumps_min: JUMPS_MIN,
            ratchet_jumps_min: 6,
            records_min: 9,
            second_half_percent_min: 40,
            gates,
        }
    }

    /// For absolute values, which also move with the job.
    pub(super) fn strict(layer: Layer, rise_min: i64, scale: usize, gates: Gates) -> Self {
        Self {
            trusts_records: scale > 0,
            rise_min: rise_min.saturating_mul(2),
            steady_points_min: 12,
            // A job keeps the last few of something, weights for instance, until they are enough.
            jumps_min: match layer {
                Layer::Reserved | Layer::Peak => 8,
                Layer::Allocated | Layer::Blocks => 7,
                _ => 6,
            },
            records_min: 12,
            // Peaks are highs of many steps, which only noise lets rise in jumps.
            ratchet_jumps_min: if layer == Layer::Peak { usize::MAX } else { 10 },
            second_half_percent_min: 45,
            gates,
        }
    }

    /// The same where the memory is nearly full: nobody can wait for more jumps then. None where
    /// that asks for no fewer.
    pub(super) fn near_the_end(self) -> Option<Self> {
        (self.jumps_min > JUMPS_MIN).then_some(Self { jumps_min: JUMPS_MIN, ..self })
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
    Growing(Rise),
}

/// What is sure of a growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rise {
    /// Points it rests on, the newest ones.
    pub(super) points: usize,
    /// Rise over those points, in bytes.
    pub(super) bytes: i64,
    /// Typical rise from one point to the next, in bytes.
    pub(super) per_point: i64,
    /// It comes in jumps, with nothing between them.
    pub(super) in_jumps: bool,
}

/// A step of a steady rise may differ from the typical one by a quarter.
const STEADY_DIVISOR: i64 = 4;

/// A rise may give back a quarter of itself on its way.
const GIVE_BACK_DIVISOR: i64 = 4;

/// A jump of a staircase, and the blocks between two, may differ from the typical one by a
/// quarter.
const STAIRS_DIVISOR: i64 = 4;

/// Judges the newest points of a course, its window against what was before.
pub(super) fn judge(points: &Window, rule: &Rule) -> Course {
    let (values, gates) = (points.values(), &rule.gates);
    let window = values.split_at(values.len().saturating_sub(WINDOW)).1;
    let Some(&last) = window.last() else { return Course::Flat };
    let high = points.past.high().filter(|_| gates.high_water);
    let moved = points.past.moved(rise_of(window)).filter(|_| gates.past);
    let over_high = last.saturating_sub(high.unwrap_or(i64::MIN / 2));
    if over_high < rule.rise_min / 2 {
        return Course::Flat;
    }
    if moved.is_none_or(|moved| over_high >= moved / 2) {
        let steady = gates.steady.then(|| steady(window, rule)).flatten();
        let stairs = || gates.stairs.then(|| stairs(values, rule)).flatten();
        if let Some(course) = steady.or_else(stairs) {
            return course;
        }
    }
    let is_new = is_record_run(window, rule.records_min, rule)
        && moved.is_some_and(|moved| over_high >= moved + moved / 2);
    let is_old = rule.trusts_records
        && values.len() == POINTS_MAX
        && is_record_run(values, rule.records_min + 1, rule);
    let is_ratchet = gates.ratchets && rule.trusts_records && is_ratchet(values, rule);
    let is_run = gates.records && (is_new || is_old);
    if is_ratchet || is_run {
        let half = WINDOW / 2;
        let across = window.iter().zip(window.iter().skip(half)).map(|(a, b)| b - a);
        let per_point = median(across).max(rise_of(&window[half..])) / half as i64;
        let bytes = rise_of(window);
        return Course::Growing(Rise { points: WINDOW, bytes, per_point, in_jumps: !is_run });
    }
    let lately = &window[window.len().saturating_sub(WINDOW / 2)..];
    let climbs = lately.len() >= 4 && lately.windows(2).all(|pair| difference(pair) >= 0);
    if climbs && rise_of(lately) >= rule.rise_min / 2 { Course::Rising } else { Course::Flat }
}

/// The longest run of newest points, each of which adds about the same.
fn steady(window: &[i64], rule: &Rule) -> Option<Course> {
    let last = window.last()?;
    for start in 0..=window.len().checked_sub(rule.steady_points_min)? {
        let run = &window[start..];
        let typical = median(run.windows(2).map(difference));
        let spread = typical / STEADY_DIVISOR;
        let fits = |pair: &[i64]| (difference(pair) - typical).abs() <= spread;
        if typical > 0 && run.windows(2).all(fits) {
            let bytes = last - run.first()?;
            let (points, per_point) = (run.len(), typical);
            let course = Course::Growing(Rise { points, bytes, per_point, in_jumps: false });
            return (bytes >= rule.rise_min).then_some(course);
        }
    }
    None
}

/// The newest jumps that are alike, as far apart as each other, with nothing between them.
fn stairs(values: &[i64], rule: &Rule) -> Option<Course> {
    let largest = values.windows(2).map(difference).max()?;
    let is_jump = |pair: &[i64]| difference(pair) > largest / 2;
    let jumps = values.windows(2).filter(|pair| is_jump(pair));
    let height = median(jumps.map(difference));
    let mut at = [0_usize; POINTS_MAX];
    let mut count = 0;
    // Newest first, until something does not fit.
    for (index, pair) in values.windows(2).enumerate().rev() {
        let rise = difference(pair);
        let is_level = rise.abs() <= height / STAIRS_DIVISOR;
        if (rise - height).abs() <= height / STAIRS_DIVISOR {
            at[count] = index;
            count += 1;
        } else if !is_level {
            break;
        }
    }
    let at = at.get(..count)?;
    let tread = median(at.windows(2).map(|pair| (pair[0] - pair[1]) as i64));
    let slack = (tread / STAIRS_DIVISOR).max(1);
    let even = |pair: &&[usize]| ((pair[0] - pair[1]) as i64 - tread).abs() <= slack;
    let count = 1 + at.windows(2).take_while(even).count();
    let (&newest, &oldest) = (at.first()?, at.get(count - 1)?);
    let since = (values.len() - 2).saturating_sub(newest) as i64;
    let rise = height.saturating_mul(count as i64);
    let goes_on = tread >= 2 && since <= tread + slack;
    let is_enough = height > 0 && count >= rule.jumps_min && rise >= rule.rise_min;
    if !goes_on || !is_enough {
        return None;
    }
    let points = (values.len() - oldest).max(2);
    let bytes = rise_of(&values[values.len() - points..]);
    Some(Course::Growing(Rise {
        points,
        bytes,
        per_point: (height / tread).max(1),
        in_jumps: true,
    }))
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
    let least = rise.saturating_mul(rule.second_half_percent_min);
    records * WINDOW >= records_min * values.len()
        && (given_back <= rise / GIVE_BACK_DIVISOR || !rule.gates.give_back)
        && (second_half.saturating_mul(100) >= least || !rule.gates.saturation)
}

/// Rises by many jumps and gives nothing back between them.
fn is_ratchet(values: &[i64], rule: &Rule) -> bool {
    let (rise, half) = (rise_of(values), values.len() / 2);
    if values.len() < WINDOW || rise < rule.rise_min.max(1) {
        return false;
    }
    let material = rise / (4 * values.len() as i64);
    let ups = values.windows(2).filter(|pair| difference(pair) > material).count();
    let falls = values.windows(2).any(|pair| difference(pair) < -material);
    let percent = rise_of(&values[half..]).saturating_mul(100) / rise;
    let even = rule.second_half_percent_min..=100 - rule.second_half_percent_min;
    ups >= rule.ratchet_jumps_min && !falls && even.contains(&percent)
}

/// How high the jumps of a course are, where they are alike. None where they differ; where there
/// are too few, or so many that none stands alone.
pub(super) fn equal_jumps(values: &[i64]) -> Option<Option<i64>> {
    let material = rise_of(values).max(0) / (4 * values.len().max(1) as i64);
    let jumps = || values.windows(2).map(difference).filter(|&jump| jump > material);
    let count = jumps().count();
    let stand_alone = count >= JUMPS_MIN && count * 2 <= values.len();
    let (range, height) = (jumps().max()? - jumps().min()?, median(jumps()));
    stand_alone.then_some((range <= height / STAIRS_DIVISOR).then_some(height))
}

fn rise_of(values: &[i64]) -> i64 {
    values.first().zip(values.last()).map_or(0, |(first, last)| last - first)
}

fn difference(pair: &[i64]) -> i64 {
    rise_of(pair)
}

/// The lower median of the first [`POINTS_MAX`] values; 0 of nothing.
fn median(values: impl Iterator<Item = i64>) -> i64 {
    let mut sorted = [0; POINTS_MAX];
    let mut count = 0;
    for (value, place) in values.zip(&mut sorted) {
        *place = value;
        count += 1;
    }
    let sorted = &mut sorted[..count];
    sorted.sort_unstable();
    sorted.get(count.saturating_sub(1) / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::window::Past;
    use super::*;

    const MIB: i64 = 1 << 20;

    fn course(values: &[i64]) -> &'static str {
        let mut past = Past::default();
        let left = values.len().saturating_sub(WINDOW);
        values[..left].iter().for_each(|value| past.add(value * MIB));
        let value_at = |block: u64| values.get(block as usize).map(|value| value * MIB);
        let newest = values.len().saturating_sub(1) as u64;
        let window = Window::collect(newest, 0, past, value_at);
        match judge(&window, &Rule::against_peers(4 * MIB, 1, Gates::default())) {
            Course::Flat => "flat",
            Course::Rising => "rising",
            Course::Growing(_) => "growing",
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
        check("flat", &points(40, |n| n / 14 * 100));
        // A staircase: the same every so many points; not so when it has few steps, gives back,
        // ends, or is one flank of a longer wave.
        check("growing", &points(40, |n| n / 6 * 100));
        check("growing", &points(33, |n| n / 8 * 100));
        let no_stairs = |values: &[i64]| assert_ne!(course(values), "growing");
        no_stairs(&points(31, |n| n / 8 * 100));
        no_stairs(&points(40, |n| n / 6 * 100 - if n == 27 { 60 } else { 0 }));
        no_stairs(&points(44, |n| n.min(32) / 6 * 100));
        no_stairs(&points(90, |n| n % 45 / 6 * 100));
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

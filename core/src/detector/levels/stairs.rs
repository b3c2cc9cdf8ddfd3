//! Stairs: growth by events, such as saves, evaluations and new process groups.
//!
//! Stairs of one kind rise by similar amounts at similar distances, and are flat in between. Four
//! of them are worth a notice. Stairs of any kind have any height and distance: where no stack
//! tells what grows, eight of them are worth a notice, if the level never falls by more than 1/8 of
//! the rise. No stairs are certain before the end of memory is near: some healthy jobs make as
//! many, and then no more. Stairs that go on are a climb ([`climb`](super::climb)) in longer blocks
//! of steps.

use super::super::constants::{GOES_ON_QUARTERS, STAIRS_ANY_MIN, STAIRS_MIN};
use super::climb::Rise;

/// The smallest stair is at least this part of the largest.
const HEIGHT_DIVISOR: i64 = 2;

/// Between two stairs the level moves by at most this part of the largest stair.
const FLAT_DIVISOR: i64 = 4;

/// Fewest points of a level between two stairs.
const APART_MIN: usize = 2;

/// Of stairs of any kind: each is at least this part of the rise, …
const ANY_HEIGHT_DIVISOR: i64 = 32;

/// … and at most this one; …
const ANY_HEIGHT_MAX_DIVISOR: i64 = 3;

/// … the level never falls by more than this part; …
const ANY_FALL_DIVISOR: i64 = 8;

/// … and no two are farther apart than this part of the points.
const ANY_APART_DIVISOR: usize = 4;

/// The stairs seen so far; places are indices of points.
#[derive(Clone, Copy, Debug)]
struct Stairs {
    count: usize,
    /// First point above the level before all stairs.
    first: usize,
    /// First point of the newest level.
    last: usize,
    /// Fewest and most points from one level to the next stair.
    nearest: usize,
    farthest: usize,
}

impl Stairs {
    /// With one more stair, from this point to the level that begins with the `last` one.
    fn with(known: Option<Self>, at: usize, last: usize) -> Self {
        let Some(known) = known else {
            return Self { count: 1, first: at, last, nearest: usize::MAX, farthest: 0 };
        };
        let apart = at - known.last;
        Self {
            count: known.count + 1,
            last,
            nearest: known.nearest.min(apart),
            farthest: known.farthest.max(apart),
            ..known
        }
    }

    /// Are these enough, at similar distances, and is the next one not overdue at this index?
    fn go_on(&self, end: usize) -> bool {
        let farthest = self.farthest.max(end - self.last);
        self.count >= STAIRS_MIN
            && self.nearest >= APART_MIN
            && farthest <= self.nearest.saturating_mul(3) / 2 + 1
    }
}

/// Finds stairs of one kind, or of any where that is asked.
pub(super) fn stairs(values: &[i64], has_any: bool) -> Option<Rise> {
    of_one_kind(values).or_else(|| if has_any { of_any_kind(values) } else { None })
}

/// Finds stairs of any height at any distance, also one after the other.
fn of_any_kind(values: &[i64]) -> Option<Rise> {
    let (&first, &last) = (values.first()?, values.last()?);
    let bytes = last - first;
    let (mut high, mut began, mut newest) = (first, None, None);
    let (mut count, mut apart) = (0, 0);
    for (at, &value) in values.iter().enumerate().skip(1) {
        let rise = value - high;
        if -rise > bytes / ANY_FALL_DIVISOR || rise > bytes / ANY_HEIGHT_MAX_DIVISOR {
            return None;
        }
        if rise > bytes / ANY_HEIGHT_DIVISOR {
            began = began.or(Some(at));
            apart = newest.map_or(0, |newest: usize| apart.max(at - newest));
            (count, newest) = (count + 1, Some(at));
        }
        high = high.max(value);
    }
    let apart = apart.max(values.len() - newest?);
    let later = last - values.get(values.len() / 2)?;
    let goes_on = later >= (bytes - later) / 4 * GOES_ON_QUARTERS;
    let is_it = count >= STAIRS_ANY_MIN && goes_on && apart <= values.len() / ANY_APART_DIVISOR;
    let points = values.len() + 1 - began?;
    is_it.then_some(Rise { points, bytes })
}

/// Finds stairs of one kind; none where anything else rises or falls among these values.
fn of_one_kind(values: &[i64]) -> Option<Rise> {
    let highest = values.windows(3).map(|three| three[2] - three[0]).max()?;
    let flat_max = highest / FLAT_DIVISOR;
    let (mut low, mut high) = (*values.first()?, *values.first()?);
    let mut found: Option<Stairs> = None;
    let mut points = values.iter().copied().enumerate().skip(1).peekable();
    while let Some((at, value)) = points.next() {
        if high.max(value) - low.min(value) <= flat_max {
            (low, high) = (low.min(value), high.max(value));
            continue;
        }
        // A stair within a block of steps may show in two points.
        let second = points.next_if(|&(_, next)| next > value + flat_max);
        let (last, level) = second.unwrap_or((at, value));
        if level - high < highest / HEIGHT_DIVISOR {
            return None;
        }
        found = Some(Stairs::with(found, at, last));
        (low, high) = (level, level);
    }
    let found = found.filter(|found| found.go_on(values.len()))?;
    let before = found.first.checked_sub(1)?;
    let bytes = values.last()? - values.get(before)?;
    Some(Rise { points: values.len() - before, bytes })
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Points of the first stair up to the end, of `count` values of a function of their number.
    fn points(count: i64, value: impl Fn(i64) -> i64) -> Option<(usize, i64)> {
        let values: Vec<i64> = (0..count).map(value).collect();
        of_one_kind(&values).map(|rise| (rise.points, rise.bytes))
    }

    #[test]
    fn four_stairs_of_one_kind_are_found() {
        // The first stair is at point 3, the fourth at point 12.
        let even = |n: i64| n / 3 * 100;
        assert_eq!(
            [12, 13, 14, 19].map(|count| points(count, even).is_some()),
            [false, true, true, true]
        );
        assert_eq!(points(13, even), Some((11, 400)));
        // Noise of a quarter of a stair; distances of 2 and 3 points; heights of 60 to 100.
        let noisy = |n: i64| n / 4 * 100 + n * 7_919 % 25;
        assert!(points(17, noisy).is_some());
        assert!(points(12, |n| n * 2 / 5 * 100).is_some());
        assert!(points(17, |n| n / 4 * 80 + n / 4 % 2 * 20).is_some());
        // Stairs that show in two points each.
        assert!(points(20, |n| n / 4 * 100 + if n % 4 == 0 { 0 } else { 60 }).is_some());
    }

    #[test]
    fn what_is_no_stair_of_the_kind_is_not_found() {
        let none = |count: i64, value: &dyn Fn(i64) -> i64| assert_eq!(points(count, value), None);
        none(0, &|_| 0);
        none(32, &|_| 100);
        none(32, &|n| n * 10);
        // Three, and no more.
        none(32, &|n| n.min(11) / 3 * 100);
        // The fifth is overdue.
        none(24, &|n| n.min(15) / 3 * 100);
        // A pool that grows by half of what it has; recompilation at double distances.
        none(32, &|n| 100 << (n / 4));
        none(32, &|n| 100 * i64::from((n + 1).ilog2()));
        // It gives back.
        none(32, &|n| n / 4 * 100 - if n == 18 { 60 } else { 0 });
        none(32, &|n| n % 14 / 3 * 100);
        // One of another kind.
        none(32, &|n| n / 4 * 100 + if n > 13 { 300 } else { 0 });
    }

    /// Levels of 32 points after rises of these heights, in MiB, at these points.
    fn after(rises: &[(usize, i64)]) -> Vec<i64> {
        let level = |at: usize| {
            rises.iter().filter(|(from, _)| *from <= at).map(|(_, height)| height).sum::<i64>()
        };
        (0..32).map(|at| level(at) << 20).collect()
    }

    #[test]
    fn eight_stairs_of_any_kind_are_found_where_nothing_is_given_back() {
        let found = |rises: &[&[(usize, i64)]]| {
            let rise = stairs(&after(&rises.concat()), true);
            rise.map(|rise| (rise.points, rise.bytes >> 20))
        };
        // Processes that are left behind, of several sizes and at no regular distances.
        let kept = [(9, 216), (11, 242), (14, 200), (16, 408), (17, 267), (20, 304), (22, 496)];
        let more = [(25, 400), (29, 350)];
        assert_eq!(found(&[&kept, &more]), Some((24, 2_883)));
        assert_eq!(found(&[&kept, &[(26, 750)]]), Some((24, 2_883)), "eight");
        assert_eq!(found(&[&kept[..6], &[(25, 600)]]), None, "seven");
        assert_eq!(stairs(&after(&[&kept[..], &more].concat()), false), None);
        assert_eq!(found(&[&kept, &more, &[(27, -500)]]), None, "it gives back");
        assert_eq!(found(&[&kept, &more, &[(24, 3_000)]]), None, "most of it came at once");
        let even = [(2, 450), (4, 200), (6, 450), (8, 200), (18, 450), (20, 200), (22, 450)];
        assert_eq!(found(&[&even, &[(24, 200), (26, 450)]]), None, "too far apart");
        assert_eq!(found(&[&even, &[(24, 200), (26, 450), (13, 450)]]), Some((31, 3_500)));
        // A cache that fills: a part of 1/22 of what is free at each point.
        let mut free = 1_i64 << 30;
        let mut fill = |_: usize| {
            free -= free / 22;
            (1 << 30) - free
        };
        assert_eq!(stairs(&(0..16).map(&mut fill).collect::<Vec<_>>(), true), None);
    }
}

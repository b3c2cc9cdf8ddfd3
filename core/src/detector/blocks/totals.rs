//! Values by step, at a lower resolution for older steps.

use alloc::vec::Vec;

/// Most points that are kept.
const POINTS_MAX: usize = 64;

/// Values by step. The newest half of the points is unmerged; when there are too many, each two of
/// the older ones become one.
#[derive(Debug, Default)]
pub(super) struct Totals(Vec<Point>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) step: u64,
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Totals {
    pub(super) fn add(&mut self, step: u64, value: u64) {
        self.0.push(Point { step, low: value, high: value });
        if self.0.len() > POINTS_MAX {
            let newest = self.0.split_off(POINTS_MAX / 2);
            let merged = self.0.chunks(2).filter_map(|pair| {
                let low = pair.iter().map(|point| point.low).min()?;
                let high = pair.iter().map(|point| point.high).max()?;
                Some(Point { step: pair.first()?.step, low, high })
            });
            self.0 = merged.chain(newest).collect();
        }
    }

    /// The newest value.
    pub(super) fn newest(&self) -> u64 {
        self.0.last().map_or(0, |point| point.low)
    }

    /// The newest value that is no newer than this step; 0 before the first.
    pub(super) fn at(&self, step: u64) -> u64 {
        let known = self.0.iter().rev().find(|point| point.step <= step);
        known.map_or(0, |point| point.low)
    }

    /// The highest value since a step.
    pub(super) fn highest(&self, from: u64) -> u64 {
        self.since(from).map(|point| point.high).max().unwrap_or(0)
    }

    /// The lowest value since a step.
    pub(super) fn lowest(&self, from: u64) -> u64 {
        self.since(from).map(|point| point.low).min().unwrap_or(0)
    }

    /// The lowest value of each quarter of this many steps; `None` when one has no point.
    pub(super) fn lows(&self, from: u64, steps: u64) -> Option<[u64; 4]> {
        self.low_points(from, steps).map(|points| points.map(|point| point.low))
    }

    /// The points of those values.
    pub(super) fn low_points(&self, from: u64, steps: u64) -> Option<[Point; 4]> {
        let mut lows = [None::<Point>; 4];
        for point in self.since(from) {
            let quarter = (point.step - from).saturating_mul(4) / steps.max(1);
            let low = lows.get_mut(quarter.min(3) as usize)?;
            *low = low.filter(|low| low.low <= point.low).or(Some(*point));
        }
        let is_known = self.0.first()?.step <= from;
        let [Some(first), Some(second), Some(third), Some(last)] = lows else { return None };
        is_known.then_some([first, second, third, last])
    }

    /// Returns the step at which the rise up to `until` began. Goes back while an older point is
    /// lower than all newer ones, across at most `gap_max` steps that are not.
    pub(super) fn rises_since(&self, until: u64, gap_max: u64) -> u64 {
        let (mut lowest, mut onset) = (u64::MAX, until);
        for point in self.0.iter().rev().filter(|point| point.step <= until) {
            if lowest < u64::MAX && onset.saturating_sub(point.step) > gap_max {
                break;
            }
            if point.low < lowest {
                (lowest, onset) = (point.low, point.step);
            }
        }
        onset
    }

    /// Was something held all the time in these steps before `until`, and moved by `most` or less?
    pub(super) fn is_level(&self, until: u64, steps: u64, most: u64) -> bool {
        let Some(from) = until.checked_sub(steps) else { return false };
        let is_known = self.0.first().is_some_and(|point| point.step <= from);
        let points = || self.since(from).take_while(|point| point.step <= until);
        let lowest = points().map(|point| point.low).min().unwrap_or(0);
        let highest = points().map(|point| point.high).max().unwrap_or(0);
        is_known && lowest > 0 && highest - lowest <= most
    }

    /// Highest less lowest value since a step.
    pub(super) fn swing(&self, from: u64) -> u64 {
        self.highest(from).saturating_sub(self.lowest(from))
    }

    pub(super) fn since(&self, from: u64) -> impl Iterator<Item = &Point> {
        self.0.iter().filter(move |point| point.step >= from)
    }
}

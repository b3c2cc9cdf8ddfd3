//! Windows: the newest points of a track, and the onset of a growth in them.

use super::ring::{BLOCK_STEPS, SCALES};

/// Points of a window that is judged.
pub(in crate::detector) const WINDOW: usize = 16;

/// Most points that are collected.
pub(in crate::detector) const POINTS_MAX: usize = 2 * WINDOW;

/// More than 4/5 of the steps of a climb must rise.
const CLIMBS_PARTS: usize = 5;

/// A gap of more than this many blocks ends a window: no trend is inferred across it.
const HOLE_BLOCKS_MAX: u64 = 2;

/// Highest of the values that have left the window; none while it holds all there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::detector) struct Past(Option<i64>);

impl Past {
    /// Adds a value that leaves the window.
    pub(in crate::detector) fn add(&mut self, value: i64) {
        self.0 = self.0.max(Some(value));
    }

    /// Highest value.
    pub(in crate::detector) fn high(&self) -> Option<i64> {
        self.0
    }
}

/// The newest points of a track, oldest first.
#[derive(Clone, Debug)]
pub(in crate::detector) struct Window {
    blocks: [u64; POINTS_MAX],
    values: [i64; POINTS_MAX],
    /// The first point is at this index.
    start: usize,
    pub(in crate::detector) past: Past,
}

impl Window {
    /// Collects the points from the block `newest` back to `oldest`. `past` holds the values that
    /// left the window before.
    pub(in crate::detector) fn collect(
        newest: u64,
        oldest: u64,
        mut past: Past,
        value_at: impl Fn(u64) -> Option<i64>,
    ) -> Self {
        let mut window =
            Self { blocks: [0; POINTS_MAX], values: [0; POINTS_MAX], start: POINTS_MAX, past };
        let reach = (HOLE_BLOCKS_MAX + 1) * POINTS_MAX as u64;
        let (mut last, mut is_cut) = (newest, false);
        for block in (oldest.max(newest.saturating_sub(reach))..=newest).rev() {
            let Some(value) = value_at(block) else { continue };
            is_cut |= last - block > HOLE_BLOCKS_MAX + 1;
            if is_cut {
                // A value before the gap belongs to the past, and is not counted there yet.
                if newest - block < WINDOW as u64 {
                    past.add(value);
                }
                continue;
            }
            let Some(at) = window.start.checked_sub(1) else { break };
            (window.blocks[at], window.values[at], window.start) = (block, value, at);
            last = block;
        }
        window.past = past;
        window
    }

    /// The values, oldest first.
    pub(in crate::detector) fn values(&self) -> &[i64] {
        &self.values[self.start..]
    }

    /// (block, value), newest first.
    pub(in crate::detector) fn backwards(&self) -> impl Iterator<Item = (u64, i64)> {
        let points = self.blocks[self.start..].iter().zip(self.values());
        points.rev().map(|(&block, &value)| (block, value))
    }

    /// The newest value.
    pub(in crate::detector) fn last(&self) -> Option<i64> {
        self.values().last().copied()
    }

    /// Rise over the last `points` points.
    pub(in crate::detector) fn rise(&self, points: usize) -> i64 {
        let first = self.backwards().take(points.max(1)).last();
        first.zip(self.last()).map_or(0, |((_, first), last)| last - first)
    }

    /// Do more than 4/5 of the steps between the last `points` points rise? Weaker than the test of
    /// a level: it decides only which part of a rise all ranks share.
    pub(in crate::detector) fn climbs(&self, points: usize) -> bool {
        let lately = self.values().split_at(self.values().len().saturating_sub(points)).1;
        let ups = lately.windows(2).filter(|pair| pair[1] > pair[0]).count();
        ups * CLIMBS_PARTS > lately.len().saturating_sub(1) * (CLIMBS_PARTS - 1)
    }
}

/// Finds the step at which a growth of `rate` a step began, and the level there. `windows` are
/// those of the block lengths from `scale` on.
///
/// Walks back from the newest point of `scale`, then along the coarser scales, for as long as the
/// points lie on the line of the growth. Two points above the line are the level from before: the
/// growth began where the line left it.
pub(in crate::detector) fn onset(
    windows: &[Option<Window>; SCALES],
    scale: usize,
    rate: i64,
) -> Option<(u64, i64)> {
    let window = windows[scale].as_ref()?;
    let (newest, last) = window.backwards().next()?;
    let last_step = newest * BLOCK_STEPS[scale];
    let risen = |step: u64| {
        let steps = i64::try_from(last_step.saturating_sub(step)).unwrap_or(i64::MAX);
        rate.saturating_mul(steps)
    };
    // The newest point may be noisy; the middle one of several is less so.
    let lately = window.backwards().take(WINDOW / 2 - 1);
    let mut ends: [i64; WINDOW / 2 - 1] = [0; WINDOW / 2 - 1];
    let mut count = 0;
    for ((block, value), end) in lately.zip(&mut ends) {
        *end = value.saturating_add(risen(block * BLOCK_STEPS[scale]));
        count += 1;
    }
    let ends = &mut ends[..count];
    ends.sort_unstable();
    let end = ends.get(count / 2).copied().unwrap_or(last);
    let rise = window.rise(WINDOW).max(1);
    let tolerance = (rise / 8).max(rate.saturating_mul(BLOCK_STEPS[scale] as i64));
    let (mut onset, mut above) = ((last_step, last), None);
    for (coarser, steps) in BLOCK_STEPS.into_iter().enumerate().skip(scale) {
        let Some(window) = &windows[coarser] else { continue };
        for (block, value) in window.backwards() {
            let step = block * steps;
            let line = end.saturating_sub(risen(step));
            if step >= onset.0 {
                continue;
            }
            if value > line.saturating_add(tolerance) {
                if above.is_some() {
                    let steps = u64::try_from((end - value).max(0) / rate.max(1)).unwrap_or(0);
                    return Some((last_step.saturating_sub(steps), value));
                }
                above = Some(step);
                continue;
            }
            if value < line.saturating_sub(rise) {
                return Some(onset);
            }
            (onset, above) = ((step, value), None);
        }
    }
    Some(onset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_onset_is_where_the_line_leaves_the_old_level() {
        let check = |onset_step: u64, level: i64, rate: i64| {
            let value = |step: u64| level + step.saturating_sub(onset_step) as i64 * rate;
            let window = |scale: usize, newest: u64| {
                let steps = BLOCK_STEPS[scale];
                let known = |block: u64| (block * steps >= 24).then(|| value(block * steps));
                Some(Window::collect(newest, 0, Past::default(), known))
            };
            let windows = [window(0, 14), window(1, 3), None];
            let found = onset(&windows, 0, rate).map(|(step, _)| step);
            let distance = found.unwrap_or(0).abs_diff(onset_step.max(24));
            assert!(distance <= 24, "{found:?} is not near {onset_step}");
        };
        check(120, 0, 1 << 20);
        check(200, 1 << 30, 3 << 20);
        check(60, 0, 1 << 17);
        check(10, 0, 1 << 20);
    }

    #[test]
    fn a_hole_ends_a_window_and_what_lies_before_is_past() {
        let known = |block: u64| (!(20..24).contains(&block)).then_some(block as i64);
        let window = Window::collect(30, 0, Past::default(), known);
        assert_eq!(window.values(), [24, 25, 26, 27, 28, 29, 30]);
        assert_eq!(window.past.high(), Some(19));
        assert_eq!((window.rise(3), window.rise(99)), (2, 6));
        let small = |block: u64| block.is_multiple_of(3).then_some(block as i64);
        let window = Window::collect(99, 60, Past::default(), small);
        assert_eq!(window.values().len(), 14, "holes of two blocks are no end");
        let none = Window::collect(9, 0, Past::default(), |_| None);
        assert_eq!((none.last(), none.rise(4)), (None, 0));
    }
}

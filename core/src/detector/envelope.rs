//! Lower envelopes: the lowest floor of each block of steps, at several lengths of block.
//!
//! Short blocks find fast growth soon; long blocks see slow growth under the noise.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Layer;

/// Lengths of a block in steps, shortest first; each is a multiple of the one before.
pub(super) const BLOCK_STEPS: [u64; SCALES] = [4, 16, 64, 256];

/// Number of block lengths.
pub(super) const SCALES: usize = 4;

/// Number of accounts.
pub(super) const LAYERS: usize = 2;

/// Blocks of each length that a rank may be ahead of the slowest of its peers.
pub(super) const BLOCKS_AHEAD: usize = 64;

/// Points in the window that a test looks at.
pub(super) const WINDOW: usize = 16;

/// Points before the window that make a past: three windows show what is normal.
const PAST_POINTS_MIN: usize = 3 * WINDOW;

/// A longer hole than this many blocks ends a track: there is no inference over gaps.
const HOLE_BLOCKS_MAX: u64 = 2;

pub(super) fn index_of(layer: Layer) -> usize {
    match layer {
        Layer::Allocated => 0,
        Layer::Reserved => 1,
    }
}

/// The lowest value of each layer in each recent block of one length.
#[derive(Debug)]
pub(super) struct Minima {
    steps: u64,
    /// (block, minimum of each layer), at the place `block % BLOCKS_AHEAD`.
    blocks: Vec<Option<(u64, [u64; LAYERS])>>,
}

impl Minima {
    pub(super) fn new(scale: usize) -> Self {
        Self { steps: BLOCK_STEPS[scale], blocks: alloc::vec![None; BLOCKS_AHEAD] }
    }

    /// Takes values that held from `first_step` to `last_step`. Saying it twice is harmless.
    pub(super) fn take(&mut self, first_step: u64, last_step: u64, values: [u64; LAYERS]) {
        let last = last_step / self.steps;
        let first = (first_step / self.steps).max(last.saturating_sub(BLOCKS_AHEAD as u64 - 1));
        for block in first..=last {
            let Some(place) = self.blocks.get_mut((block % BLOCKS_AHEAD as u64) as usize) else {
                continue;
            };
            match place {
                Some((known, minima)) if *known == block => {
                    for (minimum, value) in minima.iter_mut().zip(values) {
                        *minimum = value.min(*minimum);
                    }
                }
                Some((known, _)) if *known > block => {}
                _ => *place = Some((block, values)),
            }
        }
    }

    /// The minima of a block; none when no sample fell into it, or too long ago.
    pub(super) fn get(&self, block: u64) -> Option<[u64; LAYERS]> {
        match self.blocks.get((block % BLOCKS_AHEAD as u64) as usize) {
            Some(Some((known, minima))) if *known == block => Some(*minima),
            _ => None,
        }
    }
}

/// The recent course of one quantity, one point for each block.
#[derive(Clone, Debug, Default)]
pub(super) struct Track {
    /// (first step of the block, value); at most two windows of them.
    points: VecDeque<(u64, i64)>,
    /// Lowest and highest value that have left the window.
    past: Option<(i64, i64)>,
    /// How many have.
    past_points: usize,
}

impl Track {
    /// Adds the point of the block that begins at `step`.
    pub(super) fn push(&mut self, step: u64, block_steps: u64, value: i64) {
        if let Some(&(last, _)) = self.points.back() {
            if step <= last {
                return;
            }
            if step - last > (HOLE_BLOCKS_MAX + 1) * block_steps {
                let inside = self.points.len().saturating_sub(WINDOW);
                for (_, value) in core::mem::take(&mut self.points).into_iter().skip(inside) {
                    self.leave(value);
                }
            }
        }
        self.points.push_back((step, value));
        if let Some(leaving) = self.points.len().checked_sub(WINDOW + 1) {
            let (_, value) = self.points.get(leaving).copied().unwrap_or_default();
            self.leave(value);
        }
        if self.points.len() > 2 * WINDOW {
            self.points.pop_front();
        }
    }

    /// A value leaves the window.
    fn leave(&mut self, value: i64) {
        let (low, high) = self.past.unwrap_or((value, value));
        self.past = Some((low.min(value), high.max(value)));
        self.past_points += 1;
    }

    /// The values, oldest first, at most two windows of them.
    pub(super) fn values(&self) -> Vec<i64> {
        self.points.iter().map(|&(_, value)| value).collect()
    }

    /// The points, newest first.
    pub(super) fn backwards(&self) -> impl Iterator<Item = (u64, i64)> {
        self.points.iter().rev().copied()
    }

    pub(super) fn last(&self) -> Option<(u64, i64)> {
        self.points.back().copied()
    }

    /// Highest value that has left the window; none when the window holds all there is.
    pub(super) fn high(&self) -> Option<i64> {
        self.past.map(|(_, high)| high)
    }

    /// How far the values ranged before the window; none when that past is too short to tell.
    pub(super) fn moved_before(&self) -> Option<i64> {
        let (low, high) = self.past.filter(|_| self.past_points >= PAST_POINTS_MIN)?;
        Some(high - low)
    }

    /// Rise over the last `points` points.
    pub(super) fn rise(&self, points: usize) -> i64 {
        let first = self.backwards().take(points.max(1)).last();
        match (first, self.last()) {
            (Some((_, first)), Some((_, last))) => last - first,
            _ => 0,
        }
    }

    /// Rise over the window per step, rounded towards zero.
    pub(super) fn rate(&self) -> i64 {
        let first = self.backwards().take(WINDOW).last();
        match (first, self.last()) {
            (Some((from, first)), Some((to, last))) if to > from => {
                (last - first) / i64::try_from(to - from).unwrap_or(i64::MAX)
            }
            _ => 0,
        }
    }
}

/// One quantity of both layers at all block lengths.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks([[Track; SCALES]; LAYERS]);

impl Tracks {
    pub(super) fn get(&self, layer: Layer, scale: usize) -> &Track {
        &self.0[index_of(layer)][scale]
    }

    pub(super) fn push(&mut self, layer: Layer, scale: usize, block: u64, value: i64) {
        let block_steps = BLOCK_STEPS[scale];
        self.0[index_of(layer)][scale].push(block * block_steps, block_steps, value);
    }

    /// When the growth that now has `rate` bytes a step began, and its level there.
    ///
    /// Walks back from the newest point of `scale`, then along the coarser scales, for as long as
    /// the points lie on the line of the growth. Two points above the line are the level from
    /// before: the growth began where the line left it.
    pub(super) fn onset(&self, layer: Layer, scale: usize, rate: i64) -> Option<(u64, i64)> {
        let track = self.get(layer, scale);
        let (last_step, last) = track.last()?;
        let risen = |step: u64| {
            let steps = i64::try_from(last_step.saturating_sub(step)).unwrap_or(i64::MAX);
            rate.saturating_mul(steps)
        };
        // The newest point may be noisy; the middle one of several is less so.
        let newest = track.backwards().take(WINDOW / 2 - 1);
        let mut ends: Vec<i64> = newest.map(|(step, value)| value + risen(step)).collect();
        ends.sort_unstable();
        let end = ends.get(ends.len() / 2).copied().unwrap_or(last);
        let rise = track.rise(WINDOW).max(1);
        let tolerance = (rise / 8).max(rate.saturating_mul(BLOCK_STEPS[scale] as i64));
        let (mut onset, mut above) = ((last_step, last), None);
        for coarser in scale..SCALES {
            for (step, value) in self.get(layer, coarser).backwards() {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minima_take_the_lowest_of_each_block() {
        let mut minima = Minima::new(0);
        minima.take(8, 8, [50, 5]);
        minima.take(9, 9, [40, 6]);
        minima.take(9, 9, [40, 6]);
        minima.take(10, 14, [45, 4]);
        assert_eq!(minima.get(2), Some([40, 4]));
        assert_eq!(minima.get(3), Some([45, 4]));
        assert_eq!(minima.get(4), None);
        // A span of any length costs at most the ring, and the past is forgotten.
        minima.take(15, u64::MAX, [1, 1]);
        assert_eq!(minima.get(u64::MAX / 4), Some([1, 1]));
        assert_eq!(minima.get(2), None);
        minima.take(8, 8, [0, 0]);
        assert_eq!(minima.get(2), None);
    }

    #[test]
    fn the_onset_is_where_the_line_leaves_the_old_level() {
        let check = |onset_step: u64, level: i64, rate: i64| {
            let mut tracks = Tracks::default();
            for block in 6..60_u64 {
                let grown = (block * 4).saturating_sub(onset_step) as i64 * rate;
                tracks.push(Layer::Allocated, 0, block, level + grown);
                if block % 4 == 3 {
                    let grown = (block / 4 * 16).saturating_sub(onset_step) as i64 * rate;
                    tracks.push(Layer::Allocated, 1, block / 4, level + grown);
                }
            }
            let found = tracks.onset(Layer::Allocated, 0, rate).map(|(step, _)| step);
            let distance = found.unwrap_or(0).abs_diff(onset_step.max(24));
            assert!(distance <= 8, "{found:?} is not near {onset_step}");
        };
        check(120, 0, 1 << 20);
        check(200, 1 << 30, 3 << 20);
        check(60, 0, 1 << 17);
        check(10, 0, 1 << 20);
    }
}

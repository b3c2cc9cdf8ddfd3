//! The test of a level on the steps of a trace that PyTorch wrote.
//!
//! A running job is judged by blocks of 16 steps and more, again and again. A trace holds a hundred
//! steps at most, often fewer than ten, and is judged once. So a step is a point, and where there
//! are many, blocks of two and of four steps are, too. The test is that of a running job
//! ([`judge`]); its rule admits fewer points for peaks, and for reserved memory it is the same.
//!
//! It compares no ranks: peaks and reserved memory of a running job are judged by themselves, too.

use alloc::vec::Vec;

use super::super::constants::KEPT_BYTES_MIN;
use super::super::forecast::rate;
use super::super::series::{Layer, POINTS_MAX, Past, WINDOW, Window, idle_bytes};
use super::climb::{Rise, Rule, Trend, is_within_steps, judge};

/// Steps in a block, longest first: many steps show slow growth under noise.
const BLOCKS: [usize; 3] = [4, 2, 1];

/// A level that grows from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepTrend {
    /// Newest steps in which it grows.
    pub(crate) steps: u64,
    /// Median slope over these steps, in bytes a step.
    pub(crate) bytes_per_step: u64,
    /// Rise from the first of these steps to the last, in bytes.
    pub(crate) grown_bytes: u64,
}

/// The fewest whole steps whose levels are judged.
pub(crate) fn trace_points_min(layer: Layer) -> usize {
    let rule = if layer == Layer::Reserved { Rule::absolute(0) } else { Rule::of_trace(0) };
    rule.points_min
}

/// The trend of the peaks of whole steps; none where they do not grow, or grow because the lowest
/// levels do.
pub(crate) fn trend_of_peaks(peaks: &[u64], floors: &[u64]) -> Option<StepTrend> {
    let (_, ppm) = Layer::Peak.least_rise();
    // The layer's least rise in bytes is one of 256 steps and more, not of a few.
    let rule = Rule::of_trace(rise_min(peaks, KEPT_BYTES_MIN, ppm));
    let (found, of_floors) = BLOCKS.into_iter().find_map(|steps| {
        let own = window(peaks, steps, Iterator::max)?;
        let Trend::Growing(rise) = judge(&own, &rule) else { return None };
        let floors = window(floors, steps, Iterator::min)?;
        Some((trend(&own, rise, steps), floors.rise(rise.points)))
    })?;
    is_within_steps(of_floors, found.grown_bytes.try_into().ok()?).then_some(found)
}

/// The trend of the lowest levels of whole steps; none where they do not grow.
pub(crate) fn trend_of_floors(floors: &[u64]) -> Option<StepTrend> {
    trend_of_peaks(floors, &alloc::vec![0; floors.len()])
}

/// The trend of what is reserved beyond the peaks; none where it does not grow.
pub(crate) fn trend_of_idle(reserved: &[u64], peaks: &[u64]) -> Option<StepTrend> {
    let (bytes, ppm) = Layer::Reserved.least_rise();
    let rule = Rule::absolute(rise_min(reserved, bytes, ppm));
    let idle = idle(reserved, peaks);
    BLOCKS.into_iter().find_map(|steps| {
        let own = window(&idle, steps, Iterator::min)?;
        let Trend::Growing(rise) = judge(&own, &rule) else { return None };
        Some(trend(&own, rise, steps))
    })
}

/// True where reserved memory beyond the peaks ends higher than it began, by the least rise.
pub(crate) fn has_idle_risen(reserved: &[u64], peaks: &[u64]) -> bool {
    let (bytes, ppm) = Layer::Reserved.least_rise();
    let idle = idle(reserved, peaks);
    let ends = idle.first().zip(idle.last());
    let risen = ends.map_or(0, |(first, last)| last.saturating_sub(*first));
    i64::try_from(risen).is_ok_and(|risen| risen >= rise_min(reserved, bytes, ppm))
}

/// What is reserved in each step beyond the highest peak so far.
fn idle(reserved: &[u64], peaks: &[u64]) -> Vec<u64> {
    let mut highest = 0;
    let idle = reserved.iter().zip(peaks).map(|(&reserved, &peak)| {
        highest = peak.max(highest);
        idle_bytes(reserved, highest)
    });
    idle.collect()
}

/// The larger of this many bytes and this share of the newest level.
fn rise_min(levels: &[u64], bytes: u64, ppm: u64) -> i64 {
    let level = levels.last().copied().unwrap_or(0);
    let share = u128::from(level) * u128::from(ppm) / 1_000_000;
    i64::try_from(share.max(u128::from(bytes))).unwrap_or(i64::MAX / 4)
}

/// The newest blocks of `steps` steps each; none where longer blocks are too few.
fn window<'l>(
    levels: &'l [u64],
    steps: usize,
    keep: fn(core::slice::Iter<'l, u64>) -> Option<&'l u64>,
) -> Option<Window> {
    let count = levels.len() / steps;
    if steps > 1 && count < WINDOW / 2 {
        return None;
    }
    let newest = levels.get(levels.len() - count * steps..)?;
    let blocks: Vec<i64> = newest
        .chunks_exact(steps)
        .filter_map(|block| keep(block.iter()).and_then(|&level| i64::try_from(level).ok()))
        .collect();
    let mut past = Past::default();
    let left = blocks.len().saturating_sub(POINTS_MAX);
    blocks.iter().take(left).for_each(|&level| past.add(level));
    let last = u64::try_from(blocks.len().checked_sub(1)?).ok()?;
    let value_at = |block: u64| blocks.get(usize::try_from(block).ok()?).copied();
    Some(Window::collect(last, left as u64, past, value_at))
}

fn trend(window: &Window, rise: Rise, block_steps: usize) -> StepTrend {
    let steps = block_steps as u64;
    StepTrend {
        steps: rise.points as u64 * steps,
        bytes_per_step: u64::try_from(rate(window, rise.points, steps)).unwrap_or(0),
        grown_bytes: u64::try_from(window.rise(rise.points)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::Rng;
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Levels between 2 and 6 GiB, by a seed.
    fn noise(seed: u64, steps: usize) -> Vec<u64> {
        let mut rng = Rng(seed);
        (0..steps).map(|_| (2_048 + rng.below(4_096)) * MIB).collect()
    }

    #[test]
    fn noise_is_no_trend() {
        for steps in [6, 7, 8, 12, 20, 40, 126] {
            let floors = alloc::vec![1_024 * MIB; steps];
            let of = |seed: &u64| trend_of_peaks(&noise(*seed, steps), &floors).is_some();
            let found = (0..10_000).filter(of).count();
            assert!(found < 10, "{found} of 10,000 over {steps} steps");
            let idle = |seed: &u64| trend_of_idle(&noise(*seed, steps), &floors).is_some();
            assert_eq!((0..10_000).filter(idle).count(), 0, "{steps} steps");
        }
    }

    #[test]
    fn a_trend_of_a_hundredth_is_found() {
        for seed in 0..2_000 {
            let mut rng = Rng(seed);
            let steps = 20 + rng.below(107);
            let base = (16 + rng.below(64 << 10)) * 100 * MIB / 16;
            // Each step is off the line by up to half of a step's rise.
            let rise = base / 100;
            let peaks: Vec<u64> =
                (0..steps).map(|step| base + step * rise + rng.below(rise / 2)).collect();
            let floors = alloc::vec![base / 2; peaks.len()];
            let Some(found) = trend_of_peaks(&peaks, &floors) else {
                panic!("seed {seed}: {steps} steps over {base}");
            };
            let off = found.bytes_per_step.abs_diff(rise);
            assert!(off <= rise / 10, "seed {seed}: {} instead of {rise}", found.bytes_per_step);
            // The same of what is reserved, below flat peaks.
            let idle = trend_of_idle(&peaks, &floors).filter(|_| base > 8_192 * MIB);
            assert!(idle.is_some() || base <= 8_192 * MIB, "seed {seed}: idle");
        }
    }

    #[test]
    fn six_steps_are_enough_and_five_are_not() {
        let floors = [1_600 * MIB; 8];
        let peaks: Vec<u64> = (0..8).map(|step| 4_900 * MIB + step * 28 * MIB).collect();
        let of = |steps: usize| trend_of_peaks(&peaks[..steps], &floors[..steps]);
        assert_eq!(of(5), None);
        let rate = of(6).map(|found| (found.steps, found.bytes_per_step, found.grown_bytes));
        assert_eq!(rate, Some((6, 28 * MIB, 140 * MIB)));
        assert_eq!(of(7).map(|found| found.steps), Some(7));
        // What stays between the steps grows as much: it is not the steps that need more.
        assert_eq!(trend_of_peaks(&peaks, &peaks), None);
        // It fills up; it falls back at last.
        let filling = [0, 300, 500, 600, 650, 660].map(|more| (4_900 + more) * MIB);
        assert_eq!(trend_of_peaks(&filling, &floors[..6]), None);
        let falling = [0, 30, 60, 90, 120, 90].map(|more| (4_900 + more) * MIB);
        assert_eq!(trend_of_peaks(&falling, &floors[..6]), None);
    }
}

//! Has the growth of a level stopped? The shortest blocks of the rank's own level tell.
//!
//! Some levels grow in every block, others in stairs. A growth has stopped when it pauses several
//! times longer than it ever did between two rises. Until enough rises are known, the finding's own
//! scale decides (`findings.rs`).

use alloc::vec::Vec;

use super::super::GrowthKey;
use super::super::constants::PAUSE_TIMES;
use super::super::machine::Detector;
use super::super::series::{BLOCK_STEPS, BLOCKS};

/// Scale at which pauses are measured.
pub(super) const PAUSE_SCALE: usize = 0;

/// Rises that are needed before a pause can be compared with those before.
const RISES_MIN: usize = 8;

/// A pause of this many blocks is too short to tell: samples come late, and levels are noisy.
const PAUSE_BLOCKS_MIN: u64 = 4;

/// A pause is said of growth whose rises are at most this many blocks apart.
const LONGEST_BLOCKS_SAID: u64 = 4;

/// A block rises when it exceeds all before by this part of the typical rise of a block.
const RISE_DIVISOR: i64 = 4;

/// How long a growth pauses, in blocks of [`PAUSE_SCALE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::detector) struct Pause {
    /// Longest time between two rises.
    longest: u64,
    /// Block of the last rise.
    last: u64,
    /// Time since then.
    present: u64,
    rises: usize,
    /// The level is where it rose to: nothing else gave memory back meanwhile.
    is_at_high: bool,
}

impl Pause {
    /// Measures the pauses between the rises of these (block, value), oldest first.
    fn of(points: &[(u64, i64)]) -> Self {
        let mut pause = Self::default();
        let (Some(&(mut before, first)), Some(&(newest, _))) = (points.first(), points.last())
        else {
            return pause;
        };
        let mut high = first;
        let highest = points.iter().map(|(_, value)| *value).max().unwrap_or(first);
        let blocks = i64::try_from(newest - before).unwrap_or(i64::MAX).max(1);
        let least = ((highest - first) / blocks / RISE_DIVISOR).max(1);
        for &(block, value) in points {
            if value >= high.saturating_add(least) {
                pause.longest = pause.longest.max(block - before);
                (before, high) = (block, value);
                pause.rises += 1;
            }
        }
        (pause.last, pause.present) = (before, newest - before);
        let last = points.last().map_or(high, |(_, value)| *value);
        pause.is_at_high = last >= high.saturating_sub(least.saturating_mul(RISE_DIVISOR));
        pause
    }

    /// Is the present pause longer than those before?
    pub(super) fn is_longest(&self) -> bool {
        self.rises >= RISES_MIN && self.present > self.longest
    }

    /// The step of the last rise, in a pause that is certain enough to be said: twice as long as
    /// any before, at the level of that rise, and of a growth that counts as stopped before its
    /// rises leave the blocks that are kept.
    pub(in crate::detector) fn since_step(&self) -> Option<u64> {
        let least = (2 * self.longest).max(PAUSE_BLOCKS_MIN);
        let is_said = self.rises >= RISES_MIN
            && self.longest <= LONGEST_BLOCKS_SAID
            && self.present >= least
            && self.is_at_high;
        is_said.then(|| self.rose_step())
    }

    /// Step until which the level may have risen: the block after the one that rose last is not
    /// finished, or did not rise. None where too few rises are known.
    pub(in crate::detector) fn rose_until(&self) -> Option<u64> {
        let until = self.rose_step().saturating_add(2 * BLOCK_STEPS[PAUSE_SCALE]);
        (self.rises >= RISES_MIN && self.longest <= LONGEST_BLOCKS_SAID).then_some(until)
    }

    /// First step of the last block that rose: its value is the lowest in it.
    pub(super) fn rose_step(&self) -> u64 {
        self.last.saturating_mul(BLOCK_STEPS[PAUSE_SCALE])
    }

    /// Has the growth stopped?
    pub(super) fn has_stopped(&self) -> bool {
        self.rises >= RISES_MIN && self.present > PAUSE_TIMES * self.longest + PAUSE_BLOCKS_MIN
    }
}

impl Detector {
    /// The pauses of a level of one rank since `onset_step`, up to the newest finished block. Peers
    /// that begin to grow alike are no pause.
    pub(in crate::detector) fn pause(&self, key: &GrowthKey, onset_step: u64) -> Pause {
        let Some(series) = self.series.get(&(key.rank, key.device)) else {
            return Pause::default();
        };
        let next = series.next_block[PAUSE_SCALE];
        let oldest =
            (onset_step / BLOCK_STEPS[PAUSE_SCALE]).max(next.saturating_sub(BLOCKS as u64));
        let value = |block| Some((block, series.since_warm(key.layer, PAUSE_SCALE, block)?));
        let points: Vec<(u64, i64)> = (oldest..next).filter_map(value).collect();
        Pause::of(&points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Has the growth of this value by block stopped after this number of blocks?
    fn has_stopped(blocks: u64, value: impl Fn(i64) -> i64) -> bool {
        let points: Vec<(u64, i64)> = (0..blocks).map(|n| (n, value(n as i64))).collect();
        Pause::of(&points).has_stopped()
    }

    #[test]
    fn a_pause_is_said_before_growth_counts_as_stopped() {
        let said = |blocks: i64, value: fn(i64) -> i64| {
            let points: Vec<(u64, i64)> = (0..blocks).map(|n| (n as u64, value(n))).collect();
            Pause::of(&points).since_step()
        };
        let line = |n: i64| n.min(30) * 100;
        let rose = Some(30 * BLOCK_STEPS[PAUSE_SCALE]);
        assert_eq!([34, 35].map(|blocks| said(blocks, line)), [None, rose]);
        // Rises that are far apart leave the blocks that are kept before the growth has stopped.
        assert!((31..64).all(|blocks| said(blocks, |n| n.min(60) / 5 * 500).is_none()));
        // Other memory was given back: the growth may go on below it.
        assert_eq!(said(40, |n| if n > 30 { 1_500 } else { n * 100 }), None);
        assert_eq!(said(8, |n| n.min(4) * 100), None);
    }

    #[test]
    fn growth_stops_after_a_pause_longer_than_its_own() {
        let line = |n: i64| n.min(30) * 100;
        assert!(!has_stopped(31, line) && !has_stopped(37, line));
        assert!(has_stopped(39, line));
        // Stairs of three blocks, and noise of half a stair.
        let stairs = |n: i64| n.min(30) / 3 * 300 + n * 7919 % 150;
        assert!((1..40).all(|blocks| !has_stopped(blocks, stairs)));
        assert!(has_stopped(62, stairs));
        // Too few rises to know its pauses.
        assert!((1..64).all(|blocks| !has_stopped(blocks, |n| n.min(30) / 10 * 100)));
    }
}

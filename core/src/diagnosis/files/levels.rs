//! How the levels of two files differ: what the steps need, what is reserved and how, and how far
//! a level moves from step to step.
//!
//! The detector's own test ([`crate::detector::trend_of_peaks`]) asks whether a level grows for
//! good, and needs many steps. Here two traces are compared: a level may also fall or stay, and a
//! few steps are enough.

use alloc::vec::Vec;

use super::history::DeviceHistory;
use crate::diagnosis::evidence::account::{median, signed};
use crate::diagnosis::evidence::past::{Past, whole};

/// Part of the smaller value by which two values differ enough to be named: a twentieth.
const DIFFERENT_PART: u64 = 20;

/// Least difference between two trends that is named, in bytes a step.
const TREND_BYTES_MIN: u64 = 64 << 10;

/// Whole steps that a trend needs.
const STEPS_OF_A_TREND_MIN: usize = 6;

/// A level of a device, beside what its lines hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// The highest bytes of the trace.
    Peak,
    /// The median peak of the whole steps.
    StepNeed,
    /// What is reserved.
    Reserved,
    /// Free bytes between live blocks.
    InactiveSplit,
}

impl Level {
    /// All of them, in the order in which they are named.
    const ALL: [Self; 4] = [Self::Peak, Self::StepNeed, Self::Reserved, Self::InactiveSplit];

    fn of(self, device: &DeviceHistory) -> Option<u64> {
        match self {
            Self::Peak => device.past.peak.as_ref().map(|peak| peak.bytes),
            Self::StepNeed => device.past.step_need(),
            Self::Reserved => Some(device.state.reserved),
            Self::InactiveSplit => device.inactive_split(),
        }
    }
}

/// A level of each step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepLevel {
    /// The lowest bytes of a step.
    Minimum,
    /// The highest bytes of a step.
    Peak,
}

impl StepLevel {
    /// Change from step to step, in bytes: from the median of the first third of the whole steps to
    /// that of the last. None where few steps are known, and where the steps of one third differ by
    /// more than that.
    pub fn bytes_per_step(self, past: &Past) -> Option<i64> {
        let levels = match self {
            Self::Minimum => &past.floors,
            Self::Peak => &past.peaks,
        };
        bytes_per_step(levels).filter(|_| past.source.is_known())
    }
}

/// A value of both files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sides<T> {
    /// In the first file.
    pub from: T,
    /// In the second file.
    pub to: T,
}

/// The levels that differ enough to be named, in bytes.
pub fn different_levels(from: &DeviceHistory, to: &DeviceHistory) -> Vec<(Level, Sides<u64>)> {
    let both = |level: Level| {
        let (from, to) = level.of(from).zip(level.of(to))?;
        let differ = from.abs_diff(to) > from.min(to) / DIFFERENT_PART;
        differ.then_some((level, Sides { from, to }))
    };
    Level::ALL.into_iter().filter_map(both).collect()
}

/// The levels that move differently enough to be named, in bytes a step.
pub fn different_trends(from: &Past, to: &Past) -> Vec<(StepLevel, Sides<i64>)> {
    let both = |level: StepLevel| {
        let (from, to) = level.bytes_per_step(from).zip(level.bytes_per_step(to))?;
        (from.abs_diff(to) >= TREND_BYTES_MIN).then_some((level, Sides { from, to }))
    };
    [StepLevel::Minimum, StepLevel::Peak].into_iter().filter_map(both).collect()
}

fn bytes_per_step(levels: &[u64]) -> Option<i64> {
    let whole = whole(levels);
    if whole.len() < STEPS_OF_A_TREND_MIN {
        return None;
    }
    let third = whole.len() / 3;
    let (first, last) = (whole.get(..third)?, whole.get(whole.len() - third..)?);
    let spread = |part: &[u64]| Some(part.iter().max()?.abs_diff(*part.iter().min()?));
    let (from, to) = (median(first.to_vec()), median(last.to_vec()));
    if from.abs_diff(to) < spread(first)?.max(spread(last)?) {
        return None;
    }
    Some(signed(to).checked_sub(signed(from))? / i64::try_from(whole.len() - third).ok()?)
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;
    use crate::diagnosis::evidence::past::Alive;
    use crate::snapshot::step_source::StepSource;

    #[test]
    fn trends_differ_from_noise() {
        let levels = |of: fn(u64) -> u64| (0..20).map(of).collect::<Vec<u64>>();
        assert_eq!(bytes_per_step(&levels(|step| 1000 + 50 * step)), Some(50));
        assert_eq!(bytes_per_step(&levels(|step| 2000 - 50 * step)), Some(-50));
        assert_eq!(bytes_per_step(&levels(|_| 7)), Some(0));
        assert_eq!(bytes_per_step(&levels(|step| 1000 + step + 900 * (step % 2))), None, "noise");
        // The first and the last step may be cut.
        let mut cut = levels(|step| 1000 + 50 * step);
        (cut[0], cut[19]) = (0, u64::MAX);
        assert_eq!(bytes_per_step(&cut), Some(50));
        assert_eq!(bytes_per_step(&[1, 2, 3]), None);
        assert_eq!(bytes_per_step(&[]), None);
    }

    #[test]
    fn only_what_differs_is_named() {
        let device = |reserved: u64, peak: u64, rate: u64| {
            let mut device = DeviceHistory::default();
            device.state.reserved = reserved;
            device.past.peak = Some(Alive { bytes: peak, ..Alive::default() });
            device.past.floors = (0..20).map(|step| step * rate).collect();
            device.past.source = StepSource::Optimizer;
            device
        };
        let (from, to) = (device(1000, 100, 0), device(1050, 106, TREND_BYTES_MIN));
        let expected = [(Level::Peak, Sides { from: 100, to: 106 })];
        assert_eq!(different_levels(&from, &to), expected);
        let rate = i64::try_from(TREND_BYTES_MIN).expect("a small number");
        let expected = [(StepLevel::Minimum, Sides { from: 0, to: rate })];
        assert_eq!(different_trends(&from.past, &to.past), expected);
        assert_eq!(different_trends(&from.past, &device(0, 0, TREND_BYTES_MIN - 1).past), []);
        // Guessed steps are none.
        let mut guessed = to.past;
        guessed.source = StepSource::Guessed;
        assert_eq!(different_trends(&from.past, &guessed), []);
        guessed.peaks = vec![1; 20];
        assert_eq!(guessed.step_need(), None);
    }
}

//! When the live blocks of a line were born, and what that says.
//!
//! What is kept for good shows in the birth steps of what is still there. Weights and buffers have
//! one birth. What is fetched ahead, and the gradients of an accumulation, have the last few steps
//! only: older ones are gone. Of a queue from which fewer go than come the oldest are gone too, but
//! there is more of it all the time. A cache that fills has many births, most of them early. A leak
//! has births from the onset to now, as many bytes late as early.
//!
//! A line that allocates in every hundredth step can have no more births than it had occasions. So
//! births are counted against occasions, which their own distances show, and not against steps.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::diagnosis::constants::{
    BUCKETS_MAX, GENERATIONS_MIN, LATER_HALF_PPM_MIN, OCCASIONS_MIN, PASSING_STEPS,
};
use crate::snapshot::allocation_step;

/// What is alive of one birth step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Born {
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
}

/// Live blocks by birth step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Births(BTreeMap<u64, Born>);

/// A span of steps in which blocks were allocated, and what is alive of it. Steps count from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Bucket {
    /// First step of the span.
    pub first_step: u64,
    /// Last step of the span.
    pub last_step: u64,
    /// Live bytes that were allocated in it.
    pub bytes: u64,
    /// Live blocks that were allocated in it.
    pub blocks: u64,
}

crate::tape::names! {
    /// How the births of live blocks lie in time.
    #[derive(Default)]
    pub enum AgeProfile in "snake_case" {
        /// Nothing is alive, or births are not known.
        #[default]
        Unknown,
        /// All were born in the same step.
        Once,
        /// Born in so few steps that nothing follows from it.
        Few,
        /// Only the newest steps: what is older is gone again.
        Passing,
        /// The newest steps, and more of them all the time: the oldest go first, and fewer go than
        /// come.
        Backlog,
        /// Only the newest steps: each block took the place of a smaller one.
        Replaced,
        /// Many steps, but no late ones: it has ended.
        Ended,
        /// Many steps, most bytes early: it comes to its end.
        Filling,
        /// From the beginning to now, and as much late as early.
        Steady,
    }
}

impl AgeProfile {
    /// Has the line stopped growing, or will it stop by itself?
    pub(crate) fn comes_to_rest(self) -> bool {
        matches!(self, Self::Once | Self::Few | Self::Ended | Self::Filling)
    }
}

/// The births of a line's live blocks in a bounded number of buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Generations {
    /// Buckets of equal length, oldest first, without the empty ones; at most [`BUCKETS_MAX`].
    pub buckets: Vec<Bucket>,
    /// Distinct birth steps.
    pub births: u64,
    /// Steps from one occasion to the next, where they come at regular distances.
    pub every_steps: Option<u64>,
    /// What follows from it.
    pub course: AgeProfile,
}

impl Births {
    pub(crate) fn add(&mut self, step: u64, bytes: u64) {
        let born = self.0.entry(step).or_default();
        born.bytes = born.bytes.saturating_add(bytes);
        born.blocks = born.blocks.saturating_add(1);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (&step, more) in &other.0 {
            let born = self.0.entry(step).or_default();
            born.bytes = born.bytes.saturating_add(more.bytes);
            born.blocks = born.blocks.saturating_add(more.blocks);
        }
    }

    /// Distinct birth steps.
    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn first(&self) -> Option<u64> {
        self.0.keys().next().copied()
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.0.keys().next_back().copied()
    }

    /// What is alive of each birth step from this one on, oldest first.
    pub(crate) fn since(
        &self,
        step: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, Born)> + Clone + '_ {
        self.0.range(step..).map(|(&step, &born)| (step, born))
    }

    /// Live blocks whose birth is not known.
    pub(crate) fn older_blocks(&self) -> u64 {
        self.0.get(&0).map_or(0, |born| born.blocks)
    }

    /// Live bytes that were born before a step.
    pub(crate) fn bytes_before(&self, step: u64) -> u64 {
        let older = self.0.range(..step).map(|(_, born)| born.bytes);
        older.fold(0, u64::saturating_add)
    }

    /// Steps between occasions, where three quarters of the distances are about the same.
    pub(crate) fn every_steps(&self, since: u64) -> Option<u64> {
        let steps: Vec<u64> = self.0.range(since..).map(|(&step, _)| step).collect();
        let mut gaps: Vec<u64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        if gaps.len() + 1 < OCCASIONS_MIN as usize {
            return None;
        }
        gaps.sort_unstable();
        let usual = gaps.get(gaps.len() / 2).copied()?;
        let slack = (usual / 4).max(1);
        let is_usual = |gap: &&u64| gap.abs_diff(usual) <= slack;
        let regular = gaps.iter().filter(is_usual).count();
        (regular * 4 >= gaps.len() * 3).then_some(usual)
    }

    /// What the births say at `step` of a growth that began at `onset`; those of before `since`
    /// are older than it.
    pub(crate) fn age_profile(&self, since: u64, onset: u64, step: u64) -> AgeProfile {
        let count = self.0.range(since..).count() as u64;
        let Some((&first, _)) = self.0.range(since..).next() else { return AgeProfile::Unknown };
        let last = self.last().unwrap_or(first);
        let every = self.every_steps(since).unwrap_or(1).max(1);
        let is_occasional = every >= 4 && count >= OCCASIONS_MIN;
        if count < GENERATIONS_MIN && !is_occasional {
            let is_young = first.saturating_add(PASSING_STEPS) >= step;
            return match count {
                _ if is_young => AgeProfile::Passing,
                1 => AgeProfile::Once,
                _ => AgeProfile::Few,
            };
        }
        let span = step.saturating_sub(onset);
        let far_back = onset.saturating_add(span - span / 4).saturating_add(every);
        let far_on = last.saturating_add((span / 4).max(every)).saturating_add(2);
        // Of many occasions only the last few have left something.
        let left_nothing = first.saturating_sub(onset) / every;
        let is_window = is_occasional
            && count < 2 * GENERATIONS_MIN
            && first > onset.saturating_add(span / 2)
            && left_nothing > count;
        if far_on < step {
            AgeProfile::Ended
        } else if first > far_back || is_window {
            AgeProfile::Passing
        } else if count >= 2 * GENERATIONS_MIN && self.comes_to_its_end(first, step) {
            AgeProfile::Filling
        } else {
            AgeProfile::Steady
        }
    }

    fn comes_to_its_end(&self, first: u64, step: u64) -> bool {
        let half = first.saturating_add(step.saturating_sub(first) / 2);
        let sum = |sum: u128, (_, born): (&u64, &Born)| sum + u128::from(born.bytes);
        let all = self.0.range(first..).fold(0, sum);
        let later = self.0.range(half..).fold(0, sum);
        later * 1_000_000 < all * u128::from(LATER_HALF_PPM_MIN)
    }

    /// The births as a histogram, with what follows from them.
    pub(crate) fn generations(&self, since: u64, course: AgeProfile) -> Generations {
        let mut buckets: Vec<Bucket> = Vec::new();
        let (first, last) = (self.first().unwrap_or(0), self.last().unwrap_or(0));
        let width = (last - first) / BUCKETS_MAX as u64 + 1;
        for (&birth, born) in &self.0 {
            let first_birth = first + (birth - first) / width * width;
            let first_step = allocation_step(first_birth);
            let is_new = buckets.last().is_none_or(|bucket| bucket.first_step != first_step);
            if is_new {
                let last_birth = first_birth.saturating_add(width - 1).min(last);
                let last_step = allocation_step(last_birth);
                buckets.push(Bucket { first_step, last_step, ..Bucket::default() });
            }
            if let Some(bucket) = buckets.last_mut() {
                bucket.bytes = bucket.bytes.saturating_add(born.bytes);
                bucket.blocks = bucket.blocks.saturating_add(born.blocks);
            }
        }
        Generations { buckets, births: self.count(), every_steps: self.every_steps(since), course }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn births(steps: impl IntoIterator<Item = u64>, bytes: impl Fn(u64) -> u64) -> Births {
        let mut births = Births::default();
        steps.into_iter().for_each(|step| births.add(step, bytes(step)));
        births
    }

    #[test]
    fn courses_are_told_apart() {
        let even = |steps: &mut dyn Iterator<Item = u64>| births(steps, |_| 100);
        let check = |births: Births, expected: AgeProfile| {
            assert_eq!(births.age_profile(90, 100, 356), expected, "{births:?}");
        };
        check(Births::default(), AgeProfile::Unknown);
        check(even(&mut (0..90)), AgeProfile::Unknown);
        check(even(&mut (0..100)), AgeProfile::Ended);
        check(even(&mut [200].into_iter()), AgeProfile::Once);
        check(even(&mut [200, 200, 200].into_iter()), AgeProfile::Once);
        check(even(&mut [355].into_iter()), AgeProfile::Passing);
        check(even(&mut [353, 354, 355].into_iter()), AgeProfile::Passing);
        check(even(&mut [150, 151, 300].into_iter()), AgeProfile::Few);
        check(even(&mut (348..356)), AgeProfile::Passing);
        check(even(&mut (100..200)), AgeProfile::Ended);
        check(even(&mut (100..356)), AgeProfile::Steady);
        check(even(&mut (100..356).step_by(10)), AgeProfile::Steady);
        // An evaluation every hundred steps has had three occasions, checkpoints too.
        check(even(&mut [110, 210, 310].into_iter()), AgeProfile::Steady);
        // Of which an older one was let go: then the oldest is young.
        check(even(&mut [300, 320, 340].into_iter()), AgeProfile::Passing);
        check(even(&mut [100, 101, 180, 190, 250, 340].into_iter()), AgeProfile::Steady);
        // A cache: an exponential approach, and one that each new key makes larger more rarely.
        check(births(100..356, |step| 1 << (20 - (step - 100) / 16)), AgeProfile::Filling);
        let stops = (100..140).chain([150, 180, 240, 310]);
        check(even(&mut stops.into_iter()), AgeProfile::Filling);
        check(births(100..356, |step| 1_000_000 / (step - 99)), AgeProfile::Filling);
    }

    #[test]
    fn occasions_show_by_their_distance() {
        let every = |steps: &[u64]| births(steps.iter().copied(), |_| 1).every_steps(0);
        assert_eq!(every(&[10, 20, 30, 40]), Some(10));
        assert_eq!(every(&[99, 201, 300, 398]), Some(99));
        assert_eq!(every(&[1, 2, 3, 4, 5]), Some(1));
        assert_eq!(every(&[1, 2, 50, 51, 400]), None);
        assert_eq!(every(&[1, 9]), None);
    }

    #[test]
    fn a_histogram_holds_every_byte_in_few_buckets() {
        for (count, stride) in [(1, 1), (31, 1), (33, 1), (1000, 1), (500, 7), (2, u64::MAX / 2)] {
            let steps = (0..count).map(|index: u64| index.saturating_mul(stride));
            let births = births(steps, |_| 3);
            let generations = births.generations(0, AgeProfile::Steady);
            assert!(generations.buckets.len() <= BUCKETS_MAX, "{count} {stride}");
            let sum: u64 = generations.buckets.iter().map(|bucket| bucket.bytes).sum();
            let blocks: u64 = generations.buckets.iter().map(|bucket| bucket.blocks).sum();
            assert_eq!((sum, blocks, generations.births), (3 * count, count, count));
            let is_apart = |pair: &[Bucket]| pair[0].last_step < pair[1].first_step;
            assert!(generations.buckets.windows(2).all(is_apart));
        }
    }
}

//! Teeth: a level that rises, falls by a part and rises again, as metrics that are reset with each
//! epoch do, or copies that are written and dropped. Each fall must lead back to the same level;
//! when every bottom lies as much higher than the one before, a part is kept each time.
//!
//! Falls of less than a quarter of the usual one are noise and do not count. A level that falls
//! nearly to nothing is a round trip: that needs fewer of them (`trips.rs`).

use super::bottoms::{Bottom, Bottoms, Residue};

/// Bottoms that are remembered, and that are needed to tell: benign levels have been seen to rise
/// evenly three times.
const TEETH: usize = 6;

/// A fall of less is none, in bytes.
const FALL_BYTES_MIN: u64 = 16 << 20;

/// A fall below this part of the usual one is noise.
const NOISE_DIVISOR: u64 = 4;

/// In so many steps without a tooth, what was a usual fall is worth half.
const FORGET_STEPS: u64 = 256;

/// What is added from one bottom to the next, and the steps between them, may differ by a quarter
/// from the typical.
const EVEN_DIVISOR: u64 = 4;

/// Teeth that follow each other so fast that the last few took fewer steps are seen in the lowest
/// levels of blocks of steps.
const STEPS_MIN: u64 = 192;

/// The teeth of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Teeth {
    /// Newest step.
    step: u64,
    /// Highest value since the last bottom.
    high: u64,
    /// How deep the last two falls were, and since when that is.
    falls: [u64; 2],
    falls_step: u64,
    /// The lowest value of the fall that is under way.
    falling: Option<Bottom>,
    bottoms: Bottoms<TEETH>,
}

impl Teeth {
    /// Takes a value. True when it ends a tooth: the level rises again.
    pub(super) fn take(&mut self, step: u64, bytes: u64) -> bool {
        if step <= self.step {
            return false;
        }
        self.step = step;
        if step.saturating_sub(self.falls_step) > FORGET_STEPS {
            (self.falls, self.falls_step) = (self.falls.map(|fall| fall / 2), step);
        }
        // One large fall is no measure.
        let [before, newest] = self.falls;
        let least = FALL_BYTES_MIN.max(before.min(newest) / NOISE_DIVISOR);
        let Some(bottom) = &mut self.falling else {
            self.high = self.high.max(bytes);
            if self.high - bytes >= least {
                self.falling = Some(Bottom { step, bytes });
            }
            return false;
        };
        if bytes < bottom.bytes {
            *bottom = Bottom { step, bytes };
        }
        if bytes - bottom.bytes < least {
            return false;
        }
        let fall = self.high.saturating_sub(bottom.bytes);
        (self.falls, self.falls_step) = ([newest, fall], step);
        self.bottoms.push(*bottom);
        (self.falling, self.high) = (None, bytes);
        true
    }

    /// What the last few left behind, if that goes on.
    pub(super) fn residue(&self, step: u64) -> Option<Residue> {
        self.bottoms.residue().filter(|residue| step <= residue.until_step)
    }

    /// Did each leave about as much more?
    pub(super) fn are_even(&self) -> bool {
        let took = |residue: Residue| residue.last_step - residue.since_step;
        self.bottoms.residue().is_some_and(|residue| took(residue) >= STEPS_MIN)
            && self.bottoms.are_even(EVEN_DIVISOR, Some(EVEN_DIVISOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The residue after steps with these values, in MiB.
    fn residue(values: impl IntoIterator<Item = u64>) -> Option<Residue> {
        let mut teeth = Teeth::default();
        for (value, step) in values.into_iter().zip(1..) {
            teeth.take(step, value * MIB);
        }
        teeth.residue(teeth.step).filter(|_| teeth.are_even())
    }

    /// Rises by `rise` in each of 50 steps, then falls but for `kept` a step.
    fn sawtooth(count: u64, rise: u64, kept: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |step| 5_000 + step % 50 * rise + step / 50 * 50 * kept)
    }

    #[test]
    fn what_each_fall_leaves_behind_is_told() {
        let found = residue(sawtooth(340, 10, 3)).map(|residue| residue.bytes_per_step());
        assert_eq!(found, Some(3 * MIB));
        assert_eq!(residue(sawtooth(300, 10, 3)), None, "too few");
        assert_eq!(residue(sawtooth(900, 10, 0)), None, "nothing is left");
        // It is seen through noise that is smaller than the teeth.
        let noisy = sawtooth(400, 20, 5).zip(0_u64..).map(|(value, at)| value + at * 7919 % 50);
        assert!(residue(noisy).is_some());
    }

    #[test]
    fn what_ends_or_is_uneven_is_not_told() {
        let ended = sawtooth(900, 10, 3)
            .zip(0_u64..)
            .map(|(value, at)| value.saturating_sub(at.saturating_sub(700) / 50 * 150));
        assert_eq!(residue(ended), None);
        let slower = (0..900).map(|step: u64| 5_000 + step % 50 * 10 + 400_000 / (100 + step));
        assert_eq!(residue(slower.map(|value| 14_000 - value)), None, "it fills");
        let uneven = (0..900).map(|step: u64| 5_000 + step % 50 * 10 + step / 50 * 7919 % 400);
        assert_eq!(residue(uneven), None);
    }
}

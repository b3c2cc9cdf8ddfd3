//! The lowest levels between one high and the next, and whether each leaves more behind.
//!
//! It keeps the last few bottoms. It does not know what makes the level fall: see `trips.rs` and
//! `teeth.rs`.

/// A fall has led to another level when nothing came back within so many steps; and bottoms count
/// for at least so long.
pub(super) const TRIP_STEPS_MAX: u64 = 256;

/// The newest of so many bottoms must lie higher than the oldest of them, or no more is left.
const LATELY: usize = 3;

/// The lowest level between two highs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bottom {
    pub(super) step: u64,
    pub(super) bytes: u64,
}

/// What is left at each bottom, and more each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Residue {
    /// Step of the oldest bottom.
    pub(super) since_step: u64,
    /// Step of the newest bottom.
    pub(super) last_step: u64,
    /// Bytes that came between those two.
    pub(super) bytes: u64,
    /// Behind this step there has been no bottom for longer than those took together.
    pub(super) until_step: u64,
}

impl Residue {
    /// What that is for each step, at least 1.
    pub(super) fn bytes_per_step(&self) -> u64 {
        (self.bytes / self.last_step.saturating_sub(self.since_step).max(1)).max(1)
    }
}

/// The last `N` bottoms, oldest first; those with a step of 0 are none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottoms<const N: usize>([Bottom; N]);

impl<const N: usize> Default for Bottoms<N> {
    fn default() -> Self {
        Self([Bottom::default(); N])
    }
}

impl<const N: usize> Bottoms<N> {
    pub(super) fn push(&mut self, bottom: Bottom) {
        self.0.rotate_left(1);
        self.0[N - 1] = bottom;
    }

    pub(super) fn newest(&self) -> Bottom {
        self.0[N - 1]
    }

    /// What is left between the oldest and the newest, if anything has been left lately, and most
    /// of it not at once. None unless all are known, or all but one: ranks that do the same do it
    /// one after the other.
    pub(super) fn residue(&self) -> Option<Residue> {
        let known = self.0.split_at(usize::from(self.0[0].step == 0)).1;
        let (oldest, newest) = (*known.first()?, self.newest());
        let bytes = newest.bytes.checked_sub(oldest.bytes)?;
        let lately = self.0.get(N.checked_sub(LATELY)?)?;
        let more = |pair: &[Bottom]| pair[1].bytes.saturating_sub(pair[0].bytes);
        let most = known.windows(2).map(more).max().unwrap_or(0);
        let is_left = oldest.step > 0 && newest.bytes > lately.bytes && most <= bytes / 3 * 2;
        let took = newest.step.saturating_sub(oldest.step).max(TRIP_STEPS_MAX);
        let until_step = newest.step.saturating_add(took);
        let residue =
            Residue { since_step: oldest.step, last_step: newest.step, bytes, until_step };
        is_left.then_some(residue)
    }

    /// From one to the next, is about as much added each time: within one part in `even_divisor`?
    /// Where `pace_divisor` is given, after about as many steps, too.
    pub(super) fn are_even(&self, even_divisor: u64, pace_divisor: Option<u64>) -> bool {
        let (oldest, newest) = (self.0[0], self.newest());
        let parts = (N as u64).saturating_sub(1).max(1);
        let each = newest.bytes.saturating_sub(oldest.bytes) / parts;
        let steps = newest.step.saturating_sub(oldest.step) / parts;
        oldest.step > 0
            && self.0.windows(2).all(|pair| {
                let more = pair[1].bytes.saturating_sub(pair[0].bytes);
                let passed = pair[1].step.saturating_sub(pair[0].step);
                more > 0
                    && more.abs_diff(each) <= each / even_divisor
                    && pace_divisor.is_none_or(|divisor| passed.abs_diff(steps) <= steps / divisor)
            })
    }
}

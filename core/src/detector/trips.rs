//! Round trips: the level falls to nearly nothing and comes back, as when a job is set up anew in
//! the same processes, or when models take turns. What was there must be gone at the bottom; what
//! is left there, and more of it each time, is kept by nobody who should.
//!
//! It remembers the last few bottoms of a device. When no trip has been made for longer than those
//! took, what they left behind is told no more.

use super::Sample;
use super::bottoms::{Bottom, Bottoms, Residue, TRIP_STEPS_MAX};

/// A trip begins below half of the highest level …
const FALL_DIVISOR: u64 = 2;

/// … if that was at least so many bytes, …
const LEVEL_BYTES_MIN: u64 = 256 << 20;

/// … and ends when three quarters of the way are made good.
const RETURN_QUARTERS: u64 = 3;

/// Bottoms that are remembered, and that are needed to tell.
const BOTTOMS: usize = 4;

/// From one bottom to the next about the same is added: within an eighth.
const EVEN_DIVISOR: u64 = 8;

/// The trips of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    /// Highest floor since the last trip.
    high: u64,
    /// The lowest floor of the trip that is under way.
    bottom: Option<Bottom>,
    bottoms: Bottoms<BOTTOMS>,
}

impl Trips {
    /// Takes the newest sample. True when a trip has just ended.
    pub(super) fn take(&mut self, sample: &Sample) -> bool {
        let (step, bytes) = (sample.last_step, sample.floor_allocated);
        let Some(bottom) = &mut self.bottom else {
            self.high = self.high.max(bytes);
            // What is left of earlier trips is there at the bottom of this one too.
            let left = self.bottoms.newest().bytes;
            let level = self.high.saturating_sub(left);
            if level >= LEVEL_BYTES_MIN && bytes.saturating_sub(left) < level / FALL_DIVISOR {
                self.bottom = Some(Bottom { step, bytes });
            }
            return false;
        };
        if bytes < bottom.bytes {
            *bottom = Bottom { step, bytes };
        }
        if step.saturating_sub(bottom.step) > TRIP_STEPS_MAX {
            (self.bottom, self.high) = (None, bytes);
            return false;
        }
        let way = self.high.saturating_sub(bottom.bytes);
        if bytes < bottom.bytes.saturating_add(way / 4 * RETURN_QUARTERS) {
            return false;
        }
        self.bottoms.push(*bottom);
        (self.bottom, self.high) = (None, bytes);
        true
    }

    /// What the last few left behind, if that goes on.
    pub(super) fn residue(&self, step: u64) -> Option<Residue> {
        self.bottoms.residue().filter(|residue| step <= residue.until_step)
    }

    /// Did each leave about as much more? Trips come when they come.
    pub(super) fn are_even(&self) -> bool {
        self.bottoms.are_even(EVEN_DIVISOR, None)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// The residue after trips with these bottoms, 100 steps apart, at a level of 10 GiB.
    fn residue(bottoms: &[u64]) -> Option<Residue> {
        let mut trips = Trips::default();
        let mut ended = 0;
        for (bottom, at) in bottoms.iter().zip(1..) {
            for (step, floor_allocated) in
                [(0, 10 * GIB + bottom), (50, *bottom), (51, 9 * GIB + bottom)]
            {
                let last_step = at * 100 + step;
                let sample = Sample { last_step, floor_allocated, ..Sample::default() };
                ended += usize::from(trips.take(&sample));
            }
        }
        assert_eq!(ended, bottoms.len());
        trips.residue(bottoms.len() as u64 * 100 + 51).filter(|_| trips.are_even())
    }

    #[test]
    fn what_each_trip_leaves_behind_is_told() {
        let gib = |bottoms: &[u64]| residue(&bottoms.iter().map(|b| b * GIB).collect::<Vec<_>>());
        let expected = Residue { since_step: 150, last_step: 450, bytes: 3 * GIB, until_step: 750 };
        assert_eq!(gib(&[0, 1, 2, 3]), Some(expected));
        assert_eq!(expected.bytes_per_step(), GIB / 100);
        assert_eq!(gib(&[3, 0, 1, 2, 3]).map(|residue| residue.since_step), Some(250));
        assert_eq!(gib(&[0, 1, 2]), None, "too few to tell");
        assert_eq!(gib(&[2, 2, 2, 2]), None);
        assert_eq!(gib(&[0, 1, 2, 2]), None, "it has ended");
        assert_eq!(gib(&[0, 3, 1, 3]), None, "no even growth");
    }

    #[test]
    fn another_level_is_no_trip() {
        let mut trips = Trips::default();
        let mut ended = 0;
        for step in 1..2_000 {
            let floor_allocated = if step < 400 { 9 * GIB } else { 4 * GIB };
            let is_low = step > 700 && step % 300 < 5;
            let floor_allocated = if is_low { GIB } else { floor_allocated };
            let sample = Sample { last_step: step, floor_allocated, ..Sample::default() };
            ended += usize::from(trips.take(&sample));
        }
        assert_eq!(ended, 4, "those below the new level");
    }

    #[test]
    fn waves_are_no_trips() {
        let mut trips = Trips::default();
        for step in 1..500 {
            let floor_allocated = 6 * GIB + step % 50 * GIB / 10;
            assert!(!trips.take(&Sample { last_step: step, floor_allocated, ..Sample::default() }));
        }
    }
}

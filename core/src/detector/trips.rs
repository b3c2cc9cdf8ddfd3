//! Round trips: the level falls to nearly nothing and comes back, as when a job is set up anew in
//! the same processes, or when models take turns. What was there must be gone at the bottom; what
//! is left there, and more of it each time, is kept by nobody who should.
//!
//! It remembers the last few bottoms of a device. When no trip has been made for longer than those
//! took, what they left behind is told no more.

use super::incidents::UNFOLLOWED;
use super::layers::Layer;
use super::machine::Detector;
use super::series::Series;
use super::{Growth, GrowthKey, Sample, Scope};

/// A trip begins below half of the highest level …
const FALL_DIVISOR: u64 = 2;

/// … if that was at least so many bytes, …
const LEVEL_BYTES_MIN: u64 = 256 << 20;

/// … and ends when three quarters of the way are made good.
const RETURN_QUARTERS: u64 = 3;

/// One that has not come back within so many steps has led to another level.
const TRIP_STEPS_MAX: u64 = 256;

/// Bottoms that are remembered, and that are needed to tell.
const BOTTOMS: usize = 4;

/// From one bottom to the next about the same is added: within an eighth.
const EVEN_DIVISOR: u64 = 8;

/// What is left in all must be so many times the smallest rise that counts.
const RISES_MIN: u64 = 4;

/// The lowest level of one trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bottom {
    step: u64,
    bytes: u64,
}

/// What is left of each trip, and more each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Residue {
    /// Step of the oldest bottom.
    pub(super) since_step: u64,
    /// Step of the newest bottom.
    pub(super) last_step: u64,
    /// Bytes that came between those two.
    pub(super) bytes: u64,
}

impl Residue {
    /// What that is for each step, at least 1.
    pub(super) fn bytes_per_step(&self) -> u64 {
        (self.bytes / self.last_step.saturating_sub(self.since_step).max(1)).max(1)
    }
}

/// The trips of one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trips {
    /// Highest floor since the last trip.
    high: u64,
    /// The lowest floor of the trip that is under way.
    bottom: Option<Bottom>,
    /// Oldest first; those with a step of 0 are none.
    bottoms: [Bottom; BOTTOMS],
}

impl Trips {
    /// Takes the newest sample. True when a trip has just ended.
    pub(super) fn take(&mut self, sample: &Sample) -> bool {
        let (step, bytes) = (sample.last_step, sample.floor_allocated);
        let Some(bottom) = &mut self.bottom else {
            self.high = self.high.max(bytes);
            // What is left of earlier trips is there at the bottom of this one too.
            let left = self.bottoms[BOTTOMS - 1].bytes;
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
        self.bottoms.rotate_left(1);
        self.bottoms[BOTTOMS - 1] = *bottom;
        (self.bottom, self.high) = (None, bytes);
        true
    }

    /// Has there been no trip for longer than the last few took together?
    pub(super) fn has_stopped(&self, step: u64) -> bool {
        let [oldest, .., newest] = self.bottoms;
        let took = newest.step.saturating_sub(oldest.step).max(TRIP_STEPS_MAX);
        step.saturating_sub(newest.step) > took
    }

    /// Does each trip leave about as much more behind, of at least `bytes_min` in all?
    pub(super) fn residue(&self, bytes_min: u64) -> Option<Residue> {
        let [oldest, .., newest] = self.bottoms;
        let bytes = newest.bytes.checked_sub(oldest.bytes).filter(|&bytes| bytes >= bytes_min)?;
        let each = bytes / (BOTTOMS as u64 - 1);
        let is_even = |pair: &[Bottom]| {
            let more = pair[1].bytes.saturating_sub(pair[0].bytes);
            more > 0 && more.abs_diff(each) <= each / EVEN_DIVISOR
        };
        let is_known = oldest.step > 0 && self.bottoms.windows(2).all(is_even);
        let residue = Residue { since_step: oldest.step, last_step: newest.step, bytes };
        is_known.then_some(residue)
    }
}

impl Detector {
    /// A trip of this series has just ended, or there has been none for long.
    pub(super) fn judge_trips(&mut self, (rank, device): (u32, u8)) {
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let rise_min = series.rise_min(Layer::Allocated, &self.limits).unsigned_abs();
        let (left, last_step) = (series.left(Layer::Allocated), series.last_step);
        let bytes_min = rise_min.saturating_mul(RISES_MIN);
        let leaves = |series: &Series| {
            let is_over = series.trips.has_stopped(series.last_step);
            series.trips.residue(bytes_min).filter(|_| !is_over)
        };
        let residue = leaves(series);
        let key = |scope: Scope| GrowthKey { rank, device, layer: Layer::Allocated, scope };
        let scopes = [Scope::OneRank, Scope::Role, Scope::AllRanks];
        let Some(residue) = residue else {
            scopes.iter().for_each(|&scope| {
                self.incidents.close_unfollowed(&key(scope), last_step);
            });
            return;
        };
        let others = self.ranks.iter().filter(|&(&other, known)| {
            let series = self.series.get(&(other, known.home));
            other != rank && series.and_then(leaves).is_some()
        });
        let ranks = 1 + u32::try_from(others.count()).unwrap_or(u32::MAX - 1);
        let all = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let is_shared = all > 1 && u64::from(ranks) * 4 >= u64::from(all) * 3;
        let scope = if is_shared { Scope::AllRanks } else { Scope::OneRank };
        let (others_of, key) =
            (scopes.into_iter().filter(|&other| other != scope).map(key), key(scope));
        let bytes_per_step = residue.bytes_per_step();
        let growth = Growth {
            rank,
            device,
            scope: key.scope,
            onset_step: residue.since_step,
            detected_step: last_step,
            last_step,
            bytes_per_step,
            grown_bytes: residue.bytes,
            layer: Layer::Allocated,
            steps_to_oom: left.map(|left| left / bytes_per_step),
            forecast: None,
            peers: all - 1,
            ranks,
            returns: 0,
            give_backs: 0,
        };
        self.incidents.renew(&growth);
        let group = self.groups.of(rank);
        if self.limits.gates.trips && !self.is_told(&key, group) && !self.incidents.joined(&growth)
        {
            self.incidents.open(growth, (group, UNFOLLOWED), 0, 0, (last_step, 0));
        }
        // What stood for one rank turns out to be about all, or the other way round. Said after
        // the opening: whoever keeps incidents can go on with the one there is.
        others_of.for_each(|other| self.incidents.close_unfollowed(&other, last_step));
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
        trips.residue(64 << 20)
    }

    #[test]
    fn what_each_trip_leaves_behind_is_told() {
        let gib = |bottoms: &[u64]| residue(&bottoms.iter().map(|b| b * GIB).collect::<Vec<_>>());
        let expected = Residue { since_step: 150, last_step: 450, bytes: 3 * GIB };
        assert_eq!(gib(&[0, 1, 2, 3]), Some(expected));
        assert_eq!(expected.bytes_per_step(), GIB / 100);
        assert_eq!(gib(&[3, 0, 1, 2, 3]).map(|residue| residue.since_step), Some(250));
        assert_eq!(gib(&[0, 1, 2]), None, "too few to tell");
        assert_eq!(gib(&[2, 2, 2, 2]), None);
        assert_eq!(gib(&[0, 1, 2, 2]), None, "it has ended");
        assert_eq!(gib(&[0, 3, 1, 3]), None, "no even growth");
        assert_eq!(residue(&[0, 1, 2, 3]), None, "of no size");
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

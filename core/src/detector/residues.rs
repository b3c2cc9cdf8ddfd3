//! What round trips and teeth leave behind, told as growth.
//!
//! Such a finding follows no course of blocks: it is judged anew at each bottom, and closed when
//! nothing is left any more, or when no bottom has come for longer than the last few took. Ranks
//! that have something left are written down as they are judged, so that nobody has to ask all of
//! them.

use alloc::collections::BTreeMap;

use super::bottoms::Residue;
use super::findings::UNFOLLOWED;
use super::layers::{COURSES, Layer};
use super::machine::Detector;
use super::series::Series;
use super::verdicts::FILLING_STEPS;
use super::{Gates, Growth, GrowthKey, Limits, Scope};

/// What is left in all must be so many times the smallest rise that counts.
const RISES_MIN: u64 = 4;

/// All ranks have it when three quarters do; then until half of them do.
const ALL_QUARTERS: u64 = 3;
const STILL_ALL_QUARTERS: u64 = 2;

/// Ranks are alike when none leaves more than so many times as much as the other.
const ALIKE_TIMES: u64 = 2;

/// How sure one must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// To tell it: as much is left each time.
    Even,
    /// To go on telling it, or to count a rank beside another: anything is left.
    Any,
}

/// What one rank has left.
#[derive(Clone, Copy, Debug)]
struct Left {
    bytes_per_step: u64,
    /// It is over behind this step, unless another bottom comes.
    until_step: u64,
}

/// The ranks that have something left, by layer.
#[derive(Debug, Default)]
pub(super) struct Residues([BTreeMap<u32, Left>; COURSES]);

impl Residues {
    /// The process of a rank is over: what it had left is gone.
    pub(super) fn forget(&mut self, rank: u32) {
        self.0.iter_mut().for_each(|ranks| {
            ranks.remove(&rank);
        });
    }
}

/// What is left in a layer of a series, if that goes on.
fn residue(series: &Series, layer: Layer, limits: &Limits, demand: Demand) -> Option<Residue> {
    let rise_min = series.rise_min(layer, limits).unsigned_abs();
    let Gates { trips, teeth, .. } = limits.gates;
    let meets = |are_even: bool| demand == Demand::Any || are_even;
    let is_enough = |residue: &Residue| residue.bytes >= rise_min.saturating_mul(RISES_MIN);
    let of_trips = || {
        let is_asked = trips && layer == Layer::Allocated && meets(series.trips.are_even());
        series.trips.residue(series.last_step).filter(|residue| is_asked && is_enough(residue))
    };
    let of_teeth = || {
        let of_layer = &series.course(layer).filter(|_| teeth)?.teeth;
        let is_asked = meets(of_layer.are_even());
        of_layer.residue(series.last_step).filter(|residue| is_asked && is_enough(residue))
    };
    // Outside of the allocator a pool may fill for long, whatever comes and goes beside it.
    let warm_step = series.warm_step.unwrap_or(0);
    let fills = |step: u64| !layer.is_on_tape() && step.saturating_sub(warm_step) < FILLING_STEPS;
    of_trips().or_else(of_teeth).filter(|residue| !fills(residue.last_step))
}

impl Detector {
    /// A trip or a tooth of this layer has just ended, or a finding about it is open.
    pub(super) fn judge_residue(&mut self, (rank, device): (u32, u8), layer: Layer) {
        if self.is_counted((rank, device), layer) {
            return;
        }
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let last_step = series.last_step;
        let any = residue(series, layer, &self.limits, Demand::Any);
        let is_even = residue(series, layer, &self.limits, Demand::Even).is_some();
        let is_home = self.ranks.get(&rank).is_some_and(|known| known.home == device);
        if is_home {
            self.note_residue(rank, layer, any);
        }
        let open = self.findings.unfollowed_scopes(rank, device, layer);
        let Some(residue) = any.filter(|_| is_even || !open.is_empty()) else {
            // What is told of all ranks goes on while another one has it.
            let have_others = !open.is_empty() && self.alike(rank, layer, last_step, 0) > 0;
            let is_over = |scope: &Scope| *scope == Scope::OneRank || !have_others;
            open.into_iter().filter(is_over).for_each(|scope| {
                let key = GrowthKey { rank, device, layer, scope };
                self.findings.close_unfollowed(&key, last_step);
            });
            return;
        };
        let group = self.groups.of(rank);
        // It is not the growth beyond the peers: what is told of all of them tells this too.
        let common = self.findings.common(layer, group).map(|open| open.growth.key());
        if open.is_empty() && common.is_some() {
            return;
        }
        let others = self.alike(rank, layer, last_step, residue.bytes_per_step());
        let all = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        let is_shared = open.contains(&Scope::AllRanks);
        let quarters = if is_shared { STILL_ALL_QUARTERS } else { ALL_QUARTERS };
        let are_all = all > 1 && u64::from(others + 1) * 4 >= u64::from(all) * quarters;
        let scope = if are_all { Scope::AllRanks } else { Scope::OneRank };
        // Those that are counted are said where the finding is about all.
        let growth = self.left_behind((rank, device), layer, residue, (scope, others));
        self.findings.renew(&growth);
        let key = growth.key();
        if !self.is_told(&key, group) && self.findings.joined(&growth).is_none() {
            self.findings.open(growth, (group, UNFOLLOWED), 0, 0, (last_step, 0));
            self.close_what_it_explains(&key, last_step);
        }
        // What stood for one rank turns out to be about all, or the other way round. Said after
        // the opening: whoever keeps incidents can go on with the one there is.
        open.into_iter().filter(|&other| other != scope).for_each(|scope| {
            self.findings.close_unfollowed(&GrowthKey { scope, ..key }, last_step);
        });
    }

    fn note_residue(&mut self, rank: u32, layer: Layer, any: Option<Residue>) {
        let Some(ranks) = layer.place().and_then(|place| self.residues.0.get_mut(place)) else {
            return;
        };
        match any {
            Some(residue) => {
                let (bytes_per_step, until_step) = (residue.bytes_per_step(), residue.until_step);
                ranks.insert(rank, Left { bytes_per_step, until_step });
            }
            None => {
                ranks.remove(&rank);
            }
        }
    }

    /// How many other ranks have about as much left at a step; any of them for a pace of 0.
    fn alike(&self, rank: u32, layer: Layer, step: u64, bytes_per_step: u64) -> u32 {
        let ranks = layer.place().and_then(|place| self.residues.0.get(place));
        let (low, high) =
            (bytes_per_step / ALIKE_TIMES, bytes_per_step.saturating_mul(ALIKE_TIMES));
        let is_alike = |&(&other, left): &(&u32, &Left)| {
            let is_near = bytes_per_step == 0 || (low..=high).contains(&left.bytes_per_step);
            other != rank && is_near && left.until_step >= step
        };
        let count = ranks.map_or(0, |ranks| ranks.iter().filter(is_alike).count());
        u32::try_from(count).unwrap_or(u32::MAX - 1)
    }

    fn left_behind(
        &self,
        (rank, device): (u32, u8),
        layer: Layer,
        residue: Residue,
        (scope, others): (Scope, u32),
    ) -> Growth {
        let series = self.series.get(&(rank, device));
        let last_step = series.map_or(residue.last_step, |series| series.last_step);
        let bytes_per_step = residue.bytes_per_step();
        let left = series.and_then(|series| series.left(layer));
        Growth {
            rank,
            device,
            scope,
            onset_step: residue.since_step,
            detected_step: last_step,
            last_step,
            bytes_per_step,
            grown_bytes: residue.bytes,
            layer,
            steps_to_oom: left.map(|left| left / bytes_per_step),
            forecast: None,
            peers: u32::try_from(self.ranks.len()).unwrap_or(u32::MAX).saturating_sub(1),
            ranks: 1 + others,
            returns: 0,
            give_backs: 0,
            is_sure: true,
        }
    }
}

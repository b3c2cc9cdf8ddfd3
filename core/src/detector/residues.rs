//! What round trips and teeth leave behind, told as growth.
//!
//! Such a finding follows no course of blocks: it is judged anew at each bottom, and closed when
//! the bottoms are no longer even, or when none has come for longer than the last few took.

use super::bottoms::Residue;
use super::incidents::UNFOLLOWED;
use super::layers::Layer;
use super::machine::Detector;
use super::series::Series;
use super::verdicts::FILLING_STEPS;
use super::{Gates, Growth, GrowthKey, Limits, Scope};

/// What is left in all must be so many times the smallest rise that counts.
const RISES_MIN: u64 = 4;

/// How sure one must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Demand {
    /// To tell it: as much is left each time.
    Even,
    /// To go on telling it, or to count a rank beside another: anything is left.
    Any,
}

/// What is left in a layer of a series, if that goes on.
fn residue(series: &Series, layer: Layer, limits: &Limits, demand: Demand) -> Option<Residue> {
    let rise_min = series.rise_min(layer, limits).unsigned_abs();
    let Gates { trips, teeth, .. } = limits.gates;
    let meets = |are_even: bool| demand == Demand::Any || are_even;
    let of_trips = series
        .trips
        .residue(series.last_step)
        .filter(|_| trips && layer == Layer::Allocated && meets(series.trips.are_even()));
    let of_teeth = || {
        let of_layer = &series.course(layer).filter(|_| teeth)?.teeth;
        of_layer.residue(series.last_step).filter(|_| meets(of_layer.are_even()))
    };
    let residue = of_trips.or_else(of_teeth)?;
    // Outside of the allocator a pool may fill for long, whatever comes and goes beside it.
    let warm_step = series.warm_step.unwrap_or(0);
    let fills = !layer.is_on_tape() && residue.last_step.saturating_sub(warm_step) < FILLING_STEPS;
    (residue.bytes >= rise_min.saturating_mul(RISES_MIN) && !fills).then_some(residue)
}

impl Detector {
    /// A trip or a tooth of this layer has just ended, or there has been none for long.
    pub(super) fn judge_residue(&mut self, (rank, device): (u32, u8), layer: Layer) {
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let (left, last_step) = (series.left(layer), series.last_step);
        let key = |scope: Scope| GrowthKey { rank, device, layer, scope };
        let scopes = [Scope::OneRank, Scope::Role, Scope::AllRanks];
        let is_open = self.incidents.unfollowed_of(rank, device).contains(&layer);
        let demand = if is_open { Demand::Any } else { Demand::Even };
        let residue = residue(series, layer, &self.limits, demand);
        // At half the pace as well: with the others' too, that is the same cause.
        let least = residue.map_or(0, |residue| residue.bytes_per_step() / 2);
        let has_it = |series: &Series| {
            let theirs = self::residue(series, layer, &self.limits, Demand::Any);
            theirs.is_some_and(|theirs| theirs.bytes_per_step() >= least)
        };
        let others = self.ranks.iter().filter(|&(&other, known)| {
            let series = self.series.get(&(other, known.home));
            other != rank && series.is_some_and(has_it)
        });
        let others = u32::try_from(others.count()).unwrap_or(u32::MAX - 1);
        let Some(residue) = residue else {
            // What is told of all ranks goes on while others have it.
            let is_over = |scope: &&Scope| others == 0 || **scope == Scope::OneRank;
            scopes.iter().filter(is_over).for_each(|&scope| {
                self.incidents.close_unfollowed(&key(scope), last_step);
            });
            return;
        };
        let ranks = 1 + others;
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
            layer,
            steps_to_oom: left.map(|left| left / bytes_per_step),
            forecast: None,
            peers: all - 1,
            ranks,
            returns: 0,
            give_backs: 0,
        };
        self.incidents.renew(&growth);
        let group = self.groups.of(rank);
        // It is not the growth beyond the peers: what is told of all of them tells this too.
        let is_told = self.is_told(&key, group) || self.incidents.common(layer, group).is_some();
        if !is_told && !self.incidents.joined(&growth) {
            self.incidents.open(growth, (group, UNFOLLOWED), 0, 0, (last_step, 0));
        }
        // What stood for one rank turns out to be about all, or the other way round. Said after
        // the opening: whoever keeps incidents can go on with the one there is.
        others_of.for_each(|other| self.incidents.close_unfollowed(&other, last_step));
    }
}

//! Verdicts on the newest points: a finding begins, goes on, or is another's.

use super::envelope::{BLOCK_STEPS, SCALES, Tracks, index_of};
use super::judge::{Course, Rule, judge};
use super::machine::{Detector, NEW_HIGH_BYTES_MIN, Place};
use super::series::Series;
use super::{Growth, GrowthKey, Layer, Scope};

/// While all ranks grow, a rank grows for a reason of its own if it adds more than one and a half
/// times (3 / 2) as much again.
const APART_NUMERATOR: i64 = 3;
const APART_DENOMINATOR: i64 = 2;

impl Detector {
    /// Brings the open findings about this series up to date.
    pub(super) fn follow(&mut self, place: Place) {
        let Some(series) = self.series.get(&(place.rank, place.device)) else { return };
        for (key, scale) in self.incidents.keys() {
            if (key.rank, key.device, key.layer, scale)
                != (place.rank, place.device, place.layer, place.scale)
            {
                continue;
            }
            let track = followed(series, &key).get(place.layer, place.scale);
            let rule = Rule::against_peers(series.rise_min(place.layer, &self.limits), place.scale);
            let block_steps = BLOCK_STEPS[place.scale] as i64;
            let rate = match judge(track, &rule) {
                Course::Growing { per_point, .. } => per_point / block_steps,
                Course::Flat | Course::Rising => track.rate(),
            };
            let own_rate = series.own.get(place.layer, place.scale).rate().max(rate);
            let steps_to_oom = series.steps_to_oom(place.layer, own_rate);
            let Some((_, value)) = track.last() else { continue };
            self.incidents.follow(&key, (place.end_step, value), |growth| {
                growth.bytes_per_step = u64::try_from(rate).unwrap_or(0);
                growth.steps_to_oom = steps_to_oom;
            });
        }
    }

    /// Does this series grow beyond its peers?
    pub(super) fn judge_rank(&mut self, place: Place) {
        let Place { rank, device, layer, scale, .. } = place;
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let rise_min = series.rise_min(layer, &self.limits);
        let rule = if place.peers >= 2 && layer == Layer::Allocated {
            Rule::against_peers(rise_min, scale)
        } else {
            Rule::strict(rise_min, scale)
        };
        let track = series.beyond_peers.get(layer, scale);
        let course = judge(track, &rule);
        let Course::Growing { points, rise, per_point } = course else {
            self.mark(place, course != Course::Flat);
            return;
        };
        let is_own = series.own.get(layer, scale).rise(points) >= rise / 2;
        let key = GrowthKey { rank, device, layer, scope: Scope::OneRank };
        self.mark(place, is_own);
        if is_own
            && !self.is_told(&key, scale)
            && rise / APART_NUMERATOR > self.common_rise(place, points) / APART_DENOMINATOR
        {
            self.open(key, scale, place.end_step, (rise, per_point), place.peers);
        }
    }

    /// Do all ranks grow?
    pub(super) fn judge_common(&mut self, layer: Layer, scale: usize, end_step: u64) {
        let track = self.common.get(layer, scale);
        let home = self.ranks.iter().filter_map(|(&rank, known)| {
            self.series.get(&(rank, known.home)).map(|series| (rank, known.home, series))
        });
        let rise_min = home.clone().map(|(.., series)| series.rise_min(layer, &self.limits)).max();
        let rule = Rule::strict(rise_min.unwrap_or(0), scale);
        let Course::Growing { points, rise, per_point } = judge(track, &rule) else {
            return;
        };
        let steepest = home.max_by_key(|(.., series)| series.own.get(layer, scale).rise(points));
        let Some((rank, device, series)) = steepest else { return };
        let ranks = self.ranks.len();
        let scope = if ranks > 1 { Scope::AllRanks } else { Scope::OneRank };
        let key = GrowthKey { rank, device, layer, scope };
        let window_steps = points as u64 * BLOCK_STEPS[scale];
        let rate = series.own.get(layer, scale).rate();
        let is_urgent = match series.steps_to_oom(layer, rate) {
            Some(steps) => steps / self.limits.urgent_windows.max(1) <= window_steps,
            // Of an unknown device only the shortest window is left out.
            None => scale > 0,
        };
        if (is_urgent || scale == SCALES - 1) && !self.is_told(&key, scale) {
            self.open(key, scale, end_step, (rise, per_point), ranks - 1);
            self.merge(layer, scale, points, end_step);
        }
    }

    /// Is this growth, or the one that causes it, told already? Is its scale fit to tell?
    fn is_told(&self, key: &GrowthKey, scale: usize) -> bool {
        let tensors = |of_rank: u32| {
            self.incidents.of_rank(of_rank).any(|open| open.growth.layer == Layer::Allocated)
                || self.incidents.common(Layer::Allocated).is_some()
        };
        let is_common = key.scope == Scope::AllRanks && self.incidents.common(key.layer).is_some();
        // Segments come in large pieces: a short block shows their size, not a course.
        let is_reserved = key.layer == Layer::Reserved && (scale == 0 || tensors(key.rank));
        self.incidents.get(key).is_some() || is_common || is_reserved
    }

    /// Rise that all ranks share over the last points; 0 when there is none to speak of.
    fn common_rise(&self, place: Place, points: usize) -> i64 {
        let track = self.common.get(place.layer, place.scale);
        let rule = Rule::against_peers(NEW_HIGH_BYTES_MIN, place.scale);
        let grows = matches!(judge(track, &rule), Course::Growing { .. });
        let is_open = self.incidents.common(place.layer).is_some();
        if place.peers > 0 && (grows || is_open) { track.rise(points).max(0) } else { 0 }
    }

    fn mark(&mut self, place: Place, rising: bool) {
        if let Some(series) = self.series.get_mut(&(place.rank, place.device)) {
            series.rising[index_of(place.layer)][place.scale] = rising;
        }
    }

    /// The only place where a finding begins.
    fn open(
        &mut self,
        key: GrowthKey,
        scale: usize,
        detected_step: u64,
        (rise, per_point): (i64, i64),
        peers: usize,
    ) {
        let Some(series) = self.series.get(&(key.rank, key.device)) else { return };
        let tracks = followed(series, &key);
        let own_rate = series.own.get(key.layer, scale).rate();
        let rate = match key.scope {
            Scope::OneRank => per_point / BLOCK_STEPS[scale] as i64,
            Scope::AllRanks => own_rate,
        };
        let rate = rate.max(1);
        let Some((onset_step, onset_value)) = tracks.onset(key.layer, scale, rate) else { return };
        let Some((_, value)) = tracks.get(key.layer, scale).last() else { return };
        if value - onset_value < rise / 2 {
            // Its beginning does not show: no line leads from there to here.
            return;
        }
        let growth = Growth {
            rank: key.rank,
            device: key.device,
            scope: key.scope,
            onset_step: onset_step.min(detected_step),
            detected_step,
            last_step: detected_step,
            bytes_per_step: rate.unsigned_abs(),
            grown_bytes: u64::try_from(value - onset_value).unwrap_or(0),
            layer: key.layer,
            steps_to_oom: series.steps_to_oom(key.layer, own_rate.max(rate)),
            peers: u32::try_from(peers).unwrap_or(u32::MAX),
        };
        let rise_min = series.rise_min(key.layer, &self.limits);
        self.incidents.open(growth, scale, onset_value, rise_min, (detected_step, value));
    }

    /// All ranks grow: findings about single ranks that are no more than that are the same cause.
    fn merge(&mut self, layer: Layer, scale: usize, points: usize, end_step: u64) {
        if self.incidents.common(layer).is_none() {
            return;
        }
        let common_rise = self.common.get(layer, scale).rise(points);
        for (key, _) in self.incidents.keys() {
            let Some(series) = self.series.get(&(key.rank, key.device)) else { continue };
            let rise = series.beyond_peers.get(layer, scale).rise(points);
            let is_apart = rise / APART_NUMERATOR > common_rise / APART_DENOMINATOR;
            if key.scope == Scope::OneRank && key.layer == layer && !is_apart {
                self.incidents.close(&key, end_step);
            }
        }
    }
}

/// The tracks that tell how a finding goes on.
fn followed<'a>(series: &'a Series, key: &GrowthKey) -> &'a Tracks {
    match key.scope {
        Scope::OneRank => &series.beyond_peers,
        Scope::AllRanks => &series.own,
    }
}

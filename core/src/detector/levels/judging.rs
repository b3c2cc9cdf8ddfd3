//! Judges the newest points of levels: opens, updates, or merges findings.

use crate::paging::is_near;
use crate::roles::are_most;

use super::super::constants::{EVEN_STEPS, FILLING_STEPS, HOST_AHEAD_TIMES};
use super::super::findings::{Open, UNFOLLOWED, is_apart};
use super::super::forecast::{Forecast, rate};
use super::super::machine::{Detector, Point};
use super::super::series::{BLOCK_STEPS, Layer, Series, TRACKED_LAYERS, WINDOW, Window, onset};
use super::super::{Growth, GrowthKey, Scope};
use super::climb::{Rise, Rule, Trend, is_within_steps, judge};
use super::stopping::PAUSE_SCALE;

impl Detector {
    /// Brings the open findings about this series up to date.
    pub(in crate::detector) fn follow(&mut self, point: Point) {
        for (key, scale) in self.findings.keys_of(point.rank, point.device, point.layer) {
            let Some(known) = self.findings.get(&key).map(|open| open.growth) else { continue };
            let pause = self.pause(&key, known.onset_step);
            let is_followed = scale != UNFOLLOWED;
            if is_followed && point.scale == PAUSE_SCALE && pause.has_stopped() {
                self.findings.stop(&key, pause.rose_step(), point.end_step());
            }
            if scale != point.scale {
                continue;
            }
            let Some(series) = self.series.get(&(point.rank, point.device)) else { return };
            let window = self.followed(&key, scale, point.block);
            let rule = Rule::against_peers(series.rise_min(point.layer)).of(point.layer);
            let trend = judge(&window, &rule);
            let points = trend.rise().map_or(WINDOW, |rise| rise.points);
            let Some(value) = window.last() else { continue };
            // While the growth pauses, its rate is that of the time before.
            let rate = match u64::try_from(rate(&window, points, BLOCK_STEPS[scale])) {
                Ok(rate @ 1..) if !pause.is_longest() => rate,
                _ => known.bytes_per_step,
            };
            let series_key = (point.rank, point.device);
            let left = self.left(series_key, point.layer);
            let steps = point.end_step().saturating_sub(known.onset_step);
            let ahead = self.ahead(series_key, point.layer, steps, rate);
            if trend.climbs() {
                self.findings.note_climb(&key);
            }
            let climbs = self.findings.get(&key).is_some_and(|open| open.climbs);
            let rises = climbs || trend.rise().is_some();
            let presses = presses(point.layer, steps, ahead);
            let level_bytes = self.level_of(&key);
            self.findings.follow(&key, (point.end_step(), value), |growth| {
                growth.level_bytes = level_bytes;
                growth.bytes_per_step = rate;
                growth.steps_to_oom = ahead.map(|ahead| ahead.p50);
                growth.forecast = ahead;
                growth.is_sure |= rises && is_certain(growth, left, (climbs, presses));
            });
            let is_sure = self.findings.get(&key).is_some_and(|open| open.growth.is_sure);
            if is_sure && !known.is_sure {
                self.close_what_it_explains(&key, point.end_step());
            }
        }
    }

    /// Judges one rank against its peers, and opens a finding where it grows beyond them.
    pub(in crate::detector) fn judge_rank(&mut self, point: Point) {
        let Point { rank, device, layer, scale, block, .. } = point;
        if self.is_counted((rank, device), layer) {
            return;
        }
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let rise_min = series.rise_min(layer);
        if self.is_below_high(series, &point, rise_min) {
            // Nearly all points end here, before their window is collected.
            self.mark(point, false);
            return;
        }
        // Other processes on a device have no peers, and segments differ between equal ranks.
        let has_peers =
            point.peers >= 2 && !matches!(layer, Layer::Reserved | Layer::Peak | Layer::Other);
        let rule = if has_peers { Rule::against_peers(rise_min) } else { Rule::absolute(rise_min) };
        let window = self.beyond_window(&point, scale);
        let own = self.own_window(&point, scale);
        let trend = judge(&window, &rule.of(layer));
        let Some(Rise { points, bytes: rise }) = trend.rise() else {
            self.mark(point, trend != Trend::Flat);
            return;
        };
        let is_own = own.rise(points) >= rise / 2;
        let key = GrowthKey { rank, device, layer, scope: Scope::OneRank };
        let is_due = self.is_due(&own, trend, point);
        self.mark(point, is_own);
        if is_own && is_due && is_apart(rise, self.common_rise(&point, points)) {
            // Some peers may finish this block later.
            let peers = if point.peers > 0 { self.groups.peers(rank) } else { 0 };
            self.note(key, self.groups.of(rank), (scale, block), trend, peers);
        }
    }

    /// Opens a finding about a level, unless it is reported: then notes that it climbs. True where
    /// it may have been opened.
    fn note(
        &mut self,
        key: GrowthKey,
        group: usize,
        at: (usize, u64),
        trend: Trend,
        peers: u32,
    ) -> bool {
        let is_new = !self.is_reported(&key, group);
        if is_new {
            self.open(key, at, trend, peers);
        } else if trend.climbs() {
            self.findings.note_climb(&key);
        }
        is_new
    }

    /// Is the newest value no higher than one that has left the window? Then no test can pass.
    fn is_below_high(&self, series: &Series, point: &Point, rise_min: i64) -> bool {
        let Point { rank, device, layer, scale, block, .. } = *point;
        let high = series.track(layer).and_then(|track| track.past[scale].high());
        let value = self.beyond_peers((rank, device), layer, scale, block);
        high.zip(value).is_some_and(|(high, value)| value - high < rise_min / 2)
    }

    /// Judges what the ranks of a group have in common: opens a finding, and merges those about
    /// single ranks.
    pub(in crate::detector) fn judge_common(
        &mut self,
        group: usize,
        layer: Layer,
        scale: usize,
        block: u64,
    ) {
        let Some(ranks) = self.groups.list.get(group).map(|group| &group.ranks) else { return };
        let mut keys = ranks.iter().filter_map(|&rank| self.primary_of(rank));
        if keys.any(|key| self.is_counted(key, layer)) {
            return;
        }
        let candidates = ranks.iter().filter_map(|&rank| {
            let key = self.primary_of(rank)?;
            let series = self.series.get(&key)?;
            series.track(layer)?;
            let peers = u32::try_from(ranks.len() - 1).unwrap_or(u32::MAX);
            let point = Point { rank, device: key.1, layer, scale, block, peers };
            Some((point, series))
        });
        let rise_min = candidates.clone().map(|(_, series)| series.rise_min(layer)).max();
        let Some(rise_min) = rise_min else { return };
        let window = self.common_window(group, layer, scale, block);
        let rule = Rule::absolute(rise_min).of(layer);
        let own_rise = |point: &Point| self.own_window(point, scale).rise(WINDOW);
        let Some((point, _)) = candidates.max_by_key(|(point, _)| own_rise(point)) else { return };
        let own = self.own_window(&point, scale);
        let trend = judge(&window, &rule);
        let Some(Rise { points, bytes: rise }) = trend.rise() else { return };
        let scope = self.scope_of(group, &point, points, rise);
        let key = GrowthKey { rank: point.rank, device: point.device, layer, scope };
        let key = self.findings.common(layer, group).map_or(key, |open| open.growth.key());
        if self.is_due(&own, trend, point)
            && self.note(key, group, (scale, block), trend, point.peers)
        {
            self.merge(group, layer, (scale, block), points);
        }
    }

    /// The scope when a whole group grows: the group alone, or all ranks.
    fn scope_of(&self, group: usize, point: &Point, points: usize, rise: i64) -> Scope {
        let Point { layer, scale, block, .. } = *point;
        if self.ranks.len() == 1 {
            return Scope::OneRank;
        }
        let rises = |index: usize| {
            index == group || self.common_window(index, layer, scale, block).rise(points) > rise / 4
        };
        let groups = self.groups.list.iter().enumerate();
        let rising = groups.filter(|&(index, _)| rises(index)).map(|(_, it)| it.ranks.len());
        if are_most(rising.sum(), self.ranks.len()) { Scope::AllRanks } else { Scope::Role }
    }

    /// Is the growth worth a finding? Growing peaks are where the lowest levels do not grow; stairs
    /// of peaks are the stages of a job.
    fn is_due(&self, own: &Window, trend: Trend, point: Point) -> bool {
        let Some(Rise { points, .. }) = trend.rise() else { return false };
        if point.layer != Layer::Peak {
            return true;
        }
        let floor = self.own_window(&Point { layer: Layer::Allocated, ..point }, point.scale);
        trend.climbs() && is_within_steps(floor.rise(points), own.rise(points))
    }

    /// Is this growth, or the growth that causes it, reported already?
    pub(in crate::detector) fn is_reported(&self, key: &GrowthKey, group: usize) -> bool {
        let is_same = self.findings.get(key).is_some();
        let of_rank = |layer: Layer| {
            // A notice is no cause for what is certain, as recurring conditions are.
            let grows = key.layer.index().is_some();
            let is_it = |open: &Open| {
                let growth = &open.growth;
                growth.layer == layer && (growth.is_sure || (growth.is_own() && grows))
            };
            self.findings.of_rank(key.rank).any(is_it)
                || self.findings.common(layer, group).is_some_and(is_it)
        };
        let is_common =
            key.scope != Scope::OneRank && self.findings.common(key.layer, group).is_some();
        let causes = TRACKED_LAYERS.into_iter();
        let is_caused = causes.filter(|layer| layer.explains(key.layer)).any(of_rank);
        is_same || is_common || is_caused
    }

    /// Rise that all ranks of the group share over the last points; 0 unless they climb, or a
    /// shared finding is open.
    fn common_rise(&self, point: &Point, points: usize) -> i64 {
        let group = self.groups.of(point.rank);
        let window = self.common_window(group, point.layer, point.scale, point.block);
        let climbs = window.climbs(points);
        let is_open = self.findings.common(point.layer, group).is_some();
        if point.peers > 0 && (climbs || is_open) { window.rise(points).max(0) } else { 0 }
    }

    /// Notes whether the newest points rise. Those before the end of a growth rise no more.
    fn mark(&mut self, point: Point, rising: bool) {
        let Point { rank, device, layer, scale, block, .. } = point;
        let key = GrowthKey { rank, device, layer, scope: Scope::OneRank };
        // Nearly always there is no such growth, and its level is not asked for.
        let value = || self.beyond_peers((rank, device), layer, scale, block);
        let rising = rising && !self.findings.has_stopped_at(&key, value);
        let series = self.series.get_mut(&(point.rank, point.device));
        if let Some(track) = series.and_then(|series| series.track_mut(point.layer)) {
            track.rising[point.scale] = rising;
        }
    }

    /// Opens a finding about a level. No other function does.
    fn open(&mut self, key: GrowthKey, (scale, block): (usize, u64), trend: Trend, peers: u32) {
        let Some(series) = self.series.get(&(key.rank, key.device)) else { return };
        let Some(Rise { points, bytes: rise }) = trend.rise() else { return };
        let block_steps = BLOCK_STEPS[scale];
        let point = self.point_of(&key, scale, block);
        let own = self.own_window(&point, scale);
        let rate = rate(&self.followed(&key, scale, block), points, block_steps).max(1);
        let windows = core::array::from_fn(|coarser| {
            let newest = block * block_steps / BLOCK_STEPS[coarser];
            (coarser >= scale).then(|| self.followed(&key, coarser, newest))
        });
        let Some(window) = windows[scale].as_ref() else { return };
        let began = match trend.climbs() {
            true => onset(&windows, scale, rate),
            false => first_stair(window, points, rate, block_steps),
        };
        let (Some((onset_step, onset_value)), Some(value)) = (began, window.last()) else { return };
        // Where the level rose too little since this onset, the beginning is not known.
        if self.pause(&key, onset_step).has_stopped() || value - onset_value < rise / 2 {
            return;
        }
        let detected_step = point.end_step();
        let left = self.left((key.rank, key.device), key.layer);
        let grown_bytes = u64::try_from(value - onset_value).unwrap_or(0);
        let newest = own.last().zip(series.newest_since_warm(key.layer));
        let has_fallen = newest.is_some_and(|(block, newest)| block - newest > rise / 2);
        let fills = key.layer.has_no_lines()
            && !is_near(left, grown_bytes)
            && may_fill(series, (onset_step, onset_value), rate, detected_step);
        if has_fallen || fills {
            return;
        }
        let steps = detected_step.saturating_sub(onset_step);
        let ahead = self.ahead((key.rank, key.device), key.layer, steps, rate.unsigned_abs());
        let mut growth = Growth {
            rank: key.rank,
            device: key.device,
            scope: key.scope,
            onset_step: onset_step.min(detected_step),
            detected_step,
            last_step: detected_step,
            bytes_per_step: rate.unsigned_abs(),
            grown_bytes,
            level_bytes: self.level_of(&key),
            layer: key.layer,
            steps_to_oom: ahead.map(|ahead| ahead.p50),
            forecast: ahead,
            peers,
            ranks: 1,
            returns: 0,
            give_backs: 0,
            is_sure: false,
            paused_since_step: None,
        };
        let presses = presses(key.layer, steps, ahead);
        growth.is_sure = is_certain(&growth, left, (trend.climbs(), presses));
        if key.scope != Scope::OneRank {
            growth.ranks = peers + 1;
        } else if self.findings.joined(&growth).is_some() {
            return;
        }
        let rise_min = series.rise_min(key.layer);
        let group = self.groups.of(key.rank);
        let last = (detected_step, value);
        self.findings.open(growth, (group, scale), onset_value, rise_min, last);
        if trend.climbs() {
            self.findings.note_climb(&key);
        }
        self.close_what_it_explains(&key, detected_step);
    }

    /// Closes the findings that a new one explains, so that one cause is reported once. Called
    /// after that one is opened, so that their incident goes on with it.
    pub(in crate::detector) fn close_what_it_explains(&mut self, key: &GrowthKey, at_step: u64) {
        let is_of = |rank: u32| match key.scope {
            Scope::OneRank => rank == key.rank,
            Scope::Role => self.groups.of(rank) == self.groups.of(key.rank),
            Scope::AllRanks => true,
        };
        let is_sure = self.findings.get(key).is_some_and(|open| open.growth.is_sure);
        let is_caused = |other: &Growth| {
            is_of(other.rank) && key.layer.explains(other.layer) && (is_sure || !other.is_sure)
        };
        self.findings.close_caused(is_caused, at_step);
    }

    /// Closes findings about single ranks that grow no more than the rest of their group: they have
    /// the same cause.
    fn merge(&mut self, group: usize, layer: Layer, (scale, block): (usize, u64), points: usize) {
        if self.findings.common(layer, group).is_none() {
            return;
        }
        let common_rise = self.common_window(group, layer, scale, block).rise(points);
        for (key, _) in self.findings.keys() {
            if self.groups.of(key.rank) != group {
                continue;
            }
            let point = self.point_of(&key, scale, block);
            let rise = self.beyond_window(&point, scale).rise(points);
            let is_own = is_apart(rise, common_rise);
            if key.scope == Scope::OneRank && key.layer == layer && !is_own {
                self.findings.close(&key, point.end_step());
            }
        }
    }
}

/// Does growth that began these steps ago press, however even it is? Growth of the host presses
/// when it has taken a large part of what was left: a job may fill what it needs of a large host.
fn presses(layer: Layer, steps: u64, ahead: Option<Forecast>) -> bool {
    let limit = steps.saturating_mul(HOST_AHEAD_TIMES);
    !layer.is_host() || ahead.is_some_and(|ahead| ahead.p50 <= limit)
}

/// Step at which the growth of `rate` a step began whose stairs these last points hold, and the
/// level before. Older points that rise as evenly belong to the growth. It began between the last
/// low point and the next one, as late as the rate allows.
fn first_stair(window: &Window, points: usize, rate: i64, steps: u64) -> Option<(u64, i64)> {
    let mut older = window.backwards().skip(points.saturating_sub(2));
    let (mut next, mut low) = (older.next()?, older.next()?);
    let usual = rate.saturating_mul(i64::try_from(steps).unwrap_or(i64::MAX));
    for before in older {
        if (next.1 - low.1) / 2 > usual || low.1 - before.1 < usual / 4 {
            break;
        }
        (next, low) = (low, before);
    }
    let risen = u64::try_from((next.1 - low.1) / rate.max(1)).unwrap_or(0);
    Some(((next.0 * steps).saturating_sub(risen).max(low.0 * steps), low.1))
}

/// Has the growth used up a large part of the memory, or climbed evenly for long while it
/// `presses`? Peaks and reserved memory may be what the job needs: only the end of a climb matters.
fn is_certain(growth: &Growth, left: Option<u64>, (climbs, presses): (bool, bool)) -> bool {
    let may_be_needed = matches!(growth.layer, Layer::Peak | Layer::Reserved);
    let is_near = is_near(left, growth.grown_bytes) && (climbs || !may_be_needed);
    let steps = growth.last_step.saturating_sub(growth.onset_step);
    // A cache that fills up adds less and less.
    let at_this_rate = growth.bytes_per_step.saturating_mul(steps) / 3 * 4;
    let is_even = steps >= EVEN_STEPS && at_this_rate >= growth.grown_bytes;
    is_near || (climbs && is_even && presses && !may_be_needed)
}

/// May the growth be the filling of a cache or a pool? Workers, compilers and libraries take what
/// they need within the first epoch. In those layers no stack distinguishes that from a leak, so
/// growth since the start is reported when it has gone on for long, or has taken much of the
/// memory.
fn may_fill(series: &Series, (step, level): (u64, i64), rate: i64, detected_step: u64) -> bool {
    let warm_step = series.warm_step.unwrap_or(0);
    let over = |from: u64, to: u64| {
        rate.saturating_mul(i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX))
    };
    // The same line leads back from the onset, which is no older than what is still kept.
    let (risen, grown) = (over(warm_step, step), over(step, detected_step));
    let is_on_line = level.saturating_sub(risen).saturating_abs() <= (risen / 4).max(grown / 4);
    let began_with_job = step <= warm_step + BLOCK_STEPS[1] || is_on_line;
    began_with_job && detected_step.saturating_sub(warm_step) < FILLING_STEPS
}

//! Verdicts on the newest points: a finding begins, goes on, or is another's.

use super::findings::Open;
use super::forecast::{Forecast, forecast};
use super::judge::{Course, Rise, Rule, equal_jumps, judge};
use super::layers::Layer;
use super::machine::{Detector, Place};
use super::ring::{BLOCK_STEPS, SCALES};
use super::series::Series;
use super::window::{Past, WINDOW, Window, onset};
use super::{Growth, GrowthKey, Scope};

/// While all ranks grow, a rank grows for a reason of its own if it adds more than one and a half
/// times (3 / 2) as much again.
const APART_NUMERATOR: i64 = 3;
const APART_DENOMINATOR: i64 = 2;

/// What began with the job may be a pool that fills, for so many steps.
pub(super) const FILLING_STEPS: u64 = 1024;

/// A job keeps the last few of something, and captures a graph for each shape: after so many equal
/// pieces it is neither.
const EQUAL_JUMPS_MIN: i64 = 12;

/// What is built up piece by piece may take longer.
const BUILDING_STEPS: u64 = 2 * FILLING_STEPS;

impl Detector {
    /// Brings the open findings about this series up to date.
    pub(super) fn follow(&mut self, place: Place) {
        let Some(series) = self.series.get(&(place.rank, place.device)) else { return };
        for (key, scale) in self.findings.keys_of(place.rank, place.device, place.layer) {
            if scale != place.scale {
                continue;
            }
            let window = self.followed(&key, scale, place.block);
            let rise_min = series.rise_min(place.layer, &self.limits);
            let rule = Rule::against_peers(rise_min, scale, self.limits.gates);
            let block_steps = BLOCK_STEPS[scale];
            let (points, rate) = match judge(&window, &rule) {
                Course::Growing(Rise { points, per_point, .. }) => {
                    (points, window.per_step(points, per_point, block_steps))
                }
                Course::Flat | Course::Rising => (WINDOW, window.rate(block_steps)),
            };
            let left = series.left(place.layer);
            let own = self.own_window(&place, scale);
            let ahead = left.and_then(|left| forecast(&own, points, block_steps, left));
            let Some(value) = window.last() else { continue };
            self.findings.follow(&key, (place.end_step(), value), |growth| {
                growth.bytes_per_step = u64::try_from(rate).unwrap_or(0);
                growth.steps_to_oom = ahead.map(|ahead| ahead.p50);
                growth.forecast = ahead;
            });
        }
    }

    /// Does this series grow beyond its peers?
    pub(super) fn judge_rank(&mut self, place: Place) {
        let Place { rank, device, layer, scale, block, .. } = place;
        if scale < layer.finest_scale() || self.is_counted((rank, device), layer) {
            return;
        }
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let rise_min = series.rise_min(layer, &self.limits);
        if self.is_below_high(series, &place, rise_min) {
            // Nearly always: the window need not be collected.
            self.mark(place, false);
            return;
        }
        // Other processes on a device have no peers, and peaks and scrap hardly do.
        let is_sure =
            place.peers >= 2 && !matches!(layer, Layer::Reserved | Layer::Peak | Layer::Other);
        let rule = if is_sure {
            Rule::against_peers(rise_min, scale, self.limits.gates)
        } else {
            Rule::strict(layer, rise_min, scale, self.limits.gates)
        };
        let window = self.beyond_window(&place, scale);
        let own = self.own_window(&place, scale);
        let course = judge_to_the_end(&window, &rule, series, &own, &place);
        let Course::Growing(grown @ Rise { points, bytes: rise, .. }) = course else {
            self.mark(place, course != Course::Flat);
            return;
        };
        let is_own = own.rise(points) >= rise / 2;
        let key = GrowthKey { rank, device, layer, scope: Scope::OneRank };
        let is_due = self.is_due(series, &own, points, place);
        self.mark(place, is_own);
        if is_own
            && is_due
            && !self.is_told(&key, self.groups.of(rank))
            && !self.was_blocks_of_bytes(&key, place.end_step())
            && rise / APART_NUMERATOR > self.common_rise(&place, points) / APART_DENOMINATOR
        {
            self.open(key, (scale, block), grown, place.peers);
        }
    }

    /// Is the newest value no higher than one that has left the window? No test would pass then.
    fn is_below_high(&self, series: &Series, place: &Place, rise_min: i64) -> bool {
        let Place { rank, device, layer, scale, block, .. } = *place;
        let high = series.course(layer).and_then(|course| course.past[scale].high());
        let value = self.beyond_peers((rank, device), layer, scale, block);
        let is_below = high.zip(value).is_some_and(|(high, value)| value - high < rise_min / 2);
        is_below && self.limits.gates.high_water
    }

    /// Do all ranks of a group grow?
    pub(super) fn judge_common(&mut self, group: usize, layer: Layer, scale: usize, block: u64) {
        if scale < layer.finest_scale() {
            return;
        }
        let Some(ranks) = self.groups.list.get(group).map(|group| &group.ranks) else { return };
        let home = |rank: &u32| Some((*rank, self.ranks.get(rank)?.home));
        if ranks.iter().filter_map(home).any(|key| self.is_counted(key, layer)) {
            return;
        }
        let home = ranks.iter().filter_map(|&rank| {
            let home = self.ranks.get(&rank)?.home;
            let series = self.series.get(&(rank, home))?;
            series.course(layer)?;
            let peers = u32::try_from(ranks.len() - 1).unwrap_or(u32::MAX);
            let place = Place { rank, device: home, layer, scale, block, peers };
            Some((place, series))
        });
        let rise_min = home.clone().map(|(_, series)| series.rise_min(layer, &self.limits)).max();
        let Some(rise_min) = rise_min else { return };
        let window = self.common_window(group, layer, scale, block);
        let rule = Rule::strict(layer, rise_min, scale, self.limits.gates);
        let own_rise = |place: &Place| self.own_window(place, scale).rise(WINDOW);
        let Some((place, series)) = home.max_by_key(|(place, _)| own_rise(place)) else { return };
        let own = self.own_window(&place, scale);
        let course = judge_to_the_end(&window, &rule, series, &own, &place);
        let Course::Growing(grown @ Rise { points, bytes: rise, .. }) = course else { return };
        let scope = self.scope_of(group, &place, points, rise);
        let key = GrowthKey { rank: place.rank, device: place.device, layer, scope };
        let is_urgent = self.is_urgent(series, &own, points, place);
        let is_long = scale == SCALES - 1;
        let is_due = self.is_due(series, &own, points, place);
        if (is_urgent || is_long) && is_due && !self.is_told(&key, group) {
            self.open(key, (scale, block), grown, place.peers);
            self.merge(group, layer, (scale, block), points);
        }
    }

    /// Who grows, when a whole group does: the group alone, or everyone.
    fn scope_of(&self, group: usize, place: &Place, points: usize, rise: i64) -> Scope {
        let Place { layer, scale, block, .. } = *place;
        if self.ranks.len() == 1 {
            return Scope::OneRank;
        }
        let rises = |index: usize| {
            index == group || self.common_window(index, layer, scale, block).rise(points) > rise / 4
        };
        let groups = self.groups.list.iter().enumerate();
        let rising = groups.filter(|&(index, _)| rises(index)).map(|(_, it)| it.ranks.len());
        if rising.sum::<usize>() * 4 >= self.ranks.len() * 3 {
            Scope::AllRanks
        } else {
            Scope::Role
        }
    }

    /// Peaks that grow are of interest only where the floors do not, and when the end is near.
    fn is_due(&self, series: &Series, own: &Window, points: usize, place: Place) -> bool {
        if place.layer != Layer::Peak {
            return true;
        }
        let floor = self.own_window(&Place { layer: Layer::Allocated, ..place }, place.scale);
        floor.rise(points) <= own.rise(points) / 2 && self.is_urgent(series, own, points, place)
    }

    /// Is the memory full within some windows, if it goes on like this?
    fn is_urgent(&self, series: &Series, own: &Window, points: usize, place: Place) -> bool {
        let block_steps = BLOCK_STEPS[place.scale];
        let window_steps = points as u64 * block_steps;
        let rate = u64::try_from(own.rate(block_steps)).unwrap_or(0).max(1);
        // Outside the allocator less comes and goes with the work.
        let longer = if place.layer.is_on_tape() { 1 } else { 4 };
        let windows = self.limits.urgent_windows.saturating_mul(longer).max(1);
        match series.left(place.layer) {
            _ if !self.limits.gates.urgency => true,
            Some(left) => left / rate / windows <= window_steps,
            // Of an unknown size only the shortest window is left out.
            None => place.scale > 0,
        }
    }

    /// Is this growth, or the one that causes it, told already?
    pub(super) fn is_told(&self, key: &GrowthKey, group: usize) -> bool {
        let is_same = self.findings.get(key).is_some();
        if !self.limits.gates.one_cause {
            return is_same;
        }
        let of_rank = |layer: Layer| {
            let is_it = |open: &Open| open.growth.layer == layer && open.growth.is_sure;
            self.findings.of_rank(key.rank).any(is_it)
                || self.findings.common(layer, group).is_some_and(is_it)
        };
        let is_common =
            key.scope != Scope::OneRank && self.findings.common(key.layer, group).is_some();
        let causes = super::layers::COURSE_LAYERS.into_iter();
        let is_caused = causes.filter(|layer| layer.explains(key.layer)).any(of_rank);
        is_same || is_common || is_caused
    }

    /// Do blocks grow whose bytes were told not long ago? They are told again when those come back.
    fn was_blocks_of_bytes(&self, key: &GrowthKey, step: u64) -> bool {
        let bytes = GrowthKey { layer: Layer::Allocated, ..*key };
        self.limits.gates.one_cause
            && bytes.layer.takes_over(key.layer)
            && self.findings.was_lately(&bytes, step)
    }

    /// Rise that all ranks of the group share over the last points; 0 when there is none to speak
    /// of.
    fn common_rise(&self, place: &Place, points: usize) -> i64 {
        let group = self.groups.of(place.rank);
        let window = self.common_window(group, place.layer, place.scale, place.block);
        let climbs = window.climbs(points);
        let is_open = self.findings.common(place.layer, group).is_some();
        if place.peers > 0 && (climbs || is_open) { window.rise(points).max(0) } else { 0 }
    }

    fn mark(&mut self, place: Place, rising: bool) {
        let series = self.series.get_mut(&(place.rank, place.device));
        if let Some(course) = series.and_then(|series| series.course_mut(place.layer)) {
            course.rising[place.scale] = rising;
        }
    }

    /// The only place where growth begins to be told.
    fn open(&mut self, key: GrowthKey, (scale, block): (usize, u64), grown: Rise, peers: u32) {
        let Some(series) = self.series.get(&(key.rank, key.device)) else { return };
        let Rise { points, bytes: rise, per_point, in_jumps } = grown;
        let block_steps = BLOCK_STEPS[scale];
        let place = self.place_of(&key, scale, block);
        let own = self.own_window(&place, scale);
        let followed = self.followed(&key, scale, block);
        let rate = match key.scope {
            Scope::OneRank => followed.per_step(points, per_point, block_steps),
            Scope::Role | Scope::AllRanks => own.rate(block_steps),
        };
        let rate = rate.max(1);
        let windows = core::array::from_fn(|coarser| {
            let newest = block * block_steps / BLOCK_STEPS[coarser];
            (coarser >= scale).then(|| self.followed(&key, coarser, newest))
        });
        let Some((onset_step, onset_value)) = onset(&windows, scale, rate) else { return };
        let Some(value) = windows[scale].as_ref().and_then(Window::last) else { return };
        if value - onset_value < rise / 2 {
            // Its beginning does not show: no line leads from there to here.
            return;
        }
        let detected_step = place.end_step();
        let left = series.left(key.layer);
        let is_outside = key.layer.is_host() || matches!(key.layer, Layer::NonTorch | Layer::Other);
        let is_alone = key.scope == Scope::OneRank && peers > 0;
        // What is free in pieces is nothing that anybody builds.
        let is_of_tensors = matches!(key.layer, Layer::Allocated | Layer::Blocks);
        let may_wait = is_of_tensors && !is_alone && !is_near_the_end(series, &own, points, &place);
        let is_built = in_jumps && may_wait && !self.comes_in_equal_jumps(&place);
        let before = Before::of(series, (onset_step, onset_value), rate, detected_step);
        if (is_outside && before.may_fill()) || (is_built && before.may_be_built()) {
            return;
        }
        let ahead = left.and_then(|left| forecast(&own, points, block_steps, left));
        let mut growth = Growth {
            rank: key.rank,
            device: key.device,
            scope: key.scope,
            onset_step: onset_step.min(detected_step),
            detected_step,
            last_step: detected_step,
            bytes_per_step: rate.unsigned_abs(),
            grown_bytes: u64::try_from(value - onset_value).unwrap_or(0),
            layer: key.layer,
            steps_to_oom: ahead.map(|ahead| ahead.p50),
            forecast: ahead,
            peers,
            ranks: 1,
            returns: 0,
            give_backs: 0,
            is_sure: true,
        };
        if key.scope != Scope::OneRank {
            growth.ranks = peers + 1;
        } else if self.limits.gates.one_cause && self.findings.joined(&growth).is_some() {
            return;
        }
        let rise_min = series.rise_min(key.layer, &self.limits);
        let group = self.groups.of(key.rank);
        let last = (detected_step, value);
        self.findings.open(growth, (group, scale), onset_value, rise_min, last);
        self.close_what_it_explains(&key, detected_step);
    }

    /// One cause is told once. Said after the opening: whoever keeps incidents can go on with the
    /// one there is.
    pub(super) fn close_what_it_explains(&mut self, key: &GrowthKey, at_step: u64) {
        if !self.limits.gates.one_cause {
            return;
        }
        let is_of = |rank: u32| match key.scope {
            Scope::OneRank => rank == key.rank,
            Scope::Role => self.groups.of(rank) == self.groups.of(key.rank),
            Scope::AllRanks => true,
        };
        self.findings.close_caused(is_of, |other| key.layer.explains(other), at_step);
    }

    /// Has it been the same jump time and again since the start? Asked of the shortest blocks in
    /// which jumps stand alone.
    fn comes_in_equal_jumps(&self, place: &Place) -> bool {
        let end_step = place.end_step() + 1;
        let heights = (0..=place.scale).filter_map(|scale| {
            let newest = (end_step / BLOCK_STEPS[scale]).checked_sub(1)?;
            let window = self.own_window(&Place { scale, block: newest, ..*place }, scale);
            Some((equal_jumps(window.values())?, window.last()?))
        });
        let is_enough = |(height, level): (Option<i64>, i64)| {
            height.is_some_and(|height| level / height.max(1) >= EQUAL_JUMPS_MIN)
        };
        heights.take(1).any(is_enough)
    }

    /// All ranks of a group grow: findings about single ranks that are no more than that are the
    /// same cause.
    fn merge(&mut self, group: usize, layer: Layer, (scale, block): (usize, u64), points: usize) {
        if self.findings.common(layer, group).is_none() {
            return;
        }
        let common_rise = self.common_window(group, layer, scale, block).rise(points);
        for (key, _) in self.findings.keys() {
            if self.groups.of(key.rank) != group {
                continue;
            }
            let place = self.place_of(&key, scale, block);
            let rise = self.beyond_window(&place, scale).rise(points);
            let is_apart = rise / APART_NUMERATOR > common_rise / APART_DENOMINATOR;
            if key.scope == Scope::OneRank && key.layer == layer && !is_apart {
                self.findings.close(&key, place.end_step());
            }
        }
    }

    /// Value of a block less that of the peers; none when there is no such block.
    pub(super) fn beyond_peers(
        &self,
        key: (u32, u8),
        layer: Layer,
        scale: usize,
        block: u64,
    ) -> Option<i64> {
        let series = self.series.get(&key)?;
        let value = series.since_warm(layer, scale, block)?;
        let is_home = self.ranks.get(&key.0).is_some_and(|rank| rank.home == key.1);
        if !is_home || !self.limits.gates.peers {
            return Some(value);
        }
        let group = self.groups.list.get(self.groups.of(key.0))?;
        let medians = group.medians(layer.place()?, scale, block)?;
        Some(value - medians.of_peers(value, series.is_member(scale, block)).0)
    }

    fn place_of(&self, key: &GrowthKey, scale: usize, block: u64) -> Place {
        let GrowthKey { rank, device, layer, .. } = *key;
        Place { rank, device, layer, scale, block, peers: 0 }
    }

    /// The course of a series less its peers'.
    fn beyond_window(&self, place: &Place, scale: usize) -> Window {
        let key = (place.rank, place.device);
        let course = self.series.get(&key).and_then(|series| series.course(place.layer));
        let past = course.map_or(Past::default(), |course| course.past[scale]);
        Window::collect(place.block, 0, past, |block| {
            self.beyond_peers(key, place.layer, scale, block)
        })
    }

    /// The course of a series by itself.
    fn own_window(&self, place: &Place, scale: usize) -> Window {
        let series = self.series.get(&(place.rank, place.device));
        Window::collect(place.block, 0, Past::default(), |block| {
            series?.since_warm(place.layer, scale, block)
        })
    }

    /// The course of the median of a group.
    fn common_window(&self, group: usize, layer: Layer, scale: usize, block: u64) -> Window {
        let group = self.groups.list.get(group);
        let place = layer.place().unwrap_or(0);
        let past = group.map_or(Past::default(), |group| group.past[place][scale]);
        Window::collect(block, 0, past, |block| group?.common(place, scale, block))
    }

    /// The course that tells how a finding goes on.
    fn followed(&self, key: &GrowthKey, scale: usize, block: u64) -> Window {
        let place = self.place_of(key, scale, block);
        match key.scope {
            Scope::OneRank => self.beyond_window(&place, scale),
            Scope::Role | Scope::AllRanks => self.own_window(&place, scale),
        }
    }

    /// Has nothing of a series been compared yet?
    pub(super) fn own_window_is_empty(&self, key: (u32, u8)) -> bool {
        self.series.get(&key).is_none_or(|series| {
            let newest = series.next_block[0].checked_sub(1);
            newest.is_none_or(|block| series.since_warm(Layer::Allocated, 0, block).is_none())
        })
    }

    /// When the memory of a device is full, as its level went on for about so many steps.
    pub(super) fn ahead(&self, key: (u32, u8), steps: u64, left: u64) -> Option<Forecast> {
        let series = self.series.get(&key)?;
        let fits = |scale: &usize| WINDOW as u64 * BLOCK_STEPS[*scale] <= steps;
        let scale = (0..SCALES).rev().find(fits).unwrap_or(0);
        let block = series.next_block[scale].checked_sub(1)?;
        let layer = Layer::Allocated;
        let place = GrowthKey { rank: key.0, device: key.1, layer, scope: Scope::OneRank };
        let window = self.own_window(&self.place_of(&place, scale, block), scale);
        forecast(&window, WINDOW, BLOCK_STEPS[scale], left)
    }

    /// Rise of the floor of a series per step over the last window.
    pub(super) fn own_rate(&self, key: (u32, u8), layer: Layer) -> i64 {
        let Some(series) = self.series.get(&key) else { return 0 };
        let window = |scale: usize| {
            let block = series.next_block[scale].checked_sub(1)?;
            let place = GrowthKey { rank: key.0, device: key.1, layer, scope: Scope::OneRank };
            let window = self.own_window(&self.place_of(&place, scale, block), scale);
            (window.values().len() > 2).then(|| window.rate(BLOCK_STEPS[scale]))
        };
        window(1).or_else(|| window(0)).unwrap_or(0)
    }
}

/// The course of a window; where the memory is nearly full, less of it is asked for.
fn judge_to_the_end(
    window: &Window,
    rule: &Rule,
    series: &Series,
    own: &Window,
    place: &Place,
) -> Course {
    let course = judge(window, rule);
    // Segments and peaks rise in jumps for many reasons.
    if matches!(course, Course::Growing(_)) || matches!(place.layer, Layer::Reserved | Layer::Peak)
    {
        return course;
    }
    let late = rule.near_the_end().map(|rule| judge(window, &rule));
    match late.unwrap_or(course) {
        Course::Growing(late) if is_near_the_end(series, own, late.points, place) => {
            Course::Growing(late)
        }
        _ => course,
    }
}

/// Will the memory be full before as much time has passed again as the growth was seen for?
fn is_near_the_end(series: &Series, own: &Window, points: usize, place: &Place) -> bool {
    let rise = u64::try_from(own.rise(points)).unwrap_or(0);
    rise > 0 && series.left(place.layer).is_some_and(|left| left <= rise)
}

/// What a growth looks like from the start of the job.
#[derive(Clone, Copy, Debug)]
struct Before {
    /// Steps since the job is warm.
    age_steps: u64,
    /// It began with the job.
    began_then: bool,
    /// It grew at half that pace before, too.
    grew_before: bool,
}

impl Before {
    fn of(series: &Series, (step, level): (u64, i64), rate: i64, detected_step: u64) -> Self {
        let warm_step = series.warm_step.unwrap_or(0);
        let over = |from: u64, to: u64| {
            rate.saturating_mul(i64::try_from(to.saturating_sub(from)).unwrap_or(i64::MAX))
        };
        // The same line leads back from the onset, which is no older than what is still kept.
        let (risen, grown) = (over(warm_step, step), over(step, detected_step));
        let is_on_line = level.saturating_sub(risen).saturating_abs() <= (risen / 4).max(grown / 4);
        Self {
            age_steps: detected_step.saturating_sub(warm_step),
            began_then: step <= warm_step + BLOCK_STEPS[2] || is_on_line,
            grew_before: level >= risen / 2,
        }
    }

    /// Is it the filling of a cache or a pool? Workers, compilers and libraries take what they
    /// need within the first epoch; in those layers no stack tells that from a leak, so growth
    /// since the start is told when it has gone on for long.
    fn may_fill(&self) -> bool {
        self.began_then && self.age_steps < FILLING_STEPS
    }

    /// May what comes in uneven pieces be built up, as optimizers make their states group by group?
    fn may_be_built(&self) -> bool {
        (self.began_then || self.grew_before) && self.age_steps < BUILDING_STEPS
    }
}

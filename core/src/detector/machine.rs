//! The machine behind [`Detector`]: lines ranks up by step, compares, and keeps the findings.
//!
//! Samples of different ranks come at different times. A block of steps is *swept* when all ranks
//! have finished it, or three quarters have finished the next one too: then the peers' medians
//! are known. A rank that is later than that is compared when it comes, with the same medians.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::envelope::{BLOCK_STEPS, BLOCKS_AHEAD, LAYERS, SCALES, Tracks, WINDOW, index_of};
use super::incidents::Incidents;
use super::judge::{Course, Rule, judge};
use super::pace::Pace;
use super::series::Series;
use super::{Finding, Growth, GrowthKey, Layer, Limits, RankState, RankView, Sample, Scope};

/// With ranks still missing, judging starts this long after the last new rank appeared, in
/// nanoseconds.
pub const SETTLE_NS: u64 = 10_000_000_000;

/// A new high in warm-up is at least this much higher, in bytes.
const NEW_HIGH_BYTES_MIN: i64 = 1 << 20;

/// While all ranks grow, a rank grows for a reason of its own if it adds more than one and a half
/// times (3 / 2) as much again.
const APART_NUMERATOR: i64 = 3;
const APART_DENOMINATOR: i64 = 2;

const ALL_LAYERS: [Layer; LAYERS] = [Layer::Allocated, Layer::Reserved];

/// Streaming detector for one attempt at one job.
///
/// Feed it with [`sample`](Self::sample), then call [`poll`](Self::poll) until it is empty. Memory
/// per rank and device is bounded (about 10 KiB), whatever the length of the job.
#[derive(Debug)]
pub struct Detector {
    limits: Limits,
    pub(super) series: BTreeMap<(u32, u8), Series>,
    pub(super) ranks: BTreeMap<u32, Rank>,
    ranks_expected: u32,
    newest_rank_ns: u64,
    /// Number of ranks that have finished each block of the shortest length.
    finished: BTreeMap<u64, u32>,
    /// Next block of the shortest length to sweep.
    next_block: u64,
    warm_up: WarmUp,
    /// Median of all ranks.
    common: Tracks,
    /// Medians of the swept blocks, for ranks that come late.
    medians: [BTreeMap<u64, [Medians; LAYERS]>; SCALES],
    incidents: Incidents,
    pace: Pace,
    samples_refused: u64,
}

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    /// Device that holds most; the one that is compared with peers.
    home: u8,
    /// Blocks of the shortest length that it has finished.
    finished: u64,
}

/// Follows the typical level until it is quiet.
#[derive(Debug, Default)]
struct WarmUp {
    /// First step seen.
    first_step: Option<u64>,
    high: i64,
    high_step: u64,
    /// First step that is judged; none while warming.
    warm_step: Option<u64>,
}

/// What a rank is compared with at one block.
#[derive(Clone, Copy, Debug, Default)]
struct Medians {
    /// Number of values.
    count: usize,
    /// Lower median of all of them.
    all: i64,
    /// Of the sorted values, the two between which the median of the others lies.
    low: i64,
    high: i64,
}

impl Medians {
    fn of(mut values: Vec<i64>) -> Self {
        values.sort_unstable();
        let count = values.len();
        let at = |index: usize| values.get(index).copied().unwrap_or(0);
        let others = count.saturating_sub(2) / 2;
        let all = at(count.saturating_sub(1) / 2);
        Self { count, all, low: at(others), high: at((others + 1).min(count.saturating_sub(1))) }
    }

    /// Lower median without the member `value`; the median of all for someone else.
    fn of_peers(&self, value: i64, is_member: bool) -> (i64, usize) {
        match (is_member, self.count) {
            (true, 0 | 1) => (0, 0),
            (true, count) => (if value > self.low { self.low } else { self.high }, count - 1),
            (false, count) => (self.all, count),
        }
    }
}

/// A point that was just added, and what it was compared with.
#[derive(Clone, Copy)]
struct Place {
    rank: u32,
    device: u8,
    layer: Layer,
    scale: usize,
    /// Last step of the block.
    end_step: u64,
    peers: usize,
}

impl Detector {
    /// A detector that has seen nothing.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            series: BTreeMap::new(),
            ranks: BTreeMap::new(),
            ranks_expected: 0,
            newest_rank_ns: 0,
            finished: BTreeMap::new(),
            next_block: 0,
            warm_up: WarmUp::default(),
            common: Tracks::default(),
            medians: Default::default(),
            incidents: Incidents::default(),
            pace: Pace::default(),
            samples_refused: 0,
        }
    }

    /// How many ranks there will be, when it is known. Judging waits for them, at most
    /// [`SETTLE_NS`]; without it, it waits that long after every new rank.
    pub fn expect_ranks(&mut self, ranks: u32) {
        self.ranks_expected = self.ranks_expected.max(ranks);
    }

    /// Takes one sample. Late, duplicated and missing samples are harmless.
    pub fn sample(&mut self, now_ns: u64, sample: &Sample) {
        let key = (sample.rank, sample.device);
        let is_new = !self.series.contains_key(&key);
        if sample.first_step > sample.last_step
            || (is_new && self.series.len() >= self.limits.series_max)
        {
            self.samples_refused += 1;
            return;
        }
        let series = self.series.entry(key).or_insert_with(|| Series::new(sample.first_step));
        series.take(sample);
        self.note_rank(now_ns, sample);
        self.pace.note(now_ns, sample.last_step);
        while let Some(block) = self.ready_block(now_ns) {
            self.next_block = block + 1;
            self.finished = self.finished.split_off(&(block + 1));
            self.sweep(block);
        }
        self.catch_up(key, false);
    }

    /// What there is to say next; call until none.
    pub fn poll(&mut self) -> Option<Finding> {
        self.incidents.poll()
    }

    /// What is known of a rank.
    pub fn state(&self, rank: u32) -> RankView {
        let Some(home) = self.ranks.get(&rank).map(|known| known.home) else {
            return RankView::default();
        };
        let Some(series) = self.series.get(&(rank, home)) else { return RankView::default() };
        let scale = usize::from(series.own.get(Layer::Allocated, 1).values().len() > 2);
        let growing = self.incidents.of_rank(rank).next().is_some()
            || ALL_LAYERS.iter().any(|&layer| self.incidents.common(layer).is_some());
        let judged = !series.own.get(Layer::Allocated, 0).values().is_empty();
        let state = if growing {
            RankState::Growing
        } else if !judged {
            RankState::Warming
        } else if series.rising.iter().flatten().any(|&rising| rising) {
            RankState::Watching
        } else {
            RankState::Healthy
        };
        RankView {
            state,
            growth_bytes_per_step: series.own.get(Layer::Allocated, scale).rate(),
            last_step: series.last_step,
        }
    }

    /// How long a step takes at present, in nanoseconds; none before a few steps have passed.
    pub fn step_time_ns(&self) -> Option<u64> {
        self.pace.step_time_ns()
    }

    /// Samples that were not judged: beyond [`Limits::series_max`], or with their steps reversed.
    pub fn samples_refused(&self) -> u64 {
        self.samples_refused
    }

    /// Brings the rank's home device and progress up to date.
    fn note_rank(&mut self, now_ns: u64, sample: &Sample) {
        if !self.ranks.contains_key(&sample.rank) {
            self.newest_rank_ns = now_ns;
        }
        let fresh = Rank { home: sample.device, finished: 0 };
        let rank = self.ranks.entry(sample.rank).or_insert(fresh);
        let level_of = |device: u8| {
            self.series.get(&(sample.rank, device)).map_or(0, |series| series.last.end_allocated)
        };
        let is_warming = self.warm_up.warm_step.is_none();
        if is_warming && level_of(sample.device) > level_of(rank.home) {
            rank.home = sample.device;
        }
        if rank.home != sample.device {
            return;
        }
        let Some(series) = self.series.get(&(sample.rank, sample.device)) else { return };
        let finished = series.last_step.saturating_add(1) / BLOCK_STEPS[0];
        let oldest = rank.finished.max(finished.saturating_sub(BLOCKS_AHEAD as u64));
        for block in oldest.max(self.next_block)..finished {
            *self.finished.entry(block).or_default() += 1;
        }
        rank.finished = rank.finished.max(finished);
    }

    /// The next block that can be swept; none when more samples are needed first.
    fn ready_block(&self, now_ns: u64) -> Option<u64> {
        let ranks = self.ranks.len();
        let all_there = self.ranks_expected > 0 && ranks >= self.ranks_expected as usize;
        if !all_there && now_ns.saturating_sub(self.newest_rank_ns) < SETTLE_NS {
            return None;
        }
        let count = |block: u64| self.finished.get(&block).map_or(0, |&count| count as usize);
        let is_ready = |block: &u64| count(*block) >= ranks || count(*block + 1) * 4 >= ranks * 3;
        let newest = *self.finished.last_key_value()?.0;
        if is_ready(&self.next_block) {
            return Some(self.next_block);
        }
        // After a gap in the steps the next block never comes: go on where there is enough.
        let is_far_ahead = newest.saturating_sub(self.next_block) >= BLOCKS_AHEAD as u64 / 2
            || self.warm_up.first_step.is_none();
        let later = self.finished.range(self.next_block..).map(|(&block, _)| block);
        if is_far_ahead { later.into_iter().find(is_ready) } else { None }
    }

    /// All there is to know about a block of the shortest length is known.
    fn sweep(&mut self, block: u64) {
        if self.warm_up.warm_step.is_none() {
            self.warm_up(block);
            return;
        }
        for (scale, steps) in BLOCK_STEPS.iter().enumerate() {
            let of_this = steps / BLOCK_STEPS[0];
            if (block + 1).is_multiple_of(of_this) {
                self.sweep_scale(scale, block / of_this);
            }
        }
    }

    /// Ends warm-up when the typical rank made no new high for a while.
    fn warm_up(&mut self, block: u64) {
        let levels = self.home_values(|series| series.minima(0, block));
        let Some(levels) = levels.first().filter(|levels| !levels.is_empty()) else { return };
        let level = Medians::of(levels.clone()).all;
        let end_step = (block + 1) * BLOCK_STEPS[0] - 1;
        let warm_up = &mut self.warm_up;
        let first_step = *warm_up.first_step.get_or_insert(end_step);
        if level > warm_up.high + NEW_HIGH_BYTES_MIN.max(warm_up.high / 1_000) {
            (warm_up.high, warm_up.high_step) = (level, end_step);
        }
        let is_quiet = end_step - warm_up.high_step.min(end_step) >= self.limits.quiet_steps
            && end_step >= self.limits.warmup_steps_min;
        if is_quiet || end_step - first_step >= self.limits.warmup_steps_max {
            let warm_step = block * BLOCK_STEPS[0];
            warm_up.warm_step = Some(warm_step);
            for series in self.series.values_mut() {
                series.warm_up_ends(warm_step);
            }
            self.sweep(block);
        }
    }

    /// The values of the main device of each rank, layer by layer.
    fn home_values(&self, value: impl Fn(&Series) -> Option<[i64; LAYERS]>) -> [Vec<i64>; LAYERS] {
        let mut values: [Vec<i64>; LAYERS] = Default::default();
        for (&rank, known) in &self.ranks {
            if let Some(found) = self.series.get(&(rank, known.home)).and_then(&value) {
                for (layer, value) in values.iter_mut().zip(found) {
                    layer.push(value);
                }
            }
        }
        values
    }

    /// The medians of one block are known: compare everyone who has finished it.
    fn sweep_scale(&mut self, scale: usize, block: u64) {
        let values = self.home_values(|series| {
            let finished = series.has_finished(scale, block);
            series.since_warm(scale, block).filter(|_| finished)
        });
        if values.iter().any(Vec::is_empty) {
            return;
        }
        let medians = values.map(Medians::of);
        let swept = &mut self.medians[scale];
        swept.insert(block, medians);
        while swept.len() > BLOCKS_AHEAD {
            swept.pop_first();
        }
        for layer in ALL_LAYERS {
            self.common.push(layer, scale, block, medians[index_of(layer)].all);
        }
        let keys: Vec<(u32, u8)> = self.series.keys().copied().collect();
        for key in keys {
            self.catch_up(key, true);
        }
        let end_step = (block + 1) * BLOCK_STEPS[scale] - 1;
        for layer in ALL_LAYERS {
            self.judge_common(layer, scale, end_step, medians[index_of(layer)].count);
        }
    }

    /// Compares a series at all swept blocks that it has finished since. `is_member` says that
    /// the medians of the newest block contain it.
    fn catch_up(&mut self, key: (u32, u8), is_member: bool) {
        let Some(warm_step) = self.warm_up.warm_step else { return };
        let Some(series) = self.series.get_mut(&key) else { return };
        // A rank that joins later has a warm-up of its own.
        let own_warm_step =
            warm_step.max(series.first_step.saturating_add(self.limits.warmup_steps_min));
        if series.last_step >= own_warm_step {
            series.warm_up_ends(own_warm_step / BLOCK_STEPS[0] * BLOCK_STEPS[0]);
        }
        for scale in 0..SCALES {
            let Some(series) = self.series.get(&key) else { return };
            let newest = self.medians[scale].last_key_value().map(|(&block, _)| block);
            let finished: Vec<(u64, [Medians; LAYERS])> = self.medians[scale]
                .range(series.next_block[scale]..)
                .take_while(|&(&block, _)| series.has_finished(scale, block))
                .map(|(&block, &medians)| (block, medians))
                .collect();
            for (block, medians) in finished {
                self.compare(key, scale, block, medians, is_member && Some(block) == newest);
            }
        }
    }

    /// Adds one block of one series to its tracks and judges it.
    fn compare(
        &mut self,
        key: (u32, u8),
        scale: usize,
        block: u64,
        medians: [Medians; LAYERS],
        is_member: bool,
    ) {
        let is_home = self.ranks.get(&key.0).is_some_and(|rank| rank.home == key.1);
        let Some(series) = self.series.get_mut(&key) else { return };
        series.next_block[scale] = block + 1;
        let Some(values) = series.since_warm(scale, block) else { return };
        for layer in ALL_LAYERS {
            let (value, medians) = (values[index_of(layer)], &medians[index_of(layer)]);
            let (median, peers) = if is_home { medians.of_peers(value, is_member) } else { (0, 0) };
            let Some(series) = self.series.get_mut(&key) else { return };
            series.own.push(layer, scale, block, value);
            series.beyond_peers.push(layer, scale, block, value - median);
            let end_step = (block + 1) * BLOCK_STEPS[scale] - 1;
            let place = Place { rank: key.0, device: key.1, layer, scale, end_step, peers };
            self.follow(place);
            // A rank alone is judged as the common course of its job.
            if !is_home || peers > 0 {
                self.judge_rank(place);
            }
        }
    }

    /// Brings the open findings about this series up to date.
    fn follow(&mut self, place: Place) {
        let Some(series) = self.series.get(&(place.rank, place.device)) else { return };
        for (key, scale) in self.incidents.keys() {
            if (key.rank, key.device, key.layer, scale)
                != (place.rank, place.device, place.layer, place.scale)
            {
                continue;
            }
            let track = followed(series, &key).get(place.layer, place.scale);
            let rule = Rule::against_peers(series.rise_min(place.layer, &self.limits));
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
    fn judge_rank(&mut self, place: Place) {
        let Place { rank, device, layer, scale, .. } = place;
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let rise_min = series.rise_min(layer, &self.limits);
        let rule = if place.peers >= 2 && layer == Layer::Allocated {
            Rule::against_peers(rise_min)
        } else {
            Rule::strict(rise_min)
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
            self.open(key, scale, place.end_step, per_point, place.peers);
        }
    }

    /// Do all ranks grow?
    fn judge_common(&mut self, layer: Layer, scale: usize, end_step: u64, ranks: usize) {
        let track = self.common.get(layer, scale);
        let home = self.ranks.iter().filter_map(|(&rank, known)| {
            self.series.get(&(rank, known.home)).map(|series| (rank, known.home, series))
        });
        let rise_min = home.clone().map(|(.., series)| series.rise_min(layer, &self.limits)).max();
        let rule = Rule::strict(rise_min.unwrap_or(0));
        let Course::Growing { points, per_point, .. } = judge(track, &rule) else {
            return;
        };
        let steepest = home.max_by_key(|(.., series)| series.own.get(layer, scale).rise(points));
        let Some((rank, device, series)) = steepest else { return };
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
            self.open(key, scale, end_step, per_point, ranks - 1);
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
        let rule = Rule::against_peers(NEW_HIGH_BYTES_MIN);
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
        per_point: i64,
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

const _: () = assert!(WINDOW <= BLOCKS_AHEAD);

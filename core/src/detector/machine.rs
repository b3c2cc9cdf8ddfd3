//! The machine behind [`Detector`]: lines ranks up by step, compares, and keeps the findings.
//!
//! Samples of different ranks come at different times. A block of steps is *swept* when all ranks
//! have finished it, or three quarters have finished the next one too: then the peers' medians
//! are known. A rank that is later than that is compared when it comes, with the same medians.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::envelope::{BLOCK_STEPS, BLOCKS_AHEAD, LAYERS, SCALES, Tracks, WINDOW, index_of};
use super::incidents::Incidents;
use super::pace::Pace;
use super::series::Series;
use super::{Finding, Layer, Limits, RankState, RankView, Sample};

/// With ranks still missing, judging starts this long after the last new rank appeared, in
/// nanoseconds.
pub const SETTLE_NS: u64 = 10_000_000_000;

/// A new high in warm-up is at least this much higher, in bytes.
pub(super) const NEW_HIGH_BYTES_MIN: i64 = 1 << 20;

/// A rank that said something within this time takes part, in nanoseconds: what all ranks do is
/// judged when most of these have come so far. Longer than a node is usually away.
const TAKES_PART_NS: u64 = 30_000_000_000;

const ALL_LAYERS: [Layer; LAYERS] = [Layer::Allocated, Layer::Reserved];

/// Streaming detector for one attempt at one job.
///
/// Feed it with [`sample`](Self::sample), then call [`poll`](Self::poll) until it is empty. Memory
/// per rank and device is bounded (about 10 KiB), whatever the length of the job.
#[derive(Debug)]
pub struct Detector {
    pub(super) limits: Limits,
    pub(super) series: BTreeMap<(u32, u8), Series>,
    pub(super) ranks: BTreeMap<u32, Rank>,
    ranks_expected: u32,
    newest_rank_ns: u64,
    /// Of the newest sample.
    now_ns: u64,
    /// Number of ranks that have finished each block of the shortest length.
    finished: BTreeMap<u64, u32>,
    /// Next block of the shortest length to sweep.
    next_block: u64,
    warm_up: WarmUp,
    /// Median of all ranks.
    pub(super) common: Tracks,
    /// Medians of the swept blocks, for ranks that come late.
    medians: [BTreeMap<u64, [Medians; LAYERS]>; SCALES],
    pub(super) incidents: Incidents,
    pace: Pace,
    samples_refused: u64,
}

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    /// Device that holds most; the one that is compared with peers.
    pub(super) home: u8,
    /// Blocks of the shortest length that it has finished.
    finished: u64,
    seen_ns: u64,
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
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) device: u8,
    pub(super) layer: Layer,
    pub(super) scale: usize,
    /// Last step of the block.
    pub(super) end_step: u64,
    pub(super) peers: usize,
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
            now_ns: 0,
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
        let fresh = Rank { home: sample.device, finished: 0, seen_ns: now_ns };
        let rank = self.ranks.entry(sample.rank).or_insert(fresh);
        (self.now_ns, rank.seen_ns) = (now_ns, now_ns);
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
        let are_most = self.are_most(values.first().map_or(0, Vec::len));
        let medians = values.map(Medians::of);
        let swept = &mut self.medians[scale];
        swept.insert(block, medians);
        while swept.len() > BLOCKS_AHEAD {
            swept.pop_first();
        }
        for layer in ALL_LAYERS.into_iter().filter(|_| are_most) {
            self.common.push(layer, scale, block, medians[index_of(layer)].all);
        }
        let keys: Vec<(u32, u8)> = self.series.keys().copied().collect();
        for key in keys {
            self.catch_up(key, true);
        }
        let end_step = (block + 1) * BLOCK_STEPS[scale] - 1;
        for layer in ALL_LAYERS.into_iter().filter(|_| are_most) {
            self.judge_common(layer, scale, end_step);
        }
    }

    /// Are so many ranks three quarters of those that take part? When nodes come back one by one,
    /// the first one's ranks alone are not what all ranks do.
    fn are_most(&self, count: usize) -> bool {
        let since_ns = self.now_ns.saturating_sub(TAKES_PART_NS);
        let taking_part = self.ranks.values().filter(|rank| rank.seen_ns >= since_ns).count();
        count * 4 >= taking_part * 3
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
}

const _: () = assert!(WINDOW <= BLOCKS_AHEAD);

//! [`Detector`]: aligns ranks by step, compares them, and keeps the findings.
//!
//! Samples of different ranks come at different times. A block of steps is *swept* when all ranks
//! have finished it, or three quarters have finished the next one too: then the peers' medians
//! are known. A rank that is later is compared when its samples arrive, with the same medians.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::account::{Account, Value};
use crate::roles::are_most;

use super::blocks::Blocks;
use super::findings::Findings;
use super::groups::{Groups, Medians};
use super::series::{BLOCK_STEPS, BLOCKS, Layer, SCALES, Series, TRACKED_LAYERS, TRACKS, WINDOW};
use super::step_time::StepTime;
use super::{Finding, Growth, GrowthKey, RankState, RankView, Reading, Sample, Scope, StepNeed};

/// With ranks still missing, judging starts this long after the last new rank appeared, in
/// nanoseconds.
pub const SETTLE_NS: u64 = 10_000_000_000;

/// Steps that are never judged, from the start of the attempt.
const WARMUP_STEPS_MIN: u64 = 20;

/// Warm-up ends when the typical rank made no new high for this many steps.
const QUIET_STEPS: u64 = 16;

/// Warm-up ends here at the latest, or a job that leaks from its first step would never be judged.
const WARMUP_STEPS_MAX: u64 = 256;

/// Most series (rank and device) that are judged.
const SERIES_MAX: usize = 65_536;

/// Most blocks whose ranks are counted. A rank that is farther ahead of its peers is not counted.
const BLOCKS_COUNTED_MAX: usize = 64 * BLOCKS;

/// A new high in warm-up is at least this much higher, in bytes.
pub(super) const NEW_HIGH_BYTES_MIN: i64 = 1 << 20;

/// A rank takes part when it sent a sample within this time, in nanoseconds: growth of all ranks is
/// judged when most of these have finished a block. Longer than the usual outage of a node.
const TAKES_PART_NS: u64 = 30_000_000_000;

/// Streaming detector for one attempt at one job.
///
/// Feed it with [`sample`](Self::sample), [`reading`](Self::reading) and
/// [`census`](Self::census), then call [`poll`](Self::poll) until it is empty. Memory per rank and
/// device is bounded, whatever the length of the job: about 1 KiB for each layer that is known, and
/// about 2 KiB for each line of the census.
#[derive(Debug)]
pub struct Detector {
    /// Series (rank and device) beyond this many are counted and not judged.
    pub(super) series_max: usize,
    pub(super) series: BTreeMap<(u32, u8), Series>,
    pub(super) ranks: BTreeMap<u32, Rank>,
    ranks_expected: u32,
    newest_rank_ns: u64,
    /// Time of the newest input, in nanoseconds.
    pub(super) now_ns: u64,
    /// Time at which silence was judged last, in nanoseconds.
    silence_judged_ns: u64,
    /// Number of ranks that have finished each block of the shortest length.
    pub(super) finished: BTreeMap<u64, u32>,
    /// Next block of the shortest length to sweep.
    pub(super) next_block: u64,
    warm_up: WarmUp,
    pub(super) groups: Groups,
    pub(super) findings: Findings,
    pub(super) blocks: Blocks,
    step_time: StepTime,
    samples_refused: u64,
}

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    /// Device that holds most; only this device is compared with peers.
    pub(super) primary: u8,
    /// Number of blocks of the shortest length that the rank has finished.
    finished: u64,
    seen_ns: u64,
    /// Time since which the rank is silent while its peers go on, in nanoseconds.
    pub(super) silent_since_ns: Option<u64>,
    /// Number of checks since then that found the rank silent.
    pub(super) silent_checks: u32,
    /// The rank's process is over: its silence is not reported.
    pub(super) has_ended: bool,
}

/// Time between two checks for silence, in nanoseconds.
const SILENCE_INTERVAL_NS: u64 = 1_000_000_000;

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

/// A newly finished block of one layer of a device, and the number of peers it is compared with.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) rank: u32,
    pub(super) device: u8,
    pub(super) layer: Layer,
    pub(super) scale: usize,
    pub(super) block: u64,
    pub(super) peers: u32,
}

impl Point {
    /// Last step of the block.
    pub(super) fn end_step(&self) -> u64 {
        (self.block + 1) * BLOCK_STEPS[self.scale] - 1
    }
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            series_max: SERIES_MAX,
            series: BTreeMap::new(),
            ranks: BTreeMap::new(),
            ranks_expected: 0,
            newest_rank_ns: 0,
            now_ns: 0,
            silence_judged_ns: 0,
            finished: BTreeMap::new(),
            next_block: 0,
            warm_up: WarmUp::default(),
            groups: Groups::default(),
            findings: Findings::default(),
            blocks: Blocks::default(),
            step_time: StepTime::default(),
            samples_refused: 0,
        }
    }
}

impl Detector {
    /// Sets the number of ranks. Judging waits until all have come, at most [`SETTLE_NS`] after the
    /// newest rank; without this number it always waits that long.
    pub fn expect_ranks(&mut self, ranks: u32) {
        self.ranks_expected = self.ranks_expected.max(ranks);
    }

    /// Sets the parallel role of a rank: ranks of equal role do the same work. Where no role is
    /// set, roles are learnt from the ranks' levels.
    pub fn set_role(&mut self, rank: u32, role: u64) {
        self.groups.give(rank, role);
    }

    /// Notes that the process of a rank is over: its silence is not reported.
    pub fn rank_ended(&mut self, rank: u32) {
        if let Some(known) = self.ranks.get_mut(&rank) {
            known.has_ended = true;
        }
        self.blocks.forget(rank);
        self.judge_silence();
    }

    /// Takes one sample. Late, duplicated and missing samples are harmless.
    pub fn sample(&mut self, now_ns: u64, sample: &Sample) {
        let key = (sample.rank, sample.device);
        let is_new = !self.series.contains_key(&key);
        if sample.record.first_step > sample.record.last_step
            || (is_new && self.series.len() >= self.series_max)
        {
            self.samples_refused += 1;
            return;
        }
        let series =
            self.series.entry(key).or_insert_with(|| Series::new(sample.record.first_step));
        let is_newer = sample.record.last_step > series.last_step;
        series.take(&sample.record, sample.device_bytes);
        self.note_rank(now_ns, sample, is_newer);
        self.step_time.note(now_ns, sample.record.last_step);
        let work_bytes = sample.record.peak_allocated.saturating_sub(sample.record.floor_allocated);
        self.blocks.note_work(key, work_bytes);
        self.judge_recurring(key);
        while let Some(block) = self.ready_block(now_ns) {
            self.next_block = block + 1;
            self.finished = self.finished.split_off(&(block + 1));
            self.sweep(block);
        }
        // Not once a block: while one of two ranks is silent, no block is ready.
        if now_ns.saturating_sub(self.silence_judged_ns) >= SILENCE_INTERVAL_NS {
            self.silence_judged_ns = now_ns;
            self.judge_silence();
        }
        self.catch_up(key, false);
    }

    /// Takes one reading of a layer that samples do not hold, of a device that has samples. The
    /// reading counts for the block of its step, when that block is judged.
    pub fn reading(&mut self, now_ns: u64, reading: &Reading) {
        self.now_ns = self.now_ns.max(now_ns);
        let key = (reading.rank, reading.device);
        let Some(series) = self.series.get_mut(&key) else {
            self.samples_refused += 1;
            return;
        };
        series.read(reading);
    }

    /// Returns the next finding; call until none.
    pub fn poll(&mut self) -> Option<Finding> {
        self.findings.poll()
    }

    /// The open finding that this key names, with its newest figures: reports of it are seldom.
    /// What is left counts from the newest step of its rank. Growth of one rank says when it
    /// pauses; ranks that share a growth rise at different steps.
    pub fn newest(&self, key: &GrowthKey) -> Option<Growth> {
        let growth = self.findings.named(key)?.growth;
        let newest = self.series.get(&(growth.rank, growth.device)).map(|series| series.last_step);
        let now = growth.forecast_from(newest.unwrap_or(growth.last_step));
        let may_pause = growth.scope == Scope::OneRank && growth.layer.has_rate();
        let pause = may_pause.then(|| self.pause(&growth.key(), growth.onset_step));
        Some(Growth { paused_since_step: pause.and_then(|pause| pause.since_step()), ..now })
    }

    /// Returns the state of a rank.
    pub fn state(&self, rank: u32) -> RankView {
        let Some(key) = self.primary_of(rank) else { return RankView::default() };
        let Some(series) = self.series.get(&key) else { return RankView::default() };
        let group = self.groups.of(rank);
        let findings = || self.findings.of_rank(rank);
        let growing = findings().any(|open| open.grows())
            || TRACKED_LAYERS.iter().any(|&layer| self.findings.common(layer, group).is_some());
        let is_rising = |layer: Layer| {
            series.track(layer).is_some_and(|track| track.rising.iter().any(|&rising| rising))
        };
        let state = if growing {
            RankState::Growing
        } else if self.own_window_is_empty(key) {
            RankState::Warming
        } else if findings().next().is_some() || TRACKED_LAYERS.into_iter().any(is_rising) {
            RankState::Watching
        } else {
            RankState::Healthy
        };
        RankView { state, last_step: series.last_step }
    }

    /// The rank and its primary device: the only one that is compared with peers.
    pub(super) fn primary_of(&self, rank: u32) -> Option<(u32, u8)> {
        Some((rank, self.ranks.get(&rank)?.primary))
    }

    /// Returns the readings of an account that are kept of a device of a rank, oldest first: the
    /// lowest of each block of steps, which is longer the older it is. Those of the host are kept
    /// with the rank's first device. Rounded down to 4 KiB.
    pub fn kept(&self, rank: u32, device: u8, account: Account) -> Vec<Value> {
        self.series.get(&(rank, device)).map(|series| series.kept(account)).unwrap_or_default()
    }

    /// Returns what the steps of a rank need beyond their floors: at the earlier step of a capture,
    /// or before the growth where that began later, and at the step of the capture. None where the
    /// blocks of those steps are no longer kept.
    pub fn step_need(&self, growth: &Growth, step: u64, before_step: u64) -> Option<StepNeed> {
        let series = self.series.get(&(growth.rank, growth.device))?;
        let onset_step = growth.onset_step.saturating_sub(BLOCK_STEPS[0]);
        let before = series.step_need(onset_step.max(before_step))?;
        Some(StepNeed { before, now: series.step_need(step)? })
    }

    /// Returns the present duration of a step, in nanoseconds; none before a few steps have passed.
    pub fn step_time_ns(&self) -> Option<u64> {
        self.step_time.step_time_ns()
    }

    /// Number of samples and readings that were not judged: of more than 65,536 series, with
    /// their steps reversed, or of a device without samples.
    pub fn samples_refused(&self) -> u64 {
        self.samples_refused
    }

    /// Updates the rank's primary device and finished blocks.
    fn note_rank(&mut self, now_ns: u64, sample: &Sample, is_newer: bool) {
        if !self.ranks.contains_key(&sample.rank) {
            self.newest_rank_ns = now_ns;
            self.groups.add(sample.rank);
        }
        let fresh = Rank {
            primary: sample.device,
            finished: 0,
            seen_ns: now_ns,
            silent_since_ns: None,
            silent_checks: 0,
            has_ended: false,
        };
        let rank = self.ranks.entry(sample.rank).or_insert(fresh);
        (self.now_ns, rank.seen_ns, rank.silent_since_ns) = (now_ns, now_ns, None);
        rank.silent_checks = 0;
        // The last samples of a process come before its end: after a newer step the rank is back.
        // A sample that is sent again says nothing.
        rank.has_ended &= !is_newer;
        let level_of = |device: u8| {
            self.series.get(&(sample.rank, device)).map_or(0, |series| series.last.end_allocated)
        };
        let is_warming = self.warm_up.warm_step.is_none();
        if is_warming && level_of(sample.device) > level_of(rank.primary) {
            rank.primary = sample.device;
        }
        if rank.primary != sample.device {
            return;
        }
        let Some(series) = self.series.get(&(sample.rank, sample.device)) else { return };
        let finished = series.last_step.saturating_add(1) / BLOCK_STEPS[0];
        let oldest = rank.finished.max(finished.saturating_sub(BLOCKS as u64));
        for block in oldest.max(self.next_block)..finished {
            *self.finished.entry(block).or_default() += 1;
        }
        while self.finished.len() > BLOCKS_COUNTED_MAX {
            self.finished.pop_last();
        }
        rank.finished = rank.finished.max(finished);
    }

    /// Returns the next block that can be swept; none when more samples are needed first.
    fn ready_block(&self, now_ns: u64) -> Option<u64> {
        let ranks = self.ranks.len();
        let all_there = self.ranks_expected > 0 && ranks >= self.ranks_expected as usize;
        if !all_there && now_ns.saturating_sub(self.newest_rank_ns) < SETTLE_NS {
            return None;
        }
        let count = |block: u64| self.finished.get(&block).map_or(0, |&count| count as usize);
        let is_ready = |block: &u64| count(*block) >= ranks || are_most(count(*block + 1), ranks);
        let newest = *self.finished.last_key_value()?.0;
        if is_ready(&self.next_block) {
            return Some(self.next_block);
        }
        // After a gap in the steps the next block never comes: takes the first ready one after it.
        let is_far_ahead = newest.saturating_sub(self.next_block) >= BLOCKS as u64 / 2
            || self.warm_up.first_step.is_none();
        // Series have no older ones.
        let oldest = self.next_block.max(newest.saturating_sub(BLOCKS as u64));
        let later = self.finished.range(oldest..).map(|(&block, _)| block);
        if is_far_ahead { later.into_iter().find(is_ready) } else { None }
    }

    /// Sweeps a block of the shortest length, and the longer blocks that end with it.
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
        let level = |(&rank, known): (&u32, &Rank)| {
            let series = self.series.get(&(rank, known.primary))?;
            Some((series.absolute(Layer::Allocated, 0, block)?, rank))
        };
        let levels: Vec<(i64, u32)> = self.ranks.iter().filter_map(level).collect();
        if levels.is_empty() {
            return;
        }
        let mut values: Vec<i64> = levels.iter().map(|&(level, _)| level).collect();
        let level = Medians::of(&mut values).all;
        let end_step = (block + 1) * BLOCK_STEPS[0] - 1;
        let warm_up = &mut self.warm_up;
        let first_step = *warm_up.first_step.get_or_insert(end_step);
        if level > warm_up.high + NEW_HIGH_BYTES_MIN.max(warm_up.high / 1_000) {
            (warm_up.high, warm_up.high_step) = (level, end_step);
        }
        let is_quiet = end_step - warm_up.high_step.min(end_step) >= QUIET_STEPS
            && end_step >= WARMUP_STEPS_MIN;
        if is_quiet || end_step - first_step >= WARMUP_STEPS_MAX {
            let warm_step = block * BLOCK_STEPS[0];
            warm_up.warm_step = Some(warm_step);
            for series in self.series.values_mut() {
                series.warm_up_ends(warm_step);
            }
            self.groups.learn(&levels);
            self.groups.note_past(self.warm_up.high - level);
            self.sweep(block);
        }
    }

    /// Sweeps one block: computes the medians of each group, then judges all series against them.
    fn sweep_scale(&mut self, scale: usize, block: u64) {
        let mut is_known = false;
        for group in 0..self.groups.list.len() {
            is_known |= self.sweep_group(group, scale, block);
        }
        if !is_known {
            return;
        }
        let keys: Vec<(u32, u8)> = self.series.keys().copied().collect();
        for key in keys {
            self.catch_up(key, true);
        }
        for group in 0..self.groups.list.len() {
            let swept = self.groups.list.get(group).and_then(|group| group.swept(scale, block));
            if swept.is_none_or(|swept| !swept.are_most) {
                continue;
            }
            for layer in TRACKED_LAYERS {
                self.judge_common(group, layer, scale, block);
            }
        }
    }

    /// Computes the medians of a group at one block. False when no rank has a value there.
    fn sweep_group(&mut self, group: usize, scale: usize, block: u64) -> bool {
        let mut values: [Vec<i64>; TRACKS] = Default::default();
        let mut peaks = Vec::new();
        let mut count = 0;
        for rank in self.groups.list.get(group).map_or(&[][..], |group| &group.ranks) {
            let Some(key) = self.primary_of(*rank) else { continue };
            let Some(series) = self.series.get_mut(&key) else { continue };
            if !series.has_finished(scale, block) {
                continue;
            }
            series.set_baselines();
            let is_there = series.since_warm(Layer::Allocated, scale, block).is_some();
            count += usize::from(is_there);
            for (layer, values) in TRACKED_LAYERS.into_iter().zip(&mut values) {
                values.extend(series.since_warm(layer, scale, block).filter(|_| is_there));
            }
            let peak = series.absolute(Layer::Peak, scale, block).filter(|_| is_there);
            let floor = series.absolute(Layer::Allocated, scale, block);
            // What the steps need beyond their floors: a leak lifts peaks, and is no difference.
            peaks.extend(peak.zip(floor).map(|(peak, floor)| (*rank, peak - floor)));
        }
        if count == 0 {
            return false;
        }
        let are_most = self.are_most(group, count);
        let layers =
            values.map(|mut values| (!values.is_empty()).then(|| Medians::of(&mut values)));
        if let Some(group) = self.groups.list.get_mut(group) {
            group.keep(scale, block, are_most, layers);
            let leaving = block.checked_sub(WINDOW as u64);
            for layer in 0..TRACKS {
                let value = leaving.and_then(|block| group.common(layer, scale, block));
                value.into_iter().for_each(|value| group.past[layer][scale].add(value));
            }
        }
        self.judge_spread(scale, block, &peaks);
        true
    }

    /// Are `count` ranks three quarters of the ranks of the group that take part? When nodes come
    /// back one by one, the ranks of the first node alone do not stand for all ranks.
    fn are_most(&self, group: usize, count: usize) -> bool {
        let since_ns = self.now_ns.saturating_sub(TAKES_PART_NS);
        let ranks = self.groups.list.get(group).map_or(&[][..], |group| &group.ranks);
        let takes_part =
            |rank: &&u32| self.ranks.get(rank).is_some_and(|rank| rank.seen_ns >= since_ns);
        are_most(count, ranks.iter().filter(takes_part).count())
    }

    /// Compares a series at all swept blocks that it has finished since the last comparison.
    /// `is_member`: the medians of the newest block contain the series.
    fn catch_up(&mut self, key: (u32, u8), is_member: bool) {
        let Some(warm_step) = self.warm_up.warm_step else { return };
        let Some(series) = self.series.get_mut(&key) else { return };
        // A rank that joins later has a warm-up of its own.
        let own_warm_step = warm_step.max(series.first_step.saturating_add(WARMUP_STEPS_MIN));
        if series.last_step >= own_warm_step {
            series.warm_up_ends(own_warm_step / BLOCK_STEPS[0] * BLOCK_STEPS[0]);
        }
        let group = self.groups.of(key.0);
        for scale in 0..SCALES {
            let Some(newest) = self.groups.list.get(group).and_then(|group| group.newest(scale))
            else {
                continue;
            };
            loop {
                let Some(series) = self.series.get_mut(&key) else { return };
                let oldest = newest.saturating_sub(BLOCKS as u64 - 1);
                let block = series.next_block[scale].max(oldest);
                if block > newest || !series.has_finished(scale, block) {
                    break;
                }
                series.next_block[scale] = block + 1;
                let is_swept =
                    self.groups.list.get(group).is_some_and(|it| it.swept(scale, block).is_some());
                if is_swept {
                    self.compare(key, group, scale, block, is_member && block == newest);
                }
            }
        }
    }

    /// Compares one block of one series with its peers, layer by layer.
    fn compare(&mut self, key: (u32, u8), group: usize, scale: usize, block: u64, is_member: bool) {
        let is_primary = self.primary_of(key.0) == Some(key);
        let Some(series) = self.series.get_mut(&key) else { return };
        series.set_baselines();
        series.note_member(scale, block, is_member);
        let layers: Vec<Layer> = series.layers().collect();
        for layer in layers {
            let index = layer.index().unwrap_or(0);
            if let Some(leaving) = block.checked_sub(WINDOW as u64)
                && let Some(value) = self.beyond_peers(key, layer, scale, leaving)
                && let Some(track) = self.series.get_mut(&key).and_then(|it| it.track_mut(layer))
            {
                track.past[scale].add(value);
            }
            let Some(series) = self.series.get(&key) else { return };
            let Some(value) = series.since_warm(layer, scale, block) else { continue };
            let medians =
                self.groups.list.get(group).and_then(|it| it.medians(index, scale, block));
            let peers =
                medians.filter(|_| is_primary).map_or(0, |it| it.of_peers(value, is_member).1);
            let (rank, device) = key;
            let point = Point { rank, device, layer, scale, block, peers };
            self.follow(point);
            // A rank without peers is judged in `judge_common`.
            if !is_primary || peers > 0 {
                self.judge_rank(point);
            }
        }
    }
}

const _: () = assert!(2 * WINDOW <= BLOCKS);

//! Verdicts on what does not grow: differences to the peers, recurring conditions, silence.

use alloc::vec::Vec;

use crate::roles::are_most;

use super::super::constants::{
    SILENT_NS, SILENT_STEPS_MIN, SPREAD_DIVISOR, SPREAD_LEVEL_PERCENT_MIN, SPREAD_NEWS_DIVISOR,
};
use super::super::findings::UNFOLLOWED;
use super::super::groups::Medians;
use super::super::machine::{Detector, Rank};
use super::super::series::{BLOCK_STEPS, Layer, Spread, WINDOW};
use super::super::{Growth, GrowthKey, Scope};

/// Length of block at which peaks are compared.
const SPREAD_SCALE: usize = 0;

/// Blocks over which a distance to the peers is smoothed: batches differ.
const SPREAD_BLOCKS: u64 = 8;

/// A known distance is another one when it has moved by this part.
const SPREAD_MOVES_DIVISOR: u64 = 8;

/// A rank is silent only after this many checks in turn, one a second: after a global pause the
/// held samples of all ranks arrive at once, one rank after the other.
const SILENT_CHECKS_MIN: u32 = 10;

/// Returns the mean of the highest peaks of the newest blocks of a trace, at most as many as a
/// running job smooths a distance over. None where the steps fill no block.
pub(crate) fn block_peak(peaks: &[u64]) -> Option<u64> {
    let steps = usize::try_from(BLOCK_STEPS[SPREAD_SCALE]).ok()?;
    let newest = peaks.rchunks_exact(steps).zip(0..SPREAD_BLOCKS);
    let highest = newest.filter_map(|(block, _)| block.iter().max().copied());
    let (sum, blocks) =
        highest.fold((0_u64, 0), |(sum, blocks), of| (sum.saturating_add(of), blocks + 1));
    sum.checked_div(blocks)
}

impl Detector {
    /// Judges peaks that stay far beyond the peers': since warm-up, or with the device nearly full.
    pub(in crate::detector) fn judge_spread(
        &mut self,
        scale: usize,
        block: u64,
        peaks: &[(u32, i64)],
    ) {
        if scale != SPREAD_SCALE || peaks.len() < 3 {
            return;
        }
        let since_baseline = |rank: u32| {
            let series = self.series.get(&self.primary_of(rank)?)?;
            let peak = series.since_warm(Layer::Peak, scale, block)?;
            Some(peak - series.since_warm(Layer::Allocated, scale, block)?)
        };
        let since_warm: Vec<i64> =
            peaks.iter().map(|&(rank, _)| since_baseline(rank).unwrap_or(0)).collect();
        let usual = Medians::of(&mut peaks.iter().map(|&(_, peak)| peak).collect::<Vec<i64>>());
        let usual_since = Medians::of(&mut since_warm.clone());
        let end_step = (block + 1) * BLOCK_STEPS[scale] - 1;
        for (&(rank, peak), since_warm) in peaks.iter().zip(since_warm) {
            let beyond = peak - usual.of_peers(peak, true).0;
            let came = since_warm - usual_since.of_peers(since_warm, true).0;
            self.judge_peak(rank, peak, [beyond, came.min(beyond)], (end_step, peaks.len()));
        }
    }

    /// Judges the peak of one rank. `peak` is what its steps need beyond their floors; `beyond` is
    /// the part beyond the peers', and what of that part came after warm-up, in bytes.
    fn judge_peak(
        &mut self,
        rank: u32,
        peak: i64,
        beyond: [i64; 2],
        (end_step, count): (u64, usize),
    ) {
        let Some(device) = self.primary_of(rank).map(|key| key.1) else { return };
        let Some(series) = self.series.get_mut(&(rank, device)) else { return };
        let device_bytes = series.device_bytes;
        let [peak, beyond, came] =
            [peak, beyond[0], beyond[1]].map(|bytes| u64::try_from(bytes).unwrap_or(0));
        let level = series.level(Layer::Peak).unwrap_or(0);
        let is_full = u128::from(level) * 100
            >= u128::from(device_bytes) * u128::from(SPREAD_LEVEL_PERCENT_MIN);
        let is_large = is_full && beyond >= device_bytes / SPREAD_DIVISOR;
        let is_news = came >= (peak / SPREAD_DIVISOR).max(device_bytes / SPREAD_NEWS_DIVISOR);
        let key = GrowthKey { rank, device, layer: Layer::Spread, scope: Scope::OneRank };
        if device_bytes == 0 || !(is_large || is_news) {
            series.spread = None;
            self.findings.close(&key, end_step);
            return;
        }
        let fresh = Spread { since_step: end_step, bytes: beyond, blocks: 0 };
        let spread = series.spread.get_or_insert(fresh);
        spread.blocks = spread.blocks.saturating_add(1);
        spread.bytes = spread.bytes - spread.bytes / SPREAD_BLOCKS + beyond / SPREAD_BLOCKS;
        let Spread { since_step, bytes, blocks } = *spread;
        let group = self.groups.of(rank);
        let layers = [Layer::Allocated, Layer::Peak];
        let grows = self.findings.of_rank(rank).any(|open| open.grows())
            || layers.into_iter().any(|layer| self.findings.common(layer, group).is_some());
        let peers = u32::try_from(count - 1).unwrap_or(u32::MAX);
        let growth = Growth::still(&key, (since_step, end_step), bytes, peers);
        if let Some(open) = self.findings.get(&key) {
            let known = open.growth.grown_bytes;
            let moves = bytes.abs_diff(known) > known / SPREAD_MOVES_DIVISOR;
            let grown_bytes = if moves { bytes } else { known };
            self.findings.renew(&Growth { grown_bytes, ..growth });
        } else if blocks >= WINDOW as u32 && !grows {
            self.findings.open(growth, (0, UNFOLLOWED), 0, 0, (end_step, 0));
        }
    }

    /// Judges the recurring conditions of a rank.
    pub(in crate::detector) fn judge_recurring(&mut self, (rank, device): (u32, u8)) {
        let Some(series) = self.series.get(&(rank, device)) else { return };
        let (recurring, last_step) = (series.recurring, series.last_step);
        if series.warm_step.is_none() {
            return;
        }
        let group = self.groups.of(rank);
        for (layer, has_it, steps) in [
            (Layer::Retries, recurring.has_retries, recurring.retries()),
            (Layer::Churn, recurring.has_churn, recurring.churn()),
        ] {
            let key = |scope: Scope| GrowthKey { rank, device, layer, scope };
            let known = [Scope::OneRank, Scope::AllRanks].map(key);
            if !has_it {
                known.iter().for_each(|key| self.findings.close(key, last_step));
                continue;
            }
            let is_open = known.iter().any(|key| self.findings.get(key).is_some())
                || self.findings.common(layer, group).is_some();
            let (scope, ranks) = self.who_else(layer);
            if !is_open && !self.is_reported(&key(scope), group) {
                let steps_seen = (last_step.saturating_sub(63), last_step);
                let growth = Growth::still(&key(scope), steps_seen, u64::from(steps), 0);
                if scope == Scope::AllRanks || self.findings.joined(&growth).is_none() {
                    let growth = Growth { ranks, ..growth };
                    self.findings.open(growth, (group, 0), 0, 0, (last_step, 0));
                }
            }
        }
    }

    /// The scope and the number of ranks of a recurring condition that one rank surely has. For the
    /// other ranks half as many steps are enough, because they are at about the same step.
    fn who_else(&self, layer: Layer) -> (Scope, u32) {
        let has_it = |of: &(&u32, &Rank)| {
            let series = self.series.get(&(*of.0, of.1.primary));
            series.is_some_and(|series| series.recurring.is_likely(layer))
        };
        let count = self.ranks.iter().filter(has_it).count();
        if count > 1 && are_most(count, self.ranks.len()) {
            (Scope::AllRanks, u32::try_from(count).unwrap_or(u32::MAX))
        } else {
            (Scope::OneRank, 1)
        }
    }

    /// Judges ranks that send no samples while their peers go on. A pause of all ranks, or of a
    /// rank without peers, is no silence: it may be an evaluation.
    pub(in crate::detector) fn judge_silence(&mut self) {
        let step_of = |(&rank, known): (&u32, &Rank)| {
            let series = self.series.get(&(rank, known.primary))?;
            Some((rank, known.primary, series.last_step))
        };
        let ranks: Vec<_> = self.ranks.iter().filter_map(step_of).collect();
        let mut steps: Vec<u64> = ranks.iter().map(|&(.., step)| step).collect();
        // The upper median: of two ranks the other is the peer.
        let median = steps.len() / 2;
        let typical = match steps.get_mut(..) {
            Some(steps) if !steps.is_empty() => *steps.select_nth_unstable(median).1,
            _ => return,
        };
        let peers = u32::try_from(ranks.len() - 1).unwrap_or(u32::MAX);
        for (rank, device, step) in ranks {
            let Some(known) = self.ranks.get_mut(&rank) else { continue };
            let key = GrowthKey { rank, device, layer: Layer::Progress, scope: Scope::OneRank };
            let missing = typical.saturating_sub(step);
            if known.has_ended || missing < SILENT_STEPS_MIN {
                self.findings.close(&key, step);
                continue;
            }
            let since_ns = *known.silent_since_ns.get_or_insert(self.now_ns);
            known.silent_checks = known.silent_checks.saturating_add(1);
            let is_due = self.now_ns.saturating_sub(since_ns) >= SILENT_NS
                && known.silent_checks >= SILENT_CHECKS_MIN;
            if is_due && self.findings.get(&key).is_none() {
                let growth = Growth::still(&key, (step, typical), missing, peers);
                if self.findings.joined(&growth).is_none() {
                    self.findings.open(growth, (0, 0), 0, 0, (typical, 0));
                }
            }
        }
    }
}

//! Which lines grow on which ranks: survivors, rising totals, and lengthening lifetimes.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::census::LineId;
use crate::paging::is_near;
use crate::snapshot::Held;

use super::super::constants::{
    BEYOND_PERCENT, COHORTS_MIN, COLLECTIONS_MIN, EVEN_COHORTS, EVEN_STEPS, GARBAGE_DIVISOR,
    KEPT_BYTES_MIN, KEPT_COUNT_MIN, LONGER_MIN, NOTICE_STEPS, OWN_TIMES, SETTLED_OWN_STEPS,
    SETTLED_STEPS, SETUP_STEPS, SETUP_TIMES, STOPPED_STEPS,
};
use super::super::machine::Detector;
use super::super::series::Layer;
use super::line::{Kept, Line, in_bytes, is_one_rate};
use super::state::Device;
use super::totals::Point;

/// Before it rose, a total was level when it moved by at most this part of the rise.
/// Ablation (522 jobs, seeds 700 and 701): without this rule 97.0 % seen and 74 notices about
/// nothing, with it 97.7 % and 76.
const LEVEL_DIVISOR: u64 = 8;

/// Lengths of the ranges of births that are judged, in steps.
const SPANS_STEPS: [u64; 5] = [128, 256, 512, 1_024, 2_048];

/// Growth of one line on one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growing {
    pub(super) rank: u32,
    pub(super) line: LineId,
    pub(super) onset_step: u64,
    /// What the line kept of the births in the `steps` steps.
    pub(super) held: Held,
    pub(super) steps: u64,
    /// The peers of the rank do not grow like this.
    pub(super) is_own: bool,
    /// Certain growth: see [`crate::detector::Growth::is_sure`].
    pub(super) is_sure: bool,
    /// Garbage, which is collected later: it is left out of the forecast of other growth.
    pub(super) is_garbage: bool,
    /// Number of times that it was collected.
    pub(super) collections: u32,
}

impl Growing {
    /// What the line has grown by, as its blocks on this device count, since the finding about it
    /// was reported to begin, or since its own onset: bytes, or a number of blocks.
    pub(super) fn grown(&self, device: &Device, reported: Option<u64>, in_bytes: bool) -> u64 {
        let since = reported.map_or(self.onset_step, |reported| reported.min(self.onset_step));
        let line = device.lines.get(&self.line).filter(|_| !self.is_garbage);
        let held = line.map_or(self.held, |line| line.grown(since));
        if in_bytes { held.bytes } else { held.count }
    }
}

/// One line on all devices of a group, and the range of births that is judged.
struct Look<'a, 'd> {
    /// The devices that hold the line, and the number of those that do not.
    there: Vec<&'a ((u32, u8), &'d Device)>,
    absent: usize,
    id: LineId,
    /// The births in `from..settled` are judged.
    from: u64,
    settled: u64,
    span: u64,
    /// Only a rank's own growth counts, or a rise from a level that had lasted.
    is_early: bool,
}

/// Result of the survivor test: the growth, and what the report depends on.
struct Survivors {
    growing: Growing,
    /// Steps that were judged: of what is kept, births may have come later than these.
    judged_steps: u64,
    /// Steps from the first step of the series to the onset.
    onset_age_steps: u64,
    /// The growth may be the set-up of the job.
    is_setup: bool,
    /// Fewer blocks are kept than before: the line fills up.
    is_fewer: bool,
}

impl Detector {
    /// Finds the ranks of a group on which a line grows. `devices` hold the line; `steps` are the
    /// newest steps of all devices of the group, in ascending order.
    pub(super) fn judge_line(
        &self,
        devices: &[((u32, u8), &Device)],
        steps: &[u64],
        id: LineId,
    ) -> Vec<Growing> {
        let Some(step) = common_step(steps) else { return Vec::new() };
        let life_steps = self.blocks.lifetimes.get(&id).copied().unwrap_or(0);
        let beyond_steps = life_steps.saturating_mul(BEYOND_PERCENT) / 100;
        let mut found = BTreeMap::new();
        for (span, is_early) in SPANS_STEPS.iter().flat_map(|&span| [(span, true), (span, false)]) {
            let settled_steps = if is_early { SETTLED_OWN_STEPS } else { SETTLED_STEPS };
            let Some(settled) = step.checked_sub(beyond_steps.max(settled_steps)) else { continue };
            let there: Vec<_> =
                devices.iter().filter(|(_, device)| device.step >= settled).collect();
            let counted = steps.len() - steps.partition_point(|step| *step < settled);
            let absent = counted.saturating_sub(there.len());
            let from = settled.saturating_sub(span);
            let look = Look { there, absent, id, from, settled, span, is_early };
            if !is_early || counted > 1 {
                self.judge_survivors(&look, &mut found);
            }
        }
        for span in SPANS_STEPS {
            let Some(from) = step.checked_sub(span) else { continue };
            let there: Vec<_> = devices.iter().collect();
            let absent = steps.len().saturating_sub(there.len());
            // A ring fills within two lifetimes of its blocks.
            let is_early = span < life_steps.saturating_mul(2);
            let look = Look { there, absent, id, from, settled: step, span, is_early };
            self.judge_swelling(&look, &mut found);
        }
        if found.is_empty() {
            return devices.iter().filter_map(|(key, of)| self.garbage(*key, of, id)).collect();
        }
        found.into_values().collect()
    }

    /// Judges survivors: cohorts older than any that was freed, while new cohorts follow.
    fn judge_survivors(&self, look: &Look<'_, '_>, found: &mut BTreeMap<u32, Growing>) {
        let Look { there, absent, id, from, settled, is_early, .. } = look;
        let line = |device: &Device| device.lines.get(id).map(|line| line.kept(*from, *settled));
        let all: Vec<Kept> =
            there.iter().map(|(_, device)| line(device).unwrap_or_default()).collect();
        if !all.iter().any(is_enough) {
            return;
        }
        let bytes = sorted(all.iter().map(|kept| kept.held.bytes));
        let counts = sorted(all.iter().map(|kept| kept.held.count));
        for ((key, device), kept) in there.iter().zip(&all) {
            let Some(line) = device.lines.get(id) else { continue };
            let is_own = match in_bytes(kept.held) {
                true => is_own(&bytes, *absent, kept.held.bytes, kept.held.bytes),
                false => is_own(&counts, *absent, kept.held.count, kept.held.count),
            };
            if !is_enough(kept) || (*is_early && !is_own) {
                continue;
            }
            let Some(of) = self.survivors(*key, line, kept, look) else { continue };
            let steps = of.judged_steps;
            let is_sure = of.growing.is_sure;
            // Certain growth need not last, but set-up may look like it.
            let times = match (is_sure, of.is_setup) {
                (true, false) => 0,
                (true, true) | (false, false) => 1,
                (false, true) => SETUP_TIMES,
            };
            let is_too_early = match is_own {
                true => *is_early && of.onset_age_steps < SETTLED_STEPS,
                false => steps < times * NOTICE_STEPS,
            };
            if is_too_early || (!is_own && of.is_fewer && !is_sure) {
                continue;
            }
            if found.get(&key.0).is_none_or(|known| is_sure || !known.is_sure) {
                let is_sure = line.is_user_code && is_sure;
                found.insert(key.0, Growing { is_own, is_sure, ..of.growing });
            }
        }
    }

    /// Measures the growth of what is kept; `None` when the growth does not go on.
    fn survivors(
        &self,
        key: (u32, u8),
        line: &Line,
        kept: &Kept,
        look: &Look<'_, '_>,
    ) -> Option<Survivors> {
        let Look { settled, span, .. } = *look;
        let Kept { held, later, first, .. } = *kept;
        let judged_steps = settled.saturating_sub(first).max(1);
        let in_bytes = in_bytes(held);
        let amount = |of: Held| if in_bytes { of.bytes } else { of.count };
        let (all, later_half) = (amount(held), amount(later));
        let gap_max = (kept.last.saturating_sub(first) / 2).max(SETTLED_STEPS).min(span / 2);
        let goes_on = kept.gap <= gap_max && later_half >= all / 3;
        if !goes_on || !line.has_risen(first, held) {
            return None;
        }
        // Fewer late births than early, or than before, by more than chance explains.
        let by_chance = held.count.isqrt();
        let early = held.count.saturating_sub(kept.later_count);
        let before = line.kept(first.saturating_sub(judged_steps), first).held.count;
        let is_fewer = early > kept.later_count.saturating_add(by_chance)
            || before > held.count.saturating_add(by_chance.saturating_mul(2));
        let to_come = if is_fewer {
            let shrinks = (all - later_half).saturating_sub(later_half).max(1);
            u128::from(later_half) * u128::from(later_half) / u128::from(shrinks)
        } else {
            u128::MAX
        };
        let series = self.series.get(&key)?;
        if in_bytes && !series.rose_with(first, held.bytes) {
            return None;
        }
        let onset_step = line.onset(first, gap_max);
        if line.has_stopped(onset_step) {
            return None;
        }
        let onset_age_steps = onset_step.saturating_sub(series.first_step);
        // What is kept at the same rate all the time is no state that is built up.
        let is_setup = onset_age_steps < SETUP_STEPS && !kept.is_steady;
        // A cache may fill at even distances, too.
        let may_fill = onset_age_steps < SETUP_STEPS && kept.gap > 0;
        let times = if is_setup || may_fill { SETUP_TIMES } else { 1 };
        let is_even = judged_steps >= EVEN_STEPS * times
            && kept.cohorts >= EVEN_COHORTS
            && !is_fewer
            && later_half >= all / 5 * 2;
        let left = series.left(Layer::Allocated);
        let is_near = in_bytes
            && is_near(left, line.grown(onset_step).bytes)
            && left.is_some_and(|left| to_come >= u128::from(left));
        let (rank, line, is_sure) = (key.0, look.id, is_even || is_near);
        let steps = kept.steps;
        let growing =
            Growing { rank, line, onset_step, held, steps, is_sure, ..Growing::default() };
        Some(Survivors { growing, judged_steps, onset_age_steps, is_setup, is_fewer })
    }

    /// Judges lines without survivors: their lowest totals must rise from quarter to quarter.
    fn judge_swelling(&self, look: &Look<'_, '_>, found: &mut BTreeMap<u32, Growing>) {
        let Look { there, id, from, span, .. } = look;
        let lows = |device: &Device| device.lines.get(id)?.totals.lows(*from, *span);
        let is_large =
            |lows: [u64; 4]| lows[3].saturating_sub(lows[0]) >= KEPT_BYTES_MIN.max(lows[0]);
        if !there.iter().any(|(_, device)| lows(device).is_some_and(is_large)) {
            return;
        }
        // Totals of other ranks that swing as far show that the rise is not this rank's own.
        let swing =
            |device: &Device| device.lines.get(id).map_or(0, |line| line.totals.swing(*from));
        let swings = sorted(there.iter().map(|(_, device)| swing(device)));
        for (key, device) in there {
            let Some(line) = device.lines.get(id) else { continue };
            let Some(lows) = lows(device).filter(|lows| is_large(*lows)) else { continue };
            if found.contains_key(&key.0) || !line.is_user_code || !swells(line, device, look, lows)
            {
                continue;
            }
            let bytes = lows[3] - lows[0];
            let is_own = is_own(&swings, look.absent, swing(device), bytes);
            let Some(series) = self.series.get(key) else { continue };
            if !series.rose_with(*from, bytes) {
                continue;
            }
            let onset_step = line.totals.rises_since(*from, span / 4);
            if line.has_stopped(onset_step) {
                continue;
            }
            // The lowest totals lie three quarters of the span apart.
            let steps = (*span / 4 * 3).max(1);
            let is_near = is_near(series.left(Layer::Allocated), line.grown(onset_step).bytes);
            // What rises at one rate is no state that is built up, if it is replaced each time.
            let is_replaced = line.kept(*from, from + span / 2).held.bytes < bytes / 8;
            let is_steady = line.totals.low_points(*from, *span).is_some_and(is_steady);
            let setup_times = if is_steady && is_replaced { 1 } else { SETUP_TIMES };
            let is_setup = onset_step.saturating_sub(series.first_step) < SETUP_STEPS
                && *span < setup_times * NOTICE_STEPS;
            // A line that was level before it rose is no ring that fills for the first time.
            let was_level = line.totals.is_level(onset_step, span / 2, bytes / LEVEL_DIVISOR);
            if (look.is_early && !is_own && !was_level) || (is_setup && !is_near) {
                continue;
            }
            let is_even = is_own && !is_setup && *span >= EVEN_STEPS;
            let (held, is_sure) = (Held { bytes, count: 0 }, is_near || is_even);
            let (rank, line) = (key.0, *id);
            let of = Growing { rank, line, onset_step, held, steps, ..Growing::default() };
            found.insert(rank, Growing { is_own, is_sure, ..of });
        }
    }

    /// Finds garbage: what is collected less and less often, or takes much of the device until it
    /// is collected.
    fn garbage(&self, key: (u32, u8), device: &Device, id: LineId) -> Option<Growing> {
        let line = device.lines.get(&id).filter(|line| line.is_user_code)?;
        let bytes = line.totals.newest();
        let (before_step, collected_step) = line.collected_steps;
        let much = self.series.get(&key)?.device_bytes / GARBAGE_DIVISOR;
        let is_much = line.collections >= COLLECTIONS_MIN
            && (1..=line.collected_bytes).contains(&much)
            && device.step.saturating_sub(collected_step) <= line.life_steps.saturating_mul(2);
        let onset_step = match line.longer >= LONGER_MIN {
            true => device.step.saturating_sub(line.life_steps),
            false if is_much => line.kept(before_step, u64::MAX).first.min(device.step),
            false => return None,
        };
        (bytes >= KEPT_BYTES_MIN).then_some(Growing {
            rank: key.0,
            line: id,
            onset_step,
            held: Held { bytes, count: 0 },
            steps: device.step.saturating_sub(onset_step).max(1),
            is_garbage: true,
            collections: line.collections,
            ..Growing::default()
        })
    }
}

/// The step at which three quarters of the ranks have been counted; the newest of all where that is
/// long ago. `steps` are the newest steps of all ranks, in ascending order.
fn common_step(steps: &[u64]) -> Option<u64> {
    let (common, newest) = (*steps.get(steps.len() / 4)?, *steps.last()?);
    Some(if newest - common < STOPPED_STEPS { common } else { newest })
}

/// Do these lowest totals rise at one rate?
fn is_steady(lows: [Point; 4]) -> bool {
    let rate = |pair: &[Point]| {
        let steps = pair[1].step.saturating_sub(pair[0].step).max(1);
        pair[1].low.saturating_sub(pair[0].low) / steps
    };
    let rates = || lows.windows(2).map(&rate);
    let [slowest, fastest] = [rates().min(), rates().max()].map(Option::unwrap_or_default);
    is_one_rate(slowest, fastest)
}

/// Do the lowest totals of the quarters rise up to the end, with few falls between?
fn swells(line: &Line, device: &Device, look: &Look<'_, '_>, lows: [u64; 4]) -> bool {
    let rises = lows.windows(2).all(|pair| pair[0] < pair[1]);
    let goes_on = rises && lows[3] - lows[2] >= (lows[1] - lows[0]) / 2;
    let totals = || line.totals.since(look.from);
    let pairs = totals().zip(totals().skip(1));
    let falls = pairs.filter(|(before, now)| now.low < before.low).count();
    let first = totals().filter(|point| point.step < look.from + look.span / 4);
    let high = first.map(|point| point.high).max().unwrap_or(0);
    // The work of a step may have become larger, and the line with it.
    let works = device.works.lows(look.from, look.span).unwrap_or_default();
    let beside = works[3].saturating_sub(lows[3] - lows[0]);
    let is_work = works[0] > 0 && beside >= works[0].saturating_add(works[0] / 4);
    goes_on && lows[3] > high && !is_work && falls < totals().count().div_ceil(8)
}

fn is_enough(kept: &Kept) -> bool {
    let is_much = in_bytes(kept.held) || kept.held.count >= KEPT_COUNT_MIN;
    is_much && kept.cohorts >= COHORTS_MIN
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// Is `amount` at least [`OWN_TIMES`] times the upper quartile of the peers? `own` is the rank's
/// value in `sorted`; `absent` further values are 0.
fn is_own(sorted: &[u64], absent: usize, own: u64, amount: u64) -> bool {
    let Some(others) = (sorted.len() + absent).checked_sub(2) else { return false };
    let value = |at: usize| match at.checked_sub(absent) {
        Some(at) => sorted.get(at).copied(),
        None => Some(0),
    };
    let at = others * 3 / 4;
    let quartile =
        if value(at).is_some_and(|value| own > value) { value(at) } else { value(at + 1) };
    quartile.is_some_and(|quartile| amount >= quartile.saturating_mul(OWN_TIMES))
}

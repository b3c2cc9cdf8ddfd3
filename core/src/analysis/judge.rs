//! Does memory stay that should not? Rank by rank, from what its stacks keep.
//!
//! Picture a hotel that is asked whether guests fail to leave. Guests of every one of the last
//! nights are in the house, of the same party (births under one stack); no others left instead
//! (the stack keeps more than before); they stay longer than any of the party ever did (the oldest
//! is older than what went); and in the quietest hour of each night there are more
//! people in it than the night before (the floors rise). One of these alone is ordinary.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::view::{Kept, View, signed};

/// Steps of the trace in which blocks must have been born that are alive now.
const GENERATIONS_MIN: usize = 4;

/// The same when there are many more of them that are older: a trace may hold few steps.
const GENERATIONS_SHORT_MIN: usize = 2;

/// Older blocks of the same stack, for each step's worth of young ones.
const OLDER_STEPS_MIN: u64 = 6;

/// Growth of less than this in a step is no leak, unless it has become a lot: a number that is
/// kept for the log takes 512 bytes.
const RATE_BYTES_MIN: u64 = 4 << 10;

/// Bytes that make a lot.
const HELD_BYTES_MIN: u64 = 16 << 20;

/// Share of the growth of the stacks by which the floors must rise, in percent. Less means that
/// something else shrinks instead: a buffer that is handed on, a cache at its limit.
const FLOOR_PERCENT_MIN: i64 = 40;

/// Where steps are guessed, memory must come and go in each by this many times what stays, or
/// the steps may be layers of one.
const SWING_MIN: u64 = 4;

/// What one rank keeps that it should not.
#[derive(Clone, Debug, Default)]
pub(super) struct Leak {
    /// Stacks that keep blocks of all ages, largest growth first.
    pub(super) stacks: Vec<u32>,
    /// Bytes by which they grew since the moment before.
    pub(super) grown: u64,
    /// Bytes of their blocks that were born since.
    pub(super) young: u64,
    /// Bytes they hold, of whatever age.
    pub(super) held: u64,
    /// Steps from the first birth to the last.
    pub(super) steps: u64,
    /// Older blocks of these stacks, for each step's worth of young ones: as many steps they may
    /// be from.
    pub(super) older_steps: u64,
    /// First step with a birth.
    pub(super) onset_step: u64,
    /// Steps with births that are alive.
    pub(super) generations: u64,
    /// By how much the lowest level rose for each byte of growth, in percent; none when unknown.
    pub(super) floor_percent: Option<i64>,
}

impl Leak {
    /// Bytes a step.
    pub(super) fn rate(&self) -> u64 {
        self.young / self.steps.max(1)
    }

    /// It is worth being told.
    pub(super) fn matters(&self) -> bool {
        self.grown > 0 && (self.rate() >= RATE_BYTES_MIN || self.held >= HELD_BYTES_MIN)
    }
}

/// What this rank keeps that it should not; none when it keeps nothing.
pub(super) fn leak(view: &View<'_>, kept: &BTreeMap<u32, Kept>) -> Option<Leak> {
    let mut found: Vec<(u32, &Kept)> =
        kept.iter().filter(|(_, held)| stays(view, held)).map(|(&s, held)| (s, held)).collect();
    found.sort_by(|a, b| b.1.grown.cmp(&a.1.grown).then(a.0.cmp(&b.0)));
    let births: BTreeSet<u64> = found.iter().flat_map(|(_, k)| k.births.iter().copied()).collect();
    let onset_step = *births.first()?;
    let last_step = births.last().copied().unwrap_or(onset_step);
    let sum = |of: fn(&Kept) -> u64| found.iter().fold(0, |s: u64, (_, k)| s.saturating_add(of(k)));
    let young = sum(|held| held.fresh_blocks);
    let older = sum(|held| held.older_blocks);
    let mut leak = Leak {
        stacks: found.iter().map(|&(stack, _)| stack).collect(),
        grown: sum(|held| held.grown.unsigned_abs()),
        young: sum(|held| held.fresh_bytes),
        held: sum(|held| held.bytes),
        steps: last_step - onset_step + 1,
        older_steps: older.saturating_mul(births.len() as u64) / young.max(1),
        onset_step,
        generations: births.len() as u64,
        floor_percent: None,
    };
    leak.floor_percent = floor_percent(view, &leak);
    let is_balanced = leak.floor_percent.is_some_and(|percent| percent < FLOOR_PERCENT_MIN);
    (!is_balanced && is_of_a_step(view, leak.rate())).then_some(leak)
}

/// Blocks of all ages stay, and more of them than before.
fn stays(view: &View<'_>, held: &Kept) -> bool {
    let steps = view.steps();
    let (Some(&first), Some(&last)) = (held.births.first(), held.births.last()) else {
        return false;
    };
    // It goes on: something was kept in the last quarter, too.
    let goes_on = last.saturating_add(steps / 4 + 1) >= view.step;
    let grew = held.grown > 0 && held.grown >= signed(held.fresh_bytes / 2);
    if !goes_on || !grew {
        return false;
    }
    // A buffer that is handed on, or emptied now and then: what is alive is no older than what
    // went before.
    let age = view.step.saturating_sub(first);
    if held.lived > 0 && age <= held.lived + (held.lived / 4).max(1) {
        return false;
    }
    let generations = held.births.len();
    if generations >= GENERATIONS_MIN {
        // What is in flight lives in neighbouring steps only, at the end.
        return first.saturating_sub(view.before_step) <= steps / 2
            || generations >= 2 * GENERATIONS_MIN;
    }
    let a_step = held.fresh_blocks.div_ceil(generations.max(1) as u64);
    generations >= GENERATIONS_SHORT_MIN
        && generations as u64 >= steps
        && held.older_blocks >= OLDER_STEPS_MIN * a_step
}

/// By how much the floors rose for what the stacks grew, in percent.
fn floor_percent(view: &View<'_>, leak: &Leak) -> Option<i64> {
    let rise = |from: u64, to: u64| i128::from(to) - i128::from(from);
    let percent = |rise: i128, of: i128| i64::try_from(rise * 100 / of.max(1)).unwrap_or(i64::MAX);
    if view.earlier > 0 {
        let risen = rise(view.before_allocated, view.device.allocated);
        return Some(percent(risen, i128::from(leak.grown)));
    }
    let (floors, _) = view.levels();
    // The lowest of several steps, so that what comes and goes over some of them does not count.
    let late = floors.len().saturating_sub((floors.len() / 3).max(2));
    let lowest = |part: &[u64], from: usize| {
        let numbered = part.iter().copied().zip(from..);
        numbered.min_by_key(|&(floor, at)| (floor, at))
    };
    let (first, last) = (floors.get(..floors.len() / 2)?, floors.get(late..)?);
    let ((from, from_at), (to, to_at)) = (lowest(first, 0)?, lowest(last, late)?);
    let step_at = |at: usize| view.before_step.saturating_add(at as u64);
    let since = leak.onset_step.max(step_at(from_at));
    let share = u128::from(leak.young) * u128::from(step_at(to_at).saturating_sub(since))
        / u128::from(leak.steps.max(1));
    let share = i128::try_from(share).ok().filter(|&share| share > 0)?;
    Some(percent(rise(from, to), share))
}

/// Memory comes and goes in each step; without that a guessed step is none.
fn is_of_a_step(view: &View<'_>, rate: u64) -> bool {
    if view.earlier > 0 || view.device.trace.source.is_known() {
        return true;
    }
    let (floors, peaks) = view.levels();
    let mut swings: Vec<u64> =
        floors.iter().zip(peaks).map(|(floor, peak)| peak.saturating_sub(*floor)).collect();
    swings.sort_unstable();
    let typical = swings.get(swings.len() / 2).copied().unwrap_or_default();
    typical >= rate.saturating_mul(SWING_MIN)
}

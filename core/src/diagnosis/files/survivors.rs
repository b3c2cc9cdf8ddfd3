//! Which stacks of a rank keep memory that should not stay, by its files.
//!
//! Four signs together: blocks of every one of the last steps live under one stack; the stack keeps
//! more than before; the oldest of its blocks is older than any of it that went; and the per-step
//! minima rise. One of these alone is ordinary.

use alloc::vec::Vec;

use super::aligned::Aligned;
use crate::diagnosis::constants::{
    GENERATIONS_MIN, HELD_BYTES_MIN, MINIMA_PERCENT_MIN, PASSING_STEPS, RATE_BYTES_MIN,
};
use crate::diagnosis::evidence::account::{Use, median, signed, unsigned};
use crate::diagnosis::evidence::births::Births;

/// What one rank keeps that it should not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survivors {
    /// Stacks that keep blocks of every age, largest growth first.
    pub(crate) stacks: Vec<u32>,
    /// Bytes by which they grew.
    pub(crate) grown: u64,
    /// Bytes of their blocks that were born since.
    pub(crate) young: u64,
    /// Bytes they hold, of whatever age.
    pub(crate) held: u64,
    /// Steps from the first birth to the last.
    pub(crate) steps: u64,
    /// Older blocks of these stacks, for each step's worth of young ones: as many steps they may
    /// be from.
    pub(crate) older_steps: u64,
    /// First step with a birth.
    pub(crate) onset_step: u64,
    /// Steps with births that are alive.
    pub(crate) generations: u64,
    /// How the lowest level rose; none when unknown.
    pub(crate) minima: Option<Minima>,
}

/// How the per-step minima rose; of several states, what was allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Minima {
    /// Bytes more at the later step.
    pub(crate) risen: i64,
    /// Steps from the one to the other.
    pub(crate) steps: u64,
    /// The rise for what the stacks grew in these steps, in percent.
    percent: i64,
}

impl Survivors {
    /// Bytes a step.
    pub(crate) fn rate(&self) -> u64 {
        self.young / self.steps.max(1)
    }

    /// Is it worth a verdict?
    pub(crate) fn matters(&self) -> bool {
        self.grown > 0 && (self.rate() >= RATE_BYTES_MIN || self.held >= HELD_BYTES_MIN)
    }
}

/// What this rank keeps that it should not; none when it keeps nothing.
pub(crate) fn survivors(of: &Aligned<'_>) -> Option<Survivors> {
    let kept = &of.kept;
    let mut found: Vec<(u32, &Use)> =
        kept.iter().map(|(&stack, held)| (stack, held)).filter(|&each| stays(of, each)).collect();
    found.sort_by(|a, b| b.1.grown.bytes.cmp(&a.1.grown.bytes).then(a.0.cmp(&b.0)));
    let mut births = Births::default();
    found.iter().for_each(|(_, held)| births.merge(&held.births));
    let births: Vec<(u64, u64)> =
        of.fresh_births(&births).map(|(step, born)| (step, born.bytes)).collect();
    let (&(onset_step, _), &(last_step, _)) = births.first().zip(births.last())?;
    // What was kept at a step is of the steps up to the next one, also the last of them.
    let span = last_step - onset_step;
    let distance = span.checked_div((births.len() as u64).saturating_sub(1)).unwrap_or(1);
    let sum = |of: fn(&Use) -> u64| found.iter().fold(0, |s: u64, (_, k)| s.saturating_add(of(k)));
    let young = sum(|held| unsigned(held.fresh.blocks));
    let older = sum(|held| held.births.older_blocks());
    let young_bytes = sum(|held| unsigned(held.fresh.bytes)).saturating_sub(passing(&births));
    let mut kept_on = Survivors {
        stacks: found.iter().map(|&(stack, _)| stack).collect(),
        grown: sum(|held| unsigned(held.grown.bytes)).min(young_bytes),
        young: young_bytes,
        held: sum(|held| held.bytes),
        steps: span + distance,
        older_steps: older.saturating_mul(births.len() as u64) / young.max(1),
        onset_step,
        generations: births.len() as u64,
        minima: None,
    };
    kept_on.minima = minima(of, &kept_on);
    let is_balanced = kept_on.minima.is_some_and(|minima| minima.percent < MINIMA_PERCENT_MIN);
    (!is_balanced && is_of_a_step(of, kept_on.rate())).then_some(kept_on)
}

/// Bytes of the last steps beyond those of an ordinary one: they pass through, where one stack has
/// blocks that stay and others that do not, as what has no stack does.
fn passing(births: &[(u64, u64)]) -> u64 {
    let bytes: Vec<u64> = births.iter().map(|&(_, bytes)| bytes).collect();
    let last = bytes.len().saturating_sub(PASSING_STEPS as usize);
    let (others, last) = bytes.split_at(last);
    if others.len() < GENERATIONS_MIN as usize {
        return 0;
    }
    let ordinary = median(others.to_vec());
    last.iter().fold(0, |sum: u64, bytes| sum.saturating_add(bytes.saturating_sub(ordinary)))
}

/// Blocks of all ages stay, and more of them than before.
fn stays(of: &Aligned<'_>, (stack, held): (u32, &Use)) -> bool {
    let steps = of.steps();
    let mut births = of.fresh_births(&held.births).map(|(step, _)| step);
    let generations = births.clone().count() as u64;
    let Some(first) = births.next() else { return false };
    let last = births.next_back().unwrap_or(first);
    // It goes on: something was kept in the last quarter, too.
    let goes_on = last.saturating_add(steps / 4 + 1) >= of.step;
    let grew = held.grown.bytes > 0 && held.grown.bytes >= held.fresh.bytes / 2;
    if !goes_on || !grew {
        return false;
    }
    // A buffer that is handed on, or emptied now and then: what is alive is no older than what
    // went before.
    let age = of.step.saturating_sub(first);
    let lived = of.past().lived.get(&stack).copied().unwrap_or_default();
    if lived > 0 && age <= lived + (lived / 4).max(1) {
        return false;
    }
    if generations >= GENERATIONS_MIN {
        // What is in flight lives in neighbouring steps only, at the end.
        return first.saturating_sub(of.before_step) <= steps / 2
            || generations >= 2 * GENERATIONS_MIN;
    }
    let a_step = unsigned(held.fresh.blocks).div_ceil(generations.max(1));
    // A trace may hold few steps: then there are many more blocks that are older.
    generations >= 2 && generations >= steps && held.births.older_blocks() >= 6 * a_step
}

/// How the per-step minima rose, and for how much of what the stacks grew.
fn minima(of: &Aligned<'_>, kept_on: &Survivors) -> Option<Minima> {
    let rise = |(from, to): (u64, u64), steps: u64, grown: u64| {
        let risen = signed(to).saturating_sub(signed(from));
        let percent = i128::from(risen) * 100 / i128::from(grown.max(1));
        Minima { risen, steps, percent: i64::try_from(percent).unwrap_or(i64::MAX) }
    };
    if of.earlier > 0 {
        let levels = (of.before_allocated, of.device.state.allocated);
        return Some(rise(levels, of.steps(), kept_on.grown));
    }
    let (floors, _) = of.levels();
    // What is freed behind the last step says nothing of what the steps keep.
    let floors =
        floors.split_last().map_or(floors, |(_, rest)| if rest.len() > 3 { rest } else { floors });
    // The lowest of several steps, so that what comes and goes over some of them does not count.
    let late = floors.len().saturating_sub((floors.len() / 3).max(2));
    let lowest = |part: &[u64], from: usize| {
        let numbered = part.iter().copied().zip(from..);
        numbered.min_by_key(|&(floor, at)| (floor, at))
    };
    let (first, last) = (floors.get(..floors.len() / 2)?, floors.get(late..)?);
    let ((from, from_at), (to, to_at)) = (lowest(first, 0)?, lowest(last, late)?);
    let step_at = |at: usize| of.before_step.saturating_add(at as u64);
    let since = kept_on.onset_step.max(step_at(from_at));
    let share = u128::from(kept_on.young) * u128::from(step_at(to_at).saturating_sub(since))
        / u128::from(kept_on.steps.max(1));
    let share = u64::try_from(share).ok().filter(|&share| share > 0)?;
    Some(rise((from, to), step_at(to_at).saturating_sub(step_at(from_at)), share))
}

/// Memory comes and goes in each step; without that a guessed step is none.
pub(crate) fn is_of_a_step(of: &Aligned<'_>, rate: u64) -> bool {
    if of.earlier > 0 || of.past().source.is_known() {
        return true;
    }
    let (floors, peaks) = of.levels();
    let mut swings: Vec<u64> =
        floors.iter().zip(peaks).map(|(floor, peak)| peak.saturating_sub(*floor)).collect();
    swings.sort_unstable();
    let typical = swings.get(swings.len() / 2).copied().unwrap_or_default();
    typical >= rate.saturating_mul(4)
}

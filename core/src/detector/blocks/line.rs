//! The blocks of one line on one device: its cohorts, and when the cohorts lost blocks.

use alloc::collections::BTreeMap;

use crate::census::{LineCensus, cohort};
use crate::snapshot::Held;
use crate::snapshot::frames::is_user_frame;

use super::super::constants::{
    COHORTS_MIN, EVEN_COHORTS, KEPT_BYTES_MIN, KEPT_COUNT_MIN, LOSS_PERCENT, PAUSE_TIMES,
    SETTLED_STEPS,
};
use super::totals::Totals;

/// A collection leaves at most this part of what had gathered: what is still referred to.
const LEFT_DIVISOR: u64 = 8;

/// Totals are judged this far back, in steps.
pub(super) const LOOK_BACK_STEPS: u64 = 2_048;

#[derive(Debug, Default)]
pub(super) struct Line {
    cohorts: BTreeMap<u64, Cohort>,
    /// Step of the newest census.
    pub(super) step: u64,
    /// The line's bytes at each census.
    pub(super) totals: Totals,
    /// Step since which the line is known, and what it held then.
    known: (u64, Held),
    /// Newest step at which the line held something.
    pub(super) held_step: u64,
    /// A frame of the user's code identifies the line.
    pub(super) is_user_code: bool,
    /// Oldest age at which blocks were freed, in steps.
    pub(super) life_steps: u64,
    /// Number of times that `life_steps` rose by a tenth and the highest total by a third.
    pub(super) longer: u32,
    /// The highest total before the last of those times, in bytes.
    high_bytes: u64,
    /// Number of times that nearly all of the line was freed at once, after it had gathered over
    /// some time; the bytes that went the last time, and the steps of the censuses before and
    /// after it.
    pub(super) collections: u32,
    pub(super) collected_bytes: u64,
    pub(super) collected_steps: (u64, u64),
}

#[derive(Clone, Copy, Debug, Default)]
struct Cohort {
    held: Held,
    /// Most bytes of the cohort since it last lost some.
    most_bytes: u64,
}

/// What a line still holds of the births in a range of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kept {
    pub(super) held: Held,
    pub(super) cohorts: usize,
    /// The part that was born in the later half of the time since the first birth.
    pub(super) later: Held,
    /// Number of blocks born in that part. Of the cohort that spans the middle its share counts.
    pub(super) later_count: u64,
    /// Step of the first birth, and of the end of the last cohort.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Each cohort kept about as many bytes for each step until the first birth of the next one.
    pub(super) is_steady: bool,
    /// Longest time without a birth, up to the end of the range.
    pub(super) gap: u64,
    /// Steps whose births `held` counts: the last cohort may reach beyond the range.
    pub(super) steps: u64,
}

impl Line {
    /// Creates a line at its first census. `before_step` is the step of an earlier census, in which
    /// the line held nothing.
    pub(super) fn new(before_step: Option<u64>, step: u64, of: &LineCensus) -> Self {
        let mut line = Self { known: (step, of.held()), ..Self::default() };
        if let Some(before_step) = before_step {
            line.known = (before_step, Held::default());
            line.totals.add(before_step, 0);
        }
        line
    }

    /// Takes a newer census. Returns the oldest age at which blocks were freed since the census
    /// before, in steps; 0 when none were.
    pub(super) fn take(&mut self, step: u64, of: &LineCensus) -> u64 {
        let mut life_steps = 0;
        // Cohorts are merged as they age: divides the earlier ones as the present ones are divided.
        let mut before: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (birth, known) in &self.cohorts {
            let most = before.entry(cohort::start(step, *birth)).or_insert((*birth, 0));
            most.1 = most.1.saturating_add(known.most_bytes);
        }
        let now = of.cohorts.iter().map(|(birth, held)| (*birth, *held));
        let now: BTreeMap<u64, (u64, Held)> =
            now.map(|(birth, held)| (cohort::start(step, birth), (birth, held))).collect();
        let cohorts = self.cohorts.len();
        for (start, (birth, most)) in &mut before {
            let left = now.get(start).map_or(0, |(_, held)| held.bytes);
            let lost = most.saturating_sub(left);
            if lost > 0 && lost >= (*most / 100).saturating_mul(LOSS_PERCENT) {
                life_steps = life_steps.max(step.saturating_sub(*birth));
                *most = left;
            }
        }
        let cohort = |(start, (birth, held)): (&u64, &(u64, Held))| {
            let most = before.get(start).map_or(0, |(_, most)| *most);
            (*birth, Cohort { held: *held, most_bytes: most.max(held.bytes) })
        };
        self.cohorts = now.iter().map(cohort).collect();
        // What was born since the census before is no part of what had gathered.
        let left = self.cohorts.range(..self.step).map(|(_, of)| of.held.bytes);
        let (gathered, left) = (self.totals.newest(), left.fold(0, u64::saturating_add));
        let is_old = cohorts >= COHORTS_MIN && life_steps >= 2 * SETTLED_STEPS;
        if is_old && gathered >= KEPT_BYTES_MIN && left <= gathered / LEFT_DIVISOR {
            self.collections = self.collections.saturating_add(1);
            self.collected_bytes = gathered - left;
            self.collected_steps = (self.step, step);
        }
        self.step = step;
        let is_longer = life_steps >= 2 * SETTLED_STEPS
            && life_steps > self.life_steps.saturating_add(self.life_steps / 10);
        if is_longer {
            // A ring that is refilled at random holds ever older blocks, but no more of them.
            let high_bytes = self.totals.highest(step.saturating_sub(life_steps));
            if high_bytes > self.high_bytes.saturating_add(self.high_bytes / 3) {
                self.longer = self.longer.saturating_add(1);
                self.high_bytes = high_bytes;
            }
        }
        self.life_steps = life_steps.max(self.life_steps);
        self.totals.add(step, of.held().bytes);
        self.is_user_code = of.frames.first().is_some_and(is_user_frame);
        if !of.cohorts.is_empty() {
            self.held_step = step;
        }
        life_steps
    }

    /// Can the line grow at all? Most cannot: parameters are one cohort, activations are freed.
    pub(super) fn may_grow(&self) -> bool {
        let lowest = self.totals.lowest(self.step.saturating_sub(LOOK_BACK_STEPS));
        let least = lowest.max(KEPT_BYTES_MIN / 2);
        self.cohorts.len() >= COHORTS_MIN || self.totals.newest() >= least.saturating_mul(2)
    }

    /// Sums up the live blocks that were born in `from..to`.
    pub(super) fn kept(&self, from: u64, to: u64) -> Kept {
        let births = || self.cohorts.range(from..to.max(from));
        let first = births().next().map_or(to, |(birth, _)| *birth);
        let middle = first.midpoint(to);
        let mut kept = Kept { first, ..Kept::default() };
        let mut end = u64::MAX;
        let (mut slowest, mut fastest, mut before) = (u64::MAX, 0, None::<(u64, u64)>);
        for (birth, cohort) in births() {
            kept.gap = kept.gap.max(birth.saturating_sub(end));
            end = cohort::end(self.step, *birth);
            kept.held = kept.held.plus(cohort.held);
            kept.cohorts += 1;
            // Growth may begin within the first cohort, and the last one may be under way.
            if let Some((start, bytes)) = before.filter(|(start, _)| *start > first) {
                let rate = bytes / birth.saturating_sub(start).max(1);
                (slowest, fastest) = (rate.min(slowest), rate.max(fastest));
            }
            before = Some((*birth, cohort.held.bytes));
            if *birth >= middle {
                kept.later = kept.later.plus(cohort.held);
                kept.later_count = kept.later_count.saturating_add(cohort.held.count);
            } else if end > middle {
                let (late, steps) = (end - middle, end.saturating_sub(*birth).max(1));
                let share = u128::from(cohort.held.count) * u128::from(late) / u128::from(steps);
                kept.later_count = u64::try_from(share).unwrap_or(cohort.held.count);
            }
        }
        // A few even stairs may be the stages of a recipe, as layers that are thawed in turn.
        let cohorts_min = if kept.gap > 0 { EVEN_COHORTS } else { COHORTS_MIN + 2 };
        kept.is_steady = kept.cohorts >= cohorts_min && is_one_rate(slowest, fastest);
        kept.gap = kept.gap.max(to.saturating_sub(end));
        kept.steps = end.min(self.step).max(to).saturating_sub(first).max(1);
        Kept { last: end.min(to), ..kept }
    }

    /// Did the line rise, since `first` or since it is known, by at least half of what it keeps of
    /// the births since then? Else new blocks replaced old ones.
    pub(super) fn has_risen(&self, first: u64, kept: Held) -> bool {
        let (known_step, known) = self.known;
        let in_bytes = in_bytes(kept);
        if first >= known_step {
            let risen = self.totals.newest().saturating_sub(self.totals.at(first));
            return !in_bytes || risen >= kept.bytes / 2;
        }
        let fresh = self.kept(known_step, u64::MAX).held;
        let now = self.cohorts.values().fold(Held::default(), |sum, of| sum.plus(of.held));
        let (fresh, now, known, least) = match in_bytes {
            true => (fresh.bytes, now.bytes, known.bytes, KEPT_BYTES_MIN),
            false => (fresh.count, now.count, known.count, KEPT_COUNT_MIN),
        };
        fresh >= least && now.saturating_sub(known) >= fresh / 2
    }

    /// What the line has grown by since a step: what it holds of the births since then, and no more
    /// bytes than its total has risen by, where that is known so far back.
    pub(super) fn grown(&self, since: u64) -> Held {
        let held = self.kept(since, u64::MAX).held;
        let risen = match since < self.known.0 {
            true => u64::MAX,
            false => self.totals.newest().saturating_sub(self.totals.at(since)),
        };
        Held { bytes: held.bytes.min(risen), ..held }
    }

    /// A step and what the line held at it: this one, or that since which the line is known.
    pub(super) fn level_at(&self, step: u64) -> (u64, u64) {
        let (known_step, known) = self.known;
        if step < known_step { (known_step, known.bytes) } else { (step, self.totals.at(step)) }
    }

    /// Has the line kept nothing for long, measured by its births since a step? Not known of a
    /// tensor that is replaced by a larger one: its earlier births are gone.
    pub(super) fn has_stopped(&self, since: u64) -> bool {
        let (mut end, mut gap, mut cohorts) = (u64::MAX, 0, 0);
        let births = self.cohorts.range(since..).map(|(birth, _)| *birth);
        // A variable keeps what the last step made until the next one.
        for birth in births.filter(|birth| cohort::is_old(self.step, *birth)) {
            gap = gap.max(birth.saturating_sub(end));
            end = cohort::end(self.step, birth).min(self.step);
            cohorts += 1;
        }
        let longest = gap.saturating_mul(PAUSE_TIMES).saturating_add(SETTLED_STEPS);
        cohorts >= COHORTS_MIN && self.step.saturating_sub(end) > longest
    }

    /// Finds the first of the births that lead up to `first` with gaps of at most `gap_max` steps.
    pub(super) fn onset(&self, first: u64, gap_max: u64) -> u64 {
        let mut onset = first;
        for birth in self.cohorts.range(..first).rev().map(|(birth, _)| *birth) {
            if onset.saturating_sub(cohort::end(self.step, birth)) > gap_max {
                break;
            }
            onset = birth;
        }
        onset
    }
}

/// Are these one rate? What is built up rises ever more slowly.
pub(super) fn is_one_rate(slowest: u64, fastest: u64) -> bool {
    slowest >= fastest / 4 * 3
}

/// Is growth of this size judged by its bytes? Else by the number of its blocks.
pub(super) fn in_bytes(held: Held) -> bool {
    held.bytes >= KEPT_BYTES_MIN
}

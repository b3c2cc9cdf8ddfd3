//! The states of one rank as one history: what each stack holds now, what it held before, and
//! what of it was born when.
//!
//! Steps are counted so that every rank ends at the same one, because ranks that train together
//! do; a trace alone has no number of its first step.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::history::{DeviceHistory, History};
use crate::diagnosis::evidence::account::{Stack, Use, uses};
use crate::diagnosis::evidence::births::{Births, Born};
use crate::diagnosis::evidence::past::{Past, StepMark};
use crate::snapshot::{Block, DeviceSnapshot, RankSnapshot, StackUse};

/// One device of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Aligned<'a> {
    pub(crate) rank: u32,
    pub(crate) history: &'a History,
    pub(crate) device: &'a DeviceHistory,
    /// Earlier states.
    pub(crate) earlier: usize,
    /// Birth of each block, counted as `step` is; 0 for one that is older than all that is known.
    births: Vec<u64>,
    /// Steps finished at the end.
    pub(crate) step: u64,
    /// Steps finished at the moment that is compared with; 0 when there is none.
    pub(crate) before_step: u64,
    /// The mark of the trace for it; none when it is an earlier state.
    mark: Option<usize>,
    /// What each stack held then.
    before: Vec<StackUse>,
    /// Bytes that were allocated then.
    pub(crate) before_allocated: u64,
    /// What each stack keeps.
    pub(crate) kept: BTreeMap<u32, Use>,
}

/// These devices, with the earlier states of each, at the same step.
pub(crate) fn aligned<'s, 'a: 's>(
    devices: impl Iterator<Item = (u32, &'s [&'a History], &'a DeviceHistory)>,
) -> Vec<Aligned<'a>> {
    let mut all: Vec<Aligned<'a>> =
        devices.filter_map(|(rank, states, device)| Aligned::new(rank, states, device)).collect();
    let step = all.iter().map(|one| one.step).max().unwrap_or(0);
    for one in &mut all {
        one.shift(step - one.step);
    }
    // All are compared with a moment that lies as far back.
    let single = |one: &&Aligned<'_>| one.earlier == 0 && one.device.past.ends > 0;
    let back = all.iter().filter(single).map(Aligned::steps_back_max).min().unwrap_or(0);
    for one in &mut all {
        if one.earlier == 0 {
            one.compare_with(back);
        }
        one.kept = one.keeps();
    }
    all
}

impl<'a> Aligned<'a> {
    fn new(rank: u32, states: &[&'a History], device: &'a DeviceHistory) -> Option<Self> {
        let (&history, earlier) = states.split_last()?;
        let mut one = Self {
            rank,
            history,
            device,
            earlier: earlier.len(),
            births: device.past.births.clone(),
            step: device.past.ends + 1,
            before_step: 0,
            mark: None,
            before: Vec::new(),
            before_allocated: 0,
            kept: BTreeMap::new(),
        };
        if !earlier.is_empty() {
            one.follow(earlier);
        }
        Some(one)
    }

    /// What happened.
    pub(crate) fn past(&self) -> &'a Past {
        &self.device.past
    }

    /// Dates blocks by the earlier states, and takes the oldest for the state before.
    fn follow(&mut self, earlier: &[&'a History]) {
        let mut step = 0;
        // Birth of each block that is alive, by what it is.
        let mut known: BTreeMap<(u64, u64, Stack<'a>), u64> = BTreeMap::new();
        let mut last: Option<(&History, u64)> = None;
        let mut births = Vec::new();
        for history in earlier.iter().copied().chain([self.history]) {
            let Some(device) = history.device(self.device.state.device) else { continue };
            let ends = device.past.ends;
            let before = step;
            step = match last {
                None => ends + 1,
                Some((last, step)) => step + steps_between(last, history, device),
            };
            // The trace's own counting, in ours; births from before the last state are known.
            let first = step.saturating_sub(ends + 1);
            let mut now = BTreeMap::new();
            births.clear();
            for (block, &birth) in device.state.blocks.iter().zip(&device.past.births) {
                let key = (block.address, block.size, history.stack(block.stack));
                let birth = match (known.get(&key), birth) {
                    (Some(&birth), 0) => birth,
                    (_, birth) if birth > 0 => first + birth,
                    _ => before,
                };
                births.push(birth);
                now.insert(key, birth);
            }
            known = now;
            if last.is_none() {
                self.before_step = step;
                self.before = translated(self.history, history, device);
                self.before_allocated = device.state.allocated;
            }
            last = Some((history, step));
        }
        (self.step, self.births) = (step, births);
    }

    /// Counts all steps from another one on.
    fn shift(&mut self, by: u64) {
        self.step += by;
        self.before_step += if self.before_step > 0 { by } else { 0 };
        self.births.iter_mut().filter(|birth| **birth > 0).for_each(|birth| *birth += by);
    }

    /// How many steps back the trace lets one look.
    fn steps_back_max(&self) -> u64 {
        match self.past().ends {
            // Few are compared with their very beginning, others with the end of their first step,
            // where nothing is in flight; a young process warms up for a quarter of its steps.
            ends if ends < 5 => ends,
            ends if self.past().is_whole => ends - (ends / 4).max(1),
            ends => ends - 1,
        }
    }

    /// Takes the state that many steps ago for the one before.
    fn compare_with(&mut self, back: u64) {
        let past = self.past();
        if back == 0 || past.ends < back {
            return;
        }
        let mark = usize::try_from(past.ends - back).unwrap_or(0);
        self.mark = Some(mark);
        self.before_step = self.step - back;
        let Some(StepMark { uses, nameless }) = past.marks.get(mark) else { return };
        let mut before: BTreeMap<u32, StackUse> = uses.iter().map(|u| (u.stack, *u)).collect();
        // Blocks that are older than the trace and went since then: likely of the stacks that
        // ask for such sizes, as often as they do.
        for &(size, count) in nameless {
            let of_size = || past.born.iter().filter(move |born| born.1 == size);
            let all: u64 = of_size().map(|born| born.2).sum();
            for &(stack, _, born) in of_size() {
                let blocks = (u128::from(count) * u128::from(born)).div_ceil(u128::from(all));
                let blocks = u64::try_from(blocks).unwrap_or(u64::MAX).min(born);
                let held = before.entry(stack).or_insert(StackUse { stack, ..StackUse::default() });
                held.blocks = held.blocks.saturating_add(blocks);
                held.bytes = held.bytes.saturating_add(blocks.saturating_mul(size));
            }
        }
        self.before = before.into_values().collect();
    }

    /// Steps between the moment before and the end.
    pub(crate) fn steps(&self) -> u64 {
        if self.before_step == 0 { 0 } else { self.step - self.before_step }
    }

    /// The number that the program gives a step; none where the file numbers no steps.
    pub(crate) fn number(&self, step: u64) -> Option<u64> {
        let past = self.past();
        let number = past.last_step.saturating_add(step).saturating_sub(self.step);
        past.source.numbers_steps().then_some(number)
    }

    /// Lowest and highest levels of the steps since the moment before, of the trace.
    pub(crate) fn levels(&self) -> (&'a [u64], &'a [u64]) {
        let past = self.past();
        let Some(mark) = self.mark else { return (&[], &[]) };
        let of = |levels: &'a [u64]| levels.get(mark..).unwrap_or_default();
        (of(&past.floors), of(&past.peaks))
    }

    /// What each stack keeps.
    fn keeps(&self) -> BTreeMap<u32, Use> {
        let before = (self.before_step > 0).then_some(self.before.as_slice());
        uses(self.blocks(), before, |block| block.birth_step >= self.fresh_since())
    }

    /// The live blocks, with their births as steps are counted here.
    fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        let dated = self.device.state.blocks.iter().zip(&self.births);
        let live = dated.filter(|(block, _)| !block.pending);
        live.map(|(block, &birth_step)| Block { birth_step, ..*block })
    }

    /// Those of these births that lie behind the moment before; none without such a moment.
    pub(crate) fn fresh_births<'b>(
        &self,
        births: &'b Births,
    ) -> impl DoubleEndedIterator<Item = (u64, Born)> + Clone + 'b {
        births.since(self.fresh_since())
    }

    fn fresh_since(&self) -> u64 {
        if self.before_step > 0 { self.before_step } else { u64::MAX }
    }

    /// The frames of a stack.
    pub(crate) fn stack(&self, stack: u32) -> Stack<'a> {
        self.history.stack(stack)
    }

    /// The state as a capture would show it, with the one before it.
    ///
    /// Blocks without a birth are left out where others of their stack have one: they would look
    /// as if they had come all at once. What a stack held before is at most what it holds now:
    /// the two moments need not lie in the same part of a step, and what was in flight at the
    /// earlier one would hide what stays.
    pub(crate) fn snapshot(&self) -> RankSnapshot {
        let kept = &self.kept;
        let is_young = |stack: u32| {
            kept.get(&stack).is_some_and(|held| self.fresh_births(&held.births).nth(1).is_some())
        };
        let mut left_out: BTreeMap<u32, StackUse> = BTreeMap::new();
        let mut blocks = Vec::with_capacity(self.births.len());
        for (block, &birth_step) in self.device.state.blocks.iter().zip(&self.births) {
            if birth_step == 0 && !block.pending && is_young(block.stack) {
                let sum = left_out.entry(block.stack).or_default();
                (sum.bytes, sum.blocks) = (sum.bytes.saturating_add(block.size), sum.blocks + 1);
                continue;
            }
            blocks.push(Block { birth_step, ..*block });
        }
        let at_most = |before: &StackUse| {
            let held = kept.get(&before.stack)?;
            let out = left_out.get(&before.stack).copied().unwrap_or_default();
            let less = |sum: u64, now: u64, out: u64| sum.min(now).saturating_sub(out);
            Some(StackUse {
                bytes: less(before.bytes, held.bytes, out.bytes),
                blocks: less(before.blocks, held.blocks, out.blocks),
                ..*before
            })
        };
        let device = DeviceSnapshot {
            blocks,
            segments: self.device.state.segments.clone(),
            before: self.before.iter().filter_map(at_most).collect(),
            trace: Vec::new(),
            uuid: self.device.state.uuid.clone(),
            ..self.device.state
        };
        let mut snapshot = RankSnapshot {
            step: self.step,
            before_step: self.before_step,
            devices: alloc::vec![device],
            ..self.history.rank.clone()
        };
        snapshot.identity.rank = self.rank;
        snapshot
    }
}

/// Steps from one state to the next, as far as they are known; at least one.
pub(super) fn steps_between(earlier: &History, later: &History, device: &DeviceHistory) -> u64 {
    if earlier.is_recorded() && later.is_recorded() {
        return later.rank.step.saturating_sub(earlier.rank.step).max(1);
    }
    let past = &device.past;
    let before = earlier.device(device.state.device).map(|before| &before.past);
    let is_numbered = |past: &Past| past.source.numbers_steps();
    if let Some(before) = before.filter(|before| is_numbered(before) && is_numbered(past)) {
        return past.last_step.saturating_sub(before.last_step).max(1);
    }
    let (Some(from), Some(to), Some((first, last))) =
        (earlier.newest_us(), later.newest_us(), past.span_ns)
    else {
        return 1;
    };
    let passed_us = i128::from(to.saturating_sub(from).max(0));
    let span_us = i128::from((last.saturating_sub(first) / 1000).max(1));
    let steps = passed_us * i128::from(past.ends) / span_us;
    u64::try_from(steps).unwrap_or(1).clamp(1, 1 << 40)
}

/// What the stacks of another state held, by the numbers that this one has. Stacks that are in
/// the other one only have gone, and do not matter.
fn translated(to: &History, from: &History, device: &DeviceHistory) -> Vec<StackUse> {
    let numbered = (0..).zip(&to.rank.stacks).map(|(number, _)| (to.stack(number), number));
    let numbers: BTreeMap<Stack<'_>, u32> = numbered.collect();
    let known = from.held(device).into_iter().filter_map(|(frames, held)| {
        let &stack = numbers.get(&frames)?;
        Some(StackUse { stack, bytes: held.bytes, blocks: held.blocks })
    });
    known.collect()
}

//! The files of one rank as one history: what each stack holds now, what it held before, and
//! what of it was born when.
//!
//! Steps are counted so that every rank ends at the same one, because ranks that train together
//! do; a trace alone has no number of its first step.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::account::{Stack, signed};
use super::torch::look::{DeviceLook, Look, Mark};
use super::torch::walk::asked;
use crate::snapshot::{Block, DeviceSnapshot, RankSnapshot, StackUse};

/// The files of a rank.
#[derive(Clone, Debug, Default)]
pub struct Rank {
    /// Global rank.
    pub rank: u32,
    /// Its files, oldest first.
    pub looks: Vec<Look>,
}

/// What one stack keeps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kept {
    /// Live bytes and blocks now.
    pub(crate) bytes: u64,
    pub(crate) blocks: u64,
    /// Bytes more than before, as far as blocks born since make them up; below 0 it shrank.
    pub(crate) grown: i64,
    /// Blocks born since.
    pub(crate) fresh_blocks: u64,
    pub(crate) fresh_bytes: u64,
    /// Steps in which these were born.
    pub(crate) births: BTreeSet<u64>,
    /// Blocks whose birth is not known.
    pub(crate) older_blocks: u64,
    /// Ends of steps that a block of this stack has lived through that went.
    pub(crate) lived: u64,
}

/// One rank.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    pub(crate) rank: u32,
    pub(crate) look: &'a Look,
    pub(crate) device: &'a DeviceLook,
    /// Earlier files.
    pub(crate) earlier: usize,
    /// Birth of each block, counted as `step` is.
    births: Vec<u64>,
    /// Steps finished at the end.
    pub(crate) step: u64,
    /// Steps finished at the moment that is compared with; 0 when there is none.
    pub(crate) before_step: u64,
    /// The mark of the trace for it; none when it is an earlier file.
    mark: Option<usize>,
    /// What each stack held then.
    before: Vec<StackUse>,
    /// Bytes that were allocated then.
    pub(crate) before_allocated: u64,
    /// What each stack keeps.
    pub(crate) kept: BTreeMap<u32, Kept>,
}

/// The device of a file that holds most bytes.
pub fn primary_device(look: &Look) -> Option<&DeviceLook> {
    look.devices.iter().max_by_key(|device| device.allocated)
}

/// All ranks, at the same step.
pub(crate) fn views(ranks: &[Rank]) -> Vec<View<'_>> {
    let mut views: Vec<View<'_>> = ranks.iter().filter_map(View::new).collect();
    let step = views.iter().map(|view| view.step).max().unwrap_or(0);
    for view in &mut views {
        view.shift(step - view.step);
    }
    // All are compared with a moment that lies as far back.
    let single = |view: &&View<'_>| view.earlier == 0 && view.device.trace.ends > 0;
    let back = views.iter().filter(single).map(View::steps_back_max).min().unwrap_or(0);
    for view in &mut views {
        if view.earlier == 0 {
            view.compare_with(back);
        }
        view.kept = view.keeps();
    }
    views
}

impl<'a> View<'a> {
    fn new(rank: &'a Rank) -> Option<Self> {
        let (look, earlier) = rank.looks.split_last()?;
        let device = primary_device(look)?;
        let births = device.blocks.iter().map(|block| device.birth_step(block)).collect();
        let mut view = Self {
            rank: rank.rank,
            look,
            device,
            earlier: earlier.len(),
            births,
            step: device.trace.ends + 1,
            before_step: 0,
            mark: None,
            before: Vec::new(),
            before_allocated: 0,
            kept: BTreeMap::new(),
        };
        if !earlier.is_empty() {
            view.follow(earlier);
        }
        Some(view)
    }

    /// Dates blocks by the earlier files, and takes the oldest for the state before.
    fn follow(&mut self, earlier: &'a [Look]) {
        let mut step = 0;
        // Birth of each block that is alive, by what it is.
        let mut known: BTreeMap<(u64, u64, Stack<'a>), u64> = BTreeMap::new();
        let mut last: Option<(&Look, u64)> = None;
        for look in earlier.iter().chain([self.look]) {
            let Some(device) = look.devices.iter().find(|d| d.device == self.device.device) else {
                continue;
            };
            let ends = device.trace.ends;
            let before = step;
            step = match last {
                None => ends + 1,
                Some((last, step)) => step + steps_between(last, look, device),
            };
            // The trace's own counting, in ours; births from before the last file are known.
            let first = step.saturating_sub(ends + 1);
            let mut now = BTreeMap::new();
            for block in &device.blocks {
                let key = (block.address, block.size, stack_of(look, block.stack));
                let birth = match (known.get(&key), device.birth_step(block)) {
                    (Some(&birth), 0) => birth,
                    (_, birth) if birth > 0 => first + birth,
                    _ => before,
                };
                now.insert(key, birth);
            }
            known = now;
            if last.is_none() {
                self.before_step = step;
                self.before = translated(self.look, look, device);
                self.before_allocated = device.allocated;
            }
            last = Some((look, step));
        }
        self.step = step;
        let birth = |block: &Block| {
            let key = (block.address, block.size, stack_of(self.look, block.stack));
            known.get(&key).copied().unwrap_or_default()
        };
        self.births = self.device.blocks.iter().map(birth).collect();
    }

    /// Counts all steps from another one on.
    fn shift(&mut self, by: u64) {
        self.step += by;
        self.before_step += if self.before_step > 0 { by } else { 0 };
        self.births.iter_mut().filter(|birth| **birth > 0).for_each(|birth| *birth += by);
    }

    /// How many steps back the trace lets one look.
    fn steps_back_max(&self) -> u64 {
        let trace = &self.device.trace;
        match trace.ends {
            // Few are compared with their very beginning, others with the end of their first step,
            // where nothing is in flight; a young process warms up for a quarter of its steps.
            ends if ends < 5 => ends,
            ends if trace.is_whole => ends - (ends / 4).max(1),
            ends => ends - 1,
        }
    }

    /// Takes the state that many steps ago for the one before.
    fn compare_with(&mut self, back: u64) {
        let ends = self.device.trace.ends;
        if back == 0 || ends < back {
            return;
        }
        let mark = usize::try_from(ends - back).unwrap_or(0);
        self.mark = Some(mark);
        self.before_step = self.step - back;
        let Some(Mark { uses, nameless }) = self.device.trace.marks.get(mark) else { return };
        let mut before: BTreeMap<u32, StackUse> = uses.iter().map(|u| (u.stack, *u)).collect();
        // Blocks that are older than the trace and went since then: likely of the stacks that
        // ask for such sizes, as often as they do.
        for &(size, count) in nameless {
            let of_size = || self.device.trace.born.iter().filter(move |born| born.1 == size);
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

    /// Lowest and highest levels of the steps since the moment before, of the trace.
    pub(crate) fn levels(&self) -> (&'a [u64], &'a [u64]) {
        let trace = &self.device.trace;
        let Some(mark) = self.mark else { return (&[], &[]) };
        let of = |levels: &'a [u64]| levels.get(mark..).unwrap_or_default();
        (of(&trace.floors), of(&trace.peaks))
    }

    /// What each stack keeps.
    fn keeps(&self) -> BTreeMap<u32, Kept> {
        let mut kept: BTreeMap<u32, (Kept, i64)> = BTreeMap::new();
        for (block, &birth) in self.device.blocks.iter().zip(&self.births) {
            if block.pending {
                continue;
            }
            let (held, change) = kept.entry(block.stack).or_default();
            held.bytes = held.bytes.saturating_add(block.size);
            held.blocks += 1;
            *change = change.saturating_add(signed(self.now_bytes(block)));
            if birth == 0 {
                held.older_blocks += 1;
            } else if birth >= self.before_step && self.before_step > 0 {
                held.fresh_blocks += 1;
                held.fresh_bytes = held.fresh_bytes.saturating_add(block.size);
                held.births.insert(birth);
            }
        }
        for before in &self.before {
            let (_, change) = kept.entry(before.stack).or_default();
            *change = change.saturating_sub(signed(before.bytes));
        }
        let has_before = self.before_step > 0;
        for (stack, (held, change)) in &mut kept {
            held.lived = self.device.trace.lived.get(stack).copied().unwrap_or_default();
            held.grown = if has_before { (*change).min(signed(held.fresh_bytes)) } else { 0 };
        }
        kept.into_iter().map(|(stack, (held, _))| (stack, held)).collect()
    }

    /// A block as the sums before have it: those of the trace are rounded by us.
    fn now_bytes(&self, block: &Block) -> u64 {
        if self.mark.is_some() && block.birth_step > 0 { asked(block) } else { block.size }
    }

    /// The frames of a stack.
    pub(crate) fn stack(&self, stack: u32) -> Stack<'a> {
        stack_of(self.look, stack)
    }

    /// The state for the diagnosis.
    ///
    /// Blocks without a birth are left out where others of their stack have one: they would look
    /// as if they had come all at once. What a stack held before is at most what it holds now:
    /// the two moments need not lie in the same part of a step, and what was in flight at the
    /// earlier one would hide what stays.
    pub(crate) fn snapshot(&self) -> RankSnapshot {
        let kept = &self.kept;
        let is_young = |stack: u32| kept.get(&stack).is_some_and(|held| held.births.len() > 1);
        let mut left_out: BTreeMap<u32, StackUse> = BTreeMap::new();
        let mut blocks = Vec::with_capacity(self.device.blocks.len());
        for (block, &birth_step) in self.device.blocks.iter().zip(&self.births) {
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
            device: u8::try_from(self.device.device).unwrap_or(u8::MAX),
            allocated: self.device.allocated,
            reserved: self.device.space.reserved,
            blocks,
            segments: self.device.segments.clone(),
            before: self.before.iter().filter_map(at_most).collect(),
            complete: true,
            ..DeviceSnapshot::default()
        };
        let mut snapshot = RankSnapshot {
            step: self.step,
            before_step: self.before_step,
            devices: alloc::vec![device],
            frames: self.look.frames.clone(),
            stacks: self.look.stacks.clone(),
            stream_pools: self.look.stream_pools.clone(),
            ..RankSnapshot::default()
        };
        snapshot.identity.rank = self.rank;
        snapshot
    }
}

/// Steps from one file to the next, as far as they are known; at least one.
fn steps_between(earlier: &Look, later: &Look, device: &DeviceLook) -> u64 {
    if let (Some(from), Some(to)) = (earlier.origin.step, later.origin.step) {
        return to.saturating_sub(from).max(1);
    }
    let trace = &device.trace;
    let before = earlier.devices.iter().find(|found| found.device == device.device);
    let numbers = before.and_then(|before| before.trace.last_number).zip(trace.last_number);
    if let Some((from, to)) = numbers {
        return to.saturating_sub(from).max(1);
    }
    let (Some(from), Some(to), Some((first, last))) =
        (earlier.newest_us, later.newest_us, trace.span_us)
    else {
        return 1;
    };
    let (passed, span) = (to.saturating_sub(from).max(0), last.saturating_sub(first).max(1));
    let steps = i128::from(passed) * i128::from(trace.ends) / i128::from(span);
    u64::try_from(steps).unwrap_or(1).clamp(1, 1 << 40)
}

/// The frames of a stack.
pub(crate) fn stack_of(look: &Look, stack: u32) -> Stack<'_> {
    let frames = look.stacks.get(stack as usize).map(Vec::as_slice).unwrap_or_default();
    frames.iter().filter_map(|&frame| look.frames.get(frame as usize)).collect()
}

/// What the stacks of another file held, by the numbers that this one has. Stacks that are in
/// the other one only have gone, and do not matter.
fn translated(to: &Look, from: &Look, device: &DeviceLook) -> Vec<StackUse> {
    let numbered = (0..).zip(&to.stacks).map(|(number, _)| (stack_of(to, number), number));
    let numbers: BTreeMap<Stack<'_>, u32> = numbered.collect();
    let mut sums: BTreeMap<u32, StackUse> = BTreeMap::new();
    for block in device.blocks.iter().filter(|block| !block.pending) {
        let Some(&stack) = numbers.get(&stack_of(from, block.stack)) else { continue };
        let sum = sums.entry(stack).or_insert(StackUse { stack, ..StackUse::default() });
        sum.bytes = sum.bytes.saturating_add(block.size);
        sum.blocks += 1;
    }
    sums.into_values().collect()
}

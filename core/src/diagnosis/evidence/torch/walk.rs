//! Goes through a trace with all stacks in mind: what each held at the ends of steps, at the
//! highest moment and when a request failed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::look::{Alive, DeviceLook, Key, Mark, Oom, TraceLook};
use super::replay::{Change, Levels, Replay, rounded};
use super::space::{Request, Segments, Space, space};
use super::stacks::Stacks;
use super::steps::Steps;
use crate::diagnosis::evidence::churn::Churn;
use crate::pickle::torch::{Action, Event};
use crate::snapshot::{Block, Segment, StackUse, StreamPool};

/// Failed requests that are looked at, the newest; all are counted.
const OOMS_MAX: usize = 4;

/// Sizes of blocks older than the trace that are told apart; of more, the rest is not.
const SIZES_MAX: usize = 4096;

/// A segment of this size that is not expandable is for small blocks (`kSmallBuffer`).
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;

/// A trace to go through.
pub(crate) struct Walk<'a, 'b> {
    pub(crate) events: &'a [Event],
    pub(crate) replay: &'a Replay,
    pub(crate) steps: &'a Steps,
    pub(crate) stacks: &'a mut Stacks<'b>,
}

/// Condenses the trace of this device.
pub(crate) fn trace(
    mut walk: Walk<'_, '_>,
    device: &DeviceLook,
    places: &BTreeMap<Key, u16>,
) -> TraceLook {
    let (events, steps) = (walk.events, walk.steps);
    let mut trace = TraceLook {
        events: events.len() as u64,
        source: steps.source,
        ends: steps.starts.len() as u64,
        is_cut: steps.are_cut,
        last_number: steps.last_number,
        dated: device.trace.dated,
        contradictions: walk.replay.contradictions(),
        ..TraceLook::default()
    };
    if events.is_empty() {
        return trace;
    }
    let first = events.iter().find_map(Event::time_us);
    trace.span_us = first.zip(events.iter().rev().find_map(Event::time_us));
    let sums = Sums::before(device, walk.replay);
    let older_bytes = sums.bytes();
    trace.is_whole = older_bytes == 0 && walk.replay.older.is_empty();
    let levels = walk.replay.levels(events, &steps.starts, older_bytes);
    let is_oom = |(_, event): &(usize, &Event)| event.action == Action::Oom;
    let ooms: Vec<usize> = events.iter().enumerate().filter(is_oom).map(|(at, _)| at).collect();
    trace.oom_count = ooms.len() as u64;
    let ooms = ooms.get(ooms.len().saturating_sub(OOMS_MAX)..).unwrap_or_default();
    let mut wanted: Vec<usize> = ooms.to_vec();
    wanted.push(levels.highest_at);
    let of_whole = whole(&levels.peaks_at);
    let ends = of_whole.first().copied().zip(of_whole.last().copied());
    let ends = ends.filter(|_| of_whole.len() > 1);
    wanted.extend(ends.into_iter().flat_map(|(first, last)| [first, last]));
    wanted.sort_unstable();
    wanted.dedup();
    let sizes = sizes(device);
    let (marks, mut moments) = walk.sums(sums, &wanted, &sizes);
    trace.marks = marks;
    trace.born = walk.born(&sizes);
    trace.lived = walk.lived();
    for &at in ooms {
        let Some(moment) = moments.get(&at).cloned() else { continue };
        trace.ooms.push(walk.oom(at, moment, device, places));
    }
    trace.whole_peaks = ends.and_then(|(first, last)| {
        Some((moments.get(&first)?.clone(), moments.get(&last)?.clone()))
    });
    trace.peak = moments.remove(&levels.highest_at);
    trace.reserved = walk.reserved(device);
    (trace.churn, trace.returned_by) = walk.churn();
    let Levels { floors, peaks, .. } = levels;
    (trace.floors, trace.peaks) = (floors, peaks);
    trace
}

/// The whole steps of a trace: the first and the last one are cut.
pub(crate) fn whole<T>(steps: &[T]) -> &[T] {
    steps.get(1..steps.len().saturating_sub(1)).unwrap_or_default()
}

/// Sizes of the blocks that were born in the trace and are alive.
fn sizes(device: &DeviceLook) -> BTreeSet<u64> {
    let young = device.blocks.iter().filter(|block| block.birth_step > 0);
    young.map(asked).collect::<BTreeSet<u64>>().into_iter().take(SIZES_MAX).collect()
}

/// The size of a block as a trace has it.
pub(crate) fn asked(block: &Block) -> u64 {
    if block.requested > 0 { rounded(block.requested) } else { block.size }
}

/// What each stack holds at a moment.
#[derive(Default)]
struct Sums {
    /// Bytes and blocks by stack.
    of: Vec<(i64, i64)>,
    /// Blocks older than the trace that it will see freed, by size.
    nameless: BTreeMap<u64, u64>,
}

impl Sums {
    /// At the beginning of the trace: what is older and still there, and what is older and goes.
    fn before(device: &DeviceLook, replay: &Replay) -> Self {
        let mut sums = Self::default();
        for block in device.blocks.iter().filter(|b| b.birth_step == 0 && !b.pending) {
            sums.change(block.stack, block.size, 1);
        }
        for free in &replay.older {
            *sums.nameless.entry(free.bytes).or_default() += 1;
        }
        sums
    }

    fn change(&mut self, stack: u32, bytes: u64, blocks: i64) {
        let stack = stack as usize;
        if self.of.len() <= stack {
            self.of.resize(stack + 1, (0, 0));
        }
        if let Some(sum) = self.of.get_mut(stack) {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX).saturating_mul(blocks);
            *sum = (sum.0.saturating_add(bytes), sum.1 + blocks);
        }
    }

    fn nameless_use(&self) -> StackUse {
        let bytes = self
            .nameless
            .iter()
            .fold(0_u64, |sum, (&bytes, &count)| sum.saturating_add(bytes.saturating_mul(count)));
        StackUse { stack: 0, bytes, blocks: self.nameless.values().sum() }
    }

    fn uses(&self) -> Vec<StackUse> {
        let numbered = (0..).zip(&self.of).filter(|(_, sum)| sum.0 > 0 && sum.1 > 0);
        let one = |(stack, &(bytes, blocks)): (u32, &(i64, i64))| StackUse {
            stack,
            bytes: bytes.unsigned_abs(),
            blocks: blocks.unsigned_abs(),
        };
        numbered.map(one).collect()
    }

    fn bytes(&self) -> u64 {
        let known = self.uses().iter().fold(0_u64, |sum, held| sum.saturating_add(held.bytes));
        known.saturating_add(self.nameless_use().bytes)
    }

    fn mark(&self, sizes: &BTreeSet<u64>) -> Mark {
        let count = |&size: &u64| Some((size, *self.nameless.get(&size)?));
        let nameless = sizes.iter().filter_map(count).filter(|&(_, count)| count > 0).collect();
        Mark { uses: self.uses(), nameless }
    }
}

impl Walk<'_, '_> {
    /// What each stack held at the beginning, at each end of a step, and at these moments.
    fn sums(
        &mut self,
        mut sums: Sums,
        wanted: &[usize],
        sizes: &BTreeSet<u64>,
    ) -> (Vec<Mark>, BTreeMap<usize, Alive>) {
        let mut marks = alloc::vec![sums.mark(sizes)];
        let mut moments = BTreeMap::new();
        let mut starts = self.steps.starts.iter().map(|&start| start as usize).peekable();
        let mut wanted = wanted.iter().copied().peekable();
        let (events, steps, stacks) = (self.events, self.steps, &mut *self.stacks);
        self.replay.changes(events, |index, change| {
            while starts.next_if(|&start| start <= index).is_some() {
                marks.push(sums.mark(sizes));
            }
            while let Some(at) = wanted.next_if(|&at| at <= index) {
                moments.insert(at, alive(&sums, events, steps, at));
            }
            match change {
                Change::Came(stack, bytes) => sums.change(stacks.number(stack), bytes, 1),
                Change::Gone(stack, bytes) => sums.change(stacks.number(stack), bytes, -1),
                Change::OlderGone(bytes) => {
                    let count = sums.nameless.entry(bytes).or_default();
                    *count = count.saturating_sub(1);
                }
            }
        });
        marks.extend(starts.map(|_| sums.mark(sizes)));
        moments.extend(wanted.map(|at| (at, alive(&sums, events, steps, at))));
        (marks, moments)
    }

    /// How many blocks of these sizes each stack asked for.
    fn born(&mut self, sizes: &BTreeSet<u64>) -> Vec<(u32, u64, u64)> {
        let mut born: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.action == Action::Alloc) {
            let size = event.bytes().map_or(0, rounded);
            if sizes.contains(&size) {
                *born.entry((event.stack().unwrap_or_default(), size)).or_default() += 1;
            }
        }
        let one = |((stack, size), count)| (self.stacks.number(stack), size, count);
        born.into_iter().map(one).collect()
    }

    /// Through how many ends of steps the longest-lived block of each stack lived that went.
    fn lived(&mut self) -> BTreeMap<u32, u64> {
        let ends_before = |event: u32| self.steps.starts.partition_point(|&start| start <= event);
        let mut by_stack: BTreeMap<u32, usize> = BTreeMap::new();
        for (index, event) in self.events.iter().enumerate() {
            let freed_at = self.replay.freed_at(index).filter(|_| event.action == Action::Alloc);
            let (Some(freed_at), Ok(born)) = (freed_at, u32::try_from(index)) else { continue };
            let steps = ends_before(freed_at).saturating_sub(ends_before(born));
            if steps > 0 {
                let most = by_stack.entry(event.stack().unwrap_or_default()).or_default();
                *most = (*most).max(steps);
            }
        }
        let mut lived: BTreeMap<u32, u64> = BTreeMap::new();
        for (stack, steps) in by_stack {
            let most = lived.entry(self.stacks.number(stack)).or_default();
            *most = (*most).max(steps as u64);
        }
        lived
    }

    /// A request that failed: what was alive, what was free, and why it was not good enough.
    fn oom(
        &mut self,
        at: usize,
        alive: Alive,
        device: &DeviceLook,
        places: &BTreeMap<Key, u16>,
    ) -> Oom {
        let Some(event) = self.events.get(at) else { return Oom::default() };
        let mut sorted: Vec<(&Key, &u16)> = places.iter().collect();
        sorted.sort_unstable_by_key(|&(_, number)| number);
        let as_place = |(&(stream, pool), _): (&Key, &u16)| StreamPool { stream, pool };
        let all_places: Vec<StreamPool> = sorted.into_iter().map(as_place).collect();
        let segments = self.segments_at(at, device, places);
        let blocks = self.blocks_at(at, device);
        let pool = self.stacks.snapshot.pool_of(event);
        let place = StreamPool { stream: self.stacks.snapshot.stream_of(event), pool };
        let bytes = event.bytes().unwrap_or_default();
        let request = Request { bytes: rounded(bytes), place };
        let (mut space, refusal) = space(&segments, &all_places, &blocks, Some(request));
        if device.lacks_segments {
            space = Space { in_use: alive.bytes, ..Space::default() };
        }
        Oom {
            bytes,
            device_free: event.device_free_bytes(),
            stack: event.stack().map_or(0, |stack| self.stacks.number(stack)),
            alive,
            space,
            refusal,
        }
    }

    /// Addresses and sizes of the blocks that are alive after this many events.
    fn blocks_at(&self, moment: usize, device: &DeviceLook) -> Vec<(u64, u64)> {
        let final_sizes: BTreeMap<u64, u64> =
            device.blocks.iter().map(|block| (block.address, block.size)).collect();
        let older = device.blocks.iter().filter(|b| b.birth_step == 0 && !b.pending);
        let mut blocks: Vec<(u64, u64)> = older.map(|b| (b.address, b.size)).collect();
        let gone = self.replay.older.iter().filter(|free| free.event as usize >= moment);
        blocks.extend(gone.map(|free| (free.address, free.bytes)));
        for (index, event) in self.events.iter().enumerate().take(moment) {
            if event.action != Action::Alloc || !self.replay.is_live(index, moment) {
                continue;
            }
            let (Some(address), Some(bytes)) = (event.address(), event.bytes()) else { continue };
            // A block may be larger than what was asked for; the live ones say so.
            let is_final = self.replay.birth(address) == u32::try_from(index).ok();
            let known = final_sizes.get(&address).filter(|_| is_final);
            blocks.push((address, known.copied().unwrap_or_else(|| rounded(bytes))));
        }
        blocks.sort_unstable();
        blocks
    }

    /// The segments at that moment.
    fn segments_at(
        &self,
        moment: usize,
        device: &DeviceLook,
        places: &BTreeMap<Key, u16>,
    ) -> Vec<Segment> {
        let mut segments = Segments::new(&device.segments);
        for event in self.events.get(moment..).unwrap_or_default().iter().rev() {
            let (Some(address), Some(size)) = (event.address(), event.bytes()) else { continue };
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => segments.take_out(address, size),
                Action::SegmentFree | Action::SegmentUnmap => {
                    let snapshot = self.stacks.snapshot;
                    let stream = snapshot.stream_of(event);
                    let key = (stream, snapshot.pool_of(event).or(Some((0, 0))));
                    segments.put_in(Segment {
                        address,
                        size,
                        stream_pool: places.get(&key).copied().unwrap_or_default(),
                        expandable: event.action == Action::SegmentUnmap,
                        small: size == SMALL_SEGMENT_BYTES,
                        stack: 0,
                    });
                }
                _ => {}
            }
        }
        segments.sorted()
    }

    /// Lowest reserved bytes in each step. The state at the end is known, so what happened is
    /// undone from there.
    fn reserved(&self, device: &DeviceLook) -> Vec<u64> {
        let mut level = device.space.reserved;
        let mut lowest = level;
        let mut reserved = Vec::new();
        let mut starts = self.steps.starts.iter().rev().peekable();
        for (index, event) in self.events.iter().enumerate().rev() {
            while starts.next_if(|&&start| start as usize > index).is_some() {
                reserved.push(lowest);
                lowest = level;
            }
            let bytes = event.bytes().unwrap_or_default();
            level = match event.action {
                Action::SegmentAlloc | Action::SegmentMap => level.saturating_sub(bytes),
                Action::SegmentFree | Action::SegmentUnmap => level.saturating_add(bytes),
                _ => continue,
            };
            lowest = lowest.min(level);
        }
        reserved.extend(starts.map(|_| core::mem::replace(&mut lowest, level)));
        reserved.push(lowest);
        reserved.reverse();
        reserved
    }

    /// Steps in which segments were given back and others taken.
    fn churn(&mut self) -> (Churn, u32) {
        let mut churn = Churn::default();
        let mut given_back: BTreeMap<u32, u64> = BTreeMap::new();
        let starts = self.steps.starts.iter().map(|&start| start as usize);
        let ends = self.steps.starts.iter().skip(1).map(|&start| start as usize);
        for (start, end) in starts.zip(ends) {
            let before = churn;
            for event in self.events.get(start..end).unwrap_or_default() {
                match event.action {
                    Action::SegmentAlloc | Action::SegmentMap => {
                        churn.take(event.bytes().unwrap_or_default());
                    }
                    Action::SegmentFree | Action::SegmentUnmap => {
                        churn.returned += 1;
                        *given_back.entry(event.stack().unwrap_or_default()).or_default() += 1;
                    }
                    _ => {}
                }
            }
            churn.end_step(&before);
        }
        let most = given_back.into_iter().max_by_key(|&(_, count)| count);
        (churn, most.map_or(0, |(stack, _)| self.stacks.number(stack)))
    }
}

/// What is alive after this many events.
fn alive(sums: &Sums, events: &[Event], steps: &Steps, at: usize) -> Alive {
    let mut uses = sums.uses();
    uses.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then(a.stack.cmp(&b.stack)));
    let last = at.checked_sub(1).and_then(|last| events.get(last));
    Alive {
        bytes: sums.bytes(),
        time_us: last.and_then(Event::time_us),
        step: 1 + steps.starts.partition_point(|&start| (start as usize) < at) as u64,
        uses,
        nameless: sums.nameless_use(),
    }
}

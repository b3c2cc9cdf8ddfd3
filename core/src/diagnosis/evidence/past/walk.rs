//! Goes through a trace with all stacks in mind: what each held at the ends of steps, at the
//! highest moment and when a request failed.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::refusal::{Earlier, Refused};
use super::replay::{Change, Replay};
use super::{Alive, StepMark};
use crate::limits::FAILED_USES_MAX;
use crate::snapshot::failed_request::FailedRequest;
use crate::snapshot::{
    DeviceSnapshot, RankSnapshot, SegmentSource, StackUse, TraceEvent, TraceKind,
};

/// Sizes of blocks older than the trace that are told apart; of more, the rest is not.
const SIZES_MAX: usize = 4096;

/// A trace to go through.
pub(crate) struct Walk<'a> {
    pub(crate) device: &'a DeviceSnapshot,
    pub(crate) events: &'a [TraceEvent],
    pub(crate) replay: &'a Replay,
    /// First event of each step but the first.
    pub(crate) starts: &'a [u32],
}

/// What each stack holds at a moment.
#[derive(Default)]
pub(crate) struct Sums {
    /// Bytes and blocks by stack.
    of: Vec<(i64, i64)>,
    /// Blocks older than the trace that it will see freed, by size.
    nameless: BTreeMap<u64, u64>,
}

impl Sums {
    /// At the beginning of the trace: what is older and still there, and what is older and goes.
    pub(crate) fn before(device: &DeviceSnapshot, replay: &Replay) -> Self {
        let mut sums = Self::default();
        let is_older = |address: u64| replay.birth(address).is_none();
        for block in device.blocks.iter().filter(|b| !b.pending && is_older(b.address)) {
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

    /// Bytes of all stacks, and of what has none.
    pub(crate) fn bytes(&self) -> u64 {
        let known = self.uses().iter().fold(0_u64, |sum, held| sum.saturating_add(held.bytes));
        known.saturating_add(self.nameless_use().bytes)
    }

    fn mark(&self, sizes: &BTreeSet<u64>) -> StepMark {
        let count = |&size: &u64| Some((size, *self.nameless.get(&size)?));
        let nameless = sizes.iter().filter_map(count).filter(|&(_, count)| count > 0).collect();
        StepMark { uses: self.uses(), nameless }
    }
}

impl Walk<'_> {
    /// Sizes of the blocks that were born in the trace and are alive.
    pub(crate) fn sizes(&self) -> BTreeSet<u64> {
        let is_young = |address: u64| self.replay.birth(address).is_some();
        let young = self.device.blocks.iter().filter(|block| is_young(block.address));
        let sizes: BTreeSet<u64> = young.map(|block| block.size).collect();
        sizes.into_iter().take(SIZES_MAX).collect()
    }

    /// What each stack held at the beginning, at each end of a step, and at these moments.
    pub(crate) fn sums(
        &self,
        mut sums: Sums,
        wanted: &BTreeSet<usize>,
        sizes: &BTreeSet<u64>,
    ) -> (Vec<StepMark>, BTreeMap<usize, Alive>) {
        let mut marks = alloc::vec![sums.mark(sizes)];
        let mut moments = BTreeMap::new();
        let mut starts = self.starts.iter().map(|&start| start as usize).peekable();
        let mut wanted = wanted.iter().copied().peekable();
        self.replay.changes(self.events, |index, change| {
            while starts.next_if(|&start| start <= index).is_some() {
                marks.push(sums.mark(sizes));
            }
            while let Some(at) = wanted.next_if(|&at| at <= index) {
                moments.insert(at, self.alive(&sums, at));
            }
            match change {
                Change::Came(stack, bytes) => sums.change(stack, bytes, 1),
                Change::Gone(stack, bytes) => sums.change(stack, bytes, -1),
                Change::OlderGone(bytes) => {
                    let count = sums.nameless.entry(bytes).or_default();
                    *count = count.saturating_sub(1);
                }
            }
        });
        marks.extend(starts.map(|_| sums.mark(sizes)));
        moments.extend(wanted.map(|at| (at, self.alive(&sums, at))));
        (marks, moments)
    }

    /// What is alive after this many events.
    fn alive(&self, sums: &Sums, at: usize) -> Alive {
        let mut uses = sums.uses();
        uses.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then(a.stack.cmp(&b.stack)));
        let last = at.checked_sub(1).and_then(|last| self.events.get(last));
        Alive {
            bytes: sums.bytes(),
            mono_ns: last.map_or(0, |event| event.mono_ns),
            step: 1 + self.starts.partition_point(|&start| (start as usize) < at) as u64,
            uses,
            nameless: sums.nameless_use(),
        }
    }

    /// How many blocks of these sizes each stack asked for.
    pub(crate) fn born(&self, sizes: &BTreeSet<u64>) -> Vec<(u32, u64, u64)> {
        let mut born: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        let allocations = self.events.iter().filter(|event| event.kind == TraceKind::Alloc);
        for event in allocations.filter(|event| sizes.contains(&event.size)) {
            *born.entry((event.stack, event.size)).or_default() += 1;
        }
        born.into_iter().map(|((stack, size), count)| (stack, size, count)).collect()
    }

    /// Through how many ends of steps the longest-lived block of each stack lived that went.
    pub(crate) fn lived(&self) -> BTreeMap<u32, u64> {
        let ends_before = |event: u32| self.starts.partition_point(|&start| start <= event);
        let mut lived: BTreeMap<u32, u64> = BTreeMap::new();
        for (event, born) in self.events.iter().zip(0_u32..) {
            let freed_at = self.replay.freed_at(born).filter(|_| event.kind == TraceKind::Alloc);
            let Some(freed_at) = freed_at else { continue };
            let steps = ends_before(freed_at).saturating_sub(ends_before(born));
            if steps > 0 {
                let most = lived.entry(event.stack).or_default();
                *most = (*most).max(steps as u64);
            }
        }
        lived
    }

    /// A request that failed: what was alive, what was free, and why it was not good enough.
    pub(crate) fn refused(&self, rank: &RankSnapshot, at: usize, alive: &Alive) -> Option<Refused> {
        let event = self.events.get(at)?;
        let is_known = self.device.segment_source == SegmentSource::Allocator;
        let earlier =
            is_known.then(|| Earlier::of(rank, self.device, self.events, self.replay, at));
        let mut uses = alive.uses.clone();
        uses.truncate(FAILED_USES_MAX);
        let request = FailedRequest {
            device: self.device.device,
            step: event.step,
            wall_ns: i64::try_from(event.mono_ns).unwrap_or(0),
            bytes: event.size,
            stack: event.stack,
            allocated: earlier.as_ref().map_or(alive.bytes, |earlier| earlier.used),
            reserved: earlier.as_ref().map_or(0, |earlier| earlier.reserved),
            device_free: (event.detail > 0).then_some(event.detail),
            uses,
        };
        Some(Refused { refusal: earlier.map(|earlier| earlier.refusal(event)), request })
    }

    /// Lowest reserved bytes in each step. The state at the end is known, so what happened is
    /// undone from there.
    pub(crate) fn reserved(&self) -> Vec<u64> {
        let mut level = self.device.reserved;
        let mut lowest = level;
        let mut reserved = Vec::new();
        let mut starts = self.starts.iter().rev().peekable();
        for (index, event) in self.events.iter().enumerate().rev() {
            while starts.next_if(|&&start| start as usize > index).is_some() {
                reserved.push(lowest);
                lowest = level;
            }
            level = match event.kind {
                TraceKind::SegmentAlloc | TraceKind::SegmentMap => level.saturating_sub(event.size),
                TraceKind::SegmentFree | TraceKind::SegmentUnmap => {
                    level.saturating_add(event.size)
                }
                _ => continue,
            };
            lowest = lowest.min(level);
        }
        reserved.extend(starts.map(|_| core::mem::replace(&mut lowest, level)));
        reserved.push(lowest);
        reserved.reverse();
        reserved
    }
}

//! Which stacks hold the memory that PyTorch's caching allocator did not give out, now and before.
//!
//! The pieces lie in the live tables of the host's lane and of that of CPU tensors, each with its
//! stack. `cudaMalloc` gives that allocator its segments too, and the driver those that can grow:
//! a piece at the address of a segment is the allocator's. Where nobody tells of segments, no piece
//! of such an origin is told: whose it is would be a guess.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::assemble::StackIndex;
use super::layout::Origin;
use super::rewind::LaneState;
use super::state::Before;
use super::table::Entry;
use crate::snapshot::{Held, OUTSIDE_STACKS_MAX, OutsideStack};

/// What is known of the allocator's segments on a device.
#[derive(Clone, Copy)]
pub(super) enum Told<'a> {
    /// It has none: PyTorch's allocator holds nothing there.
    None,
    /// It has some, and nobody tells which.
    Unknown,
    /// The allocator tells of all of them.
    ByAllocator(&'a LaneState),
}

impl Told<'_> {
    /// True when a piece is not the allocator's. Of the earlier moment nothing is known where its
    /// segments then are not.
    fn is_others(self, entry: &Entry, was: bool) -> Option<bool> {
        match (Origin::from_number(entry.place), self) {
            (Origin::CudaMalloc, Told::ByAllocator(state)) if was => {
                let before = state.before.as_ref()?;
                Some(!before.segments.contains(&entry.address))
            }
            (Origin::CudaMalloc, Told::ByAllocator(state)) => {
                Some(!state.segments.has_whole(entry.address))
            }
            (Origin::DriverVmm, Told::ByAllocator(state)) => {
                (!state.segments.has_mapped()).then_some(true)
            }
            (Origin::CudaMalloc | Origin::DriverVmm, Told::Unknown) => None,
            _ => Some(true),
        }
    }
}

/// What one stack holds, while it is added up.
#[derive(Clone, Default)]
struct Sum {
    held: Held,
    fresh: Held,
    before: Held,
    births: BTreeSet<u64>,
}

impl Sum {
    fn merge(&mut self, other: Self) {
        let add = |to: &mut Held, more: Held| {
            to.bytes = to.bytes.saturating_add(more.bytes);
            to.count = to.count.saturating_add(more.count);
        };
        add(&mut self.held, other.held);
        add(&mut self.fresh, other.fresh);
        add(&mut self.before, other.before);
        self.births.extend(other.births);
    }

    /// The larger ones are told: those that held much and those that hold much.
    fn rank(&self) -> u64 {
        self.held.bytes.max(self.before.bytes)
    }
}

/// The stacks of one origin on one device.
#[derive(Default)]
struct Group {
    of: BTreeMap<u32, Sum>,
    has_before: bool,
    /// Whose its pieces are cannot be told.
    is_unclear: bool,
}

type Groups = BTreeMap<(Origin, u8), Group>;

/// All that the lanes hold, by origin, device and stack, and how many stacks were left out.
pub(super) fn by_stack<'a>(
    lanes: &[&LaneState],
    before: Option<u64>,
    told: impl Fn(u8) -> Told<'a>,
    stacks: &mut StackIndex,
) -> (Vec<OutsideStack>, u64) {
    let mut groups = Groups::new();
    for lane in lanes {
        let was = lane.before.as_ref().filter(|_| before.is_some());
        add_lane(&mut groups, lane, was, before, &told);
    }
    let mut left_out = 0;
    let mut uses = Vec::new();
    for ((origin, device), mut group) in groups {
        if group.is_unclear {
            continue;
        }
        left_out += fold(&mut group.of);
        for (atom, sum) in group.of {
            uses.push(OutsideStack {
                origin,
                device,
                stack: stacks.of(atom),
                held: sum.held,
                fresh: sum.fresh,
                before: group.has_before.then_some(sum.before),
                births: sum.births.len() as u64,
                first_step: sum.births.first().copied().unwrap_or(0),
                last_step: sum.births.last().copied().unwrap_or(0),
            });
        }
    }
    (uses, left_out)
}

fn key(entry: &Entry) -> (Origin, u8) {
    let origin = Origin::from_number(entry.place);
    (origin, if origin.is_on_device() { entry.device } else { 0 })
}

fn add_lane<'a>(
    groups: &mut Groups,
    lane: &LaneState,
    was: Option<&Before>,
    before: Option<u64>,
    told: &impl Fn(u8) -> Told<'a>,
) {
    for entry in lane.live.iter() {
        let group = groups.entry(key(entry)).or_default();
        group.has_before = was.is_some();
        match told(entry.device).is_others(entry, false) {
            Some(true) => {}
            Some(false) => continue,
            None => {
                group.is_unclear = true;
                continue;
            }
        }
        let sum = group.of.entry(entry.stack).or_default();
        sum.held.add(entry.size);
        // A birth that is not known is as old as the process.
        let birth = entry.birth();
        if before.is_some_and(|before| birth >= before) {
            sum.fresh.add(entry.size);
        }
        sum.births.insert(birth);
    }
    for entry in was.iter().flat_map(|was| was.pieces.iter()) {
        let group = groups.entry(key(entry)).or_default();
        match told(entry.device).is_others(entry, true) {
            Some(true) => {
                group.has_before = true;
                group.of.entry(entry.stack).or_default().before.add(entry.size);
            }
            Some(false) => {}
            None => group.has_before = false,
        }
    }
}

/// Beyond the bound the smallest go to the unknown stack; returns how many.
fn fold(stacks: &mut BTreeMap<u32, Sum>) -> u64 {
    if stacks.len() <= OUTSIDE_STACKS_MAX {
        return 0;
    }
    let mut ranks: Vec<(u64, u32)> = stacks
        .iter()
        .filter(|&(&atom, _)| atom != 0)
        .map(|(&atom, sum)| (sum.rank(), atom))
        .collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    let beyond = ranks.split_off(OUTSIDE_STACKS_MAX - 1);
    for (_, atom) in &beyond {
        if let Some(sum) = stacks.remove(atom) {
            stacks.entry(0).or_default().merge(sum);
        }
    }
    beyond.len() as u64
}

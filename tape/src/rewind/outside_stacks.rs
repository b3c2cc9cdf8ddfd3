//! Which stacks hold the memory outside PyTorch's caching allocator, at a step and at an earlier
//! one.
//!
//! The pieces lie in the live tables of the host lane and of the lane of CPU tensors, each with its
//! stack. `cudaMalloc` also gives the allocator its segments, and so does the driver where segments
//! are expandable. Where the allocator reports its segments, a piece at the address of one is the
//! allocator's. Where it does not, its blocks decide: the allocator takes a segment to put a block
//! into it at once, so that a piece taken since the earlier step in which no block ever lay is
//! another owner's. An older piece without a block has an unknown owner, unless the pieces with
//! blocks are all that the allocator holds. Pieces of unknown owner are left out.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::limits::OUTSIDE_STACKS_MAX;
use crate::rewind::lane_state::LaneState;
use crate::rewind::stack_index::StackIndex;
use crate::rewind::undo::Before;
use crate::snapshot::origin::Origin;
use crate::snapshot::{Held, OutsideStack};
use crate::write::table::Entry;

/// Knowledge about the allocator's segments on a device.
#[derive(Clone, Copy)]
pub(crate) enum KnownSegments<'a> {
    /// The device has none: PyTorch's allocator holds nothing there.
    None,
    /// The device has some, and they are unknown.
    Unknown,
    /// The allocator reports all of them.
    ByAllocator(&'a LaneState),
    /// Only the blocks are known, all of them.
    ByBlocks(&'a LaneState),
}

/// Owner of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Others,
    Allocators,
    /// Not known.
    Unclear,
    /// Not known for any piece of this origin.
    AllUnclear,
}

impl KnownSegments<'_> {
    /// The owner of a piece that was present at the time, or (`was`) at the earlier one.
    fn whose(self, entry: &Entry, before: Option<u64>, was: bool) -> Whose {
        let is_own = |is_own: bool| if is_own { Whose::Allocators } else { Whose::Others };
        match (Origin::from_number(entry.owner), self) {
            (Origin::CudaMalloc, KnownSegments::ByAllocator(state)) if was => match &state.before {
                Some(before) => is_own(before.segments.contains(&entry.address)),
                None => Whose::AllUnclear,
            },
            (Origin::CudaMalloc, KnownSegments::ByAllocator(state)) => {
                is_own(state.segments.has_whole(entry.address))
            }
            (Origin::CudaMalloc, KnownSegments::ByBlocks(state)) => {
                let is_fresh = before.is_some_and(|before| entry.birth() >= before);
                match has_block(state, entry) {
                    true => Whose::Allocators,
                    false if is_fresh && state.before.is_some() => Whose::Others,
                    false => Whose::Unclear,
                }
            }
            (Origin::DriverVmm, KnownSegments::ByAllocator(state))
                if !state.segments.has_mapped() =>
            {
                Whose::Others
            }
            (Origin::DriverVmm, KnownSegments::ByAllocator(_) | KnownSegments::ByBlocks(_)) => {
                Whose::AllUnclear
            }
            (Origin::CudaMalloc | Origin::DriverVmm, KnownSegments::Unknown) => Whose::AllUnclear,
            _ => Whose::Others,
        }
    }
}

/// Did a block begin in a piece, at one of the two times or between them? If a segment and another
/// owner's piece had the same address one after the other, a block did, and the memory stays
/// unexplained.
fn has_block(state: &LaneState, entry: &Entry) -> bool {
    let (address, size) = (entry.address, entry.size);
    let was = state.before.as_ref().is_some_and(|before| before.had_block(address, size));
    was || state.live.has_block(address, size)
}

/// Devices whose allocator holds exactly the pieces with blocks: all other pieces there have other
/// owners, at any age.
fn settled<'a>(
    lanes: &[&LaneState],
    segments_of: &impl Fn(u8) -> KnownSegments<'a>,
) -> BTreeSet<u8> {
    let mut sums: BTreeMap<u8, u64> = BTreeMap::new();
    let pieces = lanes.iter().flat_map(|lane| lane.live.iter());
    for entry in pieces.filter(|entry| key(entry).0 == Origin::CudaMalloc) {
        if let KnownSegments::ByBlocks(state) = segments_of(entry.device)
            && has_block(state, entry)
        {
            let sum = sums.entry(entry.device).or_default();
            *sum = sum.saturating_add(entry.size);
        }
    }
    let is_all = |device: u8, sum: u64| match segments_of(device) {
        KnownSegments::ByBlocks(state) => state.reserved == sum,
        _ => false,
    };
    sums.into_iter()
        .filter(|&(device, sum)| is_all(device, sum))
        .map(|(device, _)| device)
        .collect()
}

/// Sum of one stack's memory while it is added up.
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

    /// Order of stacks: the larger of the bytes held before and now.
    fn rank(&self) -> u64 {
        self.held.bytes.max(self.before.bytes)
    }
}

/// The stacks of one origin on one device.
#[derive(Default)]
struct Group {
    of: BTreeMap<u32, Sum>,
    has_before: bool,
    /// True if the owner of some earlier pieces is not known.
    lacks_before: bool,
    /// True if the owner of the group's pieces is not known.
    is_unclear: bool,
}

type Groups = BTreeMap<(Origin, u8), Group>;

/// Memory in the lanes by origin, device and stack, and the number of stacks left out.
pub(crate) fn by_stack<'a>(
    lanes: &[&LaneState],
    before: Option<u64>,
    segments_of: impl Fn(u8) -> KnownSegments<'a>,
    stacks: &mut StackIndex,
) -> (Vec<OutsideStack>, u64) {
    let mut groups = Groups::new();
    let settled = settled(lanes, &segments_of);
    let whose = |entry: &Entry, was: bool| match segments_of(entry.device).whose(entry, before, was)
    {
        Whose::Unclear if settled.contains(&entry.device) && !was => Whose::Others,
        whose => whose,
    };
    for lane in lanes {
        let was = lane.before.as_ref().filter(|_| before.is_some());
        add_lane(&mut groups, lane, was, before, &whose);
    }
    let mut left_out = 0;
    let mut uses = Vec::new();
    for ((origin, device), mut group) in groups {
        if group.is_unclear {
            continue;
        }
        left_out += fold(&mut group.of);
        for (id, sum) in group.of {
            uses.push(OutsideStack {
                origin,
                device,
                stack: stacks.of(id),
                held: sum.held,
                fresh: sum.fresh,
                before: (group.has_before && !group.lacks_before).then_some(sum.before),
                births: sum.births.len() as u64,
                first_step: sum.births.first().copied().unwrap_or(0),
                last_step: sum.births.last().copied().unwrap_or(0),
            });
        }
    }
    (uses, left_out)
}

fn key(entry: &Entry) -> (Origin, u8) {
    let origin = Origin::from_number(entry.owner);
    (origin, if origin.is_on_device() { entry.device } else { 0 })
}

fn add_lane(
    groups: &mut Groups,
    lane: &LaneState,
    was: Option<&Before>,
    before: Option<u64>,
    whose: &impl Fn(&Entry, bool) -> Whose,
) {
    for entry in lane.live.iter() {
        let group = groups.entry(key(entry)).or_default();
        group.has_before = was.is_some();
        match whose(entry, false) {
            Whose::Others => {}
            Whose::Allocators | Whose::Unclear => continue,
            Whose::AllUnclear => {
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
        // What is there still is whose it is now.
        let stays = lane.live.get(entry.address).filter(|now| now.birth_ns == entry.birth_ns);
        match stays.map_or_else(|| whose(entry, true), |now| whose(now, false)) {
            Whose::Others => {
                group.has_before = true;
                group.of.entry(entry.stack).or_default().before.add(entry.size);
            }
            // It was given back since: of a stack that takes such memory it is likely of the same
            // kind, and counted it makes a growth smaller, never larger.
            Whose::Unclear => {
                if let Some(sum) = group.of.get_mut(&entry.stack) {
                    sum.before.add(entry.size);
                }
            }
            Whose::Allocators => {}
            Whose::AllUnclear => group.lacks_before = true,
        }
    }
}

/// Beyond the bound the smallest go to the unknown stack; returns how many.
fn fold(stacks: &mut BTreeMap<u32, Sum>) -> u64 {
    if stacks.len() <= OUTSIDE_STACKS_MAX {
        return 0;
    }
    let mut ranks: Vec<(u64, u32)> =
        stacks.iter().filter(|&(&id, _)| id != 0).map(|(&id, sum)| (sum.rank(), id)).collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    let beyond = ranks.split_off(OUTSIDE_STACKS_MAX - 1);
    for (_, id) in &beyond {
        if let Some(sum) = stacks.remove(id) {
            stacks.entry(0).or_default().merge(sum);
        }
    }
    beyond.len() as u64
}

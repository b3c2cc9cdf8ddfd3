//! What each stack of a rank kept between two steps.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::births::Births;
use crate::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, StackUse, StreamPool};

/// A stack by what it says, not by its number: numbers differ from rank to rank.
pub(crate) type Stack<'a> = Vec<&'a Frame>;

/// Bytes and the number of blocks they lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) bytes: i64,
    pub(crate) blocks: i64,
}

/// What growth is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Measure {
    #[default]
    Bytes,
    Blocks,
}

impl Amount {
    pub(crate) fn by(self, measure: Measure) -> i64 {
        match measure {
            Measure::Bytes => self.bytes,
            Measure::Blocks => self.blocks,
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.blocks = self.blocks.saturating_add(more.blocks);
    }

    pub(crate) fn less(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }

    fn min(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), blocks: self.blocks.min(other.blocks) }
    }
}

/// Which blocks are added up, and from which birth step on they count as new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) since_step: u64,
    /// Blocks that were taken back and are still used by other streams, instead of the live ones.
    pub(crate) deferred: bool,
    /// The memory was given back after the earlier state, which says nothing of the growth then.
    pub(crate) is_after_return: bool,
}

/// What one stack holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Use {
    /// What is there at the later step less what was at the earlier one, as far as blocks born
    /// since the growth began make it up.
    pub(crate) grown: Amount,
    /// What is there at the later step, less what was at the earlier one.
    held: Amount,
    /// Of that, blocks born since the growth began.
    pub(crate) fresh: Amount,
    /// Live bytes at the later step.
    pub(crate) bytes: u64,
    /// Live blocks at the later step.
    pub(crate) blocks: u64,
    /// When they were born.
    pub(crate) births: Births,
    /// New blocks by stream and pool.
    pub(crate) by_stream: BTreeMap<u16, Amount>,
}

impl Use {
    /// What is known of a stack at an earlier moment.
    pub(crate) fn of(held: &StackUse) -> Self {
        Self { bytes: held.bytes, blocks: held.blocks, ..Self::default() }
    }
}

/// One rank's device in figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account<'a> {
    pub(crate) rank: u32,
    pub(crate) stacks: BTreeMap<Stack<'a>, Use>,
    /// Growth of all stacks together.
    pub(crate) grown: Amount,
    /// The same of stacks that say nothing.
    pub(crate) nameless: Amount,
    /// Bytes of new blocks in private pools.
    pub(crate) private: i64,
    /// Those pools.
    pub(crate) pools: BTreeSet<(u64, u64)>,
    /// Bytes of all blocks that were added up.
    pub(crate) held_bytes: u64,
    /// Is the earlier state known, or was it made up from the birth steps?
    pub(crate) has_before: bool,
    /// Some blocks may be missing.
    pub(crate) incomplete: bool,
}

/// The device that holds most: the one to compare with other ranks.
pub(crate) fn primary_device(snapshot: &RankSnapshot) -> Option<&DeviceSnapshot> {
    snapshot.devices.iter().max_by_key(|device| device.allocated)
}

/// Pools of CUDA graphs, and those that a program made for itself.
pub(crate) fn is_private(place: StreamPool) -> bool {
    place.pool.is_some_and(|pool| pool != (0, 0))
}

/// Adds up a device. Growth counts as far as new blocks make it up; without an earlier state that
/// is all there is to go by.
pub(crate) fn account<'a>(
    snapshot: &'a RankSnapshot,
    device: &DeviceSnapshot,
    reading: Reading,
) -> Account<'a> {
    // The earlier sums are of live blocks only.
    let has_before = snapshot.before_step != 0 && !reading.deferred && !reading.is_after_return;
    // Like the earlier sums: what was taken back is not kept, though other streams still use it.
    let blocks = device.blocks.iter().filter(|block| block.pending == reading.deferred);
    let before = has_before.then_some(device.before.as_slice());
    let is_fresh = |block: &Block| is_fresh(block, snapshot.step, reading, has_before);
    sum(snapshot, device, uses(blocks.copied(), before, is_fresh), has_before)
}

/// What each stack of these blocks holds, and what of it is fresh. `before` is what each held at
/// the earlier step, where that is known.
pub(crate) fn uses(
    blocks: impl Iterator<Item = Block>,
    before: Option<&[StackUse]>,
    is_fresh: impl Fn(&Block) -> bool,
) -> BTreeMap<u32, Use> {
    let mut uses: BTreeMap<u32, Use> = BTreeMap::new();
    for block in blocks {
        let held = uses.entry(block.stack).or_default();
        let amount = Amount { bytes: signed(block.size), blocks: 1 };
        held.held.add(amount);
        if is_fresh(&block) {
            held.fresh.add(amount);
            held.by_stream.entry(block.stream_pool).or_default().add(amount);
        }
        held.bytes = held.bytes.saturating_add(block.size);
        held.blocks += 1;
        held.births.add(block.birth_step, block.size);
    }
    for earlier in before.unwrap_or_default() {
        let held = uses.entry(earlier.stack).or_default();
        let was = Amount { bytes: signed(earlier.bytes), blocks: signed(earlier.blocks) };
        held.held = held.held.less(was);
    }
    for held in uses.values_mut() {
        // What grew and is older than the growth is something else: a state made lazily, a cache.
        held.grown = if before.is_some() { held.held.min(held.fresh) } else { held.fresh };
    }
    uses
}

fn is_fresh(block: &Block, step: u64, reading: Reading, has_before: bool) -> bool {
    let is_passing = block.birth_step.saturating_add(2) > step;
    reading.deferred || (block.birth_step >= reading.since_step && (has_before || !is_passing))
}

/// Stacks that say the same become one.
fn sum<'a>(
    snapshot: &'a RankSnapshot,
    device: &DeviceSnapshot,
    uses: BTreeMap<u32, Use>,
    has_before: bool,
) -> Account<'a> {
    let held_bytes = device.blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.size));
    let mut result =
        Account { has_before, incomplete: !device.complete, held_bytes, ..Account::default() };
    result.rank = snapshot.identity.rank;
    for (stack, held) in uses {
        let frames: Stack<'a> = snapshot.frames_of(stack).collect();
        result.grown.add(held.grown);
        let says_nothing =
            frames.iter().all(|frame| frame.file.is_empty() && frame.function.is_empty());
        if says_nothing {
            result.nameless.add(held.grown);
        }
        let known = result.stacks.entry(frames).or_default();
        known.grown.add(held.grown);
        known.bytes = known.bytes.saturating_add(held.bytes);
        known.blocks = known.blocks.saturating_add(held.blocks);
        known.births.merge(&held.births);
        for (number, new) in held.by_stream {
            known.by_stream.entry(number).or_default().add(new);
            let place = snapshot.stream_pool(number);
            if is_private(place) {
                result.private = result.private.saturating_add(new.bytes);
                result.pools.extend(place.pool);
            }
        }
    }
    result
}

pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// The lower median; 0 of nothing.
pub(crate) fn median<T: Copy + Default + Ord>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

/// The median of bytes and that of blocks.
pub(crate) fn median_amount(amounts: impl Iterator<Item = Amount> + Clone) -> Amount {
    Amount {
        bytes: median(amounts.clone().map(|amount| amount.bytes).collect()),
        blocks: median(amounts.map(|amount| amount.blocks).collect()),
    }
}

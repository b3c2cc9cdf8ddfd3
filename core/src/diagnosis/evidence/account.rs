//! What each stack of a rank kept between two steps.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::births::Births;
use crate::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, StreamPool};

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
    fresh: Amount,
    /// Bytes of those in private pools.
    pub(crate) private: i64,
    /// Live blocks at the later step.
    pub(crate) blocks: u64,
    /// When they were born.
    pub(crate) births: Births,
    /// New blocks by stream and pool.
    pub(crate) by_stream: BTreeMap<u16, u64>,
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
    let has_before = snapshot.before_step != 0 && !reading.deferred;
    let mut uses: BTreeMap<u32, Use> = BTreeMap::new();
    // Like the earlier sums: what was taken back is not kept, though other streams still use it.
    for block in device.blocks.iter().filter(|block| block.pending == reading.deferred) {
        let held = uses.entry(block.stack).or_default();
        let amount = Amount { bytes: signed(block.size), blocks: 1 };
        held.held.add(amount);
        if is_fresh(block, snapshot.step, reading, has_before) {
            held.fresh.add(amount);
            *held.by_stream.entry(block.stream_pool).or_default() += 1;
            if is_private(snapshot.stream_pool(block.stream_pool)) {
                held.private = held.private.saturating_add(amount.bytes);
            }
        }
        held.blocks += 1;
        held.births.add(block.birth_step, block.size);
    }
    for before in device.before.iter().filter(|_| has_before) {
        let held = uses.entry(before.stack).or_default();
        let was = Amount { bytes: signed(before.bytes), blocks: signed(before.blocks) };
        held.held = held.held.less(was);
    }
    for held in uses.values_mut() {
        // What grew and is older than the growth is something else: a state made lazily, a cache.
        held.grown = if has_before { held.held.min(held.fresh) } else { held.fresh };
    }
    sum(snapshot, device, uses, has_before)
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
        result.private = result.private.saturating_add(held.private);
        let says_nothing =
            frames.iter().all(|frame| frame.file.is_empty() && frame.function.is_empty());
        if says_nothing {
            result.nameless.add(held.grown);
        }
        let known = result.stacks.entry(frames).or_default();
        known.grown.add(held.grown);
        known.private = known.private.saturating_add(held.private);
        known.blocks = known.blocks.saturating_add(held.blocks);
        known.births.merge(&held.births);
        for (stream_pool, blocks) in held.by_stream {
            *known.by_stream.entry(stream_pool).or_default() += blocks;
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

//! What each stack of a rank kept between two steps.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::generations::Births;
use crate::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, StreamPool};

/// Blocks born within this many steps of the snapshot may be passing through (gradients, a batch
/// that was fetched ahead), so without an earlier state they do not count as kept.
const PASSING_STEPS: u64 = 2;

/// A stack by what it says, not by its number: numbers differ from rank to rank.
pub(super) type Stack<'a> = Vec<&'a Frame>;

/// Bytes and the number of blocks they lie in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) bytes: i64,
    pub(super) blocks: i64,
}

/// What growth is measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Measure {
    #[default]
    Bytes,
    Blocks,
}

impl Amount {
    pub(super) fn by(self, measure: Measure) -> i64 {
        match measure {
            Measure::Bytes => self.bytes,
            Measure::Blocks => self.blocks,
        }
    }

    pub(super) fn add(&mut self, more: Self) {
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.blocks = self.blocks.saturating_add(more.blocks);
    }

    pub(super) fn less(self, other: Self) -> Self {
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
pub(super) struct Reading {
    pub(super) since_step: u64,
    /// Blocks that were taken back and are still used by other streams, instead of the live ones.
    pub(super) deferred: bool,
}

/// What one stack holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Use {
    /// What is there at the later step less what was at the earlier one, as far as blocks born
    /// since the growth began make it up.
    pub(super) grown: Amount,
    /// What is there at the later step, less what was at the earlier one.
    held: Amount,
    /// Of that, blocks born since the growth began.
    fresh: Amount,
    /// Bytes of those in private pools.
    pub(super) private: i64,
    /// Live blocks at the later step.
    pub(super) blocks: u64,
    /// When they were born.
    pub(super) births: Births,
    /// New blocks by stream and pool.
    pub(super) by_stream: BTreeMap<u16, u64>,
}

/// One rank's device in figures.
#[derive(Clone, Debug, Default)]
pub(super) struct Account<'a> {
    pub(super) rank: u32,
    pub(super) stacks: BTreeMap<Stack<'a>, Use>,
    /// Growth of all stacks together.
    pub(super) grown: Amount,
    /// The same of stacks that say nothing.
    pub(super) nameless: Amount,
    /// Bytes of new blocks in private pools.
    pub(super) private: i64,
    /// Bytes of all blocks that were added up.
    pub(super) held_bytes: u64,
    /// Is the earlier state known, or was it made up from the birth steps?
    pub(super) has_before: bool,
    /// Some blocks may be missing.
    pub(super) incomplete: bool,
}

/// The device that holds most: the one to compare with other ranks.
pub(super) fn home(snapshot: &RankSnapshot) -> Option<&DeviceSnapshot> {
    snapshot.devices.iter().max_by_key(|device| device.allocated)
}

/// Pools of CUDA graphs, and those that a program made for itself.
pub(super) fn is_private(place: StreamPool) -> bool {
    place.pool.is_some_and(|pool| pool != (0, 0))
}

/// Adds up a device. Growth counts as far as new blocks make it up; without an earlier state that
/// is all there is to go by.
pub(super) fn account<'a>(
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
    let is_passing = block.birth_step.saturating_add(PASSING_STEPS) > step;
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

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// The lower median; 0 of nothing.
pub(super) fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// The median of bytes and that of blocks.
pub(super) fn median_amount(amounts: impl Iterator<Item = Amount> + Clone) -> Amount {
    Amount {
        bytes: median(amounts.clone().map(|amount| amount.bytes).collect()),
        blocks: median(amounts.map(|amount| amount.blocks).collect()),
    }
}

//! What each stack of a rank kept between two steps.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::snapshot::{DeviceSnapshot, Frame, RankSnapshot};

/// Blocks born within this many steps of the snapshot may be passing through (gradients, a batch
/// that was fetched ahead), so without an earlier state they do not count as kept.
const PASSING_STEPS: u64 = 2;

/// A stack by what it says, not by its number: numbers differ from rank to rank.
pub(super) type Stack<'a> = Vec<&'a Frame>;

/// What one stack holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Use {
    /// Bytes at the later step less bytes at the earlier one, as far as blocks born since the
    /// growth began make them up.
    pub(super) grown: i64,
    /// Bytes at the later step, less those at the earlier one.
    bytes: i64,
    /// Of those, bytes in blocks born since the growth began.
    fresh: i64,
    /// Live blocks at the later step.
    pub(super) blocks: u64,
    /// Their birth steps.
    pub(super) births: BTreeSet<u64>,
}

/// One rank's device in figures.
#[derive(Clone, Debug, Default)]
pub(super) struct Account<'a> {
    pub(super) stacks: BTreeMap<Stack<'a>, Use>,
    /// Growth of all stacks together.
    pub(super) grown: i64,
    /// The same of stacks that say nothing.
    pub(super) nameless: i64,
    /// Is the earlier state known, or was it made up from the birth steps?
    pub(super) has_before: bool,
    /// Some blocks may be missing.
    pub(super) incomplete: bool,
}

/// The device that holds most: the one to compare with other ranks.
pub(super) fn home(snapshot: &RankSnapshot) -> Option<&DeviceSnapshot> {
    snapshot.devices.iter().max_by_key(|device| device.allocated)
}

/// Adds up a device. Growth counts as far as blocks born from `since_step` on make it up; without
/// an earlier state that is all there is to go by.
pub(super) fn account<'a>(
    snapshot: &'a RankSnapshot,
    device: &DeviceSnapshot,
    since_step: u64,
) -> Account<'a> {
    let has_before = snapshot.before_step != 0;
    let mut uses: BTreeMap<u32, Use> = BTreeMap::new();
    // Like the earlier sums: what was taken back is not kept, though other streams still use it.
    for block in device.blocks.iter().filter(|block| !block.pending) {
        let held = uses.entry(block.stack).or_default();
        let size = signed(block.size);
        held.bytes = held.bytes.saturating_add(size);
        let is_passing = block.birth_step.saturating_add(PASSING_STEPS) > snapshot.step;
        if block.birth_step >= since_step && (has_before || !is_passing) {
            held.fresh = held.fresh.saturating_add(size);
        }
        held.blocks += 1;
        held.births.insert(block.birth_step);
    }
    for before in device.before.iter().filter(|_| has_before) {
        let held = uses.entry(before.stack).or_default();
        held.bytes = held.bytes.saturating_sub(signed(before.bytes));
    }
    for held in uses.values_mut() {
        // What grew and is older than the growth is something else: a state made lazily, a cache.
        held.grown = if has_before { held.bytes.min(held.fresh) } else { held.fresh };
    }
    let mut result = Account { has_before, incomplete: !device.complete, ..Account::default() };
    for (stack, held) in uses {
        let frames: Stack<'a> = snapshot.frames_of(stack).collect();
        result.grown = result.grown.saturating_add(held.grown);
        let says_nothing =
            frames.iter().all(|frame| frame.file.is_empty() && frame.function.is_empty());
        if says_nothing {
            result.nameless = result.nameless.saturating_add(held.grown);
        }
        let known = result.stacks.entry(frames).or_default();
        known.grown = known.grown.saturating_add(held.grown);
        known.blocks += held.blocks;
        known.births.extend(held.births);
    }
    result
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The lower median; 0 of nothing.
pub(super) fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

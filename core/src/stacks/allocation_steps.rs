//! The step in which a block was allocated, and ranges of such steps.

use core::ops::RangeInclusive;

use crate::snapshot::{Block, RankSnapshot, allocation_step};

/// Steps in which blocks were allocated, from the first to the last, both included.
///
/// Steps are numbered as in a chart of steps, from 1: a block belongs to the step in which it was
/// allocated. [`Block::birth_step`] is the number of steps that had finished by then, so it is one
/// less: the blocks of step 7 have birth step 6. The state at the end of step `n` has no block of a
/// later step, and blocks that are new since the end of `before_step` are of steps from
/// `before_step + 1` on.
///
/// Step 1 also has all that is older than the first step, and the blocks whose step is not known.
/// Where a program skips numbers, blocks of the next step have the first skipped number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationSteps {
    first: u64,
    last: u64,
}

impl AllocationSteps {
    /// Every step.
    pub const ALL: Self = Self { first: 1, last: u64::MAX };

    /// The steps in this range; `None` where it is empty.
    pub fn of(steps: RangeInclusive<u64>) -> Option<Self> {
        let (first, last) = steps.into_inner();
        let first = first.max(1);
        (first <= last).then_some(Self { first, last })
    }

    /// The step in which a block was allocated.
    pub fn step_of(block: &Block) -> u64 {
        allocation_step(block.birth_step)
    }

    /// The last step that a state can have blocks of: the step of the state, or the step under way
    /// where the state is within one.
    pub fn last_of(state: &RankSnapshot) -> u64 {
        let blocks = state.devices.iter().flat_map(|device| &device.blocks);
        blocks.map(Self::step_of).max().unwrap_or(0).max(state.step)
    }

    /// Do the steps end at a certain step that is after this one?
    pub fn end_after(self, step: u64) -> bool {
        self.last != Self::ALL.last && self.last > step
    }

    /// Was this block allocated in one of the steps?
    pub fn has(self, block: &Block) -> bool {
        (self.first..=self.last).contains(&Self::step_of(block))
    }
}

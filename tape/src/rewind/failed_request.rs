//! The last failed request, and the memory of its device then.
//!
//! A program may go on after a failed request: it frees something and tries again. One that has
//! finished more than a step since, or has been given many blocks, is no longer news, and is left
//! out.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::event::{Event, Kind};
use crate::layout::head;
use crate::limits::FAILED_USES_MAX;
use crate::read::source::Source;
use crate::read::tape::Tape;
use crate::rewind::allowance::Allowance;
use crate::rewind::point_in_time::PointInTime;
use crate::rewind::stack_index::StackIndex;
use crate::snapshot::StackUse;
use crate::snapshot::failed_request::FailedRequest;

/// Steps that a rank may have finished since the request failed.
const STEPS_SINCE_MAX: u64 = 1;

/// Blocks that a rank may have been given since: an error on its way out takes few.
const BLOCKS_SINCE_MAX: usize = 32;

/// Events since the request that are read.
const EVENTS_SINCE_MAX: u64 = 4096;

/// The failed request before its stacks have indexes.
pub(crate) struct Failed {
    device: u8,
    event: Event,
    /// Ids of stacks with their live bytes and blocks, most bytes first.
    uses: Vec<(u32, (u64, u64))>,
}

impl<S: Source> Tape<S> {
    /// The last failed request, if the rank has not gone on since. Without the blocks where the
    /// events since are overwritten, or the allowance is not enough.
    pub(crate) fn failed(&self, mut allowance: Allowance) -> Option<Failed> {
        let (lane_index, event) = self.last_oom()?;
        let steps_since = self.status().step.saturating_sub(u64::from(event.step));
        let device = u8::try_from(lane_index).ok().filter(|_| steps_since <= STEPS_SINCE_MAX)?;
        let lane = self.lane(lane_index)?;
        let failed_at = self.word(lane.head + head::LAST_OOM);
        let since = self.events(&lane, failed_at, failed_at.saturating_add(EVENTS_SINCE_MAX));
        let blocks_since = since.iter().flatten().filter(|event| event.kind == Kind::Alloc).count();
        if blocks_since > BLOCKS_SINCE_MAX {
            return None;
        }
        let cut = self.cut_at(lane_index, &lane, PointInTime::LastOom).ok();
        let state = cut.and_then(|cut| self.lane_state(&lane, cut, None, 0, &mut allowance).ok());
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for block in state.iter().flat_map(|state| state.live.iter()) {
            let (bytes, blocks) = sums.entry(block.stack).or_default();
            *bytes = bytes.saturating_add(block.size);
            *blocks += 1;
        }
        let mut uses: Vec<_> = sums.into_iter().collect();
        uses.sort_by_key(|(_, (bytes, _))| core::cmp::Reverse(*bytes));
        uses.truncate(FAILED_USES_MAX);
        Some(Failed { device, event, uses })
    }

    /// The failed request for a snapshot with these stacks.
    pub(crate) fn failed_request(&self, failed: Failed, stacks: &mut StackIndex) -> FailedRequest {
        let Failed { device, event, uses } = failed;
        let of_stack = |(id, (bytes, blocks))| StackUse { stack: stacks.of(id), bytes, blocks };
        let uses = uses.into_iter().map(of_stack).collect();
        FailedRequest {
            device,
            step: u64::from(event.step),
            wall_ns: self.wall_ns(event.mono_ns),
            bytes: event.size,
            stack: stacks.of(event.stack),
            // Where other events have an address and a birth, this one has its totals.
            allocated: event.address,
            reserved: event.birth_ns,
            device_free: (event.detail > 0).then_some(event.detail),
            uses,
        }
    }
}

//! State of the block judge: the lines of each device, and the open findings.

use alloc::collections::{BTreeMap, BTreeSet};

use crate::census::{Census, LineCensus, LineId};
use crate::limits::CENSUS_LINES_MAX;

use super::super::GrowthKey;
use super::line::{LOOK_BACK_STEPS, Line};
use super::totals::Totals;

/// Most lines of a job whose lifetimes are kept. A job has some hundred lines that hold much.
const LIFETIMES_MAX: usize = 16_384;

/// Most lines of a device that are kept, including lines that hold nothing at present.
const LINES_MAX: usize = 2 * CENSUS_LINES_MAX;

/// The blocks of all ranks.
#[derive(Debug, Default)]
pub(in crate::detector) struct Blocks {
    pub(super) devices: BTreeMap<(u32, u8), Device>,
    /// Oldest age at which blocks of a line were freed on any rank, in steps.
    pub(super) lifetimes: BTreeMap<LineId, u64>,
    /// Ranks whose agent sends censuses, though none may have come yet.
    pub(super) expected: BTreeSet<u32>,
    pub(super) judged_ns: u64,
    pub(super) open: BTreeMap<GrowthKey, Open>,
    /// The line of each finding that is over.
    pub(super) closed: BTreeMap<GrowthKey, LineId>,
}

/// The blocks of one device of one rank.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) step: u64,
    pub(super) lines: BTreeMap<LineId, Line>,
    /// Most bytes that were allocated and freed within one step since the last census.
    work_bytes: u64,
    /// The same at each census.
    pub(super) works: Totals,
}

/// An open finding about blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    /// The line that grows most.
    pub(super) line: LineId,
    /// Newest step at which the growth was found.
    pub(super) seen_step: u64,
    pub(super) is_sure: bool,
}

impl Blocks {
    /// Has a census of this device arrived?
    pub(super) fn is_counted(&self, key: (u32, u8)) -> bool {
        self.devices.contains_key(&key)
    }

    /// Are censuses of this device expected, or have some arrived?
    pub(in crate::detector) fn knows(&self, key: (u32, u8)) -> bool {
        self.expected.contains(&key.0) || self.is_counted(key)
    }

    /// Drops the devices of a rank whose process is over: they are no peers any more.
    pub(in crate::detector) fn forget(&mut self, rank: u32) {
        self.devices.retain(|(known, _), _| *known != rank);
    }

    /// Notes how many bytes a step allocated and freed.
    pub(in crate::detector) fn note_work(&mut self, key: (u32, u8), bytes: u64) {
        if let Some(device) = self.devices.get_mut(&key) {
            device.work_bytes = device.work_bytes.max(bytes);
        }
    }

    pub(super) fn take(&mut self, rank: u32, census: &Census) {
        let step = census.step;
        let device = self.devices.entry((rank, census.device)).or_default();
        if device.step > 0 && step <= device.step {
            return;
        }
        let before_step = core::mem::replace(&mut device.step, step);
        let before_step = (before_step > 0).then_some(before_step);
        device.works.add(step, core::mem::take(&mut device.work_bytes));
        // A line beyond the largest that a census lists may still hold memory.
        let are_all_known = census.other_lines.count == 0;
        let is_recent = |line: &Line| step.saturating_sub(line.held_step) <= LOOK_BACK_STEPS;
        device
            .lines
            .retain(|id, line| census.lines.contains_key(id) || (are_all_known && is_recent(line)));
        if device.lines.len() > LINES_MAX {
            device.lines.retain(|id, _| census.lines.contains_key(id));
        }
        for (id, of) in &census.lines {
            device.lines.entry(*id).or_insert_with(|| Line::new(before_step, step, of));
        }
        let none = LineCensus::default();
        for (id, line) in &mut device.lines {
            let life_steps = line.take(step, census.lines.get(id).unwrap_or(&none));
            let has_room = self.lifetimes.len() < LIFETIMES_MAX || self.lifetimes.contains_key(id);
            if life_steps > 0 && has_room {
                let known = self.lifetimes.entry(*id).or_default();
                *known = life_steps.max(*known);
            }
        }
        // Where no line has a frame of the user's code, as without stacks, all lines count.
        let has_user_code = device.lines.values().any(|line| line.is_user_code);
        device.lines.values_mut().for_each(|line| line.is_user_code |= !has_user_code);
    }
}

//! Live bytes and blocks by stack, of one state of a rank: at the end of its step, at a peak, or
//! when a request failed.
//!
//! The sum over all stacks and the bytes in no recorded block equal the allocated bytes exactly.
//! Blocks that are pending free are left out: the program has freed them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::diagnosis::evidence::account::primary_device;
use crate::diagnosis::evidence::past;
use crate::diagnosis::files::History;
use crate::snapshot::{
    Block, DeviceSnapshot, Frame, Held, RankSnapshot, StackUse, allocation_step,
};
use crate::stacks::allocation_steps::AllocationSteps;
use crate::stacks::held_at::HeldAt;

/// What a stack holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// Live memory.
    pub held: Held,
    /// First and last step in which it was allocated; `None` where the state has sums only.
    pub steps: Option<(u64, u64)>,
}

/// Live memory by stack.
#[derive(Clone, Debug, Default)]
pub struct LiveStacks<'a> {
    frames: &'a [Frame],
    stacks: &'a [Vec<u32>],
    has_devices: bool,
    step: u64,
    /// By device and index of the stack.
    uses: BTreeMap<(u8, u32), Use>,
    unrecorded_bytes: u64,
}

impl Use {
    fn of(held: Held, step: Option<u64>) -> Self {
        Self { held, steps: step.map(|step| (step, step)) }
    }

    /// Adds what another stack holds.
    pub(super) fn add(&mut self, more: Self) {
        self.held = self.held.plus(more.held);
        self.steps = match (self.steps, more.steps) {
            (Some(own), Some(other)) => Some((own.0.min(other.0), own.1.max(other.1))),
            (own, other) => own.or(other),
        };
    }
}

impl<'a> LiveStacks<'a> {
    /// Live memory of a rank at the step of its snapshot, that was allocated in these steps.
    pub fn of_snapshot(of: &'a RankSnapshot, steps: AllocationSteps) -> Self {
        let mut live = Self { step: of.step, ..Self::empty(of, of.devices.len()) };
        for device in &of.devices {
            live.add_blocks(device, steps);
        }
        live
    }

    /// Live memory of a rank at this time; `None` where its snapshot does not show it. At the end
    /// of the step it is what was allocated in these steps; at a peak all of the primary device,
    /// and at a failed request all of the device that was asked.
    pub fn held_at(of: &'a RankSnapshot, at: HeldAt, steps: AllocationSteps) -> Option<Self> {
        match at {
            HeldAt::StepEnd => Some(Self::of_snapshot(of, steps)),
            HeldAt::Peak => {
                let device = primary_device(of)?;
                let (step, peak) = past::peak(device)?;
                let mut live = Self { step, ..Self::empty(of, of.devices.len()) };
                live.unrecorded_bytes = unrecorded_bytes(device);
                live.add_uses(device.device, &peak.uses);
                live.add_uses(device.device, &[peak.nameless]);
                Some(live)
            }
            HeldAt::FailedRequest => {
                let failed = of.failed_request.as_ref()?;
                let step = allocation_step(failed.step);
                let mut live = Self { step, ..Self::empty(of, of.devices.len()) };
                live.add_uses(failed.device, &failed.uses);
                let known = failed.uses.iter().fold(0_u64, |sum, of| sum.saturating_add(of.bytes));
                live.unrecorded_bytes = failed.allocated.saturating_sub(known);
                Some(live)
            }
        }
    }

    /// Live memory of a rank at the earlier step of its snapshot; `None` where unknown.
    pub fn before(of: &'a RankSnapshot) -> Option<Self> {
        let mut live = Self::empty(of, of.devices.len());
        for device in &of.devices {
            live.add_uses(device.device, &device.before);
        }
        (of.before_step > 0).then_some(live)
    }

    /// Live memory of the rank of a condensed state.
    pub fn of_history(of: &'a History) -> Self {
        let mut live = Self::empty(&of.rank, of.devices.len());
        for device in of.devices.iter().map(|device| &device.state) {
            live.add_blocks(device, AllocationSteps::ALL);
        }
        live
    }

    /// Live memory after this number of steps of the trace; `None` where no device's trace has that
    /// many.
    pub fn after(of: &'a History, steps: u64) -> Option<Self> {
        let mut live = Self::empty(&of.rank, of.devices.len());
        let mut is_known = false;
        for device in &of.devices {
            let mark = usize::try_from(steps).ok().and_then(|steps| device.past.marks.get(steps));
            let Some(mark) = mark else { continue };
            is_known = true;
            let number = device.state.device;
            live.add_uses(number, &mark.uses);
            // Freed since, and older than the trace.
            for &(size, count) in &mark.nameless {
                let held = Held { bytes: size.saturating_mul(count), count };
                live.add(number, 0, Use::of(held, None));
            }
        }
        is_known.then_some(live)
    }

    /// The step at whose end the memory is alive; of a peak and of a failed request the step that
    /// they are in. 0 where only the caller knows it.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Bytes in no recorded block: the tape was full, or the file lists no blocks; at a peak those
    /// at the end of the step, and at a failed request those of further stacks. The steps of these
    /// bytes are not known, so they are not chosen by steps.
    pub fn unrecorded_bytes(&self) -> u64 {
        self.unrecorded_bytes
    }

    /// What each stack of each device holds, with the index of the stack.
    pub fn uses(&self) -> impl Iterator<Item = ((u8, u32), Use)> + '_ {
        self.uses.iter().map(|(key, held)| (*key, *held))
    }

    /// The device as it tells stacks apart; `None` where the rank uses one device only.
    pub(super) fn device(&self, device: u8) -> Option<u8> {
        self.has_devices.then_some(device)
    }

    /// The known frames of a stack, outermost first; none where the stack is unknown.
    pub(super) fn frames_of(&self, stack: u32) -> impl Iterator<Item = &'a Frame> {
        let (frames, stacks) = (self.frames, self.stacks);
        let indexes = stacks.get(stack as usize).map(Vec::as_slice).unwrap_or_default();
        let frames = indexes.iter().rev().filter_map(|&index| frames.get(index as usize));
        frames.filter(|frame| !frame.file.is_empty() || !frame.function.is_empty())
    }

    fn empty(of: &'a RankSnapshot, devices: usize) -> Self {
        let (frames, stacks) = (of.frames.as_slice(), of.stacks.as_slice());
        Self { frames, stacks, has_devices: devices > 1, ..Self::default() }
    }

    fn add_blocks(&mut self, of: &DeviceSnapshot, steps: AllocationSteps) {
        for block in recorded(of).filter(|block| steps.has(block)) {
            let held = Held { bytes: block.size, count: 1 };
            let step = AllocationSteps::step_of(block);
            self.add(of.device, block.stack, Use::of(held, Some(step)));
        }
        self.unrecorded_bytes = self.unrecorded_bytes.saturating_add(unrecorded_bytes(of));
    }

    fn add_uses(&mut self, device: u8, uses: &[StackUse]) {
        for held in uses {
            let use_of = Use::of(Held { bytes: held.bytes, count: held.blocks }, None);
            self.add(device, held.stack, use_of);
        }
    }

    fn add(&mut self, device: u8, stack: u32, more: Use) {
        if more.held != Held::default() {
            self.uses.entry((device, stack)).or_default().add(more);
        }
    }
}

/// The live blocks of a device, as far as they are recorded.
fn recorded(of: &DeviceSnapshot) -> impl Iterator<Item = &Block> {
    of.blocks.iter().filter(|block| !block.pending)
}

fn unrecorded_bytes(of: &DeviceSnapshot) -> u64 {
    let known = recorded(of).fold(0_u64, |sum, block| sum.saturating_add(block.size));
    of.allocated.saturating_sub(known)
}

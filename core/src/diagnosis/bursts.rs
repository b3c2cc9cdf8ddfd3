//! Many blocks of many ages, freed at one moment.
//!
//! A training step frees what it made itself: blocks of one birth, or two. Python's garbage
//! collector frees whatever hung in cycles since it last ran, of all births. So does a program
//! that empties a list; the trace alone cannot tell the two apart.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::frames::telling_frame;
use crate::snapshot::{DeviceSnapshot, Frame, RankSnapshot, TraceKind};

/// A run of frees is a burst when blocks of so many birth steps are among them.
const BURST_BIRTHS_MIN: usize = 6;

/// Frees of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bursts {
    /// How many there were in the trace.
    pub(super) count: u64,
    /// Blocks, birth steps and bytes of the largest.
    pub(super) blocks: u64,
    pub(super) births: u64,
    pub(super) bytes: u64,
    /// The step in which that was.
    pub(super) step: u64,
    /// The line that had allocated most of it.
    pub(super) frame: Option<Frame>,
}

#[derive(Default)]
struct Run {
    births: BTreeSet<u64>,
    by_stack: BTreeMap<u32, u64>,
    blocks: u64,
    bytes: u64,
    step: u64,
}

/// What the trace shows; none where there is no trace.
pub(super) fn bursts(snapshot: &RankSnapshot, device: &DeviceSnapshot) -> Option<Bursts> {
    let oldest = device.trace.first()?.step;
    let mut found = Bursts::default();
    let mut alive: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
    let mut run = Run::default();
    for event in &device.trace {
        match event.kind {
            TraceKind::Alloc => {
                found.take(snapshot, core::mem::take(&mut run));
                alive.insert(event.address, (event.step, event.stack));
            }
            TraceKind::Free | TraceKind::FreeDeferred => {
                if event.step != run.step {
                    found.take(snapshot, core::mem::take(&mut run));
                }
                // What was there before the trace has one birth, as far as is known.
                let before = (oldest.saturating_sub(1), event.stack);
                let (birth, stack) = alive.remove(&event.address).unwrap_or(before);
                run.step = event.step;
                run.births.insert(birth);
                run.blocks += 1;
                run.bytes = run.bytes.saturating_add(event.size);
                let sum = run.by_stack.entry(stack).or_default();
                *sum = sum.saturating_add(event.size);
            }
            _ => {}
        }
    }
    found.take(snapshot, run);
    Some(found)
}

impl Bursts {
    fn take(&mut self, snapshot: &RankSnapshot, run: Run) {
        if run.births.len() < BURST_BIRTHS_MIN {
            return;
        }
        self.count += 1;
        if run.bytes < self.bytes {
            return;
        }
        let most = run.by_stack.iter().max_by_key(|&(_, bytes)| *bytes);
        let frames: Vec<&Frame> =
            most.map(|(&stack, _)| snapshot.frames_of(stack).collect()).unwrap_or_default();
        self.frame = telling_frame(&frames).cloned();
        self.blocks = run.blocks;
        self.births = run.births.len() as u64;
        self.bytes = run.bytes;
        self.step = run.step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::TraceEvent;

    fn event(kind: TraceKind, address: u64, step: u64) -> TraceEvent {
        TraceEvent { kind, mono_ns: 0, address, size: 10, detail: 0, stack: 0, place: 0, step }
    }

    fn found(trace: Vec<TraceEvent>) -> Option<Bursts> {
        let device = DeviceSnapshot { trace, ..DeviceSnapshot::default() };
        bursts(&RankSnapshot::default(), &device)
    }

    #[test]
    fn a_collection_frees_blocks_of_many_births() {
        use TraceKind::{Alloc, Free};
        assert_eq!(found(Vec::new()), None);
        let mut trace: Vec<TraceEvent> = (0..40).map(|step| event(Alloc, step, step)).collect();
        trace.extend((0..40).map(|address| event(Free, address, 40)));
        let expected =
            Bursts { count: 1, blocks: 40, births: 40, bytes: 400, step: 40, frame: None };
        assert_eq!(found(trace), Some(expected));
    }

    #[test]
    fn a_step_that_frees_its_own_is_no_burst() {
        use TraceKind::{Alloc, Free};
        let step = |step: u64| {
            let made = (0..50).map(move |address| event(Alloc, address, step));
            made.chain((0..50).map(move |address| event(Free, address, step)))
        };
        assert_eq!(found((0..20).flat_map(step).collect()), Some(Bursts::default()));
        // What was there before the trace has no known births.
        let unknown = (0..50).map(|address| event(Free, address, 9)).collect();
        assert_eq!(found(unknown), Some(Bursts::default()));
    }
}

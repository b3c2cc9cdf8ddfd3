//! Counts a tape's live table.
//!
//! The table is read in pieces while its process goes on writing. A block that is allocated or
//! freed meanwhile is counted or not, which changes the youngest cohorts only. Each stack is
//! resolved to its line once, because stacks never change on a tape.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::census::line::{LineId, line_of};
use crate::census::{Census, cohort};
use crate::snapshot::{Frame, Held};
use crate::tape::read::{Source, Tape};

/// Counts one tape again and again, and remembers the lines of its stacks.
#[derive(Debug, Default)]
pub struct CensusReader {
    lines: BTreeMap<u32, LineId>,
    frames: BTreeMap<LineId, Vec<Frame>>,
}

impl CensusReader {
    /// Counts the live blocks of a device; `None` when the device has no lane or cannot be read.
    ///
    /// Blocks that the program has freed and other streams still use are left out: they are the
    /// allocator's pending frees, not kept by a line.
    pub fn count<S: Source>(&mut self, tape: &Tape<S>, device: u8) -> Option<Census> {
        let step = tape.status().step;
        let mut counted: BTreeMap<(u32, u64), (u64, Held)> = BTreeMap::new();
        tape.for_each_live_block(device, |block| {
            if !block.is_pending {
                let cohort = cohort::start(step, block.birth_step);
                let of =
                    counted.entry((block.stack, cohort)).or_insert((u64::MAX, Held::default()));
                of.0 = of.0.min(block.birth_step);
                of.1.add(block.bytes);
            }
        })?;
        self.resolve(tape, counted.keys().map(|(stack, _)| *stack));

        let id = |stack: &u32| self.lines.get(stack).copied().unwrap_or_default();
        let counted =
            counted.iter().map(|((stack, _), (oldest, held))| (id(stack), *oldest, *held));
        Some(Census::of(device, step, counted, |id| self.frames.get(&id).cloned()))
    }

    /// Learns the lines of stacks that were not seen before.
    fn resolve<S: Source>(&mut self, tape: &Tape<S>, stacks: impl Iterator<Item = u32>) {
        let mut unknown: Vec<u32> =
            stacks.filter(|stack| !self.lines.contains_key(stack)).collect();
        unknown.dedup();
        if unknown.is_empty() {
            return;
        }
        let interned = tape.interned();
        for stack in unknown {
            let frames: Vec<Frame> = interned.frames_of(stack);
            let (id, frames) = line_of(&frames.iter().collect::<Vec<_>>());
            self.lines.insert(stack, id);
            self.frames.entry(id).or_insert(frames);
        }
    }
}

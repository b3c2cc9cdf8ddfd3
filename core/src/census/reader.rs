//! Counts a tape's live table.
//!
//! The table is read in pieces while its process goes on writing. A block that is allocated or
//! freed meanwhile is counted or not, which changes the youngest cohorts only. Each stack is
//! resolved to its line once, because stacks never change on a tape. Memory is bounded for any
//! tape: blocks beyond a bound count as memory without a stack.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::census::line::{LineId, line_of};
use crate::census::{Census, cohort};
use crate::snapshot::{Frame, Held};
use crate::tape::read::{Source, Tape};

/// Maximum pairs of stack and cohort that one count distinguishes.
const COUNTED_MAX: usize = 1 << 16;

/// Stacks whose lines are remembered.
const STACKS_MAX: usize = 1 << 16;

/// Bytes of the frames that are remembered.
const FRAMES_BYTES_MAX: usize = 8 << 20;

/// Counts one tape again and again, and remembers the lines of its stacks.
#[derive(Debug, Default)]
pub struct CensusReader {
    lines: BTreeMap<u32, LineId>,
    frames: BTreeMap<LineId, Vec<Frame>>,
    frames_bytes: usize,
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
                let is_known = counted.contains_key(&(block.stack, cohort));
                let stack = if is_known || counted.len() < COUNTED_MAX { block.stack } else { 0 };
                let of = counted.entry((stack, cohort)).or_insert((u64::MAX, Held::default()));
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

    /// About the memory that is taken between two counts, in bytes.
    pub fn bytes(&self) -> usize {
        const STACK_BYTES: usize = 32;
        self.lines.len() * STACK_BYTES + self.frames_bytes
    }

    /// Learns the lines of stacks that were not seen before.
    fn resolve<S: Source>(&mut self, tape: &Tape<S>, stacks: impl Iterator<Item = u32>) {
        let mut unknown: Vec<u32> =
            stacks.filter(|stack| !self.lines.contains_key(stack)).collect();
        unknown.dedup();
        unknown.truncate(STACKS_MAX.saturating_sub(self.lines.len()));
        if unknown.is_empty() {
            return;
        }
        let interned = tape.interned();
        for stack in unknown {
            let frames: Vec<Frame> = interned.frames_of(stack);
            let (mut id, frames) = line_of(&frames.iter().collect::<Vec<_>>());
            if !self.frames.contains_key(&id) {
                let bytes = size_of::<LineId>() + frames.iter().map(bytes_of).sum::<usize>();
                if self.frames_bytes + bytes <= FRAMES_BYTES_MAX {
                    self.frames_bytes += bytes;
                    self.frames.insert(id, frames);
                } else {
                    id = LineId::default();
                }
            }
            self.lines.insert(stack, id);
        }
    }
}

fn bytes_of(frame: &Frame) -> usize {
    size_of::<Frame>() + frame.file.len() + frame.function.len()
}

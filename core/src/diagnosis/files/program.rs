//! Whether the states in two files are of one program, by what is or was alive in them.
//!
//! Ranks of one job run the same code, so most lines that hold memory on one of them do so on the
//! other. Where no stack has a line of the user's code, the sizes of the blocks stand for lines.

use alloc::collections::BTreeSet;

use super::history::History;
use crate::snapshot::Frame;
use crate::snapshot::frames::{is_user_frame, telling_frame};

/// The part of the lines of the file with fewer lines that the other file must have: a half.
const COMMON_PART: usize = 2;

/// What tells the program of a file.
#[derive(Debug)]
pub struct Program<'a> {
    lines: BTreeSet<(&'a Frame, &'a str)>,
    sizes: BTreeSet<u64>,
}

impl<'a> Program<'a> {
    /// That of the file with this history.
    pub fn of(history: &'a History) -> Self {
        let lines = lines(history);
        let sizes = if lines.is_empty() { sizes(history) } else { BTreeSet::new() };
        Self { lines, sizes }
    }

    /// True where both files hold memory from the same lines of code; false where nothing says so.
    pub fn is(&self, other: &Self) -> bool {
        if self.lines.is_empty() && other.lines.is_empty() {
            // Small sizes are in many programs: here the larger set counts.
            let larger = self.sizes.len().max(other.sizes.len());
            return are_common(&self.sizes, &other.sizes, larger);
        }
        are_common(&self.lines, &other.lines, self.lines.len().min(other.lines.len()))
    }
}

fn are_common<T: Ord>(one: &BTreeSet<T>, other: &BTreeSet<T>, of: usize) -> bool {
    of > 0 && one.intersection(other).count() * COMMON_PART >= of
}

/// Lines of the user's code with memory at the end or at the peak, each with the file of the
/// outermost one in its stack: two programs may use one library.
fn lines(of: &History) -> BTreeSet<(&Frame, &str)> {
    let stacks = of.devices.iter().flat_map(|device| {
        let peak = device.past.peak.iter().flat_map(|peak| &peak.uses).map(|held| held.stack);
        device.state.blocks.iter().map(|block| block.stack).chain(peak)
    });
    let stacks: BTreeSet<u32> = stacks.collect();
    let line = |stack: u32| {
        let frames = of.stack(stack);
        let line = telling_frame(&frames).filter(|frame| is_user_frame(frame))?;
        let outermost = frames.iter().rev().find(|frame| is_user_frame(frame))?;
        Some((line, outermost.file.as_str()))
    };
    stacks.into_iter().filter_map(line).collect()
}

/// Sizes of the live blocks, in bytes.
fn sizes(of: &History) -> BTreeSet<u64> {
    of.devices.iter().flat_map(|device| &device.state.blocks).map(|block| block.size).collect()
}

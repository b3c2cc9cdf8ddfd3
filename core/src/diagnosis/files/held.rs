//! What is allocated under each line of code, on one rank and on the others.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::aligned::Aligned;
use crate::diagnosis::evidence::account::{Use, median, unsigned};
use crate::diagnosis::words::location;
use crate::snapshot::frames::{is_optimizer_state, telling_frame};
use crate::snapshot::{Frame, StackUse};

/// What one line of code holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct HeldLine {
    /// Innermost frame of the user's own code; the unknown frame for memory without a stack.
    pub frame: Frame,
    /// What it is, where its stacks tell.
    pub kind: Kind,
    /// Live bytes.
    pub bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes more than before.
    pub grown: i64,
    /// Blocks born since.
    pub fresh_blocks: u64,
    /// Steps in which these were born.
    pub generations: u64,
    /// Stacks through this line.
    pub stacks: u32,
    /// The median of the bytes on other ranks; none without others.
    pub others_bytes: Option<u64>,
    /// The median of the blocks on other ranks.
    pub others_blocks: Option<u64>,
}

/// What memory is for, where its stack tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The stack does not tell.
    #[default]
    Other,
    /// State of an optimizer.
    OptimizerState,
    /// Parameters, or what a module makes once.
    Module,
    /// Made in a backward pass.
    Backward,
    /// There is no stack: older than the recording, or made in a backward pass.
    #[serde(rename = "no_stack")]
    Nameless,
}

impl Kind {
    /// Memory of this kind that a line holds, in words.
    pub(super) fn name(self, frame: &Frame) -> String {
        match self {
            Self::Nameless => "without a stack".into(),
            Self::OptimizerState => format!("of optimizer state ({})", location(frame)),
            Self::Module | Self::Backward | Self::Other => format!("at {}", location(frame)),
        }
    }

    pub(crate) fn of(stack: &[&Frame]) -> Self {
        let is = |frame: &&&Frame, file: &str, functions: &[&str]| {
            frame.file.contains(file) && functions.contains(&frame.function.as_str())
        };
        if stack.iter().all(|frame| frame.file.is_empty() && frame.function.is_empty()) {
            return Self::Nameless;
        }
        if is_optimizer_state(stack) {
            return Self::OptimizerState;
        }
        if stack.first().is_some_and(|frame| frame.file.is_empty()) {
            return Self::Backward;
        }
        let moves = ["_apply", "to", "cuda", "to_empty", "reset_parameters", "convert"];
        if stack.iter().any(|frame| is(&frame, "torch/nn/modules/module.py", &moves)) {
            return Self::Module;
        }
        Self::Other
    }
}

/// The lines of a rank, those that hold most first, beside the other ranks.
pub(crate) fn lines(
    of: &Aligned<'_>,
    kept: &BTreeMap<u32, Use>,
    others: &[BTreeMap<(Frame, Kind), HeldLine>],
) -> Vec<HeldLine> {
    let mut lines: Vec<HeldLine> = by_line(of, kept).into_values().collect();
    for line in &mut lines {
        if others.is_empty() {
            continue;
        }
        let key = (line.frame.clone(), line.kind);
        let median_of = |number: fn(&HeldLine) -> u64| {
            median(others.iter().map(|other| other.get(&key).map_or(0, number)).collect())
        };
        line.others_bytes = Some(median_of(|line| line.bytes));
        line.others_blocks = Some(median_of(|line| line.blocks));
    }
    lines.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.frame.cmp(&b.frame)));
    lines
}

/// What each line holds.
pub(crate) fn by_line(
    of: &Aligned<'_>,
    kept: &BTreeMap<u32, Use>,
) -> BTreeMap<(Frame, Kind), HeldLine> {
    let mut lines: BTreeMap<(Frame, Kind), HeldLine> = BTreeMap::new();
    for (&stack, held) in kept {
        let frames = of.stack(stack);
        let kind = Kind::of(&frames);
        let frame = telling_frame(&frames).cloned().unwrap_or_default();
        let line = lines.entry((frame.clone(), kind)).or_default();
        (line.frame, line.kind) = (frame, kind);
        line.bytes = line.bytes.saturating_add(held.bytes);
        line.blocks += held.blocks;
        line.grown = line.grown.saturating_add(held.grown.bytes);
        line.fresh_blocks += unsigned(held.fresh.blocks);
        line.generations = line.generations.max(of.fresh_births(&held.births).count() as u64);
        line.stacks += u32::from(held.blocks > 0);
    }
    lines
}

/// What was alive at a peak, by line.
pub(crate) fn at_peak(of: &Aligned<'_>, uses: &[StackUse]) -> Vec<HeldLine> {
    lines(of, &kept(uses), &[])
}

/// The same by stack.
pub(crate) fn kept(uses: &[StackUse]) -> BTreeMap<u32, Use> {
    uses.iter().map(|one| (one.stack, Use::of(one))).collect()
}

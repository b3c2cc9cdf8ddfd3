//! What one file holds more or less than another, by line and by stack.
//!
//! It does not ask why: two files may be one rank at two times, or two ranks, or two versions
//! of a program. Stacks are the same when they say the same.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::held::Kind;
use super::history::History;
use crate::diagnosis::evidence::account::{Stack, signed};
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

/// Bytes and blocks that are alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

/// One line or stack in two files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Its frames, innermost first; of a line the one frame; of memory without a stack none.
    pub frames: Vec<Frame>,
    /// What the memory is for.
    pub kind: Kind,
    /// In the first file.
    pub from: Held,
    /// In the second file.
    pub to: Held,
}

impl Change {
    /// Bytes more in the second file.
    pub fn bytes(&self) -> i64 {
        signed(self.to.bytes).saturating_sub(signed(self.from.bytes))
    }

    /// The name a user meets for what happened.
    pub fn as_str(&self) -> &'static str {
        match (self.from.blocks, self.to.blocks) {
            (0, _) => "new",
            (_, 0) => "gone",
            _ if self.from == self.to => "same",
            _ if self.bytes() > 0 => "grown",
            _ if self.bytes() < 0 => "shrunk",
            _ => "changed",
        }
    }
}

/// Two files beside each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// By line, largest change first.
    pub lines: Vec<Change>,
    /// By stack, largest change first.
    pub stacks: Vec<Change>,
}

/// Compares two files: the devices that hold most.
pub fn diff(from: &History, to: &History) -> Diff {
    let mut stacks: BTreeMap<Stack<'_>, (Held, Held)> = BTreeMap::new();
    for (stack, held) in held(from) {
        add(&mut stacks.entry(stack).or_default().0, held);
    }
    for (stack, held) in held(to) {
        add(&mut stacks.entry(stack).or_default().1, held);
    }
    let mut lines: BTreeMap<(Option<&Frame>, Kind), (Held, Held)> = BTreeMap::new();
    for (stack, (before, after)) in &stacks {
        let line = lines.entry((telling_frame(stack), Kind::of(stack))).or_default();
        add(&mut line.0, *before);
        add(&mut line.1, *after);
    }
    let owned = |frames: &[&Frame]| frames.iter().map(|&frame| frame.clone()).collect();
    let of_stacks = stacks.into_iter().map(|(stack, (from, to))| Change {
        kind: Kind::of(&stack),
        frames: owned(&stack),
        from,
        to,
    });
    let of_lines = lines.into_iter().map(|((frame, kind), (from, to))| Change {
        kind,
        frames: frame.into_iter().cloned().collect(),
        from,
        to,
    });
    Diff { lines: sorted(of_lines.collect()), stacks: sorted(of_stacks.collect()) }
}

fn add(sum: &mut Held, held: Held) {
    sum.bytes = sum.bytes.saturating_add(held.bytes);
    sum.blocks = sum.blocks.saturating_add(held.blocks);
}

/// What each stack of a file holds.
fn held(of: &History) -> BTreeMap<Stack<'_>, Held> {
    let mut by_number: BTreeMap<u32, Held> = BTreeMap::new();
    let device = of.primary_device();
    let blocks = device.map(|device| device.state.blocks.as_slice()).unwrap_or_default();
    for block in blocks.iter().filter(|block| !block.pending) {
        add(by_number.entry(block.stack).or_default(), Held { bytes: block.size, blocks: 1 });
    }
    let mut by_stack: BTreeMap<Stack<'_>, Held> = BTreeMap::new();
    for (stack, held) in by_number {
        add(by_stack.entry(of.stack(stack)).or_default(), held);
    }
    by_stack
}

fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|a, b| {
        let by_change = b.bytes().unsigned_abs().cmp(&a.bytes().unsigned_abs());
        by_change.then(b.to.bytes.cmp(&a.to.bytes)).then_with(|| a.frames.cmp(&b.frames))
    });
    changes
}

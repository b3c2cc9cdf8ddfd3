//! What one file holds more or less than another, by line and by stack.
//!
//! It does not ask why: two files may be one rank at two times, or two ranks, or two versions
//! of a program. Stacks are the same when they say the same.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::held::Kind;
use super::history::{Held, History};
use crate::diagnosis::evidence::account::{Stack, signed};
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

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
    for (stack, held) in of_primary(from) {
        stacks.entry(stack).or_default().0 = held;
    }
    for (stack, held) in of_primary(to) {
        stacks.entry(stack).or_default().1 = held;
    }
    let mut lines: BTreeMap<(Option<&Frame>, Kind), (Held, Held)> = BTreeMap::new();
    for (stack, (before, after)) in &stacks {
        let line = lines.entry((telling_frame(stack), Kind::of(stack))).or_default();
        line.0.add(before.bytes, before.blocks);
        line.1.add(after.bytes, after.blocks);
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

/// What each stack of the device that holds most has.
fn of_primary(of: &History) -> BTreeMap<Stack<'_>, Held> {
    of.primary_device().map(|device| of.held(device)).unwrap_or_default()
}

fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|a, b| {
        let by_change = b.bytes().unsigned_abs().cmp(&a.bytes().unsigned_abs());
        by_change.then(b.to.bytes.cmp(&a.to.bytes)).then_with(|| a.frames.cmp(&b.frames))
    });
    changes
}

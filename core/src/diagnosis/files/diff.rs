//! What one file holds more or less than another, by line and by stack.
//!
//! It does not ask why: two files may be one rank at two times, or two ranks, or two versions
//! of a program. Stacks are the same when they say the same.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::held::Kind;
use super::history::{DeviceHistory, Held, History};
use super::levels::Sides;
use super::program::Program;
use crate::diagnosis::evidence::account::{Stack, signed};
use crate::snapshot::Frame;
use crate::snapshot::frames::telling_frame;

/// The part of the largest device's bytes that the device with the index of the other file's
/// largest must hold, to be compared with that: a half.
const LIKE_LARGEST_PART: u64 = 2;

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

    /// The name a user meets for what happened; of two programs, which of them has it.
    pub fn as_str(&self, is_one_program: bool) -> &'static str {
        match (self.from.blocks, self.to.blocks) {
            (0, _) if is_one_program => "new",
            (_, 0) if is_one_program => "gone",
            (0, _) => "only in B",
            (_, 0) => "only in A",
            _ if self.from == self.to => "same",
            _ if self.bytes() > 0 => "grown",
            _ if self.bytes() < 0 => "shrunk",
            _ => "changed",
        }
    }
}

/// A device in two files beside each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Index of the device in each file; none where a file does not have it.
    pub devices: Sides<Option<u8>>,
    /// Bytes that it holds in each file.
    pub held: Sides<u64>,
    /// Whether each file has stacks. Lines and stacks are compared where both have them.
    pub has_stacks: Sides<bool>,
    /// Both files hold memory from the same lines of code, or one of them holds none.
    pub is_one_program: bool,
    /// By line, largest change first.
    pub lines: Vec<Change>,
    /// By stack, largest change first.
    pub stacks: Vec<Change>,
}

/// Compares two files device by device, the largest device first.
pub fn diff(from: &History, to: &History) -> Vec<Diff> {
    pairs(from, to).into_iter().map(|devices| diff_of(devices, from, to)).collect()
}

/// Devices that are compared with each other, by their indexes. Files of two ranks may each have
/// their memory on a device of its own: then the devices that hold most are compared.
fn pairs(from: &History, to: &History) -> Vec<Sides<Option<u8>>> {
    let index = |device: &DeviceHistory| device.state.device;
    let (largest, largest_of_to) = (from.primary_device(), to.primary_device());
    let is_used = |device: &&DeviceHistory| device.state.allocated > 0 || device.past.events > 0;
    // Devices of one process keep their indexes: the first file, too, uses the second's largest.
    let known = largest_of_to.and_then(|device| from.device(index(device))).filter(is_used);
    let same_index = largest.and_then(|device| to.device(index(device))).filter(|device| {
        let most = largest_of_to.map_or(0, |device| device.state.allocated);
        known.is_some() || device.state.allocated >= most / LIKE_LARGEST_PART
    });
    let first = Sides { from: largest.map(index), to: same_index.or(largest_of_to).map(index) };
    let indexes: BTreeSet<u8> = from.devices.iter().chain(&to.devices).map(index).collect();
    let others = indexes.into_iter().map(|other| {
        let of = |file: &History, first: Option<u8>| {
            let device = file.device(other).filter(|_| first != Some(other));
            device.filter(is_used).map(index)
        };
        Sides { from: of(from, first.from), to: of(to, first.to) }
    });
    let others = others.filter(|of| of.from.is_some() || of.to.is_some());
    core::iter::once(first).chain(others).collect()
}

fn diff_of(devices: Sides<Option<u8>>, from: &History, to: &History) -> Diff {
    fn held(of: &History, device: Option<u8>) -> BTreeMap<Stack<'_>, Held> {
        let device = device.and_then(|index| of.device(index));
        device.map(|device| of.held(device)).unwrap_or_default()
    }
    let has_stacks = Sides { from: from.has_stacks(), to: to.has_stacks() };
    let (before, after) = (held(from, devices.from), held(to, devices.to));
    let bytes =
        |of: &BTreeMap<Stack<'_>, Held>| of.values().fold(0, |s: u64, h| s.saturating_add(h.bytes));
    let all = Sides { from: bytes(&before), to: bytes(&after) };
    let are_comparable = has_stacks.from && has_stacks.to;
    let mut stacks: BTreeMap<Stack<'_>, (Held, Held)> = BTreeMap::new();
    for (stack, held) in before.into_iter().filter(|_| are_comparable) {
        stacks.entry(stack).or_default().0 = held;
    }
    for (stack, held) in after.into_iter().filter(|_| are_comparable) {
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
    Diff {
        devices,
        held: all,
        has_stacks,
        is_one_program: all.from == 0 || all.to == 0 || Program::of(from).is(&Program::of(to)),
        lines: sorted(of_lines.collect()),
        stacks: sorted(of_stacks.collect()),
    }
}

fn sorted(mut changes: Vec<Change>) -> Vec<Change> {
    changes.sort_by(|a, b| {
        let by_change = b.bytes().unsigned_abs().cmp(&a.bytes().unsigned_abs());
        by_change.then(b.to.bytes.cmp(&a.to.bytes)).then_with(|| a.frames.cmp(&b.frames))
    });
    changes
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn devices_are_crossed_only_where_each_file_has_one_of_its_own() {
        // Gibibytes on the devices 0 and 1 of each file.
        let of = |held: [u64; 2]| {
            let devices = (0..).zip(held).map(|(device, allocated)| {
                let mut history = DeviceHistory::default();
                (history.state.device, history.state.allocated) = (device, allocated << 30);
                history
            });
            History { devices: devices.collect(), ..History::default() }
        };
        let check = |from, to, expected: Vec<(Option<u8>, Option<u8>)>| {
            let pairs = pairs(&of(from), &of(to)).into_iter();
            assert_eq!(pairs.map(|of| (of.from, of.to)).collect::<Vec<_>>(), expected);
        };
        check([10, 0], [0, 10], vec![(Some(0), Some(1))]);
        // One process that holds more on its other device later.
        check([10, 1], [1, 10], vec![(Some(0), Some(0)), (Some(1), Some(1))]);
        check([10, 1], [10, 1], vec![(Some(0), Some(0)), (Some(1), Some(1))]);
    }
}

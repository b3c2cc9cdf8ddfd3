//! Which lines of code hold the live memory of one device of a rank.
//!
//! A line is the frame that is shown to a person ([`telling_frame`]); blocks that are pending free
//! count for none, because the program has freed them. It judges nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::frames::telling_frame;
use super::{DeviceSnapshot, Frame, Held, RankSnapshot};

/// Memory of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveLine {
    /// The line; the unknown frame for memory without a stack.
    pub frame: Frame,
    /// The innermost frame, of the stack that holds most.
    pub innermost: Frame,
    /// Live memory.
    pub held: Held,
    /// Number of different steps in which the memory was allocated, as far as births are known: a
    /// file of PyTorch does not tell those of blocks that are older than its trace.
    pub births: u64,
    /// Memory of the line at the earlier step of the snapshot; `None` where there is no such step.
    pub before: Option<Held>,
}

/// The lines of a device, the largest first.
pub fn live_lines(snapshot: &RankSnapshot, device: &DeviceSnapshot) -> Vec<LiveLine> {
    let mut by_stack: BTreeMap<u32, (Held, BTreeSet<u64>)> = BTreeMap::new();
    for block in device.blocks.iter().filter(|block| !block.pending) {
        let (held, births) = by_stack.entry(block.stack).or_default();
        held.add(block.size);
        if block.birth_step > 0 || block.birth_ns > 0 {
            births.insert(block.birth_step);
        }
    }
    let before = device.before.iter().filter(|_| snapshot.before_step > 0);
    let before: BTreeMap<u32, Held> =
        before.map(|of| (of.stack, Held { bytes: of.bytes, count: of.blocks })).collect();
    // A stack that holds nothing any more still says what its line held.
    for &stack in before.keys() {
        by_stack.entry(stack).or_default();
    }
    let mut stacks: Vec<(u32, Held, BTreeSet<u64>)> =
        by_stack.into_iter().map(|(stack, (held, births))| (stack, held, births)).collect();
    stacks.sort_by_key(|(stack, held, _)| (Reverse(held.bytes), *stack));
    let mut lines: BTreeMap<Frame, (LiveLine, BTreeSet<u64>)> = BTreeMap::new();
    for (stack, held, births) in stacks {
        let frames: Vec<&Frame> = snapshot.frames_of(stack).collect();
        let frame = telling_frame(&frames).cloned().unwrap_or_default();
        let (line, all_births) = lines.entry(frame.clone()).or_insert_with(|| {
            let innermost = frames.first().map(|&frame| frame.clone()).unwrap_or_default();
            (LiveLine { frame, innermost, ..LiveLine::default() }, BTreeSet::new())
        });
        line.held = line.held.plus(held);
        all_births.extend(births);
        if snapshot.before_step > 0 {
            let held = before.get(&stack).copied().unwrap_or_default();
            line.before = Some(line.before.unwrap_or_default().plus(held));
        }
    }
    let counted = |(line, births): (LiveLine, BTreeSet<u64>)| LiveLine {
        births: births.len() as u64,
        ..line
    };
    let mut lines: Vec<LiveLine> = lines.into_values().map(counted).collect();
    lines.retain(|line| line.held.count > 0);
    lines.sort_by(|a, b| b.held.bytes.cmp(&a.held.bytes).then_with(|| a.frame.cmp(&b.frame)));
    lines
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;
    use alloc::vec;

    use super::*;
    use crate::snapshot::{Block, StackUse};

    fn frame(file: &str, line: u32) -> Frame {
        Frame { file: file.to_string(), line, function: "f".to_string() }
    }

    #[test]
    fn lines_are_ranked_by_bytes() {
        let block = |address, size, stack, birth_step| Block {
            address,
            size,
            stack,
            birth_step,
            ..Block::default()
        };
        let held = |stack| StackUse { stack, bytes: 100, blocks: 1 };
        let before = vec![held(1), held(3)];
        let device = DeviceSnapshot {
            blocks: vec![
                block(0, 100, 1, 5),
                block(100, 100, 2, 5),
                block(200, 100, 2, 6),
                block(300, 250, 0, 0),
                Block { pending: true, ..block(900, 9000, 1, 1) },
            ],
            before,
            ..DeviceSnapshot::default()
        };
        let torch = "/x/site-packages/torch/nn/functional.py";
        let mut snapshot = RankSnapshot {
            frames: vec![Frame::default(), frame("/app/a.py", 1), frame(torch, 2)],
            stacks: vec![vec![], vec![1], vec![2, 1], vec![1, 2]],
            before_step: 4,
            ..RankSnapshot::default()
        };
        let lines = live_lines(&snapshot, &device);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].frame, frame("/app/a.py", 1));
        assert_eq!(lines[0].innermost, frame(torch, 2), "that stack holds more");
        assert_eq!(lines[0].held, Held { bytes: 300, count: 3 });
        assert_eq!(lines[0].births, 2);
        assert_eq!(lines[0].before, Some(Held { bytes: 200, count: 2 }), "stack 3 has gone");
        assert_eq!((&lines[1].frame, lines[1].held.bytes), (&Frame::default(), 250));
        assert_eq!(lines[1].births, 0, "older than the trace");
        snapshot.before_step = 0;
        assert_eq!(live_lines(&snapshot, &device)[0].before, None);
    }
}

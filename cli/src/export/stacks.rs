//! Live bytes by stack, of one rank at one step: what the flame graph shows.
//!
//! The sum over all stacks equals the allocated bytes exactly. Blocks without a stack and bytes
//! without a block have entries of their own. Blocks that are pending free are left out: the
//! program has freed them.

use std::collections::BTreeMap;

use memtape_core::diagnosis::files::History;
use memtape_core::snapshot::{Block, Frame, RankSnapshot, StackUse};

/// One level of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node<'a> {
    /// A device, where the rank uses several.
    Device(u32),
    /// A frame of the program.
    Code(&'a Frame),
    /// Memory whose stack is not known.
    NoStack,
    /// Memory in no known block: the tape was full, or the file lists no blocks.
    NoBlock,
}

impl Node<'_> {
    /// Name in viewers: of code the function, or file and line where the function is unknown.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Device(device) => format!("device {device}"),
            Self::NoStack => "(no stack)".to_string(),
            Self::NoBlock => "(in no recorded block)".to_string(),
            Self::Code(frame) if frame.function.is_empty() => {
                let file = frame.file.rsplit('/').next().unwrap_or_default();
                format!("{file}:{}", frame.line)
            }
            Self::Code(frame) => frame.function.clone(),
        }
    }
}

/// Bytes by stack, outermost level first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveBytes<'a> {
    by_stack: BTreeMap<Vec<Node<'a>>, u64>,
}

/// Bytes of a stack, now and in the compared state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held<'a> {
    /// The stack, outermost level first.
    pub(crate) stack: Vec<Node<'a>>,
    /// Bytes of the stack.
    pub(crate) bytes: u64,
    /// Bytes in the compared state; 0 where no state is compared.
    pub(crate) base_bytes: u64,
}

/// The frames and stacks of one snapshot.
#[derive(Clone, Copy)]
struct Stacks<'a> {
    frames: &'a [Frame],
    stacks: &'a [Vec<u32>],
    has_devices: bool,
}

impl<'a> Stacks<'a> {
    fn of(self, device: u32, stack: u32) -> Vec<Node<'a>> {
        let indexes = self.stacks.get(stack as usize).map(Vec::as_slice).unwrap_or_default();
        let frames = indexes.iter().rev().filter_map(|&index| self.frames.get(index as usize));
        let frames = frames.filter(|frame| !frame.file.is_empty() || !frame.function.is_empty());
        let mut nodes: Vec<Node<'a>> = self.device(device);
        nodes.extend(frames.map(Node::Code));
        if nodes.len() == usize::from(self.has_devices) {
            nodes.push(Node::NoStack);
        }
        nodes
    }

    fn device(self, device: u32) -> Vec<Node<'a>> {
        if self.has_devices { vec![Node::Device(device)] } else { Vec::new() }
    }
}

impl<'a> LiveBytes<'a> {
    /// Live bytes of a rank at the step of its snapshot.
    pub(crate) fn of_snapshot(of: &'a RankSnapshot) -> Self {
        let stacks = of_rank(of);
        let mut live = Self::default();
        for device in &of.devices {
            live.add_blocks(stacks, device.device.into(), &device.blocks, device.allocated);
        }
        live
    }

    /// Live bytes of a rank at the earlier step of its snapshot; `None` where unknown.
    pub(crate) fn before(of: &'a RankSnapshot) -> Option<Self> {
        let stacks = of_rank(of);
        let mut live = Self::default();
        for device in &of.devices {
            live.add_uses(stacks, device.device.into(), &device.before);
        }
        (of.before_step > 0).then_some(live)
    }

    /// Live bytes of the rank of a condensed state.
    pub(crate) fn of_history(of: &'a History) -> Self {
        let stacks = of_condensed(of);
        let mut live = Self::default();
        for device in of.devices.iter().map(|device| &device.state) {
            live.add_blocks(stacks, device.device.into(), &device.blocks, device.allocated);
        }
        live
    }

    /// Live bytes after this number of steps of the trace; `None` where no device's trace has that
    /// many.
    pub(crate) fn after(of: &'a History, steps: u64) -> Option<Self> {
        let stacks = of_condensed(of);
        let mut live = Self::default();
        let mut is_known = false;
        for device in &of.devices {
            let mark = usize::try_from(steps).ok().and_then(|steps| device.past.marks.get(steps));
            let Some(mark) = mark else { continue };
            is_known = true;
            let number = device.state.device.into();
            live.add_uses(stacks, number, &mark.uses);
            // Freed since, and older than the trace.
            let nameless = mark.nameless.iter();
            let bytes = nameless
                .fold(0_u64, |sum, (size, count)| sum.saturating_add(size.saturating_mul(*count)));
            live.add(stacks.of(number, 0), bytes);
        }
        is_known.then_some(live)
    }

    /// The lower median of several ranks, stack by stack; a rank without a stack holds 0 by it.
    pub(crate) fn median(of: &[Self]) -> Self {
        let mut by_stack: BTreeMap<&Vec<Node<'a>>, Vec<u64>> = BTreeMap::new();
        for (stack, bytes) in of.iter().flat_map(|rank| &rank.by_stack) {
            by_stack.entry(stack).or_default().push(*bytes);
        }
        let median = |(stack, mut bytes): (&Vec<Node<'a>>, Vec<u64>)| {
            bytes.resize(of.len(), 0);
            bytes.sort_unstable();
            let median = bytes.get(bytes.len().saturating_sub(1) / 2).copied().unwrap_or(0);
            (stack.clone(), median)
        };
        Self {
            by_stack: by_stack.into_iter().map(median).filter(|(_, bytes)| *bytes > 0).collect(),
        }
    }

    /// Bytes of all stacks.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u64 {
        self.by_stack.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes))
    }

    /// Every stack of either side.
    pub(crate) fn against(&self, base: &Self) -> Vec<Held<'a>> {
        let mut all: BTreeMap<&Vec<Node<'a>>, (u64, u64)> = BTreeMap::new();
        for (stack, bytes) in &self.by_stack {
            all.entry(stack).or_default().0 = *bytes;
        }
        for (stack, bytes) in &base.by_stack {
            all.entry(stack).or_default().1 = *bytes;
        }
        let held = |(stack, (bytes, base_bytes)): (&Vec<Node<'a>>, (u64, u64))| Held {
            stack: stack.clone(),
            bytes,
            base_bytes,
        };
        all.into_iter().map(held).collect()
    }

    fn add_blocks(&mut self, stacks: Stacks<'a>, device: u32, blocks: &[Block], allocated: u64) {
        let mut of_stack: BTreeMap<u32, u64> = BTreeMap::new();
        let mut listed = 0_u64;
        for block in blocks.iter().filter(|block| !block.pending) {
            let bytes = of_stack.entry(block.stack).or_default();
            *bytes = bytes.saturating_add(block.size);
            listed = listed.saturating_add(block.size);
        }
        for (stack, bytes) in of_stack {
            self.add(stacks.of(device, stack), bytes);
        }
        let mut nodes = stacks.device(device);
        nodes.push(Node::NoBlock);
        self.add(nodes, allocated.saturating_sub(listed));
    }

    fn add_uses(&mut self, stacks: Stacks<'a>, device: u32, uses: &[StackUse]) {
        for held in uses {
            self.add(stacks.of(device, held.stack), held.bytes);
        }
    }

    fn add(&mut self, stack: Vec<Node<'a>>, bytes: u64) {
        if bytes > 0 {
            let sum = self.by_stack.entry(stack).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
}

/// The live bytes of the peers of a rank: of the ranks that do the same work, at the same step.
pub(crate) fn of_peers(snapshots: &BTreeMap<u32, RankSnapshot>, rank: u32) -> Vec<LiveBytes<'_>> {
    let Some(subject) = snapshots.get(&rank) else { return Vec::new() };
    let is_peer = |(other, of): &(&u32, &RankSnapshot)| {
        **other != rank && of.step == subject.step && of.identity.role == subject.identity.role
    };
    snapshots.iter().filter(is_peer).map(|(_, of)| LiveBytes::of_snapshot(of)).collect()
}

fn of_rank(of: &RankSnapshot) -> Stacks<'_> {
    Stacks { frames: &of.frames, stacks: &of.stacks, has_devices: of.devices.len() > 1 }
}

fn of_condensed(of: &History) -> Stacks<'_> {
    Stacks { has_devices: of.devices.len() > 1, ..of_rank(&of.rank) }
}

#[cfg(test)]
pub(crate) mod tests {
    use memtape_core::snapshot::DeviceSnapshot;

    use super::*;

    /// A rank with two stacks, a block without one, a pending one, and bytes without a block.
    pub(crate) fn sample() -> RankSnapshot {
        let frame = |file: &str, line, function: &str| Frame {
            file: file.into(),
            line,
            function: function.into(),
        };
        let block = |address, size, stack| Block { address, size, stack, ..Block::default() };
        RankSnapshot {
            step: 9,
            before_step: 4,
            devices: vec![DeviceSnapshot {
                allocated: 1000 + 300 + 50 + 7,
                blocks: vec![
                    block(0, 1000, 1),
                    block(1000, 300, 2),
                    block(1300, 50, 0),
                    Block { pending: true, ..block(1350, 4096, 1) },
                ],
                before: vec![
                    StackUse { stack: 1, bytes: 1000, blocks: 1 },
                    StackUse { stack: 2, bytes: 400, blocks: 1 },
                ],
                ..DeviceSnapshot::default()
            }],
            frames: vec![
                Frame::default(),
                frame("/app/train.py", 80, "main"),
                frame("/app/train.py", 36, "keep<T> & \"go\""),
            ],
            stacks: vec![vec![], vec![1], vec![2, 1]],
            ..RankSnapshot::default()
        }
    }

    #[test]
    fn the_sum_equals_the_allocated_bytes() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        assert_eq!(live.total(), snapshot.devices[0].allocated);
        let by_end: Vec<(Option<&Node<'_>>, u64)> =
            live.by_stack.iter().map(|(stack, bytes)| (stack.last(), *bytes)).collect();
        assert_eq!(
            by_end,
            [
                (Some(&Node::Code(&snapshot.frames[1])), 1000),
                (Some(&Node::Code(&snapshot.frames[2])), 300),
                (Some(&Node::NoStack), 50),
                (Some(&Node::NoBlock), 7),
            ]
        );
    }

    #[test]
    fn several_devices_are_apart() {
        let mut snapshot = sample();
        let second = DeviceSnapshot { device: 1, ..snapshot.devices[0].clone() };
        snapshot.devices.push(second);
        let live = LiveBytes::of_snapshot(&snapshot);
        assert_eq!(live.total(), 2 * snapshot.devices[0].allocated);
        let roots: Vec<&Node<'_>> =
            live.by_stack.keys().filter_map(|stack| stack.first()).collect();
        assert_eq!(roots.iter().filter(|root| ***root == Node::Device(1)).count(), 4);
    }

    #[test]
    fn peers_do_the_same_work_at_the_same_step() {
        let of = |role: &str, step| {
            let mut snapshot = RankSnapshot { step, ..sample() };
            snapshot.identity.role = role.to_string();
            snapshot
        };
        let all = [(0, of("pp0", 9)), (1, of("pp0", 9)), (2, of("pp1", 9)), (3, of("pp0", 8))];
        let all = BTreeMap::from(all);
        assert_eq!(of_peers(&all, 0).len(), 1);
        assert_eq!(of_peers(&all, 7).len(), 0);
    }

    #[test]
    fn differences_add_up() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        let before = LiveBytes::before(&snapshot).expect("an earlier step");
        let all = live.against(&before);
        let sum = |of: fn(&Held<'_>) -> u64| all.iter().map(of).sum::<u64>();
        assert_eq!(sum(|held| held.bytes), live.total());
        assert_eq!(sum(|held| held.base_bytes), before.total());
        let none = RankSnapshot { before_step: 0, ..sample() };
        assert_eq!(LiveBytes::before(&none), None);
    }

    #[test]
    fn the_median_counts_ranks_without_the_stack() {
        let snapshot = sample();
        let full = LiveBytes::of_snapshot(&snapshot);
        let none = LiveBytes::default();
        let median = |of: &[LiveBytes<'_>]| LiveBytes::median(of).total();
        assert_eq!(median(&[full.clone(), full.clone(), none.clone()]), full.total());
        assert_eq!(median(&[full.clone(), none.clone(), none.clone()]), 0);
        assert_eq!(median(&[full, none]), 0);
        assert_eq!(median(&[]), 0);
    }
}

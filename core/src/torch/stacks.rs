//! Stacks of a snapshot of PyTorch as a state of a rank has them: Python frames only.
//!
//! With `stacks="all"` PyTorch writes the C++ frames too, innermost first, and all allocations
//! look alike there. Where a stack has no Python at all, because autograd's threads have none,
//! the name of the backward node is kept in their place.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::pickle::torch::{Frame as TorchFrame, TorchSnapshot};
use crate::snapshot::Frame;

/// Endings of files that hold no Python.
const FOREIGN_ENDINGS: [&str; 9] = [".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".so", "??"];

/// A stack without a number yet.
const UNSET: u32 = u32::MAX;

/// Frames and stacks, made as they are asked for; number 0 of each is the unknown one.
#[derive(Debug)]
pub(crate) struct Stacks<'a> {
    pub(crate) snapshot: &'a TorchSnapshot,
    pub(crate) frames: Vec<Frame>,
    pub(crate) stacks: Vec<Vec<u32>>,
    /// By the number that the snapshot has.
    frame_numbers: BTreeMap<u32, u32>,
    /// For each stack of the snapshot ours, or [`UNSET`].
    stack_numbers: Vec<u32>,
    /// By what they are, as dropping frames makes some equal.
    by_frames: BTreeMap<Vec<u32>, u32>,
    /// By the name of a backward node.
    nodes: BTreeMap<String, u32>,
}

impl<'a> Stacks<'a> {
    pub(crate) fn new(snapshot: &'a TorchSnapshot) -> Self {
        Self {
            snapshot,
            frames: vec![Frame::default()],
            stacks: vec![Vec::new()],
            frame_numbers: BTreeMap::new(),
            stack_numbers: vec![UNSET; snapshot.stack_count()],
            by_frames: BTreeMap::from([(Vec::new(), 0)]),
            nodes: BTreeMap::new(),
        }
    }

    /// Our number of a stack of the snapshot.
    pub(crate) fn number(&mut self, stack: u32) -> u32 {
        match self.stack_numbers.get(stack as usize) {
            None => return 0,
            Some(&UNSET) => {}
            Some(&known) => return known,
        }
        let snapshot = self.snapshot;
        let mut frames = Vec::new();
        for &number in snapshot.stack(stack) {
            if is_python(&snapshot.frame(number)) {
                frames.push(self.frame(number));
            }
        }
        if frames.is_empty() {
            let names = snapshot.stack(stack).iter().filter_map(|&f| snapshot.frame(f).name);
            frames.extend(names.filter_map(backward_node).next().map(|node| self.node(node)));
        }
        let next = u32::try_from(self.stacks.len()).unwrap_or(0);
        let number = *self.by_frames.entry(frames.clone()).or_insert(next);
        if number == next {
            self.stacks.push(frames);
        }
        if let Some(place) = self.stack_numbers.get_mut(stack as usize) {
            *place = number;
        }
        number
    }

    fn frame(&mut self, number: u32) -> u32 {
        if let Some(&known) = self.frame_numbers.get(&number) {
            return known;
        }
        let frame = self.snapshot.frame(number);
        let ours = self.push(Frame {
            file: frame.file.unwrap_or_default().to_string(),
            line: frame.line.unwrap_or_default(),
            function: frame.name.unwrap_or_default().to_string(),
        });
        self.frame_numbers.insert(number, ours);
        ours
    }

    fn node(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.nodes.get(name) {
            return known;
        }
        let ours = self.push(Frame { function: name.to_string(), ..Frame::default() });
        self.nodes.insert(name.to_string(), ours);
        ours
    }

    fn push(&mut self, frame: Frame) -> u32 {
        self.frames.push(frame);
        u32::try_from(self.frames.len() - 1).unwrap_or(0)
    }
}

/// A frame of Python code, as far as its names tell.
fn is_python(frame: &TorchFrame<'_>) -> bool {
    let file = frame.file.unwrap_or_default();
    let is_foreign = file.is_empty() || FOREIGN_ENDINGS.iter().any(|ending| file.ends_with(ending));
    !is_foreign && !frame.name.unwrap_or_default().contains("::")
}

/// `AddmmBackward0` of `torch::autograd::generated::AddmmBackward0::apply(…)`.
fn backward_node(name: &str) -> Option<&str> {
    let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    name.split(is_part).find(|part| {
        let (node, number) =
            part.split_at(part.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        node.len() > "Backward".len() && node.ends_with("Backward") && !number.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backward_nodes_are_found_in_names() {
        let check = |name: &str, expected: Option<&str>| assert_eq!(backward_node(name), expected);
        check(
            "torch::autograd::generated::AddmmBackward0::apply(std::vector<>&&)",
            Some("AddmmBackward0"),
        );
        check("torch::autograd::Node::operator()", None);
        check("PyFunctionBackward", None);
        check("", None);
    }

    #[test]
    fn cpp_is_no_python() {
        let check = |file: &str, name: &str, expected: bool| {
            let frame = TorchFrame { name: Some(name), file: Some(file), line: Some(1) };
            assert_eq!(is_python(&frame), expected, "{file} {name}");
        };
        check("/app/train.py", "step", true);
        check("<ipython-input-3-a>", "<module>", true);
        check("??", "c10::cuda::CUDACachingAllocator::allocate", false);
        check("/pytorch/c10/core/Allocator.cpp", "c10::Allocator::get", false);
        check("", "", false);
    }
}

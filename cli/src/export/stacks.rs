//! Compared stacks as the levels of a drawing, outermost level first.
//!
//! Memory without a stack and bytes without a block have levels of their own, so that the sum over
//! all stacks equals the allocated bytes. Where two states are compared, bytes without a block are
//! left out: which of them the other state has is not known.

use memtape_core::snapshot::Frame;
use memtape_core::stacks::{ComparedStacks, StackRow};

/// One level of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node<'a> {
    /// A device, where the rank uses several.
    Device(u8),
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

/// Every stack in order, so that stacks with equal outer levels are neighbours.
pub(crate) fn in_levels(of: &ComparedStacks) -> Vec<Held<'_>> {
    let held = |StackRow { device, frames, own, other_bytes }| {
        let known = frames.into_iter().map(Node::Code);
        let mut stack: Vec<Node<'_>> = device.map(Node::Device).into_iter().chain(known).collect();
        if stack.len() == usize::from(device.is_some()) {
            stack.push(Node::NoStack);
        }
        Held { stack, bytes: own.held.bytes, base_bytes: other_bytes }
    };
    let mut all: Vec<Held<'_>> = of.stacks().into_iter().map(held).collect();
    if of.others() == 0 {
        let bytes = of.unrecorded_bytes();
        all.push(Held { stack: vec![Node::NoBlock], bytes, base_bytes: 0 });
    }
    all.sort_by(|a, b| a.stack.cmp(&b.stack));
    all
}

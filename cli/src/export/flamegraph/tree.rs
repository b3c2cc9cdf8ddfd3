//! The tree that a flame graph draws: stacks that share their outer frames share their boxes.
//!
//! The width of a box is the bytes below it, or where two states are compared the sum of the
//! differences of its stacks. A tree of more than a given number of boxes is cut: the smallest
//! boxes of one parent become one, so that no byte is lost.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::export::stacks::{Held, LiveBytes, Node};

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Label<'a> {
    /// All stacks.
    Root,
    /// A level of stacks.
    Node(Node<'a>),
    /// This number of boxes that are too small to be drawn.
    Smaller(u64),
}

/// One box.
#[derive(Clone, Debug)]
pub(crate) struct Branch<'a> {
    /// What it stands for.
    pub(crate) label: Label<'a>,
    /// Its width in bytes.
    pub(crate) width: u64,
    /// Bytes of its stacks.
    pub(crate) bytes: u64,
    /// Bytes they are compared with.
    pub(crate) base_bytes: u64,
    /// Levels above it.
    pub(crate) depth: usize,
    /// The boxes below it, widest first.
    pub(crate) children: Vec<usize>,
}

/// All boxes; the first is the root.
#[derive(Clone, Debug)]
pub(crate) struct Tree<'a> {
    /// The boxes.
    pub(crate) branches: Vec<Branch<'a>>,
    /// Whether two states are compared.
    pub(crate) is_difference: bool,
}

impl<'a> Tree<'a> {
    /// The tree of one state, of at most twice this number of boxes.
    pub(crate) fn of(live: &LiveBytes<'a>, boxes_max: usize) -> Self {
        let held = live.against(&LiveBytes::default());
        Self::grow(&held, false).cut(boxes_max)
    }

    /// The tree of what differs between two states.
    pub(crate) fn of_difference(
        live: &LiveBytes<'a>,
        base: &LiveBytes<'a>,
        boxes_max: usize,
    ) -> Self {
        Self::grow(&live.against(base), true).cut(boxes_max)
    }

    /// The number of levels that are drawn.
    pub(crate) fn depth(&self) -> usize {
        let mut queue = vec![0];
        let mut depth = 1;
        while let Some(branch) = queue.pop().and_then(|at: usize| self.branches.get(at)) {
            depth = depth.max(branch.depth + 1);
            queue.extend(&branch.children);
        }
        depth
    }

    fn grow(all: &[Held<'a>], is_difference: bool) -> Self {
        let mut tree = Self { branches: vec![Branch::new(Label::Root, 0)], is_difference };
        for held in all {
            let width = match is_difference {
                true => held.bytes.abs_diff(held.base_bytes),
                false => held.bytes,
            };
            if width == 0 {
                continue;
            }
            let mut at = 0;
            tree.add(at, held, width);
            for node in &held.stack {
                at = tree.child(at, Label::Node(*node));
                tree.add(at, held, width);
            }
        }
        tree.sort();
        tree
    }

    fn add(&mut self, at: usize, held: &Held<'_>, width: u64) {
        if let Some(branch) = self.branches.get_mut(at) {
            branch.width = branch.width.saturating_add(width);
            branch.bytes = branch.bytes.saturating_add(held.bytes);
            branch.base_bytes = branch.base_bytes.saturating_add(held.base_bytes);
        }
    }

    /// The box with this label below another. Stacks come in order, so it is the last one there.
    fn child(&mut self, parent: usize, label: Label<'a>) -> usize {
        let last = self.branches.get(parent).and_then(|branch| branch.children.last().copied());
        let is_it = |at: &usize| self.branches.get(*at).is_some_and(|of| of.label == label);
        if let Some(at) = last.filter(is_it) {
            return at;
        }
        let at = self.branches.len();
        let depth = self.branches.get(parent).map_or(0, |branch| branch.depth + 1);
        self.branches.push(Branch::new(label, depth));
        if let Some(branch) = self.branches.get_mut(parent) {
            branch.children.push(at);
        }
        at
    }

    fn sort(&mut self) {
        let keys: Vec<(Reverse<u64>, Label<'a>)> =
            self.branches.iter().map(|branch| (Reverse(branch.width), branch.label)).collect();
        for branch in &mut self.branches {
            branch.children.sort_by_key(|&at| keys.get(at).copied());
        }
    }

    /// Keeps the widest boxes. A box is never wider than its parent, so the parents are kept too.
    fn cut(mut self, boxes_max: usize) -> Self {
        if self.branches.len() <= boxes_max {
            return self;
        }
        let mut order: Vec<usize> = (0..self.branches.len()).collect();
        let key = |at: &usize| self.branches.get(*at).map(|of| (Reverse(of.width), of.depth, *at));
        order.sort_by_key(key);
        let kept: BTreeSet<usize> = order.into_iter().take(boxes_max).collect();
        for at in &kept {
            self.merge_smaller(*at, &kept);
        }
        self
    }

    fn merge_smaller(&mut self, parent: usize, kept: &BTreeSet<usize>) {
        let Some(branch) = self.branches.get(parent) else { return };
        let (children, small): (Vec<usize>, Vec<usize>) =
            branch.children.iter().partition(|at| kept.contains(at));
        if small.is_empty() {
            return;
        }
        let mut merged = Branch::new(Label::Smaller(small.len() as u64), branch.depth + 1);
        for of in small.iter().filter_map(|at| self.branches.get(*at)) {
            merged.width = merged.width.saturating_add(of.width);
            merged.bytes = merged.bytes.saturating_add(of.bytes);
            merged.base_bytes = merged.base_bytes.saturating_add(of.base_bytes);
        }
        let at = self.branches.len();
        self.branches.push(merged);
        if let Some(branch) = self.branches.get_mut(parent) {
            branch.children = children;
            branch.children.push(at);
        }
    }
}

impl<'a> Branch<'a> {
    fn new(label: Label<'a>, depth: usize) -> Self {
        Self { label, width: 0, bytes: 0, base_bytes: 0, depth, children: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::stacks::tests::sample;

    /// Bytes of each box that none of its children has.
    fn own_bytes(tree: &Tree<'_>) -> (u64, u64) {
        let mut queue = vec![0];
        let mut sums = (0, 0);
        while let Some(at) = queue.pop() {
            let branch = &tree.branches[at];
            let below = |of: fn(&Branch<'_>) -> u64| {
                branch.children.iter().map(|&child| of(&tree.branches[child])).sum::<u64>()
            };
            sums.0 += branch.bytes - below(|of| of.bytes);
            sums.1 += branch.base_bytes - below(|of| of.base_bytes);
            queue.extend(&branch.children);
        }
        sums
    }

    #[test]
    fn the_leaves_hold_what_is_live() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        for boxes_max in [1, 2, 3, 4, 100] {
            let tree = Tree::of(&live, boxes_max);
            assert_eq!(own_bytes(&tree), (live.total(), 0), "{boxes_max}");
            assert_eq!(tree.branches[0].width, live.total());
        }
    }

    #[test]
    fn a_difference_draws_only_what_differs() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        let before = LiveBytes::before(&snapshot).expect("an earlier step");
        let tree = Tree::of_difference(&live, &before, 100);
        let (bytes, base) = own_bytes(&tree);
        // What both hold alike is in neither sum.
        assert_eq!(bytes.abs_diff(base), before.total().abs_diff(live.total()));
        assert_eq!(tree.branches[0].width, 100 + 50 + 7);
        let labels: Vec<Label<'_>> = tree.branches.iter().map(|branch| branch.label).collect();
        assert!(labels.contains(&Label::Node(Node::NoBlock)), "{labels:?}");
    }

    #[test]
    fn the_tree_of_nothing_is_its_root() {
        let tree = Tree::of(&LiveBytes::default(), 10);
        assert_eq!((tree.branches.len(), tree.branches[0].width, tree.depth()), (1, 0, 1));
    }
}

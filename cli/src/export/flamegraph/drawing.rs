//! The boxes of a flame graph as SVG, in percent of the width: they fit a page, a phone and paper.
//!
//! Every box is an SVG of its own, so that its text ends where the box ends. A tooltip has the
//! figures. Boxes that are too narrow have no text until the script zooms in.

use maud::{Markup, html};
use memtape_core::diagnosis::is_user_frame;
use memtape_core::snapshot::Frame;

use crate::export::flamegraph::tree::{Branch, Label, Tree};
use crate::export::stacks::Node;
use crate::markup::shown;
use crate::render::units::{bytes, plural, signed_bytes};

/// Height of a row.
const ROW_PX: usize = 18;

/// Boxes narrower than this share of the width have no text.
const TEXT_PERCENT_MIN: f64 = 0.8;

/// Shades that tell neighbours of one kind apart.
const SHADES: u32 = 3;

/// Height of all rows.
pub(crate) fn height_px(tree: &Tree<'_>) -> usize {
    tree.depth() * ROW_PX
}

/// What the whole drawing shows, in one line.
pub(crate) fn summary(tree: &Tree<'_>) -> String {
    let Some(root) = tree.branches.first() else { return String::new() };
    if !tree.is_difference {
        return format!("{} live ({} bytes)", bytes(root.bytes), root.bytes);
    }
    let more = difference(root);
    format!("{} in the stacks that differ; red holds more, blue less", signed_bytes(more))
}

/// All boxes, the root first.
pub(crate) fn boxes(tree: &Tree<'_>) -> Markup {
    let whole = tree.branches.first().map_or(0, |root| root.width).max(1) as f64;
    let mut queue = vec![(0, 0.0)];
    let mut placed = Vec::new();
    while let Some((at, x)) = queue.pop() {
        let Some(branch) = tree.branches.get(at) else { continue };
        placed.push((branch, x));
        let mut next = x;
        let mut below = Vec::new();
        for &child in &branch.children {
            below.push((child, next));
            next += tree.branches.get(child).map_or(0.0, |of| of.width as f64 / whole * 100.0);
        }
        queue.extend(below.into_iter().rev());
    }
    html! {
        @for (branch, x) in placed {
            (one(tree, branch, x, branch.width as f64 / whole * 100.0))
        }
    }
}

fn one(tree: &Tree<'_>, branch: &Branch<'_>, x: f64, width: f64) -> Markup {
    let class = format!("flame-box {}", colour(tree, branch));
    let (x, width_percent) = (format!("{x:.3}%"), format!("{width:.3}%"));
    let name = name(branch.label);
    html! {
        svg class=(class) x=(x) y=(branch.depth * ROW_PX) width=(width_percent)
            height=(ROW_PX - 1) data-bytes=(branch.bytes) data-name=(shown(&name)) {
            title { (shown(&details(tree, branch))) }
            rect width="100%" height="100%" {}
            @if width >= TEXT_PERCENT_MIN { text x="3" y="12.5" { (shown(&name)) } }
        }
    }
}

/// The text of a tooltip.
fn details(tree: &Tree<'_>, branch: &Branch<'_>) -> String {
    let name = name(branch.label);
    let path = match branch.label {
        Label::Node(Node::Code(frame)) => format!("{}:{} — ", frame.file, frame.line),
        _ => String::new(),
    };
    if tree.is_difference {
        let (more, now, base) = (difference(branch), branch.bytes, branch.base_bytes);
        let more = signed_bytes(more);
        return format!("{name} — {path}{more}: {} against {}", bytes(now), bytes(base));
    }
    let whole = tree.branches.first().map_or(0, |root| root.bytes).max(1);
    let percent = branch.bytes as f64 / whole as f64 * 100.0;
    format!("{name} — {path}{} ({} bytes, {percent:.1} %)", bytes(branch.bytes), branch.bytes)
}

/// The text of a box.
fn name(label: Label<'_>) -> String {
    match label {
        Label::Root => "all".to_string(),
        Label::Smaller(count) => format!("({} too small to show)", plural(count, "box")),
        Label::Node(Node::Device(device)) => format!("device {device}"),
        Label::Node(Node::NoStack) => "(no stack)".to_string(),
        Label::Node(Node::NoBlock) => "(in no recorded block)".to_string(),
        Label::Node(Node::Code(frame)) => of_code(frame),
    }
}

fn of_code(frame: &Frame) -> String {
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    match (frame.function.as_str(), file) {
        (function, "") => function.to_string(),
        ("", file) => format!("{file}:{}", frame.line),
        (function, file) => format!("{function} ({file}:{})", frame.line),
    }
}

/// The class of a box: red and blue for a difference, else who wrote the code.
fn colour(tree: &Tree<'_>, branch: &Branch<'_>) -> String {
    if tree.is_difference {
        let whole = tree.branches.first().map_or(0, |root| root.width).max(1);
        let more = difference(branch);
        let share = more.unsigned_abs().saturating_mul(100) / whole;
        let depth = match share {
            0 if more == 0 => return "flame-same".to_string(),
            0..5 => 1,
            5..35 => 2,
            _ => 3,
        };
        return format!("flame-{}{depth}", if more > 0 { "more" } else { "less" });
    }
    match branch.label {
        Label::Node(Node::Code(frame)) => {
            let shade = frame.file.bytes().fold(0_u32, |sum, byte| sum.wrapping_add(byte.into()));
            let kind = if is_user_frame(frame) { "own" } else { "library" };
            format!("flame-{kind}{}", shade % SHADES)
        }
        Label::Root
        | Label::Smaller(_)
        | Label::Node(Node::Device(_) | Node::NoStack | Node::NoBlock) => "flame-none".to_string(),
    }
}

fn difference(branch: &Branch<'_>) -> i64 {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    signed(branch.bytes).saturating_sub(signed(branch.base_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::stacks::LiveBytes;
    use crate::export::stacks::tests::sample;

    #[test]
    fn the_boxes_hold_the_bytes_of_the_snapshot() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        let svg = boxes(&Tree::of(&live, 100)).into_string();
        let numbers: Vec<u64> = svg
            .split("data-bytes=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        // The root, `main` with all below it, `keep`, and what has no frame.
        assert_eq!(numbers, [1357, 1300, 300, 50, 7]);
        for name in ["main (train.py:80)", "(no stack)", "(in no recorded block)"] {
            assert!(svg.contains(name), "{name} in {svg}");
        }
    }

    #[test]
    fn a_difference_is_red_or_blue() {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        let before = LiveBytes::before(&snapshot).expect("an earlier step");
        let tree = Tree::of_difference(&live, &before, 100);
        let svg = boxes(&tree).into_string();
        assert!(svg.contains("flame-less3") && svg.contains("flame-more2"), "{svg}");
        assert!(svg.contains("-100 B: 300 B against 400 B"), "{svg}");
        assert_eq!(summary(&tree), "-43 B in the stacks that differ; red holds more, blue less");
    }
}

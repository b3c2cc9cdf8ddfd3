//! A flame graph of live bytes by stack, as one SVG file that a browser shows.
//!
//! Stacks come in order, so stacks with equal outer frames are neighbours and share their boxes.
//! The width of a box is the bytes below it, or where two states are compared the sum of the
//! differences of its stacks. A box that is too narrow to see is left out; the space that it would
//! take stays empty. Widths are in percent: the drawing fits a page, a phone and paper.
//!
//! The outermost frame is at the top. The file has its own style and script and loads nothing;
//! without a script it is still complete, with the figures of a box in its tooltip.

use std::fmt::Write;

use memtape_core::diagnosis::is_user_frame;
use memtape_core::stacks::ComparedStacks;
use memtape_core::visible::is_hidden;

use crate::export::stacks::{Node, in_levels};
use crate::render::units::{bytes, signed_bytes};

const STYLE: &str = include_str!("flamegraph.css");

/// Zoom, search and details.
const SCRIPT: &str = include_str!("flamegraph.js");

/// Height of the header above the boxes.
const HEADER_PX: usize = 58;

/// Height of a row.
const ROW_PX: usize = 18;

/// Boxes narrower than this share of the width are left out: half a pixel of a wide screen.
const WIDTH_PERCENT_MIN: f64 = 0.02;

/// Boxes narrower than this share of the width have no text until the script zooms in.
const TEXT_PERCENT_MIN: f64 = 0.8;

/// Shades that tell neighbours of one kind apart.
const SHADES: u32 = 3;

/// One box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span<'a> {
    /// The level of the stacks; `None` for the box of all stacks.
    node: Option<Node<'a>>,
    /// Boxes above it.
    depth: usize,
    /// Distance of the box from the left, in units of `width`.
    start: u64,
    width: u64,
    bytes: u64,
    /// Bytes in the compared state.
    base_bytes: u64,
}

impl Span<'_> {
    fn difference(&self) -> i64 {
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        signed(self.bytes).saturating_sub(signed(self.base_bytes))
    }
}

/// The SVG file of a rank, or of its difference to other states. The title is a line of text.
pub(crate) fn document(of: &ComparedStacks, title: &str) -> Vec<u8> {
    let drawing = Drawing::of(of);
    let rows = drawing.spans.iter().map(|span| span.depth + 1).max().unwrap_or(1);
    let boxes_px = rows * ROW_PX;
    let about = drawing.about();
    let (height, title, about) = (HEADER_PX + boxes_px + 8, text(title), text(&about));
    let mut svg = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame-file\" width=\"100%\" \
         height=\"{height}\">\
         <title>{title}</title><style>{STYLE}</style>\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\
         <text class=\"flame-title\" x=\"8\" y=\"20\">{title}</text>\
         <text class=\"flame-info\" x=\"8\" y=\"42\" data-rest=\"{about}\">{about}</text>\
         <text class=\"flame-button\" data-does=\"reset\" x=\"99%\" y=\"20\">reset</text>\
         <text class=\"flame-button\" data-does=\"search\" x=\"99%\" y=\"42\">search</text>\
         <svg y=\"{HEADER_PX}\" x=\"8\" width=\"98%\" height=\"{boxes_px}\">"
    );
    for span in &drawing.spans {
        svg.push_str(&drawing.element(span));
    }
    let _ = writeln!(svg, "</svg><script>{SCRIPT}</script></svg>");
    svg.into_bytes()
}

/// The boxes, row by row; the first is the root.
struct Drawing<'a> {
    spans: Vec<Span<'a>>,
    is_difference: bool,
}

impl<'a> Drawing<'a> {
    fn of(compared: &'a ComparedStacks) -> Self {
        let mut open = vec![Span::root()];
        let mut spans = Vec::new();
        let mut start = 0;
        for held in in_levels(compared) {
            let width = held.bytes.abs_diff(held.base_bytes);
            if width == 0 {
                continue;
            }
            let is_same = |(span, node): &(&Span<'_>, &Node<'_>)| span.node == Some(**node);
            let shared = open.iter().skip(1).zip(&held.stack).take_while(is_same).count();
            spans.extend(open.drain(shared + 1..));
            for node in held.stack.iter().skip(shared) {
                let (node, depth) = (Some(*node), open.len());
                open.push(Span { node, depth, start, ..Span::root() });
            }
            for span in &mut open {
                span.width = span.width.saturating_add(width);
                span.bytes = span.bytes.saturating_add(held.bytes);
                span.base_bytes = span.base_bytes.saturating_add(held.base_bytes);
            }
            start = start.saturating_add(width);
        }
        spans.append(&mut open);
        spans.sort_by_key(|span| (span.depth, span.start));
        let mut drawing = Self { spans, is_difference: compared.others() > 0 };
        let whole = drawing.root().width;
        drawing
            .spans
            .retain(|span| span.depth == 0 || percent(span.width, whole) >= WIDTH_PERCENT_MIN);
        drawing
    }

    fn root(&self) -> Span<'a> {
        self.spans.first().copied().unwrap_or_else(Span::root)
    }

    /// Summary of the whole drawing, in one line.
    fn about(&self) -> String {
        let root = self.root();
        match self.is_difference {
            false => format!("{} live ({} bytes)", bytes(root.bytes), root.bytes),
            true => format!(
                "{} in the stacks that differ; red holds more, blue less",
                signed_bytes(root.difference())
            ),
        }
    }

    /// A box: an SVG of its own, so that its text ends where the box ends.
    fn element(&self, span: &Span<'_>) -> String {
        let whole = self.root().width;
        let (x, width) = (percent(span.start, whole), percent(span.width, whole));
        let (y, height) = (span.depth * ROW_PX, ROW_PX - 1);
        let (name, details) = (name(span.node), self.details(span));
        let (name, details) = (text(&name), text(&details));
        let label = match width >= TEXT_PERCENT_MIN {
            true => format!("<text x=\"3\" y=\"12.5\">{name}</text>"),
            false => String::new(),
        };
        format!(
            "<svg class=\"flame-box {}\" x=\"{x:.3}%\" y=\"{y}\" width=\"{width:.3}%\" \
             height=\"{height}\" data-bytes=\"{}\" data-name=\"{name}\"><title>{details}</title>\
             <rect width=\"100%\" height=\"100%\"/>{label}</svg>",
            self.colour(span),
            span.bytes,
        )
    }

    /// The text of a tooltip.
    fn details(&self, span: &Span<'_>) -> String {
        let name = name(span.node);
        let path = match span.node {
            Some(Node::Code(frame)) => format!("{}:{} — ", frame.file, frame.line),
            _ => String::new(),
        };
        if self.is_difference {
            let (now, base) = (bytes(span.bytes), bytes(span.base_bytes));
            let more = signed_bytes(span.difference());
            return format!("{name} — {path}{more}: {now} against {base}");
        }
        let share = percent(span.bytes, self.root().bytes);
        format!("{name} — {path}{} ({} bytes, {share:.1} %)", bytes(span.bytes), span.bytes)
    }

    /// The class of a box: red and blue for a difference, else who wrote the code.
    fn colour(&self, span: &Span<'_>) -> String {
        if self.is_difference {
            let more = span.difference();
            let depth = match percent(more.unsigned_abs(), self.root().width) {
                _ if more == 0 => return "flame-same".to_string(),
                share if share < 5.0 => 1,
                share if share < 35.0 => 2,
                _ => 3,
            };
            return format!("flame-{}{depth}", if more > 0 { "more" } else { "less" });
        }
        let Some(Node::Code(frame)) = span.node else { return "flame-none".to_string() };
        let shade = frame.file.bytes().fold(0_u32, |sum, byte| sum.wrapping_add(byte.into()));
        let kind = if is_user_frame(frame) { "own" } else { "library" };
        format!("flame-{kind}{}", shade % SHADES)
    }
}

impl Span<'_> {
    fn root() -> Self {
        Self { node: None, depth: 0, start: 0, width: 0, bytes: 0, base_bytes: 0 }
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 * 100.0
}

/// The text of a box.
fn name(node: Option<Node<'_>>) -> String {
    let Some(node) = node else { return "all".to_string() };
    let name = node.name();
    match node {
        Node::Code(frame) if !frame.function.is_empty() && !frame.file.is_empty() => {
            let file = frame.file.rsplit('/').next().unwrap_or_default();
            format!("{name} ({file}:{})", frame.line)
        }
        _ => name,
    }
}

/// Untrusted text made safe for XML: escaped, and without control characters, which XML does not
/// allow, and characters that hide text or turn its direction.
fn text(of: &str) -> String {
    let mut escaped = String::with_capacity(of.len() + 16);
    for c in of.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c if c.is_control() || is_hidden(c) => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::{Block, DeviceSnapshot, Frame, RankSnapshot, StackUse};
    use memtape_core::stacks::{AllocationSteps, LiveStacks};

    use super::*;

    /// A rank with two stacks, a block without one, and bytes without a block.
    fn sample() -> RankSnapshot {
        let frame = |line, function: &str| Frame {
            file: "/app/train.py".into(),
            line,
            function: function.into(),
        };
        let block = |size, stack| Block { size, stack, ..Block::default() };
        let used = |stack, bytes| StackUse { stack, bytes, blocks: 1 };
        let device = DeviceSnapshot {
            allocated: 1000 + 300 + 50 + 7,
            blocks: vec![block(1000, 1), block(300, 2), block(50, 0)],
            before: vec![used(1, 1000), used(2, 400)],
            ..DeviceSnapshot::default()
        };
        RankSnapshot {
            before_step: 4,
            devices: vec![device],
            frames: vec![Frame::default(), frame(80, "main"), frame(36, "keep<T> & \"go\"")],
            stacks: vec![vec![], vec![1], vec![2, 1]],
            ..RankSnapshot::default()
        }
    }

    fn alone(of: &RankSnapshot) -> ComparedStacks {
        ComparedStacks::of(&LiveStacks::of_snapshot(of, AllocationSteps::ALL), u64::MAX)
    }

    fn svg(title: &str) -> String {
        String::from_utf8(document(&alone(&sample()), title)).expect("UTF-8")
    }

    #[test]
    fn the_boxes_hold_the_bytes_of_the_snapshot() {
        let svg = svg("rank 2");
        let numbers: Vec<u64> = svg
            .split("data-bytes=\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next()?.parse().ok())
            .collect();
        // The root, `main` with all below it, what has no frame, and `keep`.
        assert_eq!(numbers, [1357, 1300, 50, 7, 300]);
        for name in ["main (train.py:80)", "(no stack)", "(in no recorded block)"] {
            assert!(svg.contains(name), "{name} in {svg}");
        }
    }

    #[test]
    fn a_difference_is_red_or_blue_and_draws_only_what_differs() {
        let snapshot = sample();
        let mut compared = alone(&snapshot);
        compared.add_other(&LiveStacks::before(&snapshot).expect("an earlier step"));
        let drawing = Drawing::of(&compared);
        assert_eq!(drawing.root().width, 100 + 50);
        assert_eq!(drawing.about(), "-50 B in the stacks that differ; red holds more, blue less");
        let svg = String::from_utf8(document(&compared, "")).expect("UTF-8");
        assert!(svg.contains("flame-less3") && svg.contains("flame-more2"), "{svg}");
        assert!(svg.contains("-100 B: 300 B against 400 B"), "{svg}");
    }

    #[test]
    fn an_empty_graph_is_one_box_and_narrow_boxes_are_left_out() {
        let nothing = ComparedStacks::default();
        assert_eq!(Drawing::of(&nothing).spans, [Span::root()]);
        let mut snapshot = sample();
        let mut drawn = |bytes| {
            snapshot.devices[0].blocks[0].size = bytes;
            snapshot.devices[0].allocated = bytes + 357;
            Drawing::of(&alone(&snapshot)).spans.len()
        };
        assert_eq!((drawn(1000), drawn(1 << 40)), (5, 2));
    }

    #[test]
    fn names_of_strangers_are_text() {
        let svg = svg("</title><script>alert(1)</script>\u{1b}[31m\u{202e}");
        assert!(
            !svg.contains("alert(1)</script>") && !svg.contains(['\u{1b}', '\u{202e}']),
            "{svg}"
        );
        assert!(svg.contains("keep&lt;T&gt; &amp; &quot;go&quot;"), "{svg}");
        assert_eq!(text("Ünï — 漢字"), "Ünï — 漢字");
    }

    #[test]
    fn the_file_has_no_links_and_is_deterministic() {
        let file = svg("rank 2");
        let rest = file.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "href", "url(", "@import", "fetch", "src="] {
            assert!(!rest.contains(word), "{word}");
        }
        assert_eq!(file, svg("rank 2"));
        // As a part of XML the script may hold neither of them.
        assert!(!SCRIPT.contains(['<', '&']) && !STYLE.contains(['<', '&']));
    }
}

//! A flame graph of live bytes by stack, as one SVG file that a browser shows.
//!
//! The outermost frame is at the top. The file has its own style and script and loads nothing;
//! without a script it is still complete, with the figures of a box in its tooltip. `drawing` is
//! the part that the report shares.

pub(crate) mod drawing;
pub(crate) mod tree;

use maud::{PreEscaped, html};

use crate::export::flamegraph::tree::Tree;
use crate::markup::shown;

/// Colours of the boxes.
pub(crate) const STYLE: &str = include_str!("flamegraph.css");

/// Zoom, search and details.
pub(crate) const SCRIPT: &str = include_str!("flamegraph.js");

/// Height of what is above the boxes.
const HEADER_PX: usize = 58;

/// The SVG file. The title is a line of text.
pub(crate) fn document(tree: &Tree<'_>, title: &str) -> Vec<u8> {
    let height = HEADER_PX + drawing::height_px(tree) + 8;
    let about = drawing::summary(tree);
    let svg = html! {
        svg xmlns="http://www.w3.org/2000/svg" class="flame-file" width="100%" height=(height) {
            title { (shown(title)) }
            style { (PreEscaped(STYLE)) }
            rect class="paper" width="100%" height="100%" {}
            text class="flame-title" x="8" y="20" { (shown(title)) }
            text class="flame-info" x="8" y="42" data-rest=(about) { (about) }
            text class="flame-button" data-does="reset" x="99%" y="20" { "reset" }
            text class="flame-button" data-does="search" x="99%" y="42" { "search" }
            svg y=(HEADER_PX) x="8" width="98%" height=(drawing::height_px(tree)) {
                (drawing::boxes(tree))
            }
            script { (PreEscaped(SCRIPT)) }
        }
    };
    format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", svg.into_string()).into_bytes()
}

#[cfg(test)]
mod tests {
    use memtape_core::limits::FLAMEGRAPH_BOXES_MAX;

    use super::*;
    use crate::export::stacks::LiveBytes;
    use crate::export::stacks::tests::sample;

    fn text(title: &str) -> String {
        let snapshot = sample();
        let live = LiveBytes::of_snapshot(&snapshot);
        String::from_utf8(document(&Tree::of(&live, FLAMEGRAPH_BOXES_MAX), title)).expect("UTF-8")
    }

    #[test]
    fn names_of_strangers_are_text() {
        let svg = text("</title><script>alert(1)</script>\u{1b}[31m");
        assert!(!svg.contains("alert(1)</script>") && !svg.contains('\u{1b}'), "{svg}");
        assert!(svg.contains("keep&lt;T&gt; &amp; &quot;go&quot;"), "{svg}");
    }

    #[test]
    fn the_file_loads_nothing_and_is_the_same_each_time() {
        let svg = text("rank 2");
        let rest = svg.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "href", "url(", "@import", "fetch", "src="] {
            assert!(!rest.contains(word), "{word}");
        }
        assert_eq!(svg, text("rank 2"));
        // As a part of XML the script may hold neither of them.
        assert!(!SCRIPT.contains(['<', '&']) && !STYLE.contains(['<', '&']));
    }
}

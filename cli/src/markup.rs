//! Text of strangers as it may stand in HTML and SVG.
//!
//! `maud` escapes every text. What is replaced here cannot be escaped: control characters, which
//! XML does not allow, and characters that hide text or turn its direction.

use std::borrow::Cow;

use memtape_core::visible::is_hidden;

/// The text without control characters, line ends included, and without hidden characters.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if text.contains(is_harmful) {
        Cow::Owned(text.replace(is_harmful, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

fn is_harmful(c: char) -> bool {
    c.is_control() || is_hidden(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_seen_is_replaced() {
        assert_eq!(shown("a\u{1b}[1m\u{202e}b\n\u{ffff}"), "a\u{fffd}[1m\u{fffd}b\u{fffd}\u{fffd}");
        assert_eq!(shown("Ünï — 漢字"), "Ünï — 漢字");
    }
}

//! Text of strangers as it may stand in HTML and SVG.
//!
//! `maud` escapes every text. What is replaced here cannot be escaped: control characters, which
//! XML does not allow, and characters that turn the direction of the text after them.

use std::borrow::Cow;

/// The text without control characters, line ends included, and without changes of direction.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if text.contains(is_hidden) {
        Cow::Owned(text.replace(is_hidden, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

fn is_hidden(c: char) -> bool {
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{fffe}' | '\u{ffff}')
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

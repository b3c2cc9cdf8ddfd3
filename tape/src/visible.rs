//! Characters that a reader does not see: they hide or turn the text after them, so that a name or
//! a command line looks like another one.

use alloc::borrow::Cow;
use alloc::string::String;

/// Has the character no width, or does it change the direction of text? Control characters do not
/// count.
pub fn is_hidden(mark: char) -> bool {
    matches!(
        mark,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{fffe}'..='\u{ffff}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// A text with its hidden characters written out, as `\u{202e}`. An escape in the text stays as it
/// is.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for mark in text.chars() {
        match is_hidden(mark) {
            true => out.extend(mark.escape_unicode()),
            false => out.push(mark),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_written_out() {
        for (text, expected) in [
            ("train\u{202e}txt.exe", "train\\u{202e}txt.exe"),
            ("pay\u{200b}roll\u{feff}", "pay\\u{200b}roll\\u{feff}"),
            ("\u{2066}a\u{2069}", "\\u{2066}a\\u{2069}"),
            ("a\u{e0041}b", "a\\u{e0041}b"),
            ("Ünï — 漢字 /home/x/train.py", "Ünï — 漢字 /home/x/train.py"),
            ("", ""),
        ] {
            assert_eq!(escaped(text), expected);
            assert_eq!(escaped(expected), expected, "once more");
        }
    }
}

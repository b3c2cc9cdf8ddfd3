//! Sections of a text: a title, and lines or a table below it, set in.

use std::fmt::Write;

use crate::output::clean;
use crate::render::palette::Meaning;

/// A section of lines below a title, set in; nothing where there are none.
pub(crate) fn section(text: &mut String, title: &str, lines: impl IntoIterator<Item = String>) {
    let mut lines = lines.into_iter().peekable();
    if lines.peek().is_none() {
        return;
    }
    let _ = writeln!(text, "\n{}", Meaning::Strong.paint(title));
    for line in lines {
        let _ = writeln!(text, "  {}", clean(&line));
    }
}

/// A section of a table, whose cells are clean and whose titles may be coloured, and what follows.
pub(crate) fn table_section(
    text: &mut String,
    title: &str,
    rows: &str,
    more: impl IntoIterator<Item = String>,
) {
    let _ = writeln!(text, "\n{}", Meaning::Strong.paint(title));
    for row in rows.lines() {
        let _ = writeln!(text, "  {row}");
    }
    for line in more {
        let _ = writeln!(text, "  {}", clean(&line));
    }
}

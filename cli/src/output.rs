//! Writing to a terminal, a file or a pipe that may have gone away, and keeping what strangers
//! wrote from driving the terminal.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::Path;

use anyhow::Context;
use memtape_core::visible::is_hidden;
use serde::Serialize;

use crate::{plain_file, terminal};

/// Marks the end of a text that was cut.
const ELLIPSIS: char = '…';

/// Lines that are wrapped go on at most this far from the left.
const INDENT_MAX: usize = 24;

/// Writes text to stdout, with a line end if it has none; on a terminal, long lines are wrapped at
/// its width.
/// Fails when stdout cannot be written; [`is_broken_pipe`] finds a reader that went away.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match terminal::width() {
        Some(width) => print_as_it_is(&wrapped(text, width)),
        None => print_as_it_is(text),
    }
}

/// Writes text to stdout as [`print`] does, with lines of any length.
/// Fails as [`print`] does.
pub(crate) fn print_as_it_is(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Text whose lines are at most this wide. A line goes on below its own text: behind its
/// indentation, or behind the name in front of it. Lines with a command to copy stay whole.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        if textwrap::core::display_width(line) <= width || line.contains("  memtape ") {
            lines.push(line.to_string());
            continue;
        }
        let indent = " ".repeat(indent(line).min(width / 2));
        let options = textwrap::Options::new(width).subsequent_indent(&indent);
        let options = options.break_words(false);
        lines.extend(textwrap::wrap(line, options).iter().map(|it| it.trim_end().to_string()));
    }
    lines.join("\n") + "\n"
}

/// Column at which the text of a line begins: after a name and two spaces, if the line has both,
/// else after its leading spaces.
fn indent(line: &str) -> usize {
    let spaces = line.len() - line.trim_start().len();
    let after = line.get(spaces..).and_then(|rest| Some((rest.find("  ")?, rest)));
    let behind_name = after.map(|(name, rest)| {
        let gap = rest.get(name..).map_or(0, |rest| rest.len() - rest.trim_start().len());
        spaces + textwrap::core::display_width(rest.get(..name).unwrap_or_default()) + gap
    });
    behind_name.filter(|&indent| indent <= INDENT_MAX).unwrap_or(spaces)
}

/// Writes a file, or stdout for `-`.
/// Fails when it cannot be written.
pub(crate) fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return Ok(std::io::stdout().lock().write_all(content)?);
    }
    let mut options = OpenOptions::new();
    let file = plain_file::open(options.write(true).create(true).truncate(true), 0, path);
    let written = file.and_then(|mut file| file.write_all(content));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes one JSON value on one line to stdout.
/// Fails as [`print`] does.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print_as_it_is(&json(value)?)
}

/// A value as JSON on one line, without control characters and without marks that hide text or turn
/// its direction: the ones that JSON itself permits are written as `\u009b`.
/// Fails when the value cannot be JSON.
pub(crate) fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    let is_escaped = |mark: char| mark.is_control() || is_hidden(mark);
    if !text.contains(is_escaped) {
        return Ok(text);
    }
    let escaped = |mark: char| match is_escaped(mark) {
        // Only in strings: JSON on one line has no such characters elsewhere.
        true => {
            mark.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
        }
        false => mark.to_string(),
    };
    Ok(text.chars().map(escaped).collect())
}

/// An error and its causes in one line. Errors of the operating system have plain words.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    let words = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref() {
        Some(cause) => io_words(cause),
        None => cause.to_string(),
    };
    one_line(&error.chain().map(words).collect::<Vec<_>>().join(": "))
}

/// Describes an error of the operating system.
fn io_words(error: &std::io::Error) -> String {
    // An error that carries another says more than its kind.
    if error.get_ref().is_some() {
        return error.to_string();
    }
    let words = match error.kind() {
        ErrorKind::NotFound => "there is no such file or folder",
        ErrorKind::PermissionDenied => "this user may not do that: check the rights",
        ErrorKind::AlreadyExists => "a file of this name is there: choose another name",
        ErrorKind::NotADirectory => "it is a file, or a part of its path is: name a folder",
        ErrorKind::IsADirectory => "it is a folder: name a file",
        ErrorKind::StorageFull => "the disk is full: make room",
        ErrorKind::ReadOnlyFilesystem => "the disk is read-only: choose another folder",
        ErrorKind::AddrInUse => "another program uses this address: choose another port",
        _ => return error.to_string(),
    };
    words.to_string()
}

/// True when the error is a closed stdout.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

/// Text without line ends and control characters.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().map(clean);
    words.collect::<Vec<_>>().join(" ")
}

/// Text as it may go to a terminal: escape sequences in file names and commands become harmless.
pub(crate) fn clean(text: &str) -> String {
    text.replace(|mark: char| mark.is_control() || is_hidden(mark), "\u{fffd}")
}

/// Text as one word of a shell, to be copied from a terminal.
pub(crate) fn shell_word(text: &str) -> String {
    let text = clean(text);
    let is_plain = |mark: char| mark.is_ascii_alphanumeric() || "/._-+=:,@%".contains(mark);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Text of at most this width: the end is cut off, and `…` says so.
pub(crate) fn cut(text: &str, width: usize) -> String {
    let room = width.saturating_sub(1);
    if textwrap::core::display_width(text) <= width {
        return text.to_string();
    }
    let mut taken = 0;
    let fits = |letter: &char| {
        taken += textwrap::core::display_width(letter.encode_utf8(&mut [0; 4]));
        taken <= room
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    cut.truncate(cut.trim_end().len());
    if width > 0 {
        cut.push(ELLIPSIS);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_text_is_marked() {
        for (width, expected) in
            [(0, ""), (1, "…"), (6, "model…"), (7, "model…"), (13, "model forward")]
        {
            assert_eq!(cut("model forward", width), expected);
        }
        assert_eq!(cut("漢字漢字", 5), "漢字…");
    }

    #[test]
    fn strangers_do_not_drive_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(one_line("error:\n  one\ttwo\u{7}\n"), "error: one two\u{fffd}");
    }

    #[test]
    fn json_has_no_control_characters() {
        let said = "train.py \u{9b}31m \u{7f} \u{85} \u{1b}[0m é \u{a0}\u{202e}\u{e0041}\n";
        let text = json(&[said]).unwrap();
        let expected =
            "[\"train.py \\u009b31m \\u007f \\u0085 \\u001b[0m é \u{a0}\\u202e\\udb40\\udc41\\n\"]";
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [said]);
    }

    #[test]
    fn long_lines_wrap_below_their_text() {
        let text = "rank 2 keeps 2 MiB more each step, allocated at train.py:123\n\n  \
                    growth      +2.00 MiB a step, 96.0 MiB so far, all by this line\n\
                    For the viewer:  memtape export cap-1 --rank 2 -o rank2.pickle\n";
        let expected = "\
rank 2 keeps 2 MiB more each step,
allocated at train.py:123

  growth      +2.00 MiB a step, 96.0 MiB
              so far, all by this line
For the viewer:  memtape export cap-1 --rank 2 -o rank2.pickle
";
        assert_eq!(wrapped(text, 40), expected);
        assert_eq!(wrapped(expected, 40), expected);
    }

    #[test]
    fn errors_of_the_system_have_plain_words() {
        let line = |kind: ErrorKind| {
            let error = std::io::Error::from(kind);
            error_line(&anyhow::Error::from(error).context("cannot open x"))
        };
        assert_eq!(line(ErrorKind::NotFound), "cannot open x: there is no such file or folder");
        assert_eq!(line(ErrorKind::IsADirectory), "cannot open x: it is a folder: name a file");
        let own = std::io::Error::new(ErrorKind::NotFound, "no tape in here");
        assert_eq!(error_line(&own.into()), "no tape in here");
        let other = anyhow::anyhow!("two\nlines").context("cannot read x");
        assert_eq!(error_line(&other), "cannot read x: two lines");
    }

    #[test]
    fn broken_pipes_are_found_below_context() {
        let pipe = std::io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(pipe).context("writing")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}

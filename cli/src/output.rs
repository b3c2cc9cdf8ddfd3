//! Writing to a terminal, a file or a pipe that may have gone away, and keeping what strangers
//! wrote from driving the terminal.

use std::io::{ErrorKind, Write};

use serde::Serialize;

/// Writes text to stdout, with a line end if it has none.
/// Fails when stdout cannot be written; [`is_broken_pipe`] finds a reader that went away.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// Writes one JSON value on one line to stdout.
/// Fails as [`print`] does.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&serde_json::to_string(value)?)
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
    let words = text.split_whitespace().map(|word| word.replace(char::is_control, "\u{fffd}"));
    words.collect::<Vec<_>>().join(" ")
}

/// Text as it may go to a terminal: escape sequences in file names and commands become harmless.
pub(crate) fn clean(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_drive_the_terminal() {
        assert_eq!(clean("a\u{1b}[31mb\nc"), "a\u{fffd}[31mb\u{fffd}c");
        assert_eq!(one_line("error:\n  one\ttwo\u{7}\n"), "error: one two\u{fffd}");
    }

    #[test]
    fn broken_pipes_are_found_below_context() {
        let pipe = std::io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_broken_pipe(&anyhow::Error::from(pipe).context("writing")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("broken pipe")));
    }
}

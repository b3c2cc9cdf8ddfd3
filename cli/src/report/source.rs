//! The lines of code that a report is about, from the file on this machine.
//!
//! The name of the file comes from a tape or a snapshot, which others may have written: only
//! absolute names of Python files are opened, and nothing but a regular file of a modest size is
//! read. The file may have changed since the program ran; where its time says so, so does the
//! report.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::plain_file;

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Lines above and below the line.
const LINES_BESIDE: usize = 6;

/// Characters of a line that are shown.
const COLUMNS_MAX: usize = 200;

/// Some lines of a file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Excerpt {
    /// Name of the file.
    pub(crate) file: String,
    /// Number of the first line, from 1.
    pub(crate) first_line: usize,
    /// Number of the line that matters.
    pub(crate) line: usize,
    /// The lines.
    pub(crate) lines: Vec<String>,
    /// True if the file is newer than the state shown.
    pub(crate) is_newer: bool,
}

/// The lines about one; `None` where the file cannot be read or has no such line. The time is that
/// of the state which names the line, 0 where it is not known.
pub(crate) fn excerpt(file: &str, line: u32, wall_ns: i64) -> Option<Excerpt> {
    let path = Path::new(file);
    let is_python = path.extension().is_some_and(|extension| extension == "py");
    let line = usize::try_from(line).ok().filter(|line| *line > 0)?;
    if !path.is_absolute() || !is_python {
        return None;
    }
    // A pipe must not block.
    let opened = plain_file::open(OpenOptions::new().read(true), libc::O_NONBLOCK, path).ok()?;
    let metadata = opened.metadata().ok()?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return None;
    }
    let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let text = text(opened)?;
    let first = line.saturating_sub(LINES_BESIDE).max(1);
    let lines = text.lines().skip(first - 1).take(line + LINES_BESIDE + 1 - first);
    let lines: Vec<String> =
        lines.map(|line| line.chars().take(COLUMNS_MAX).collect::<String>()).collect();
    let is_newer = wall_ns > 0 && changed > u128::from(wall_ns.unsigned_abs());
    (first + lines.len() > line).then(|| Excerpt {
        file: file.to_string(),
        first_line: first,
        line,
        lines,
        is_newer,
    })
}

fn text(file: File) -> Option<String> {
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_python_files_are_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let code: String = (1..=30).map(|line| format!("line {line}\n")).collect();
        for name in ["train.py", "secrets.txt"] {
            std::fs::write(at(name), &code).expect("a file");
        }
        std::fs::create_dir(at("folder.py")).expect("a folder");
        let found = excerpt(&at("train.py"), 10, 0).expect("an excerpt");
        assert_eq!((found.first_line, found.lines.len(), found.is_newer), (4, 13, false));
        assert_eq!(found.lines[found.line - found.first_line], "line 10");
        assert!(excerpt(&at("train.py"), 10, 1).is_some_and(|found| found.is_newer));
        assert_eq!(excerpt(&at("train.py"), 2, 0).map(|found| found.first_line), Some(1));
        for (name, line) in
            [("train.py", 31), ("train.py", 0), ("secrets.txt", 3), ("folder.py", 1), ("no.py", 1)]
        {
            assert_eq!(excerpt(&at(name), line, 0), None, "{name}:{line}");
        }
        assert_eq!(excerpt("train.py", 1, 0), None);
    }
}

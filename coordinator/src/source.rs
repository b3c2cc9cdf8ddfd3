//! Lines of the program's own files, beside the lines that hold its memory.
//!
//! The name of a file comes from a tape or a snapshot, which any user of a node may have written.
//! So a file is read only if it is a regular file of Python of a modest size, below a folder that
//! the operator has named, and if it belongs to the owner of the job: a job shows no file that its
//! owner may not read. Files are read where the coordinator runs; in a cluster, from a folder that
//! the nodes share.
//!
//! It does not decide who may ask: `http/source_routes.rs` does.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use memtape_proto::api::SourceLines;
use rustix::fs::OFlags;

/// Largest file that is read.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Lines above and below the line.
const LINES_BESIDE: u32 = 6;

/// Characters of a line that are shown.
const COLUMNS_MAX: usize = 200;

/// Why lines are not shown.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    /// No folder with sources is named.
    #[error(
        "the coordinator shows no sources: name the folders that it may read with --source-dir"
    )]
    Nowhere,
    /// It is below none of the folders.
    #[error("the file is below no folder of --source-dir")]
    Elsewhere,
    /// It is another user's.
    #[error("the file does not belong to the owner of the job")]
    NotOwned,
    /// Its name is relative, or not that of a file of Python.
    #[error("only files of Python with an absolute name are shown")]
    NotPython,
    /// It is too large, or no regular file.
    #[error("only regular files of at most 4 MiB are shown")]
    NotPlain,
    /// Its last line is before that one.
    #[error("the file has no such line")]
    NoLine,
    /// The operating system does not give it.
    #[error("the file cannot be read where the coordinator runs: {0}")]
    Unreadable(#[from] io::Error),
}

/// Where sources may be read, and whose.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'a> {
    /// Folders whose files may be read.
    pub folders: &'a [PathBuf],
    /// User id that the files must have; any without one.
    pub owner: Option<u32>,
}

/// The lines around one, of a job that began at this time, Unix time in nanoseconds. Blocks.
///
/// # Errors
/// The lines are not shown, for the reason that is said.
pub fn lines(
    (file, line): (&str, u32),
    began_wall_ns: i64,
    readable: Readable<'_>,
) -> Result<SourceLines, NotShown> {
    let path = Path::new(file);
    if readable.folders.is_empty() {
        return Err(NotShown::Nowhere);
    }
    if !path.is_absolute() || path.extension().is_none_or(|extension| extension != "py") {
        return Err(NotShown::NotPython);
    }
    let opened = open(path, readable.folders)?;
    let metadata = opened.metadata()?;
    if readable.owner.is_some_and(|owner| owner != metadata.uid()) {
        return Err(NotShown::NotOwned);
    }
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(NotShown::NotPlain);
    }
    let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut text = String::new();
    opened.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    let first_line = line.saturating_sub(LINES_BESIDE).max(1);
    let count = line.saturating_add(LINES_BESIDE).saturating_add(1).saturating_sub(first_line);
    let lines = text.lines().skip(first_line as usize - 1).take(count as usize);
    let lines: Vec<String> = lines.map(|line| line.chars().take(COLUMNS_MAX).collect()).collect();
    if line == 0 || lines.len() <= (line - first_line) as usize {
        return Err(NotShown::NoLine);
    }
    let is_newer = changed.as_nanos() > u128::from(began_wall_ns.max(0).unsigned_abs());
    Ok(SourceLines { file: file.to_string(), first_line, line, lines, not_shown: None, is_newer })
}

/// Opens a file below one of the folders. Symbolic links are followed before that is checked, and
/// not afterwards; a pipe does not block.
fn open(path: &Path, folders: &[PathBuf]) -> Result<File, NotShown> {
    let path = path.canonicalize()?;
    let is_below = |folder: &PathBuf| folder.canonicalize().is_ok_and(|of| path.starts_with(of));
    if !folders.iter().any(is_below) {
        return Err(NotShown::Elsewhere);
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A file of 20 lines in a folder of its own, and its owner.
    fn written() -> (tempfile::TempDir, String, u32) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("train.py");
        let text: String = (1..=20).map(|line| format!("line_{line}()\n")).collect();
        std::fs::write(&file, text).expect("written");
        let owner = file.metadata().expect("there").uid();
        (folder, file.to_str().expect("a name").to_string(), owner)
    }

    #[test]
    fn lines_are_shown_with_their_neighbours() {
        let (folder, file, owner) = written();
        let folders = [folder.path().to_path_buf()];
        let readable = Readable { folders: &folders, owner: Some(owner) };
        let shown = |line, began| lines((&file, line), began, readable);
        let middle = shown(10, 0).expect("lines");
        assert_eq!((middle.first_line, middle.line, middle.lines.len()), (4, 10, 13));
        assert_eq!(middle.lines[6], "line_10()");
        assert!(middle.is_newer && !shown(10, i64::MAX).expect("lines").is_newer);
        let [first, last] = [shown(1, 0), shown(20, 0)].map(|of| of.expect("lines"));
        assert_eq!((first.first_line, first.lines.len()), (1, 7));
        assert_eq!((last.first_line, last.lines.len()), (14, 7));
        for line in [0, 21, u32::MAX] {
            assert!(matches!(shown(line, 0), Err(NotShown::NoLine)), "{line}");
        }
    }

    #[test]
    fn nothing_else_is_read() {
        let (folder, file, owner) = written();
        let (elsewhere, _, _) = written();
        let here = [folder.path().to_path_buf()];
        let check = |file: &str, folders: &[PathBuf], owner: u32| {
            lines((file, 1), 0, Readable { folders, owner: Some(owner) }).expect_err("refused")
        };
        let in_folder = |name: &str| folder.path().join(name).to_str().expect("a name").to_string();
        assert!(matches!(check(&file, &[], owner), NotShown::Nowhere));
        assert!(matches!(check(&file, &here, owner + 1), NotShown::NotOwned));
        let other = [elsewhere.path().to_path_buf()];
        assert!(matches!(check(&file, &other, owner), NotShown::Elsewhere));
        assert!(matches!(check("train.py", &here, owner), NotShown::NotPython));
        std::fs::write(in_folder("key.pem"), "secret\n").expect("written");
        assert!(matches!(check(&in_folder("key.pem"), &here, owner), NotShown::NotPython));
        assert!(matches!(check(&in_folder("gone.py"), &here, owner), NotShown::Unreadable(_)));
        std::fs::create_dir(in_folder("folder.py")).expect("made");
        assert!(matches!(check(&in_folder("folder.py"), &here, owner), NotShown::NotPlain));
        // A link out of the folder, and a way out by its name.
        symlink(elsewhere.path().join("train.py"), in_folder("link.py")).expect("a link");
        assert!(matches!(check(&in_folder("link.py"), &here, owner), NotShown::Elsewhere));
        let name = elsewhere.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let way_out = in_folder(&format!("../{name}/train.py"));
        assert!(matches!(check(&way_out, &here, owner), NotShown::Elsewhere));
    }
}

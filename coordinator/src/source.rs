//! Lines of the program's own files, beside the lines that hold its memory.
//!
//! The name of a file comes from a tape or a snapshot, which any user of a node may have written,
//! or from a request. So a file is read only below a folder that the operator has named, without a
//! symbolic link below it, and if it is a regular Python file of a modest size that belongs to the
//! owner of the job. Files are read where the coordinator runs; in a cluster, from a folder that
//! the nodes share.
//!
//! It does not decide who may ask: `http/source_routes.rs` does.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use memtape_proto::api::SourceLines;
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};

/// Largest file that is read.
pub const FILE_BYTES_MAX: u64 = 4 << 20;

/// Longest name of a file that is asked for, in bytes.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 1024;

/// Lines above and below the line.
const LINES_BESIDE: u32 = 6;

/// Characters of a line that are shown.
const COLUMNS_MAX: usize = 200;

/// Why lines are not shown. Whether a file is there is not said of files that are not shown.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum NotShown {
    /// No folder with sources is named.
    #[error("no source is shown: name the folders of sources with --source-dir")]
    NoFolder,
    /// The caller is no operator of the job.
    #[error("sources are shown to operators of the job")]
    NotOperator,
    /// It is below none of the folders.
    #[error("the file is below no folder of --source-dir")]
    OutsideFolders,
    /// Its name is relative, or not that of a Python file.
    #[error("only Python files with an absolute name are shown")]
    NotPython,
    /// It is not there, no regular file, another user's, behind a link, too large, or no text.
    #[error("the coordinator can read no such file of the owner of the job")]
    Unreadable,
    /// It ends before that line.
    #[error("the file has no such line")]
    NoLine,
}

impl From<io::Error> for NotShown {
    fn from(_: io::Error) -> Self {
        Self::Unreadable
    }
}

/// Where sources may be read, and whose.
#[derive(Clone, Copy, Debug)]
pub struct Readable<'a> {
    /// Folders whose files may be read.
    pub folders: &'a [PathBuf],
    /// User id that the files must have.
    pub owner: u32,
}

/// Reads a line with its neighbours. A file that was changed after the job began, at this Unix time
/// in nanoseconds, is newer. Blocks.
///
/// # Errors
/// The lines are not shown.
pub fn lines(
    (file, line): (&str, u32),
    began_wall_ns: i64,
    readable: Readable<'_>,
) -> Result<SourceLines, NotShown> {
    let opened = opened(Path::new(file), readable.folders)?;
    let metadata = opened.metadata()?;
    let is_plain = metadata.is_file() && metadata.len() <= FILE_BYTES_MAX;
    if !is_plain || metadata.uid() != readable.owner {
        return Err(NotShown::Unreadable);
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

/// Opens a Python file below one of the folders. The kernel follows no link below the folder; a
/// pipe does not block.
fn opened(path: &Path, folders: &[PathBuf]) -> Result<File, NotShown> {
    if folders.is_empty() {
        return Err(NotShown::NoFolder);
    }
    if !path.is_absolute() || path.extension().is_none_or(|extension| extension != "py") {
        return Err(NotShown::NotPython);
    }
    let mut found = NotShown::OutsideFolders;
    for folder in folders {
        let Ok(below) = path.strip_prefix(folder) else { continue };
        found = NotShown::Unreadable;
        let whole = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::DIRECTORY;
        let Ok(folder) = open(folder, whole, Mode::empty()) else { continue };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        if let Ok(file) = openat2(folder, below, flags, Mode::empty(), resolve) {
            return Ok(file.into());
        }
    }
    Err(found)
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
        let readable = Readable { folders: &folders, owner };
        let shown = |line, began| lines((&file, line), began, readable);
        let middle = shown(10, 0).expect("lines");
        assert_eq!((middle.first_line, middle.line, middle.lines.len()), (4, 10, 13));
        assert_eq!(middle.lines[6], "line_10()");
        assert!(middle.is_newer && !shown(10, i64::MAX).expect("lines").is_newer);
        let [first, last] = [shown(1, 0), shown(20, 0)].map(|of| of.expect("lines"));
        assert_eq!((first.first_line, first.lines.len()), (1, 7));
        assert_eq!((last.first_line, last.lines.len()), (14, 7));
        for line in [0, 21, u32::MAX] {
            assert_eq!(shown(line, 0), Err(NotShown::NoLine), "{line}");
        }
    }

    #[test]
    fn nothing_else_is_read() {
        let (folder, file, owner) = written();
        let (other, _, _) = written();
        let here = [folder.path().to_path_buf()];
        let check = |file: &str, folders: &[PathBuf], owner: u32| {
            lines((file, 1), 0, Readable { folders, owner }).expect_err("refused")
        };
        let in_folder = |name: &str| folder.path().join(name).to_str().expect("a name").to_string();
        assert_eq!(check(&file, &[], owner), NotShown::NoFolder);
        assert_eq!(check(&file, &here, owner + 1), NotShown::Unreadable);
        assert_eq!(check(&file, &[other.path().to_path_buf()], owner), NotShown::OutsideFolders);
        assert_eq!(check("train.py", &here, owner), NotShown::NotPython);
        std::fs::write(in_folder("key.pem"), "secret\n").expect("written");
        assert_eq!(check(&in_folder("key.pem"), &here, owner), NotShown::NotPython);
        assert_eq!(check(&in_folder("gone.py"), &here, owner), NotShown::Unreadable);
        std::fs::create_dir(in_folder("folder.py")).expect("made");
        assert_eq!(check(&in_folder("folder.py"), &here, owner), NotShown::Unreadable);
        // Links: to what is no Python file, out of the folder, of a folder, and of the kernel.
        let targets = [folder.path().join("key.pem"), other.path().join("train.py")];
        for (number, target) in targets.iter().enumerate() {
            let link = in_folder(&format!("link_{number}.py"));
            symlink(target, &link).expect("a link");
            assert_eq!(check(&link, &here, owner), NotShown::Unreadable, "{target:?}");
        }
        symlink(other.path(), in_folder("inside")).expect("a link");
        assert_eq!(check(&in_folder("inside/train.py"), &here, owner), NotShown::Unreadable);
        let root = [PathBuf::from("/")];
        let magic = format!("/proc/self/root{file}");
        assert_eq!(check(&magic, &root, owner), NotShown::Unreadable);
        // A way out by its name.
        let name = other.path().file_name().and_then(|name| name.to_str()).expect("a name");
        let way_out = in_folder(&format!("../{name}/train.py"));
        assert_eq!(check(&way_out, &here, owner), NotShown::Unreadable);
    }
}

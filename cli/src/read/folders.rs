//! Finds files in a folder and in the folders below it.
//!
//! It goes [`FOLDER_DEPTH_MAX`] folders deep and follows no links. It opens no file.

use std::path::{Path, PathBuf};

use anyhow::Context;
use memtape_core::limits::FOLDER_DEPTH_MAX;

/// The files whose names are wanted, in the order of their paths.
/// Fails when a folder cannot be listed.
pub(crate) fn files(
    folder: &Path,
    is_wanted: impl Fn(&str) -> bool,
) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    search(folder, FOLDER_DEPTH_MAX, &is_wanted, &mut files)?;
    Ok(files)
}

fn search(
    folder: &Path,
    depth: usize,
    is_wanted: &impl Fn(&str) -> bool,
    files: &mut Vec<PathBuf>,
) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder);
    let entries =
        entries.with_context(|| format!("cannot list the folder {}", folder.display()))?;
    // The kind of the entry, not of what a link points to.
    let found = entries.flatten().filter_map(|entry| Some((entry.path(), entry.file_type().ok()?)));
    let mut found: Vec<_> = found.collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (path, kind) in found {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if kind.is_dir() && depth > 0 {
            search(&path, depth - 1, is_wanted, files)?;
        } else if is_wanted(&name) && kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_searched_to_a_depth() {
        let scratch = tempfile::tempdir().expect("a folder");
        let deep = scratch.path().join("a/b/c/d");
        std::fs::create_dir_all(&deep).expect("folders");
        for folder in ["", "a", "a/b/c", "a/b/c/d"] {
            std::fs::write(scratch.path().join(folder).join("x.tape"), "").expect("a file");
        }
        std::fs::write(scratch.path().join("notes.txt"), "").expect("a file");
        let found = files(scratch.path(), |name| name.ends_with(".tape")).expect("found");
        let names = found.iter().filter_map(|path| path.strip_prefix(scratch.path()).ok());
        let names: Vec<&Path> = names.collect();
        assert_eq!(names, ["a/b/c/x.tape", "a/x.tape", "x.tape"].map(Path::new));
        assert!(files(&scratch.path().join("none"), |_| true).is_err());
    }
}

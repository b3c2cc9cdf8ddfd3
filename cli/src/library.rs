//! Finds `libmemtape.so`, the library that `memtape run` preloads.
//!
//! In this order: `$MEMTAPE_LIBRARY`; beside this binary; `../lib` from it; `deps/` beside it,
//! where cargo leaves it in a source tree; and beside the Python module, where pip leaves it.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const FILE_NAME: &str = "libmemtape.so";

/// The library's absolute path, fit for `LD_PRELOAD`.
/// Fails when there is no such file, or `LD_PRELOAD` cannot hold its path.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("MEMTAPE_LIBRARY").filter(|value| !value.is_empty());
    let binary = std::env::current_exe().context("cannot find the path of this program")?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let found = match named {
        Some(path) => {
            let path = PathBuf::from(path);
            if !path.is_file() {
                bail!("MEMTAPE_LIBRARY is {}, where there is no file", path.display());
            }
            path
        }
        None => match candidates(folder).into_iter().find(|path| path.is_file()) {
            Some(path) => path,
            None => bail!(
                "{FILE_NAME} is not beside {} nor in ../lib, and pip has installed none: build it \
                 (cargo build -p memtape-recorder) or name it in MEMTAPE_LIBRARY",
                binary.display()
            ),
        },
    };
    let found = found.canonicalize().with_context(|| format!("cannot use {}", found.display()))?;
    if !fits_preload(found.as_os_str()) {
        bail!(
            "{} cannot be preloaded: spaces and colons separate libraries in LD_PRELOAD; copy it \
             elsewhere and name it in MEMTAPE_LIBRARY",
            found.display()
        );
    }
    Ok(found)
}

/// Paths where the library may be, in the order in which they are tried.
fn candidates(folder: &Path) -> Vec<PathBuf> {
    let mut paths = vec![
        folder.join(FILE_NAME),
        folder.join("../lib").join(FILE_NAME),
        folder.join("deps").join(FILE_NAME),
    ];
    paths.extend(installed_by_pip(folder));
    paths
}

/// The libraries beside Python modules of the same installation: `lib/python3.11/site-packages` of
/// a virtual environment or a user, `dist-packages` with Debian's Python, `lib64` with Red Hat's,
/// and no folder between with `pip install --target`. Several Pythons may share one `bin`: the
/// binary in it came with the module that was installed last.
fn installed_by_pip(folder: &Path) -> Vec<PathBuf> {
    let pythons = ["../lib", "../lib64"].into_iter().flat_map(|lib| {
        let entries = std::fs::read_dir(folder.join(lib)).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(|path| file_name(path).starts_with("python3"))
    });
    let packages = pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|packages| python.join(packages)))
        .chain([folder.join("..")]);
    let mut found: Vec<_> = packages
        .map(|packages| packages.join("memtape").join(FILE_NAME))
        .filter_map(|path| Some((changed_ns(&path)?, path)))
        .collect();
    found.sort();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Time at which the file was installed, in nanoseconds; its modification time is the wheel's.
fn changed_ns(path: &Path) -> Option<i128> {
    let metadata = path.metadata().ok()?;
    Some(i128::from(metadata.ctime()) * 1_000_000_000 + i128::from(metadata.ctime_nsec()))
}

fn fits_preload(path: &OsStr) -> bool {
    path.to_str().is_some_and(|path| !path.contains([':', ' ', '\t', '\n']))
}

/// `LD_PRELOAD` with the library in front of the present entries.
pub(crate) fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let before = before.and_then(|text| text.into_string().ok()).unwrap_or_default();
    for other in before.split([':', ' ']).filter(|other| !other.is_empty()) {
        if OsStr::new(other) != library.as_os_str() {
            value.push(":");
            value.push(other);
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_preloads_stay() {
        let check = |before: Option<&str>, expected: &str| {
            let value = preload(Path::new("/l/libmemtape.so"), before.map(OsString::from));
            assert_eq!(value, OsString::from(expected));
        };
        check(None, "/l/libmemtape.so");
        check(Some(""), "/l/libmemtape.so");
        check(Some("/a.so"), "/l/libmemtape.so:/a.so");
        check(Some("/a.so /b.so"), "/l/libmemtape.so:/a.so:/b.so");
        check(Some("/a.so:/l/libmemtape.so"), "/l/libmemtape.so:/a.so");
    }

    #[test]
    fn pips_layouts_are_known() {
        let check = |layout: &str, of_others: &[&str]| {
            let prefix = tempfile::tempdir().expect("a temporary folder");
            let prefix = prefix.path();
            let put = |file: &str| {
                let path = prefix.join(file);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(&path, "").expect("written");
                path.canonicalize().expect("a path")
            };
            put("bin/memtape");
            of_others.iter().for_each(|file| drop(put(file)));
            let expected = put(layout);
            let first = candidates(&prefix.join("bin")).into_iter().find(|path| path.is_file());
            let found = first.and_then(|path| path.canonicalize().ok());
            assert_eq!(found, Some(expected), "{layout}");
        };
        check("lib/python3.11/site-packages/memtape/libmemtape.so", &[]);
        check("lib64/python3.9/site-packages/memtape/libmemtape.so", &["lib/python3.9/x"]);
        check("lib/python3.12/dist-packages/memtape/libmemtape.so", &["lib/python3/x"]);
        check("memtape/libmemtape.so", &["lib/python3.12/site-packages/other/libmemtape.so"]);
        check("lib/libmemtape.so", &["lib/python3.12/site-packages/memtape/libmemtape.so"]);
    }

    #[test]
    fn separators_cannot_be_in_the_path() {
        assert!(fits_preload(OsStr::new("/opt/memtape/lib/libmemtape.so")));
        assert!(!fits_preload(OsStr::new("/my files/libmemtape.so")));
        assert!(!fits_preload(OsStr::new("/a:b/libmemtape.so")));
    }
}

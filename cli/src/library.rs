//! Finds `libmemtape.so`, the library that `memtape run` preloads.
//!
//! In this order: `$MEMTAPE_LIBRARY`, beside this binary, `../lib` from it, and `deps/` beside it,
//! which is where cargo leaves it in a source tree.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const FILE_NAME: &str = "libmemtape.so";

/// The library's absolute path, fit for `LD_PRELOAD`.
///
/// # Errors
/// When it is in none of the places, or its path cannot stand in `LD_PRELOAD`.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let named = std::env::var_os("MEMTAPE_LIBRARY").filter(|value| !value.is_empty());
    let binary = std::env::current_exe().context("cannot tell where this binary is")?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let found = match named {
        Some(path) => {
            let path = PathBuf::from(path);
            if !path.is_file() {
                bail!("MEMTAPE_LIBRARY is {}, where there is no file", path.display());
            }
            path
        }
        None => match places(folder).into_iter().find(|path| path.is_file()) {
            Some(path) => path,
            None => bail!(
                "{FILE_NAME} is not beside {} nor in ../lib: build it (cargo build -p \
                 memtape-recorder) or name it in MEMTAPE_LIBRARY",
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

fn places(folder: &Path) -> [PathBuf; 3] {
    [
        folder.join(FILE_NAME),
        folder.join("../lib").join(FILE_NAME),
        folder.join("deps").join(FILE_NAME),
    ]
}

fn fits_preload(path: &OsStr) -> bool {
    path.to_str().is_some_and(|path| !path.contains([':', ' ', '\t', '\n']))
}

/// `LD_PRELOAD` with the library in front of what is there already.
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
    fn what_was_preloaded_stays() {
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
    fn separators_cannot_be_in_the_path() {
        assert!(fits_preload(OsStr::new("/opt/memtape/lib/libmemtape.so")));
        assert!(!fits_preload(OsStr::new("/my files/libmemtape.so")));
        assert!(!fits_preload(OsStr::new("/a:b/libmemtape.so")));
    }
}

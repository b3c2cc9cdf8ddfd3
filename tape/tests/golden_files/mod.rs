//! Files of the repository that tests make from the code: pages of the documents, and golden texts.
//!
//! The tests of other packages include this file by its path, because no package may import tests.

use std::path::Path;

/// True when tests write the files again: `MEMTAPE_GOLDEN=make`.
pub(crate) fn is_remade() -> bool {
    std::env::var_os("MEMTAPE_GOLDEN").is_some_and(|value| value == "make")
}

/// Checks that the file holds this text; writes it first if [`is_remade`]. `command` writes it
/// again.
///
/// # Panics
/// When the file holds another text, or cannot be written.
pub(crate) fn check(path: &Path, text: &str, command: &str) {
    if is_remade() {
        std::fs::write(path, text).expect("the file can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let differs = written.lines().zip(text.lines()).position(|(written, made)| written != made);
    let line = differs.unwrap_or_else(|| written.lines().count().min(text.lines().count())) + 1;
    assert!(written == text, "{} is old from line {line} on: run {command}", path.display());
}

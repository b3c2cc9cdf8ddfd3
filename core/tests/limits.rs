//! `docs/limits.md` is made from `tape/src/limits.rs` and `core/src/limits/`, and each limit is
//! defined there only.
//!
//! `MEMTAPE_GOLDEN=make cargo test -p memtape-core --test core limits` writes the page again.

use std::fs;
use std::path::{Path, PathBuf};

use memtape_core::limits::{Kept, all, page};

use strum::VariantArray as _;

use crate::golden_files;

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn the_page_is_made_from_the_table() {
    let command = "MEMTAPE_GOLDEN=make cargo test -p memtape-core --test core limits";
    golden_files::check(&root().join("docs/limits.md"), &page(), command);
}

#[test]
fn every_constant_of_the_files_is_in_the_table() {
    let folder = fs::read_dir(root().join("core/src/limits")).expect("the folder is there");
    let files = folder.map(|entry| entry.expect("an entry").path());
    let files = files.chain([root().join("tape/src/limits.rs")]);
    let text: String =
        files.map(|file| fs::read_to_string(file).expect("a file can be read")).collect();
    let constants: Vec<&str> =
        text.lines().filter(|line| line.contains("pub const ") && line.contains(": ")).collect();
    assert_eq!(constants.len(), 1, "only the macro makes constants: {constants:?}");
    let listed = text.lines().filter(|line| line.starts_with("    ") && line.contains("_MAX: "));
    assert_eq!(listed.count(), all().count());
}

#[test]
fn every_kind_that_is_kept_has_limits() {
    for kept in Kept::VARIANTS {
        let of = kept.keeping();
        let names = of.rate.iter().chain(of.bound);
        let is_known = |name: &&str| name.starts_with("--") || all().any(|of| of.name == *name);
        let unknown: Vec<&&str> = names.filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty() && !of.rate.is_empty(), "{kept:?}: {unknown:?}");
    }
}

#[test]
fn no_other_file_defines_a_limit_of_the_table() {
    let mut found = Vec::new();
    for folder in [
        "agent",
        "cli",
        "coordinator",
        "core",
        "disk",
        "pickle",
        "proto",
        "recorder",
        "store",
        "tape",
    ] {
        collect(&root().join(folder).join("src"), &mut found);
    }
    assert!(found.is_empty(), "use memtape_core::limits, or another name:\n{}", found.join("\n"));
}

/// Lines below a folder that define a constant with the name of a limit.
fn collect(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("a folder of the repository can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("a file can be read");
            let names =
                text.lines().filter_map(|line| line.split_once("const ")?.1.split_once(':'));
            let taken = names.filter(|(name, _)| all().any(|limit| limit.name == *name));
            found.extend(taken.map(|(name, _)| format!("{}: {name}", path.display())));
        }
    }
}

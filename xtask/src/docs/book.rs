//! Builds the site with mdBook, in the version that is named here.
//!
//! mdBook knows the files of its book only. So it gets a copy of `docs/` in which links to other
//! files of the repository lead to the repository's address.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use super::files;
use crate::process::{Steps, call, cargo, command, output, root};
use crate::python;

/// The version of mdBook.
const MDBOOK: &str = "0.5.4";

/// The documents.
const PAGES: &str = "docs";

/// The copy that mdBook reads, and what it makes of it.
const SOURCE: &str = "target/docs/source";
const SITE: &str = "target/docs/site";

/// A site that was built.
pub(super) struct Built {
    /// Its folder.
    pub(super) site: PathBuf,
    /// Its pages, as they lie in `docs/`.
    pub(super) pages: Vec<PathBuf>,
}

impl Built {
    /// One line for each page that the table of contents lacks: mdBook makes nothing of it.
    pub(super) fn unlisted(&self) -> Vec<String> {
        let is_made = |page: &&PathBuf| {
            let made = match page.file_name().and_then(|name| name.to_str()) {
                Some("README.md") => page.with_file_name("index.html"),
                _ => page.with_extension("html"),
            };
            page.as_path() == Path::new("SUMMARY.md") || self.site.join(made).is_file()
        };
        let missing = self.pages.iter().filter(|page| !is_made(page));
        missing.map(|page| format!("SUMMARY.md: add {}", page.display())).collect()
    }
}

/// Builds the site.
pub(super) fn build(steps: &mut Steps) -> Result<Built> {
    let mdbook = root().join("target/tools/bin/mdbook");
    if !is_installed(&mdbook) {
        steps.take("install mdBook", install())?;
    }
    let pages = copy(&root().join(PAGES), &root().join(SOURCE))?;
    let mut build = command(&mdbook);
    build.arg("build").arg(SOURCE).arg("--dest-dir").arg(root().join(SITE));
    steps.take("build the site", build)?;
    Ok(Built { site: root().join(SITE), pages })
}

fn is_installed(mdbook: &Path) -> bool {
    output(&mut call(mdbook, &["--version"])).is_ok_and(|said| said.trim().ends_with(MDBOOK))
}

/// Without the server; and a debug build, which is fast enough and builds in a third of the time.
fn install() -> std::process::Command {
    let mut install = cargo(&["install", "mdbook", "--version", MDBOOK, "--locked", "--debug"]);
    install.args(["--no-default-features", "--features", "search"]);
    install.args(["--root", "target/tools", "--target-dir", "target/mdbook"]);
    install
}

/// Runs the commands of all quick starts, with the frameworks that the tests do without.
pub(super) fn run_quick_starts(steps: &mut Steps) -> Result<()> {
    python::fetch_torch(steps)?;
    python::fetch_quick_starts(steps)?;
    let mut tests = cargo(&["test", "--locked", "-p", "memtape-tests", "--test", "scenarios"]);
    tests.arg("quick_start");
    tests.env("MEMTAPE_TEST_PYTHON", python::torch()).env("MEMTAPE_TEST_TORCH", "1");
    steps.take("quick starts", tests)
}

/// Copies the book; returns its pages.
fn copy(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let mut pages = Vec::new();
    for path in files(from, "")? {
        let inner = path.strip_prefix(from)?;
        let target = to.join(inner);
        fs::create_dir_all(target.parent().context("a file lies in a folder")?)?;
        if path.extension().is_some_and(|extension| extension == "md") {
            let text = fs::read_to_string(&path)?;
            fs::write(target, with_links_out(&text, &Path::new(PAGES).join(inner)))?;
            pages.push(inner.to_path_buf());
        } else {
            fs::copy(&path, target)?;
        }
    }
    Ok(pages)
}

/// The text of a page whose links to files beside the book lead to the repository.
fn with_links_out(text: &str, page: &Path) -> String {
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        out += "](";
        match part.split_once(')') {
            Some((link, rest)) => {
                out += &led_out(link, page).unwrap_or_else(|| link.to_string());
                out += ")";
                out += rest;
            }
            None => out += part,
        }
    }
    out
}

/// The address of a file of the repository that is no part of the book; none for other links.
fn led_out(link: &str, page: &Path) -> Option<String> {
    if link.contains("://") || link.starts_with('#') || link.starts_with("mailto:") {
        return None;
    }
    let path = normal(&page.parent()?.join(link));
    let is_inside = path.starts_with(PAGES);
    (!is_inside).then(|| format!("{}/blob/main/{}", env!("CARGO_PKG_REPOSITORY"), path.display()))
}

/// The path without `..`, which names nothing outside the repository.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_not_listed_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        for made in ["index.html", "a.html"] {
            fs::write(folder.path().join(made), "").expect("a file");
        }
        let pages = ["README.md", "SUMMARY.md", "a.md", "b.md"].map(PathBuf::from).into();
        let built = Built { site: folder.path().to_path_buf(), pages };
        assert_eq!(built.unlisted(), ["SUMMARY.md: add b.md"]);
    }

    #[test]
    fn links_that_leave_the_book_lead_to_the_repository() {
        let check = |link: &str, expected: &str| {
            let page = Path::new("docs/quickstart/slurm.md");
            let expected = expected.replace("REPO", env!("CARGO_PKG_REPOSITORY"));
            let text = with_links_out(&format!("See [it]({link}), [it]({link})."), page);
            assert_eq!(text, format!("See [it]({expected}), [it]({expected})."), "{link}");
        };
        check("torchrun.md", "torchrun.md");
        check("../memory.md#the-ledger", "../memory.md#the-ledger");
        check("#marks", "#marks");
        check("https://example.org/a", "https://example.org/a");
        check("../../README.md#install", "REPO/blob/main/README.md#install");
        check("../../deploy/slurm/", "REPO/blob/main/deploy/slurm");
        let unclosed = "an [open](link";
        assert_eq!(with_links_out(unclosed, Path::new("docs/a.md")), unclosed);
    }
}

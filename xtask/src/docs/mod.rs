//! `cargo xtask docs`: the documents as a site, and the pages that are made from the code.
//!
//! `book.rs` builds the site with mdBook, and `site.rs` looks for dead links in it. `reference.rs`
//! writes what is made from the code: the reference and the examples (`examples.rs`).
//! The tests check what can be checked without mdBook: that all of it is what the code says, and
//! that the table of contents has every page.

mod book;
mod examples;
mod reference;
mod site;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::process::Steps;
use crate::report::Found;

/// What to do with the documents.
#[derive(clap::Args)]
pub(crate) struct Choice {
    /// Write docs/reference/ and the examples again, from the code. Builds no site.
    #[arg(long)]
    reference: bool,
    /// Run the commands of the quick starts first, those of Ray Train and DeepSpeed too: installs
    /// what they need into target/quickstart (some minutes, 2 GB).
    #[arg(long, conflicts_with = "reference")]
    all: bool,
}

impl Choice {
    pub(crate) fn run(&self, steps: &mut Steps) -> (&'static str, Result<Found>) {
        let found = if self.reference { reference::renew(steps) } else { self.build(steps) };
        ("docs", found)
    }

    fn build(&self, steps: &mut Steps) -> Result<Found> {
        if self.all {
            book::run_quick_starts(steps)?;
        }
        let built = book::build(steps)?;
        let wrong = [built.unlisted(), site::dead_links(&built.site)?].concat();
        let first = built.site.join("index.html");
        let (pages, mistakes) = (built.pages.len(), wrong.len());
        let mut text: String = wrong.iter().map(|line| format!("{line}\n")).collect();
        text += &format!("{pages} pages, {mistakes} mistakes: {}\n", first.display());
        let figures = json!({ "pages": pages, "mistakes": mistakes });
        let object = json!({ "figures": figures, "mistakes": wrong, "first_page": first });
        Ok(Found { is_good: wrong.is_empty(), text, object })
    }
}

/// All files below a folder whose name ends like this, in order of their paths.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path, ending)?);
        } else if path.to_string_lossy().ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

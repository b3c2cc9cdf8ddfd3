//! Examples in pages that are taken from the golden texts of the diagnosis.
//!
//! A page names the scenario in a comment, and the block behind it is the diagnosis of it:
//!
//! ```text
//! <!-- diagnosis of: tensors in a list -->
//! ```
//!
//! So no page shows a sentence that the diagnosis does not say.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::files;
use crate::process::root;

/// The golden texts: a `# name` for each scenario, and its diagnosis below.
const GOLDEN: &str = "core/tests/golden/diagnoses.txt";

/// How a page asks for one.
const MARK: &str = "<!-- diagnosis of: ";

/// Pages, and what they should be.
pub(super) fn renewed() -> Result<Vec<(PathBuf, String)>> {
    let golden = fs::read_to_string(root().join(GOLDEN)).context(GOLDEN)?;
    let pages = files(&root().join("docs"), ".md")?;
    let each = pages.into_iter().map(|path| {
        let text = fs::read_to_string(&path)?;
        let text = renew(&text, &golden).with_context(|| path.display().to_string())?;
        Ok((path, text))
    });
    each.collect()
}

/// The page with the examples that the golden texts have.
fn renew(page: &str, golden: &str) -> Result<String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out += line;
        out += "\n";
        let Some(name) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let diagnosis = diagnosis(name, golden)
            .with_context(|| format!("{GOLDEN} has no scenario {name:?}"))?;
        out += &format!("```text\n{diagnosis}```\n");
        // The block that was there, if there was one.
        let mut rest = lines.clone();
        if rest.next().is_some_and(|line| line == "```text") {
            rest.by_ref().find(|line| *line == "```").context("a block without an end")?;
            lines = rest;
        }
    }
    Ok(out)
}

/// The diagnosis of a scenario.
fn diagnosis(name: &str, golden: &str) -> Option<String> {
    let title = format!("# {name}");
    let section = golden.lines().skip_while(|line| *line != title).skip(1);
    let section = section.take_while(|line| !line.is_empty());
    let text: String = section.map(|line| format!("{line}\n")).collect();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_diagnosis_that_it_names() {
        let golden = "# one\nrank 1 leaks\n  leak\n\n# two\nrank 2 leaks\n";
        let page = "# P\n\n<!-- diagnosis of: one -->\n```text\nold\n```\n\nEnd.\n";
        let renewed = renew(page, golden).expect("a scenario");
        let block = "```text\nrank 1 leaks\n  leak\n```\n";
        assert_eq!(renewed, format!("# P\n\n<!-- diagnosis of: one -->\n{block}\nEnd.\n"));
        assert_eq!(renew(&renewed, golden).expect("a scenario"), renewed);
        assert_eq!(renew("<!-- diagnosis of: two -->\n", golden).expect("one").lines().count(), 4);
        assert!(renew("<!-- diagnosis of: three -->\n", golden).is_err());
    }

    #[test]
    fn examples_in_pages_are_what_the_diagnosis_says() {
        let mut shown = 0;
        for (path, text) in renewed().expect("the pages can be read") {
            let written = fs::read_to_string(&path).expect("a page");
            let how = "run cargo xtask docs --reference";
            assert!(written == text, "{} shows an old diagnosis: {how}", path.display());
            shown += text.matches(MARK).count();
        }
        assert!(shown > 0, "no page shows a diagnosis");
    }
}

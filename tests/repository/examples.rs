//! Examples in pages that are taken from the golden texts of the diagnosis.
//!
//! A page names the scenario in a comment, and the block behind it is the diagnosis of it:
//!
//! ```text
//! <!-- diagnosis of: tensors in a list -->
//! ```
//!
//! So no page shows a sentence that the diagnosis does not have. With `MEMTAPE_GOLDEN=make` the
//! blocks are written again.

use std::fs;

use crate::source::{root, sources};

/// The golden texts: a `# name` for each scenario, and its diagnosis below.
const GOLDEN: &str = "core/tests/golden/diagnoses.txt";

/// How a page asks for one.
const MARK: &str = "<!-- diagnosis of: ";

#[test]
fn examples_in_pages_are_what_the_diagnosis_says() {
    let golden = fs::read_to_string(root().join(GOLDEN)).expect(GOLDEN);
    let is_made = std::env::var_os("MEMTAPE_GOLDEN").is_some_and(|value| value == "make");
    let mut shown = 0;
    for page in sources(&["md"]).into_iter().filter(|page| page.path.starts_with("docs/")) {
        let renewed =
            renewed(&page.text, &golden).unwrap_or_else(|why| panic!("{}: {why}", page.path));
        shown += renewed.matches(MARK).count();
        if is_made && renewed != page.text {
            fs::write(root().join(&page.path), &renewed).expect("a page can be written");
        } else {
            let how = "run cargo xtask docs --reference";
            assert!(renewed == page.text, "{} shows an old diagnosis: {how}", page.path);
        }
    }
    assert!(shown > 0, "no page shows a diagnosis");
}

/// The page with the examples that the golden texts have.
fn renewed(page: &str, golden: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        out += &format!("{line}\n");
        let Some(name) = line.strip_prefix(MARK).and_then(|rest| rest.strip_suffix(" -->")) else {
            continue;
        };
        let diagnosis = diagnosis(name, golden);
        let diagnosis = diagnosis.ok_or_else(|| format!("{GOLDEN} has no scenario {name:?}"))?;
        out += &format!("```text\n{diagnosis}```\n");
        // The block that was there, if there was one.
        let mut rest = lines.clone();
        if rest.next() == Some("```text") {
            rest.by_ref().find(|line| *line == "```").ok_or("a block without an end")?;
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

#[test]
fn a_page_has_the_diagnosis_that_it_names() {
    let golden = "# one\nrank 1 leaks\n  leak\n\n# two\nrank 2 leaks\n";
    let page = "# P\n\n<!-- diagnosis of: one -->\n```text\nold\n```\n\nEnd.\n";
    let renewed = |page: &str| renewed(page, golden);
    let block = "```text\nrank 1 leaks\n  leak\n```\n";
    let expected = format!("# P\n\n<!-- diagnosis of: one -->\n{block}\nEnd.\n");
    assert_eq!(renewed(page), Ok(expected.clone()));
    assert_eq!(renewed(&expected), Ok(expected.clone()));
    assert_eq!(renewed("<!-- diagnosis of: two -->\n").expect("one").lines().count(), 4);
    assert!(renewed("<!-- diagnosis of: three -->\n").is_err());
}

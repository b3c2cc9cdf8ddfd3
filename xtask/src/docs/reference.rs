//! Writes again what is made from the code: the reference, the limits, and examples in pages.
//!
//! Each page of the reference is made by a test of the package whose code it describes: the command
//! line's by the command line, the HTTP API's and the metrics' by a running coordinator. With
//! `MEMTAPE_GOLDEN=make` the test writes the page, else it compares.

use std::fs;

use anyhow::Result;
use serde_json::json;

use super::examples;
use crate::process::{Steps, cargo};
use crate::report::Found;

/// The tests that make pages.
const TESTS: [(&str, &[&str]); 3] = [
    ("limits", &["-p", "memtape-core", "--test", "core", "the_page_is_made_from_the_table"]),
    ("command line", &["-p", "memtape", "--bin", "memtape", "reference"]),
    ("coordinator", &["-p", "memtape-coordinator", "--test", "coordinator", "reference"]),
];

/// Writes all of it.
pub(super) fn renew(steps: &mut Steps) -> Result<Found> {
    for (name, arguments) in TESTS {
        let mut test = cargo(&["test", "--quiet"]);
        test.args(arguments).env("MEMTAPE_GOLDEN", "make");
        steps.take(name, test)?;
    }
    let mut changed = 0_u64;
    for (path, text) in examples::renewed()? {
        if fs::read_to_string(&path)? != text {
            fs::write(&path, text)?;
            changed += 1;
        }
    }
    let text = format!("docs/reference/ is written; {changed} pages have other examples\n");
    Ok(Found { is_good: true, text, object: json!({ "figures": { "pages_changed": changed } }) })
}

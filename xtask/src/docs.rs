//! `cargo xtask docs`: the documents as a site, and the pages that are made from the code.
//!
//! `xtask/site_of_docs.py` builds the site with mdBook. Each page of the reference is made by a
//! test of the package whose code it describes: the command line's by the command line, the HTTP
//! API's and the metrics' by a running coordinator. With `MEMTAPE_GOLDEN=make` the test writes the
//! page, else it compares.

use anyhow::Result;
use serde_json::json;

use crate::process::{Steps, call, cargo};
use crate::python;
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

/// The tests that make pages.
const TESTS: [(&str, &[&str]); 5] = [
    ("limits", &["-p", "memtape-core", "--test", "core", "the_page_is_made_from_the_table"]),
    ("command line", &["-p", "memtape", "--bin", "memtape", "reference"]),
    ("coordinator", &["-p", "memtape-coordinator", "--test", "coordinator", "reference"]),
    ("tables", &["-p", "memtape-store", "the_page_has_the_columns_of_every_table"]),
    ("examples", &["-p", "memtape-repository", "examples_in_pages"]),
];

/// mdBook without its server; a debug build is fast enough and builds in a third of the time.
const MDBOOK: [&str; 6] =
    ["--debug", "--no-default-features", "--features", "search", "--target-dir", "target/mdbook"];

impl Choice {
    pub(crate) fn run(&self, steps: &mut Steps) -> Result<Found> {
        if self.reference {
            return renew(steps);
        }
        if self.all {
            run_quick_starts(steps)?;
        }
        let mdbook = steps.tool("mdbook@0.5.4", &MDBOOK);
        Found::of_program(call("python3", &["xtask/site_of_docs.py"]).arg(mdbook))
    }
}

/// Writes all of what is made from the code.
fn renew(steps: &mut Steps) -> Result<Found> {
    for (name, arguments) in TESTS {
        let mut test = cargo(&["test", "--quiet"]);
        test.args(arguments).env("MEMTAPE_GOLDEN", "make");
        steps.take(name, test)?;
    }
    let text = "docs/reference/ and the examples are written\n".to_string();
    Ok(Found { is_good: true, text, object: json!({ "figures": {} }) })
}

/// Runs the commands of all quick starts, with the frameworks that the tests do without.
fn run_quick_starts(steps: &mut Steps) -> Result<()> {
    python::fetch_torch(steps, &python::QUICK_STARTS)?;
    let mut tests = cargo(&["test", "--locked", "-p", "memtape-tests", "--test", "scenarios"]);
    tests.arg("quick_start");
    tests.env("MEMTAPE_TEST_PYTHON", python::torch()).env("MEMTAPE_TEST_TORCH", "1");
    steps.take("quick starts", tests)
}

//! What a report shows, in the order in which it shows it. Texts of strangers are as they came;
//! the page escapes them.

use memtape_proto::api::{Frame, Ledger};

use crate::export::flamegraph::tree::Tree;
use crate::report::chart::Chart;
use crate::report::source::Excerpt;

/// A name and a value.
pub(crate) type Fact = (&'static str, String);

/// One report.
#[derive(Debug, Default)]
pub(crate) struct Report<'a> {
    /// What it is about: an incident, a capture, files.
    pub(crate) subject: String,
    /// What happened, in one sentence.
    pub(crate) sentence: String,
    /// The figures that matter most: rank, line, time left.
    pub(crate) key_facts: Vec<Fact>,
    /// The line of code and those above and below it.
    pub(crate) source: Option<Excerpt>,
    /// The stack of the line, innermost first.
    pub(crate) stack: Vec<Frame>,
    /// The line itself.
    pub(crate) culprit: Option<Frame>,
    /// What to do, and what it saves.
    pub(crate) remedy: Vec<Fact>,
    /// The ranks over the steps.
    pub(crate) chart: Option<Chart>,
    /// Live bytes by stack.
    pub(crate) flames: Vec<Flame<'a>>,
    /// What supports it.
    pub(crate) evidence: Vec<String>,
    /// What the evidence is.
    pub(crate) evidence_title: &'static str,
    /// What contradicts it.
    pub(crate) against: Vec<String>,
    /// The step of the capture that the evidence is of; `None` where it has no such step.
    pub(crate) evidence_step: Option<u64>,
    /// What else it may be.
    pub(crate) alternatives: Vec<String>,
    /// Where the bytes of devices are.
    pub(crate) ledgers: Vec<(String, Ledger)>,
    /// Lines of code, ranks, files.
    pub(crate) tables: Vec<Table>,
    /// What is known of the job.
    pub(crate) job: Vec<Fact>,
    /// What limits all of it.
    pub(crate) notes: Vec<String>,
    /// How the report was made.
    pub(crate) made: Vec<Fact>,
}

/// What follows the title of something that a capture showed at a step.
pub(crate) fn at_step(step: Option<u64>) -> String {
    step.map_or(String::new(), |step| format!(" (at step {step})"))
}

/// A flame graph with its title.
#[derive(Debug)]
pub(crate) struct Flame<'a> {
    /// What it shows.
    pub(crate) title: String,
    /// The boxes.
    pub(crate) tree: Tree<'a>,
}

/// A table.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// What it shows.
    pub(crate) title: String,
    /// Titles of its columns; one that begins with `>` has numbers.
    pub(crate) columns: Vec<&'static str>,
    /// Its rows.
    pub(crate) rows: Vec<Vec<String>>,
    /// Rows that are not shown.
    pub(crate) left_out: usize,
}

impl Table {
    /// The table with at most this number of rows.
    pub(crate) fn cut(mut self, rows_max: usize) -> Self {
        self.left_out = self.rows.len().saturating_sub(rows_max);
        self.rows.truncate(rows_max);
        self
    }
}

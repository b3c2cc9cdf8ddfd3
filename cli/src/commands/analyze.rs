//! `memtape analyze FILE…`: what is wrong, from PyTorch's own memory snapshots. No service runs.

use memtape_core::analysis::analyze;

use crate::analysis::{Report, json, text};
use crate::args::AnalyzeArgs;
use crate::output;
use crate::snapshots::{expand, order, read_all};

/// Reads the files, compares them, and says what it found.
///
/// # Errors
/// When a file is no snapshot; with `--fail-on`, when such a fault was found.
pub(crate) fn run(args: &AnalyzeArgs, as_json: bool) -> anyhow::Result<()> {
    let paths = expand(&args.files)?;
    let mut snapshots = read_all(&paths)?;
    let ordered = order(&mut snapshots, args.over_time);
    let analysis = analyze(&ordered.ranks);
    let report = Report { analysis: &analysis, ordered: &ordered, files: &snapshots };
    if as_json {
        output::print(&json::analysis(&report))?;
    } else {
        output::print(&text::analysis(&report, args.all))?;
    }
    let class = analysis.verdict.as_ref().map(|verdict| verdict.class.as_str());
    match class.filter(|class| args.fail_on.iter().any(|name| name == class || name == "any")) {
        Some(class) => anyhow::bail!("found what --fail-on names: {class}"),
        None => Ok(()),
    }
}

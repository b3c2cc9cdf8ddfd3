//! `memtape analyze FILE…`: what is wrong, from PyTorch's own memory snapshots. No service runs.

use memtape_core::analysis::analyze;
use memtape_core::diagnosis::Class;

use crate::analysis::{Report, json, text};
use crate::args::AnalyzeArgs;
use crate::output;
use crate::snapshots::order::order;
use crate::snapshots::{expand, read_all};

/// Reads the files, compares them, and says what it found.
///
/// # Errors
/// When a file is no snapshot; with `--fail-on`, when such a fault was found.
pub(crate) fn run(args: &AnalyzeArgs, as_json: bool) -> anyhow::Result<()> {
    if let Some(name) = args.fail_on.iter().find(|name| !is_class(name)) {
        let names = Class::ALL.map(Class::as_str).join(", ");
        let said = format!("--fail-on {name}: there is no such class; they are any, {names}");
        return Err(crate::Mistakes(vec![said]).into());
    }
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

fn is_class(name: &str) -> bool {
    name == "any" || Class::ALL.iter().any(|class| class.as_str() == name)
}

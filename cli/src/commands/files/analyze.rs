//! `memtape analyze FILE…`: diagnoses PyTorch's own memory snapshots; no service is needed.

use std::path::PathBuf;

use memtape_core::diagnosis::Class;
use memtape_core::diagnosis::files::analyze;

use crate::globals::Globals;
use crate::output;
use crate::read::order::order;
use crate::read::snapshots::{expand, read_all};
use crate::render::analysis::{Report, json, text};

/// `memtape analyze`.
#[derive(Debug, clap::Args)]
pub(crate) struct AnalyzeArgs {
    /// Snapshots written by torch.cuda.memory._dump_snapshot, plain or compressed (gzip, zstd);
    /// folders with such files; - for stdin. Files of several ranks are compared with each other.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Treat the files as snapshots of one rank at several times, not of several ranks.
    #[arg(long)]
    pub(crate) over_time: bool,
    /// Show all lines, ranks and notes, not only the first ones.
    #[arg(long)]
    pub(crate) all: bool,
    /// Exit with status 1 if this class is found, such as leak; any means every class. For CI.
    #[arg(long, value_name = "CLASS", value_delimiter = ',')]
    pub(crate) fail_on: Vec<String>,
}

/// Reads the files, compares them, and prints the diagnosis.
/// Fails when a file is not a snapshot; with `--fail-on`, when one of its classes was found.
pub(crate) fn run(args: &AnalyzeArgs, globals: &Globals) -> anyhow::Result<()> {
    if let Some(name) = args.fail_on.iter().find(|name| !is_class(name)) {
        let names: Vec<&str> = Class::ALL.iter().map(|class| class.as_str()).collect();
        let names = names.join(", ");
        let said = format!("--fail-on {name}: unknown class; the classes are any, {names}");
        return Err(crate::args::Mistakes(vec![said]).into());
    }
    let paths = expand(&args.files)?;
    let mut snapshots = read_all(&paths)?;
    let ordered = order(&mut snapshots, args.over_time);
    let analysis = analyze(&ordered.ranks);
    let report = Report { analysis: &analysis, ordered: &ordered, files: &snapshots };
    if globals.json {
        output::print(&json::analysis(&report))?;
    } else {
        output::print(&text::analysis(&report, args.all))?;
    }
    let class = analysis.verdict.as_ref().map(|verdict| verdict.class.as_str());
    match class.filter(|class| args.fail_on.iter().any(|name| name == class || name == "any")) {
        Some(class) => anyhow::bail!("found a class of --fail-on: {class}"),
        None => Ok(()),
    }
}

fn is_class(name: &str) -> bool {
    name == "any" || name.parse::<Class>().is_ok()
}

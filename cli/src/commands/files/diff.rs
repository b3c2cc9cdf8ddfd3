//! `memtape diff A B`: how many bytes more or less B holds than A, by line of code.

use std::path::PathBuf;

use memtape_core::diagnosis::files::{analyze, diff};

use crate::globals::Globals;
use crate::output;
use crate::read::order::{self, RankSource};
use crate::read::snapshots::read_all;
use crate::render::analysis::{Report, difference};

/// `memtape diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The baseline: an earlier snapshot, or the snapshot of a healthy rank; - for stdin.
    #[arg(value_name = "A")]
    pub(crate) from: PathBuf,
    /// The snapshot to compare with it.
    #[arg(value_name = "B")]
    pub(crate) to: PathBuf,
    /// Show all lines and stacks, not only the first ones.
    #[arg(long)]
    pub(crate) all: bool,
}

/// Reads both files and compares them.
/// Fails when a file is not a snapshot.
pub(crate) fn run(args: &DiffArgs, globals: &Globals) -> anyhow::Result<()> {
    let paths: [PathBuf; 2] = [args.from.clone(), args.to.clone()];
    let mut snapshots = read_all(&paths)?;
    let diff = match snapshots.as_slice() {
        [from, to] => diff(&from.look, &to.look),
        _ => anyhow::bail!("two files are needed"),
    };
    // The files are two ranks if contents or names say so; else two times of one rank.
    let of_ranks = order::sources(&snapshots);
    let over_time = !matches!(of_ranks, RankSource::File | RankSource::Name | RankSource::Number);
    let ordered = order::order(&mut snapshots, over_time);
    let analysis = analyze(&ordered.ranks);
    let report = Report { analysis: &analysis, ordered: &ordered, files: &snapshots };
    if globals.json {
        output::print(&difference::json(&report, &diff))
    } else {
        output::print(&difference::text(&report, &diff, args.all))
    }
}

//! `memtape diff A B`: how many bytes B holds more or less than A, by device and line of code. With
//! `--run` the two are runs, and the coordinator compares them.

use std::path::{Path, PathBuf};

use anyhow::bail;
use memtape_core::diagnosis::files::{Analysis, Diff, Rank, analyze, diff};
use memtape_core::tape::layout::Clock;

use crate::client::unknown::{listed_ranks, no_rank};
use crate::commands::queries::runs::{self, RunOptions};
use crate::globals::Globals;
use crate::read::jobs::may_be_one;
use crate::read::order::{self, Ordered, RankSource};
use crate::read::snapshots::{Snapshot, Unreadable, read_sound};
use crate::read::source::Sources;
use crate::render::analysis::{Report, difference};

/// `memtape diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct DiffArgs {
    /// The baseline: an earlier snapshot, tape or capture, or that of a healthy rank; a folder; -
    /// for stdin; with `--run` a job.
    #[arg(value_name = "A")]
    pub(crate) from: PathBuf,
    /// What to compare with it.
    #[arg(value_name = "B")]
    pub(crate) to: PathBuf,
    /// Of captures and folders, compare this rank only [default: each rank that both have].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Show all lines and stacks, not only the first ones.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) options: RunOptions,
}

/// One side: the newest state of each rank.
struct Side {
    ranks: Vec<(Option<u32>, Snapshot)>,
    left_out: Vec<Unreadable>,
}

/// Two states that are compared, and what is said of them.
struct Compared {
    rank: Option<u32>,
    files: Vec<Snapshot>,
    /// Device by device.
    diffs: Vec<Diff>,
    ordered: Ordered,
    analysis: Analysis,
}

/// Reads both sides and compares them, rank by rank.
/// Fails when a side cannot be read, or the sides have no rank in common; after the comparison,
/// when a file of a folder could not be read.
pub(crate) fn run(args: &DiffArgs, globals: &Globals) -> anyhow::Result<()> {
    if args.options.run {
        let names = runs::names(&args.from, &args.to)?;
        return runs::run(names, args.rank, &args.options, globals);
    }
    let from = side(&args.from, args.rank, globals)?;
    let to = side(&args.to, args.rank, globals)?;
    let left_out: Vec<Unreadable> = from.left_out.into_iter().chain(to.left_out).collect();
    let pairs = pairs(from.ranks, to.ranks)?;
    let compared: Vec<Compared> =
        pairs.into_iter().map(|(rank, from, to)| compare(rank, from, to)).collect();
    let reports: Vec<(Option<u32>, Report<'_>, &[Diff])> = compared
        .iter()
        .map(|of| {
            let report = Report { analysis: &of.analysis, ordered: &of.ordered, files: &of.files };
            (of.rank, report, of.diffs.as_slice())
        })
        .collect();
    globals.say(&difference::all_json(&reports, &left_out), || {
        let files = compared.iter().flat_map(|of| &of.files);
        let clock = Clock::of_all(files.map(|file| file.clock));
        clock.in_words(&difference::all_text(&reports, &left_out, args.all))
    })?;
    match left_out.len() {
        0 => Ok(()),
        1 => bail!("1 file could not be read and was left out"),
        count => bail!("{count} files could not be read and were left out"),
    }
}

/// Reads one side.
fn side(path: &Path, rank: Option<u32>, globals: &Globals) -> anyhow::Result<Side> {
    let sources = Sources::find(&[path.to_path_buf()], rank, globals)?;
    let (snapshots, left_out) = read_sound(&sources)?;
    let (ranks, wanted) = (order::known_ranks(&snapshots), rank);
    if snapshots.len() == 1 {
        let known = ranks.and_then(|ranks| ranks.first().copied());
        if let (Some(known), Some(rank)) = (known, wanted.filter(|&rank| Some(rank) != known)) {
            bail!(no_rank(rank, &path.display().to_string(), &[known]));
        }
        let ranks = snapshots.into_iter().map(|file| (known, file)).collect();
        return Ok(Side { ranks, left_out });
    }
    let Some(ranks) = ranks else {
        bail!("{}: the ranks of its files are not known: compare two files", path.display());
    };
    let mut newest: Vec<(Option<u32>, Snapshot)> = Vec::new();
    for (rank, file) in ranks.iter().copied().zip(snapshots) {
        if wanted.is_some_and(|wanted| wanted != rank) {
            continue;
        }
        match newest.iter_mut().find(|(of, _)| *of == Some(rank)) {
            Some((_, known)) if time(known) >= time(&file) => {}
            Some((_, known)) => *known = file,
            None => newest.push((Some(rank), file)),
        }
    }
    if let Some(rank) = wanted.filter(|_| newest.is_empty()) {
        bail!(no_rank(rank, &path.display().to_string(), &ranks));
    }
    newest.sort_by_key(|(rank, _)| *rank);
    Ok(Side { ranks: newest, left_out })
}

fn time(file: &Snapshot) -> (Option<u64>, Option<i64>) {
    (order::recorded_step(file), file.history.newest_us())
}

/// What is compared with what: one state with one, whatever their ranks; else rank by rank.
fn pairs(
    mut from: Vec<(Option<u32>, Snapshot)>,
    to: Vec<(Option<u32>, Snapshot)>,
) -> anyhow::Result<Vec<(Option<u32>, Snapshot, Snapshot)>> {
    if from.len() == 1 && to.len() == 1 {
        let sides = from.into_iter().zip(to);
        return Ok(sides.map(|((_, from), (_, to))| (None, from, to)).collect());
    }
    let ranks = |of: &[(Option<u32>, Snapshot)]| of.iter().filter_map(|(rank, _)| *rank).collect();
    let (a, b): (Vec<u32>, Vec<u32>) = (ranks(&from), ranks(&to));
    let mut pairs = Vec::new();
    for (rank, to) in to {
        let at = from.iter().position(|(of, _)| rank.is_some() && *of == rank);
        if let Some(at) = at {
            pairs.push((rank, from.swap_remove(at).1, to));
        }
    }
    if pairs.is_empty() {
        bail!(
            "the two have no rank in common: of A, {}; of B, {}; two files are compared whatever \
             their ranks",
            listed_ranks(&a),
            listed_ranks(&b)
        );
    }
    Ok(pairs)
}

/// The second file alone.
fn last(ordered: &Ordered) -> Option<Rank> {
    let &(rank, nth) = ordered.positions.last()?;
    let of_rank = ordered.ranks.iter().find(|of| of.rank == rank)?;
    Some(Rank { rank, states: vec![of_rank.states.get(nth)?.clone()] })
}

fn compare(rank: Option<u32>, from: Snapshot, to: Snapshot) -> Compared {
    let diffs = diff(&from.history, &to.history);
    let mut files = vec![from, to];
    // The files are two ranks if contents or names say so; else two times of one rank.
    let of_ranks = order::sources(&files);
    let over_time = !matches!(of_ranks, RankSource::File | RankSource::Name | RankSource::Number);
    let is_one_job = may_be_one(&files);
    let ordered = order::order(&mut files, over_time);
    let analysis = match is_one_job {
        true => analyze(&ordered.ranks),
        // Files of two jobs are no two moments of one rank: B is judged by itself.
        false => analyze(last(&ordered).as_slice()),
    };
    Compared { rank, files, diffs, ordered, analysis }
}

//! `memtape analyze FILE…`: diagnoses PyTorch's own memory snapshots, tapes and captures; a service
//! is needed only for captures that are named by their id.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValuesParser;
use memtape_core::diagnosis::files::{Analysis, analyze};
use memtape_core::tape::layout::Clock;

use crate::globals::Globals;
use crate::read::jobs::{Job, jobs};
use crate::read::order::{Ordered, order};
use crate::read::snapshots::{Unreadable, read_sound};
use crate::read::source::Sources;
use crate::render::analysis::{Finding, Report, json, text};

/// `memtape analyze`.
#[derive(Debug, clap::Args)]
pub(crate) struct AnalyzeArgs {
    /// Snapshots written by torch.cuda.memory._dump_snapshot, plain or compressed (gzip, zstd);
    /// tapes; captures, by id (cap-…, inc-…) or as the page downloads them; folders with such
    /// files; - for stdin. Files of several ranks are compared with each other, files of several
    /// jobs never: folders that have the same ranks are jobs, and so are files of different
    /// programs whose names have no ranks.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Treat the files as snapshots of one rank at several times, not of several ranks.
    #[arg(long)]
    pub(crate) over_time: bool,
    /// Show all lines, ranks and notes, not only the first ones.
    #[arg(long)]
    pub(crate) all: bool,
    /// Exit with status 1 if this class is found, such as leak; cannot_judge where the files allow
    /// no verdict; any means all of these. For CI.
    #[arg(
        long,
        value_name = "CLASS",
        value_delimiter = ',',
        value_parser = classes(),
        hide_possible_values = true
    )]
    pub(crate) fail_on: Vec<String>,
}

/// Reads the files, compares those of each job, and prints a diagnosis of each.
/// Fails when a file cannot be read, after the others were judged; with `--fail-on`, when one
/// of its classes was found.
pub(crate) fn run(args: &AnalyzeArgs, globals: &Globals) -> anyhow::Result<()> {
    let judged = judged(&args.files, args.over_time, globals)?;
    let (reports, left_out) = (judged.reports(), &judged.left_out);
    globals.say(&json::analyses(&reports, left_out), || {
        let files = reports.iter().flat_map(|(_, report)| report.files);
        let clock = Clock::of_all(files.map(|file| file.clock));
        clock.in_words(&text::analyses(&reports, left_out, args.all))
    })?;
    // What cannot be judged is no all-clear: it counts as a class of its own.
    let wanted = |found: &Finding| {
        args.fail_on.iter().any(|class| ["any", found.as_str()].contains(&class.as_str()))
    };
    let of_job = |name: &str| if name.is_empty() { String::new() } else { format!(" in {name}") };
    let mut found = reports
        .iter()
        .flat_map(|(name, report)| report.findings().map(move |found| (of_job(name), found)));
    match found.find(|(_, found)| wanted(found)) {
        Some((job, found)) => {
            anyhow::bail!("found a class of --fail-on: {}{job}", found.as_str())
        }
        None if left_out.is_empty() => Ok(()),
        None => anyhow::bail!(
            "{} of {} files could not be read and were left out",
            left_out.len(),
            judged.files_given
        ),
    }
}

/// Files after their analysis, job by job.
pub(crate) struct Judged {
    jobs: Vec<(Job, Analysis, Ordered)>,
    /// Files that could not be read.
    pub(crate) left_out: Vec<Unreadable>,
    /// Number of all files.
    files_given: usize,
}

impl Judged {
    /// The analysis of each job, with its name.
    pub(crate) fn reports(&self) -> Vec<(&str, Report<'_>)> {
        let jobs = self.jobs.iter();
        jobs.map(|(job, analysis, ordered)| {
            (job.name.as_str(), Report { analysis, ordered, files: &job.files })
        })
        .collect()
    }
}

/// Reads the files and compares those of each job.
/// Fails when none of the files can be read.
pub(crate) fn judged(
    given: &[PathBuf],
    over_time: bool,
    globals: &Globals,
) -> anyhow::Result<Judged> {
    let sources = Sources::find(given, None, globals)?;
    let (snapshots, left_out) = read_sound(&sources)?;
    let unreadable: Vec<&Path> = left_out.iter().map(|file| file.path.as_path()).collect();
    let jobs = jobs(snapshots, &unreadable, over_time).into_iter().map(|mut job| {
        let ordered = order(&mut job.files, over_time);
        (job, analyze(&ordered.ranks), ordered)
    });
    Ok(Judged { jobs: jobs.collect(), files_given: sources.list.len(), left_out })
}

/// What `--fail-on` takes.
fn classes() -> PossibleValuesParser {
    std::iter::once("any").chain(Finding::all().map(Finding::as_str)).collect::<Vec<_>>().into()
}

//! `memtape lines JOB|TAPE…`: which lines of code hold live memory, since when, and on which ranks.
//! For a job it asks the coordinator; tapes are counted here, with no service running.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memtape_core::census::Census;
use memtape_core::census::reader::CensusReader;
use memtape_proto::api::Lines;

use crate::client::parse;
use crate::globals::Globals;
use crate::output;
use crate::read::tape_file;
use crate::render::lines;

/// `memtape lines`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinesArgs {
    /// The job, or the tapes of its ranks.
    #[arg(required = true, value_name = "JOB|TAPE")]
    pub(crate) of: Vec<String>,
    /// Show only the lines of this rank.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
}

/// Prints the lines. Fails when the coordinator does not answer, or a file is not a tape.
pub(crate) fn run(args: &LinesArgs, globals: &Globals) -> anyhow::Result<()> {
    let files: Vec<PathBuf> = args.of.iter().map(PathBuf::from).filter(|it| it.is_file()).collect();
    if files.len() == args.of.len() {
        let found = of_tapes(&files, args.rank)?;
        return if globals.json { output::print_json(&found) } else { print(&found, args.rank) };
    }
    let [job] = args.of.as_slice() else { bail!("name one job, or tapes that are there") };
    let rank = args.rank.map(|rank| rank.to_string());
    let query: Vec<(&str, &str)> = rank.iter().map(|rank| ("rank", rank.as_str())).collect();
    let answer = globals.client()?.get(&["jobs", job, "lines"], &query)?;
    if globals.json {
        return output::print_json(&answer);
    }
    print(&parse(&answer)?, args.rank)
}

fn print(found: &Lines, rank: Option<u32>) -> anyhow::Result<()> {
    output::print(&lines::text(found, rank))
}

fn of_tapes(files: &[PathBuf], rank: Option<u32>) -> anyhow::Result<Lines> {
    let mut censuses: Vec<(u32, Census)> = Vec::new();
    let mut jobs: Vec<(String, u32)> = Vec::new();
    for file in files {
        let (job, of_tape) = count(file).with_context(|| file.display().to_string())?;
        jobs.push(job);
        censuses.extend(of_tape);
    }
    jobs.dedup();
    let [(job, attempt)] = jobs.as_slice() else {
        bail!("the tapes are of different jobs or attempts: name those of one")
    };
    let censuses: Vec<(u32, &Census)> = censuses.iter().map(|(of, census)| (*of, census)).collect();
    Ok(Lines::new(job, *attempt, &censuses, rank))
}

/// The job and attempt of a tape, and a census of each of its devices.
fn count(file: &Path) -> anyhow::Result<((String, u32), Vec<(u32, Census)>)> {
    let (tape, _) = tape_file::open(file)?;
    let mut reader = CensusReader::default();
    let identity = tape.identity();
    let devices = tape.devices().into_iter();
    let censuses = devices.filter_map(|device| Some((identity.rank, reader.count(&tape, device)?)));
    Ok(((identity.job.clone(), identity.attempt), censuses.collect()))
}

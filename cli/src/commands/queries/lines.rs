//! `memtape lines JOB|TAPE|FOLDER…`: which lines of code hold live memory, since when, and on which
//! ranks. For a job it asks the coordinator; tapes are counted here, with no service running.

use std::path::{Path, PathBuf};

use anyhow::bail;
use memtape_core::census::Census;
use memtape_core::identity::Identity;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::Lines;

use super::names::{check_rank, one_job};
use crate::globals::Globals;
use crate::output;
use crate::read::content::{self, Wanted};
use crate::read::folders;
use crate::read::one_rank::say_left_out;
use crate::read::source::{Source, Sources};
use crate::render::lines;
use crate::watch::Watch;

/// Why tapes have no lines.
const NO_DEVICE: &str = "the tapes show no memory of a GPU: their processes allocated none\n";

/// `memtape lines`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinesArgs {
    /// The job, or the tapes of its ranks (`memtape tape` lists them), or folders with them
    /// [default: the only job that is running].
    #[arg(value_name = "JOB|TAPE|FOLDER")]
    pub(crate) of: Vec<String>,
    /// Show only the lines of this rank.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Prints the lines. Fails when the coordinator does not answer, and when a tape cannot be counted,
/// after the others were.
pub(crate) fn run(args: &LinesArgs, globals: &Globals) -> anyhow::Result<()> {
    let files: Vec<PathBuf> = args.of.iter().map(PathBuf::from).filter(|it| is_read(it)).collect();
    if !files.is_empty() && files.len() == args.of.len() {
        let (mut left_out, mut all) = (0, 0);
        args.watch.print(|| {
            let sources = Sources::find(&files, None, globals)?.list;
            let (found, errors) = of_tapes(&sources, args.rank)?;
            errors.iter().for_each(say_left_out);
            (left_out, all) = (errors.len(), sources.len());
            Ok(match globals.json {
                true => output::json(&found)?,
                false if found.ranks == 0 => NO_DEVICE.to_string(),
                false => text(&found, args.rank),
            })
        })?;
        return match left_out {
            0 => Ok(()),
            _ => bail!("{left_out} of {all} tapes could not be counted"),
        };
    }
    let asked = match args.of.as_slice() {
        [] => None,
        [job] if job.contains('/') => {
            bail!("{job} is no tape and no folder of tapes: `memtape tape` lists the tapes")
        }
        [job] => Some(job),
        _ => bail!("name one job, or tapes that are there"),
    };
    let client = globals.client()?;
    let job = one_job(&client, asked)?;
    if let Some(rank) = args.rank {
        check_rank(&client, &job, rank)?;
    }
    let rank = args.rank.map(|rank| rank.to_string());
    let query: Vec<(&str, &str)> = rank.iter().map(|rank| ("rank", rank.as_str())).collect();
    args.watch.print(|| {
        let answer = client.get(&["jobs", &job, "lines"], &query)?;
        globals.shown(&answer, |found| text(&found, args.rank))
    })
}

/// Is it a file, or a folder with tapes? Another folder may have the name of the job.
fn is_read(path: &Path) -> bool {
    let tapes = || folders::files(path, |name| name.ends_with(".tape"));
    path.is_file() || tapes().is_ok_and(|tapes| !tapes.is_empty())
}

fn text(found: &Lines, rank: Option<u32>) -> String {
    found.clock.in_words(&lines::text(found, rank))
}

/// The lines of the tapes, and why the others cannot be counted: after an exit the ring may lack
/// the events back to the last step.
/// Fails when none can be counted, and when they are of several jobs.
fn of_tapes(files: &[Source], rank: Option<u32>) -> anyhow::Result<(Lines, Vec<anyhow::Error>)> {
    let mut counted: Vec<(Identity, Census)> = Vec::new();
    let (mut clocks, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        let wanted = Wanted { step: None, oom: false, events_max: 0 };
        let opened = match content::open(file, None, wanted) {
            Ok(opened) => opened,
            Err(error) => {
                left_out.push(error);
                continue;
            }
        };
        clocks.push(opened.clock);
        let state = opened.into_rank(file);
        let censuses = Census::of_state(&state).into_iter();
        counted.extend(censuses.map(|census| (state.identity.clone(), census)));
    }
    if clocks.is_empty() && !left_out.is_empty() {
        return Err(left_out.swap_remove(0));
    }
    let Some((first, _)) = counted.first() else { return Ok((Lines::default(), left_out)) };
    let is_other = |of: &Identity| (&of.job, of.attempt) != (&first.job, first.attempt);
    if counted.iter().any(|(of, _)| is_other(of)) {
        bail!("the tapes are of different jobs or attempts: name those of one");
    }
    let censuses: Vec<_> = counted.iter().map(|(of, census)| (of.rank, census)).collect();
    let (job, attempt, clock) = (first.job.clone(), first.attempt, Clock::of_all(clocks));
    Ok((Lines { job, attempt, clock, ..Lines::new(&censuses, rank) }, left_out))
}

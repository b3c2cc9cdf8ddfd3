//! `memtape lines JOB|TAPE|FOLDER…`: which lines of code hold live memory, since when, and on which
//! ranks. For a job it asks the coordinator; tapes are counted here, with no service running. Of a
//! capture it shows what one rank has kept of a range of steps, or held at its peak or when a
//! request failed, beside its peers.

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::builder::PossibleValuesParser;
use memtape_core::census::comparison::Counted;
use memtape_core::identity::Identity;
use memtape_core::stacks::HeldAt;
use memtape_core::tape::layout::Clock;
use memtape_proto::api::{Kept, Lines};

use super::names::{check_rank, one_job};
use crate::args::Mistakes;
use crate::client::unknown::listed_ranks;
use crate::globals::Globals;
use crate::output;
use crate::read::captures::{is_id, named};
use crate::read::content::{self, Wanted};
use crate::read::folders;
use crate::read::one_rank::say_left_out;
use crate::read::source::Source;
use crate::render::{kept, lines};
use crate::watch::Watch;

/// Why tapes have no lines.
const NO_DEVICE: &str = "the tapes show no memory of a GPU: their processes allocated none\n";

/// `memtape lines`.
#[derive(Debug, clap::Args)]
pub(crate) struct LinesArgs {
    /// The job, or a capture (cap-…), or an incident (inc-…) for its capture, or the tapes of the
    /// job's ranks (`memtape tape` lists them), or folders with them [default: the only job that is
    /// running].
    #[arg(value_name = "JOB|ID|TAPE|FOLDER")]
    pub(crate) of: Vec<String>,
    /// Show only the lines of this rank; of a capture, beside its peers [default of an incident:
    /// its rank].
    #[arg(long)]
    pub(crate) rank: Option<u32>,
    /// Of a capture, show what was alive at the end of its step, at the peak of its steps, or when
    /// a request failed after its step [default: what explains an incident of the rank, else
    /// step_end].
    #[arg(long, value_name = "TIME", value_parser = times())]
    pub(crate) at: Option<String>,
    /// Of a capture, show only memory that was allocated in this step or later.
    #[arg(long, value_name = "STEP")]
    pub(crate) from: Option<u64>,
    /// Of a capture, show only memory that was allocated up to this step.
    #[arg(long, value_name = "STEP")]
    pub(crate) to: Option<u64>,
    /// Of a capture, show the rank beside itself in this other capture, in place of its peers.
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) baseline: Option<String>,
    #[command(flatten)]
    pub(crate) watch: Watch,
}

/// Prints the lines. Fails when the coordinator does not answer, and when a tape cannot be counted,
/// after the others were.
pub(crate) fn run(args: &LinesArgs, globals: &Globals) -> anyhow::Result<()> {
    let files = tapes(&args.of)?;
    if !files.is_empty() {
        let mut left_out = 0;
        args.watch.print(|| {
            let (found, errors) = of_tapes(&files, args.rank)?;
            errors.iter().for_each(say_left_out);
            left_out = errors.len();
            Ok(match globals.json {
                true => output::json(&found)?,
                false if found.ranks == 0 => NO_DEVICE.to_string(),
                false => text(&found, args.rank),
            })
        })?;
        return match left_out {
            0 => Ok(()),
            _ => bail!("{left_out} of {} tapes could not be counted", files.len()),
        };
    }
    if let [id] = args.of.as_slice()
        && is_id(id)
    {
        return of_capture(id, args, globals);
    }
    if args.from.or(args.to).is_some() || args.baseline.as_ref().or(args.at.as_ref()).is_some() {
        let line = "--at, --from, --to and --baseline are for a capture: `memtape captures` lists \
                    them";
        return Err(Mistakes::one(line).into());
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

/// Prints what a rank of a capture has kept.
/// Fails when there is no such capture or rank, and when no rank is named.
fn of_capture(id: &str, args: &LinesArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let (incident, capture) = named(&client, id)?;
    let capture = capture.with_context(|| format!("{id} has no capture"))?;
    let rank = args.rank.or(incident.map(|incident| incident.rank)).with_context(|| {
        let ranks: Vec<u32> = capture.parts.iter().map(|part| part.rank).collect();
        format!("{id}: choose a rank with --rank: {}", listed_ranks(&ranks))
    })?;
    let steps = [("from", args.from), ("to", args.to)];
    let asked = [("rank", Some(u64::from(rank)))].into_iter().chain(steps);
    let asked = asked.filter_map(|(name, number)| Some((name, number?.to_string())));
    let asked: Vec<(&str, String)> = asked.collect();
    let words = [("at", &args.at), ("baseline", &args.baseline)].into_iter();
    let words = words.filter_map(|(name, word)| Some((name, word.as_deref()?)));
    let query: Vec<(&str, &str)> =
        asked.iter().map(|(name, of)| (*name, of.as_str())).chain(words).collect();
    args.watch.print(|| {
        let answer = client.get(&["captures", &capture.id, "kept"], &query)?;
        globals.shown(&answer, |found: Kept| {
            found.clock.known().unwrap_or_default().in_words(&kept::text(&found))
        })
    })
}

fn times() -> PossibleValuesParser {
    HeldAt::ALL.iter().map(|at| at.as_str()).collect::<Vec<_>>().into()
}

/// The files that are named, and the tapes in the folders; none when a name is neither a file nor a
/// folder with tapes: it may be the job's.
/// Fails when a folder cannot be listed.
fn tapes(named: &[String]) -> anyhow::Result<Vec<PathBuf>> {
    let mut tapes = Vec::new();
    for path in named.iter().map(PathBuf::from) {
        let found = match path.is_dir() {
            true => folders::files(&path, |name| name.ends_with(".tape"))?,
            false => Vec::from_iter(path.is_file().then_some(path)),
        };
        if found.is_empty() {
            return Ok(found);
        }
        tapes.extend(found);
    }
    Ok(tapes)
}

fn text(found: &Lines, rank: Option<u32>) -> String {
    found.clock.in_words(&lines::text(found, rank))
}

/// The lines of the tapes, and why the others cannot be counted: after an exit the ring may lack
/// the events back to the last step.
/// Fails when none can be counted, and when they are of several jobs.
fn of_tapes(files: &[PathBuf], rank: Option<u32>) -> anyhow::Result<(Lines, Vec<anyhow::Error>)> {
    let mut counted: Vec<(Identity, Counted)> = Vec::new();
    let (mut clocks, mut left_out) = (Vec::new(), Vec::new());
    for file in files {
        let wanted = Wanted { step: None, oom: false, events_max: 0, before: true };
        let opened = match content::rewound(file, wanted) {
            Ok(opened) => opened,
            Err(error) => {
                left_out.push(error);
                continue;
            }
        };
        clocks.push(opened.clock);
        let state = opened.into_rank(&Source::File(file.clone()));
        counted.extend(Counted::of_state(&state).map(|of| (state.identity.clone(), of)));
    }
    if clocks.is_empty() && !left_out.is_empty() {
        return Err(left_out.swap_remove(0));
    }
    let Some((first, _)) = counted.first() else { return Ok((Lines::default(), left_out)) };
    let is_other = |of: &Identity| (&of.job, of.attempt) != (&first.job, first.attempt);
    if counted.iter().any(|(of, _)| is_other(of)) {
        bail!("the tapes are of different jobs or attempts: name those of one");
    }
    let (job, attempt, clock) = (first.job.clone(), first.attempt, Clock::of_all(clocks));
    let censuses: Vec<Counted> = counted.into_iter().map(|(_, counted)| counted).collect();
    Ok((Lines { job, attempt, clock, ..Lines::new(&censuses, rank) }, left_out))
}

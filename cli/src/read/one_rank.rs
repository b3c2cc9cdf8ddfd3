//! Chooses the state of one rank among the sources that were named, and opens it.

use std::path::Path;

use anyhow::bail;
use memtape_core::limits::TRACE_EVENTS_MAX;

use crate::client::unknown::{listed_ranks, no_rank};
use crate::globals::Globals;
use crate::output::error_line;
use crate::read::captures::{is_id, named};
use crate::read::content::{self, Content, Opened, Wanted};
use crate::read::names::named_rank;
use crate::read::source::{Source, Sources};

/// The state of `rank`. The default is the rank of the incident, or of a single source. Unreadable
/// ones of several sources are left out, each with a line on stderr.
/// Fails when the only source cannot be read, when there is no such rank, or several and none is
/// given; the error lists the ranks.
pub(crate) fn open(
    name: &Path,
    rank: Option<u32>,
    globals: &Globals,
) -> anyhow::Result<(Source, Opened)> {
    let wanted = Wanted { step: None, oom: false, events_max: TRACE_EVENTS_MAX, before: false };
    open_at(name, rank, wanted, globals)
}

/// As [`open`], with the state of a tape at another point in time.
/// Fails as [`open`] does, and when the tape does not cover that state.
pub(crate) fn open_at(
    name: &Path,
    rank: Option<u32>,
    wanted: Wanted,
    globals: &Globals,
) -> anyhow::Result<(Source, Opened)> {
    let of_incident = match name.to_str().filter(|id| is_id(id) && !name.exists()) {
        Some(id) if rank.is_none() => {
            named(&globals.client()?, id)?.0.map(|incident| incident.rank)
        }
        _ => None,
    };
    let sources = Sources::find(&[name.to_path_buf()], rank.or(of_incident), globals)?;
    let read = |source: &Source| content::open(source, sources.client(), wanted);
    if let [source] = sources.list.as_slice() {
        let opened = read(source)?;
        let known = rank_of(source, &opened);
        return match (rank, known) {
            (Some(rank), Some(known)) if rank != known => {
                bail!(no_rank(rank, &name.display().to_string(), &[known]))
            }
            _ => Ok((source.clone(), opened)),
        };
    }
    let (mut known, mut left_out) = (Vec::new(), Vec::new());
    let mut chosen = None;
    for source in &sources.list {
        // A rank of a capture says its number without being fetched.
        let of_name = match source {
            Source::Stored(of) => Some(of.rank),
            Source::File(_) => None,
        };
        if let Some(number) = of_name.filter(|number| Some(*number) != rank) {
            known.push(number);
            continue;
        }
        match read(source) {
            Ok(opened) => match rank_of(source, &opened) {
                Some(number) if Some(number) == rank => {
                    chosen = Some((source.clone(), opened));
                    break;
                }
                number => known.extend(number),
            },
            // The rank of a stored capture is known before its snapshot is read.
            Err(error) if of_name.is_some() && rank.is_some() => return Err(error),
            Err(error) => left_out.push(error),
        }
    }
    if let Some(chosen) = chosen {
        left_out.iter().for_each(say_left_out);
        return Ok(chosen);
    }
    let missing = match rank {
        Some(rank) => no_rank(rank, &name.display().to_string(), &known),
        None => format!("{}: choose a rank with --rank: {}", name.display(), listed_ranks(&known)),
    };
    // The rank may be in a file that cannot be read: the first error belongs to the answer.
    let mut errors = left_out.into_iter();
    let first = errors.next();
    errors.as_slice().iter().for_each(say_left_out);
    match first {
        Some(error) if known.is_empty() => Err(error),
        Some(error) => Err(error.context(format!("{missing}; a file cannot be read"))),
        None => bail!(missing),
    }
}

/// Names a file that was not read, and why, on stderr.
pub(crate) fn say_left_out(error: &anyhow::Error) {
    eprintln!("memtape: left out: {}", error_line(error));
}

/// The rank in the file, or in its name.
pub(crate) fn rank_of(source: &Source, opened: &Opened) -> Option<u32> {
    match &opened.content {
        Content::Rank(rank) => Some(rank.identity.rank),
        Content::Torch(torch) if torch.notes.is_exported => Some(torch.rank.identity.rank),
        Content::Torch(_) => named_rank(&source.name()),
    }
}

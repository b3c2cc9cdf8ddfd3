//! Sources as `memtape analyze` and `memtape diff` judge them: condensed, one after the other.
//!
//! Up to [`READERS_MAX`] sources are read at the same time, and only the diagnosis's inputs are
//! kept of each. A source of any format becomes the state of a rank first, so a state gets the same
//! verdict in each format.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

use anyhow::bail;
use memtape_core::diagnosis::files::History;
use memtape_core::limits::{FILES_ANALYZED_MAX, TAPE_EVENTS_ANALYZED_MAX};
use memtape_core::pickle::torch::Notes;
use memtape_core::tape::layout::Clock;

use crate::client::Client;
use crate::output::error_line;
use crate::read::content::{self, Content, Format, Wanted};
use crate::read::source::{Source, Sources};

/// Sources that are read at the same time. Each may need memory of 1.5 times its size.
const READERS_MAX: usize = 8;

/// A source after reading.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// Path of the source; `-` for stdin, `cap-…/rank2` for a rank of a capture.
    pub(crate) path: PathBuf,
    /// Format of the source.
    pub(crate) format: Format,
    /// Unit of its step numbers.
    pub(crate) clock: Clock,
    /// Contents that the analysis needs.
    pub(crate) history: History,
    /// Missing parts, and parts that are not known.
    pub(crate) notes: Notes,
}

/// A source that cannot be read.
#[derive(Debug)]
pub(crate) struct Unreadable {
    /// Path of the source, as [`Snapshot::path`].
    pub(crate) path: PathBuf,
    /// Why, in one line that names it.
    pub(crate) why: String,
}

/// Reads all sources, several at the same time, in the order given; leaves out unreadable ones.
/// Fails when there are more than [`FILES_ANALYZED_MAX`], and when none can be read, with the error
/// about the first.
pub(crate) fn read_sound(sources: &Sources) -> anyhow::Result<(Vec<Snapshot>, Vec<Unreadable>)> {
    let count = sources.list.len();
    if count > FILES_ANALYZED_MAX {
        bail!(
            "{count} files and ranks of captures are given, but at most {FILES_ANALYZED_MAX} are \
             compared at once (FILES_ANALYZED_MAX): give fewer files, or look at one rank of a \
             capture with `memtape show CAPTURE --rank N`"
        );
    }
    let (mut sound, mut left_out, mut first) = (Vec::new(), Vec::new(), None);
    for (source, read) in sources.list.iter().zip(read_each(sources)) {
        match read {
            Ok(snapshot) => sound.push(snapshot),
            Err(error) => {
                left_out.push(Unreadable { path: source.name(), why: error_line(&error) });
                first.get_or_insert(error);
            }
        }
    }
    match first.filter(|_| sound.is_empty()) {
        Some(error) => Err(error),
        None => Ok((sound, left_out)),
    }
}

fn read_each(sources: &Sources) -> Vec<anyhow::Result<Snapshot>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let readers = cores.min(READERS_MAX).min(sources.list.len()).max(1);
    let left = Mutex::new(sources.list.iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (send, found) = channel();
    std::thread::scope(|scope| {
        for _ in 0..readers {
            let (send, take) = (send.clone(), &take);
            scope.spawn(move || {
                while let Some((at, source)) = take() {
                    let _ = send.send((at, read(source, sources.client()))); // it is received below
                }
            });
        }
    });
    drop(send);
    let found: BTreeMap<usize, anyhow::Result<Snapshot>> = found.into_iter().collect();
    found.into_values().collect()
}

/// Reads and condenses one source.
fn read(source: &Source, client: Option<&Client>) -> anyhow::Result<Snapshot> {
    let wanted =
        Wanted { step: None, oom: false, events_max: TAPE_EVENTS_ANALYZED_MAX, before: false };
    let opened = content::open(source, client, wanted)?;
    let (format, bytes, clock) = (opened.format, opened.bytes, opened.clock);
    let process = opened.process;
    let notes = match &opened.content {
        Content::Torch(torch) => torch.notes.clone(),
        Content::Rank(_) => Notes { bytes, ..Notes::default() },
    };
    let history = History { process, ..History::of(opened.into_rank(source)) };
    Ok(Snapshot { path: source.name(), format, clock, history, notes })
}

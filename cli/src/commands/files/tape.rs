//! `memtape tape FILE`: shows a tape; no service is needed. Without a file, or with a folder, it
//! lists the tapes of the folder: see [`super::tapes`].

use std::path::PathBuf;

use super::tapes;
use crate::args::Mistakes;
use crate::globals::Globals;
use crate::output;
use crate::read::content::Wanted;
use crate::render::tape::Summary;

/// `memtape tape`.
#[derive(Debug, clap::Args)]
pub(crate) struct TapeArgs {
    /// A tape to show, or a folder whose tapes to list [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(value_name = "FILE|DIR")]
    pub(crate) file: Option<PathBuf>,
    /// Number of steps, events, marks and stacks to show.
    #[arg(long, default_value_t = 10)]
    pub(crate) last: usize,
    /// Show the steps up to this one, and the blocks that were live at its end [default: now; of a
    /// process that has exited, its last finished step].
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Show the blocks that were live at the last out-of-memory error.
    #[arg(long, conflicts_with = "step")]
    pub(crate) oom: bool,
}

/// Prints the contents of a tape, or the tapes of a folder.
/// Fails when the file is not a tape, is damaged, or does not cover the requested step.
pub(crate) fn run(args: &TapeArgs, globals: &Globals) -> anyhow::Result<()> {
    let file = match &args.file {
        Some(path) if !path.is_dir() => path,
        folder => {
            if args.oom || args.step.is_some() {
                let line = "--step and --oom need the file of a tape; `memtape tape` lists them";
                return Err(Mistakes::one(line).into());
            }
            return tapes::run(folder.as_deref(), globals);
        }
    };
    let wanted = Wanted { step: args.step, oom: args.oom, events_max: args.last, before: false };
    let summary = Summary::read(file, wanted)?;
    match globals.json {
        true => output::print_json(&summary.to_json(file))?,
        false => output::print(&summary.clock().in_words(&summary.to_text(file)))?,
    }
    summary.failure().map_or(Ok(()), |why| Err(why.into()))
}

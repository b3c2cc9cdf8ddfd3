//! `memtape tape FILE`: shows a tape, with no service running. Without a file, or with a folder, it
//! lists the tapes there: see [`super::tapes`].

use std::path::PathBuf;

use super::tapes;
use crate::globals::Globals;
use crate::mistakes::Mistakes;
use crate::output;
use crate::render::tape::{Summary, Wanted};

/// `memtape tape`.
#[derive(Debug, clap::Args)]
pub(crate) struct TapeArgs {
    /// The tape's file; of a folder, its tapes are listed [default: $MEMTAPE_DIR or
    /// /dev/shm/memtape].
    #[arg(value_name = "FILE|DIR")]
    pub(crate) file: Option<PathBuf>,
    /// Number of steps, events, marks and stacks to show.
    #[arg(long, default_value_t = 10)]
    pub(crate) last: usize,
    /// Show the steps up to this one, and live blocks as they were at its end [default: now; the
    /// last finished step of a process that has exited, whose memory is gone now].
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Show live blocks as they were at the last out-of-memory error.
    #[arg(long, conflicts_with = "step")]
    pub(crate) oom: bool,
}

/// Prints what is on a tape, or which tapes there are.
///
/// # Errors
/// When the file is no tape, the tape is damaged, or it does not have the state asked for.
pub(crate) fn run(args: &TapeArgs, globals: &Globals) -> anyhow::Result<()> {
    let file = match &args.file {
        Some(path) if !path.is_dir() => path,
        folder => {
            if args.oom || args.step.is_some() {
                let line = "--step and --oom need the file of a tape: `memtape tape` lists them";
                return Err(Mistakes(vec![line.to_string()]).into());
            }
            return tapes::run(folder.as_deref(), globals.json);
        }
    };
    let wanted = Wanted { step: args.step, oom: args.oom, last: args.last };
    let summary = Summary::read(file, wanted)?;
    match globals.json {
        true => output::print_json(&summary.to_json(file))?,
        false => output::print(&summary.to_text(file))?,
    }
    summary.failure().map_or(Ok(()), |why| Err(why.into()))
}

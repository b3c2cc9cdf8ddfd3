//! `memtape export`: writes a rank's snapshot, from a capture or a file, for other tools.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memtape_core::limits::TRACE_EVENTS_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::layout::Sizes;
use memtape_core::tape::rewind::PointInTime;
use serde_json::json;

use crate::globals::Globals;
use crate::output;
use crate::read::content::{self, Format as Kind, Wanted};
use crate::read::one_rank;
use crate::read::source::{ENDINGS, PICKLES, Source};
use crate::render::exported::{self, Format};
use crate::render::rank_state;
use crate::render::units::plural;

/// `memtape export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// A capture (cap-…), an incident (inc-…) whose capture to export, or a file: a tape, the rank
    /// of a capture as the page downloads it, or PyTorch's memory snapshot.
    #[arg(required_unless_present = "tape", conflicts_with = "tape", value_name = "ID|FILE")]
    pub(crate) id: Option<PathBuf>,
    /// The rank, of a capture or a folder [default: the rank of the incident].
    #[arg(long, conflicts_with = "tape")]
    pub(crate) rank: Option<u32>,
    /// Export this file, which has to be a tape.
    #[arg(long, value_name = "FILE")]
    pub(crate) tape: Option<PathBuf>,
    /// Export the tape's state at the end of this step [default: now; of a process that has exited,
    /// its last finished step].
    #[arg(long)]
    pub(crate) step: Option<u64>,
    /// Export the tape's state at the last out-of-memory error.
    #[arg(long, conflicts_with = "step")]
    pub(crate) oom: bool,
    /// Format of the file.
    #[arg(long, value_enum, default_value_t = Format::Pickle)]
    pub(crate) format: Format,
    /// File to write, - for stdout [default: named after capture and rank, or after the file].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Fetches, converts and writes the snapshot.
/// Fails when there is no such snapshot, or the file cannot be written.
pub(crate) fn run(args: &ExportArgs, globals: &Globals) -> anyhow::Result<()> {
    let wanted = Wanted { step: args.step, oom: args.oom, events_max: TRACE_EVENTS_MAX };
    let (source, opened) = match (&args.tape, &args.id) {
        (Some(tape), _) => (Source::File(tape.clone()), content::rewound(tape, wanted)?),
        (None, Some(named)) => one_rank::open_at(named, args.rank, wanted, globals)?,
        (None, None) => bail!("give a capture, an incident or a file"),
    };
    let (moment, lost_blocks, format) = (opened.moment, opened.lost_blocks, opened.format);
    let snapshot = opened.into_rank(&source);
    let name = name_of(&source, snapshot.identity.rank);
    if let Some(line) = warning(&snapshot, lost_blocks).filter(|_| format != Kind::Pickle) {
        eprintln!("memtape: {line}");
    }
    let content = exported::encode(&snapshot, args.format)?;
    let extension = args.format.extension();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.{extension}")));
    if path == Path::new("-") {
        std::io::stdout().lock().write_all(&content)?;
        return Ok(());
    }
    std::fs::write(&path, &content).with_context(|| format!("cannot write {}", path.display()))?;
    let blocks: usize = snapshot.devices.iter().map(|device| device.blocks.len()).sum();
    let when = match moment {
        Some(PointInTime::EndOf(_)) => "at the end of",
        Some(PointInTime::Present) => "now, after",
        Some(PointInTime::LastOom) => "when a request last failed, after",
        None => "when the file was written, after",
    };
    if globals.json {
        return output::print_json(&json!({
            "moment": when, "file": path, "bytes": content.len(), "rank": snapshot.identity.rank,
            "step": snapshot.step, "blocks": blocks,
        }));
    }
    output::print(&format!(
        "{}: rank {} {}, {}{}",
        path.display(),
        snapshot.identity.rank,
        rank_state::when(moment, &snapshot),
        plural(blocks as u64, "live block"),
        if extension == "pickle" { "; open it in pytorch.org/memory_viz" } else { "" },
    ))
}

/// A warning if the snapshot is incomplete: other tools show it as if it were whole. A capture does
/// not hold the number of missing blocks.
fn warning(snapshot: &RankSnapshot, lost_blocks: Option<u64>) -> Option<String> {
    let advice = format!(
        "run the job again with a larger tape, such as MEMTAPE_BLOCKS={}",
        2 * Sizes::default().table_entries
    );
    match lost_blocks {
        Some(0) => None,
        Some(lost) => Some(format!(
            "{} found no room on the tape and may be missing: {advice}",
            plural(lost, "block")
        )),
        None if snapshot.devices.iter().all(|device| device.complete) => None,
        None => {
            Some(format!("blocks or segments may be missing because the tape was full: {advice}"))
        }
    }
}

/// A name for the file: after capture and rank, or after the file that was read.
fn name_of(source: &Source, rank: u32) -> String {
    match source {
        Source::Stored(of) => format!("{}-rank{}", of.capture, of.rank),
        Source::File(path) if path == Path::new("-") => format!("rank{rank}"),
        Source::File(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let stem = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending));
            match stem.unwrap_or(&name) {
                stem if PICKLES.iter().any(|ending| name.ends_with(ending)) => {
                    format!("{stem}-exported")
                }
                stem => stem.to_string(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use memtape_core::snapshot::DeviceSnapshot;

    use super::*;

    #[test]
    fn an_incomplete_file_is_said_with_what_to_do() {
        let check = |complete: bool, lost_blocks: Option<u64>, expected: Option<&str>| {
            let device = DeviceSnapshot { complete, ..DeviceSnapshot::default() };
            let snapshot = RankSnapshot { devices: vec![device], ..RankSnapshot::default() };
            let line = warning(&snapshot, lost_blocks);
            let is_right = match (&line, expected) {
                (Some(line), Some(words)) => {
                    line.starts_with(words) && line.ends_with("MEMTAPE_BLOCKS=524288")
                }
                (line, expected) => line.is_none() && expected.is_none(),
            };
            assert!(is_right, "{complete}, {lost_blocks:?}: {line:?}");
        };
        check(true, Some(0), None);
        check(true, None, None);
        check(false, Some(1), Some("1 block found no room"));
        check(false, Some(70), Some("70 blocks found no room"));
        check(false, None, Some("blocks or segments may be missing"));
    }
}

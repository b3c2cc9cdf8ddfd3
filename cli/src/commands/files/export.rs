//! `memtape export`: writes a rank's snapshot, from a capture or a tape, for other tools.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memtape_core::limits::TRACE_EVENTS_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::layout::Sizes;
use memtape_core::tape::rewind::PointInTime;
use memtape_proto::api::Incident;
use memtape_proto::snapshot::{self, Bounds};
use serde_json::json;

use crate::client::{Client, parse};
use crate::globals::Globals;
use crate::output;
use crate::read::tape_file;
use crate::render::exported::{self, Format};
use crate::render::units::plural;

/// `memtape export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// A capture (cap-…), or an incident (inc-…) whose capture to export.
    #[arg(required_unless_present = "tape", conflicts_with = "tape")]
    pub(crate) id: Option<String>,
    /// The rank [default: the rank of the incident].
    #[arg(long, conflicts_with = "tape")]
    pub(crate) rank: Option<u32>,
    /// Export this tape instead of a capture.
    #[arg(long, value_name = "FILE")]
    pub(crate) tape: Option<PathBuf>,
    /// Export the tape's state at the end of this step [default: now; of a process that has exited,
    /// its last finished step].
    #[arg(long, requires = "tape", conflicts_with = "id")]
    pub(crate) step: Option<u64>,
    /// Export the tape's state at the last out-of-memory error.
    #[arg(long, requires = "tape", conflicts_with_all = ["id", "step"])]
    pub(crate) oom: bool,
    /// Format of the file.
    #[arg(long, value_enum, default_value_t = Format::Pickle)]
    pub(crate) format: Format,
    /// File to write, - for stdout [default: named after capture and rank, or after the tape].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Fetches, converts and writes the snapshot.
/// Fails when there is no such snapshot, or the file cannot be written.
pub(crate) fn run(args: &ExportArgs, globals: &Globals) -> anyhow::Result<()> {
    let (snapshot, name, moment, lost_blocks) = match (&args.tape, &args.id) {
        (Some(tape), _) => from_tape(tape, args)?,
        (None, Some(id)) => {
            let (snapshot, name) = from_capture(&globals.client()?, id, args.rank)?;
            // A capture always shows the end of a step.
            let moment = PointInTime::EndOf(snapshot.step);
            (snapshot, name, moment, None)
        }
        (None, None) => bail!("give a capture or an incident, or a tape with --tape"),
    };
    if let Some(line) = warning(&snapshot, lost_blocks) {
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
        PointInTime::EndOf(_) => "at the end of",
        PointInTime::Present => "now, after",
        PointInTime::LastOom => "when a request last failed, after",
    };
    if globals.json {
        return output::print_json(&json!({
            "moment": when, "file": path, "bytes": content.len(), "rank": snapshot.identity.rank,
            "step": snapshot.step, "blocks": blocks,
        }));
    }
    output::print(&format!(
        "{}: rank {} {when} step {}, {}{}",
        path.display(),
        snapshot.identity.rank,
        snapshot.step,
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

/// The snapshot, a name for its file, its point in time, and the number of blocks that found no
/// room on the tape.
type OfTape = (RankSnapshot, String, PointInTime, Option<u64>);

fn from_tape(path: &Path, args: &ExportArgs) -> anyhow::Result<OfTape> {
    let (tape, _) = tape_file::open(path)?;
    let status = tape.status();
    let moment = tape_file::point_in_time(&status, args.step, args.oom);
    let lost = status.losses.iter().find(|(kind, _)| *kind == "live blocks that found no room");
    let lost = lost.map(|&(_, count)| count);
    let snapshot = tape
        .snapshot(moment, None, TRACE_EVENTS_MAX)
        .with_context(|| format!("cannot rewind {}", path.display()))?;
    let name = path.file_stem().map_or("tape".into(), |stem| stem.to_string_lossy().into_owned());
    Ok((snapshot, name, moment, lost))
}

fn from_capture(
    client: &Client,
    id: &str,
    rank: Option<u32>,
) -> anyhow::Result<(RankSnapshot, String)> {
    let (capture, rank) = if id.starts_with("inc-") {
        let incident: Incident = parse(&client.get(&["incidents", id], &[])?)?;
        let capture = incident.capture_id.with_context(|| format!("{id} has no capture yet"))?;
        (capture, rank.unwrap_or(incident.rank))
    } else {
        let rank = rank.context("give a rank with --rank")?;
        (id.to_string(), rank)
    };
    let snapshot = snapshot::decode(&client.snapshot(&capture, rank)?, Bounds::default())
        .with_context(|| format!("cannot read rank {rank} of {capture}"))?;
    Ok((snapshot, format!("{capture}-rank{rank}")))
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

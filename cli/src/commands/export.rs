//! `memtape export`: one rank's part of a capture, or a tape, as a file for other tools.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use memtape_core::snapshot::RankSnapshot;
use memtape_core::tape::rewind::Moment;
use serde_json::json;

use crate::api::{Client, Incident, parse};
use crate::args::ExportArgs;
use crate::{export, output, tape_file, wire};

/// Events carried along from a tape; as many as agents send in a capture.
const TRACE_EVENTS_MAX: usize = 65_536;

/// Fetches, converts and writes.
///
/// # Errors
/// When there is no such part, or the file cannot be written.
pub(crate) fn run(args: &ExportArgs, client: Client, json: bool) -> anyhow::Result<()> {
    let (snapshot, name, moment) = match (&args.tape, &args.id) {
        (Some(tape), _) => from_tape(tape, args)?,
        (None, Some(id)) => {
            let (snapshot, name) = from_capture(&client, id, args.rank)?;
            // A capture is always of a step's end.
            let moment = Moment::EndOf(snapshot.step);
            (snapshot, name, moment)
        }
        (None, None) => bail!("name a capture, or a tape with --tape"),
    };
    let content = export::encode(&snapshot, args.format)?;
    let extension = args.format.extension();
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.{extension}")));
    if path == Path::new("-") {
        std::io::stdout().lock().write_all(&content)?;
        return Ok(());
    }
    std::fs::write(&path, &content).with_context(|| format!("cannot write {}", path.display()))?;
    let blocks: usize = snapshot.devices.iter().map(|device| device.blocks.len()).sum();
    let when = match moment {
        Moment::EndOf(_) => "at the end of",
        Moment::Present => "now, after",
        Moment::LastOom => "when a request last failed, after",
    };
    if json {
        return output::print_json(&json!({
            "moment": when, "file": path, "bytes": content.len(), "rank": snapshot.identity.rank,
            "step": snapshot.step, "blocks": blocks,
        }));
    }
    output::print(&format!(
        "{}: rank {} {when} step {}, {blocks} live blocks{}",
        path.display(),
        snapshot.identity.rank,
        snapshot.step,
        if extension == "pickle" { "; open it in pytorch.org/memory_viz" } else { "" },
    ))
}

fn from_tape(path: &Path, args: &ExportArgs) -> anyhow::Result<(RankSnapshot, String, Moment)> {
    let (tape, _) = tape_file::open(path)?;
    let moment = tape_file::moment(&tape.status(), args.step, args.oom);
    let snapshot = tape
        .snapshot(moment, None, TRACE_EVENTS_MAX)
        .with_context(|| format!("cannot rewind {}", path.display()))?;
    let name = path.file_stem().map_or("tape".into(), |stem| stem.to_string_lossy().into_owned());
    Ok((snapshot, name, moment))
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
        let rank = rank.context("say which rank with --rank")?;
        (id.to_string(), rank)
    };
    let snapshot = wire::decode(&client.body(&capture, rank)?)
        .with_context(|| format!("cannot read rank {rank} of {capture}"))?;
    Ok((snapshot, format!("{capture}-rank{rank}")))
}

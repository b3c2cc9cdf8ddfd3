//! `memtape show ID`: an incident with its capture, or a capture.

use std::fmt::Write;

use anyhow::bail;
use memtape_agent::Writer;
use memtape_core::snapshot::DeviceSnapshot;
use memtape_proto::api::{Capture, Incident, Ledger};
use memtape_proto::snapshot::{self, Bounds};
use serde_json::json;

use super::names::{no_rank, of_id};
use crate::client::{Client, parse};
use crate::globals::Globals;
use crate::output;
use crate::render::{answers, collectives, ledger, workers};

/// `memtape show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// An incident (inc-…) or a capture (cap-…).
    pub(crate) id: String,
    /// Of a capture: show where the bytes of this rank's devices were.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
}

/// Shows the incident or the capture of this id.
/// Fails when the coordinator does not answer or does not know the id.
pub(crate) fn run(args: &ShowArgs, globals: &Globals) -> anyhow::Result<()> {
    let (client, json) = (globals.client()?, globals.json);
    let id = args.id.as_str();
    let kind = match id.split_once('-') {
        Some(("inc", _)) => "incidents",
        Some(("cap", _)) => "captures",
        _ => bail!("{id:?} is not an id: incidents begin with inc-, captures with cap-"),
    };
    if let Some(rank) = args.rank {
        if kind != "captures" {
            bail!("--rank needs a capture: `memtape show {id}` names the capture of the incident");
        }
        return of_rank(id, rank, &client, json);
    }
    let answer = client.get(&[kind, id], &[]);
    let mut answer = answer.map_err(|error| of_id(error, &client, kind, id))?;
    // An older coordinator has no collectives.
    let collectives_of = |id: &str| {
        let path = ["captures", id, "collectives"];
        client.get(&path, &[]).unwrap_or_default()
    };
    if kind == "captures" {
        let collectives = collectives_of(id);
        if json {
            answer["collectives"] = collectives;
            return output::print_json(&answer);
        }
        let text = answers::manifest(&parse(&answer)?);
        return output::print(
            &(text + &collectives::of_capture(&parse(&collectives).unwrap_or_default())),
        );
    }
    if json {
        return output::print_json(&answer);
    }
    let incident: Incident = parse(&answer)?;
    let capture = client.capture_of(&incident);
    let mut text = answers::incident(&incident, capture.as_ref());
    if let Some(capture) = &capture {
        text += &collectives::of_capture(&parse(&collectives_of(&capture.id)).unwrap_or_default());
    }
    output::print(&incident.clock.known().unwrap_or_default().in_words(&text))
}

/// An error about a rank of a capture, with the ranks that the capture has.
fn of_part(error: anyhow::Error, rank: u32, capture: &str, client: &Client) -> anyhow::Error {
    let known = match client.get(&["captures", capture], &[]) {
        Ok(answer) => parse::<Capture>(&answer).unwrap_or_default(),
        Err(error) => return of_id(error, client, "captures", capture),
    };
    let mut ranks: Vec<u32> = known.parts.iter().map(|part| part.rank).collect();
    ranks.sort_unstable();
    match ranks.contains(&rank) || known.parts_left_out {
        true => error,
        false => anyhow::anyhow!(no_rank(rank, &format!("capture {capture}"), &ranks)),
    }
}

/// Shows where the bytes of a rank's devices were at the step of a capture, from its stored
/// snapshot. The snapshot has no readings of the driver.
fn of_rank(capture: &str, rank: u32, client: &Client, json: bool) -> anyhow::Result<()> {
    let snapshot =
        client.snapshot(capture, rank).map_err(|error| of_part(error, rank, capture, client))?;
    let state = snapshot::decode(&snapshot, Bounds::default())?;
    let ledger = |device: &DeviceSnapshot| {
        ledger::of(&state, device.device, device.device_bytes, Writer::Unknown)
    };
    if json {
        let device = |device: &DeviceSnapshot| {
            let ledger = Ledger::from(&ledger(device));
            json!({ "device": device.device, "uuid": device.uuid, "ledger": ledger })
        };
        return output::print_json(&json!({
            "capture": capture, "rank": rank, "step": state.step,
            "devices": state.devices.iter().map(device).collect::<Vec<_>>(),
            "outside": ledger::outside_json(&state.outside),
            "outside_lines": ledger::lines_json(&state),
            "worker_samples": state.worker_samples.as_ref().map(|of| workers::json(&state, of)),
        }));
    }
    let mut text = format!("rank {rank} at the end of step {}\n", state.step);
    for device in &state.devices {
        let _ = write!(text, "\ndevice {} {}\n", device.device, output::clean(&device.uuid));
        text.push_str(&ledger::text(&ledger(device)));
    }
    if !state.outside.is_empty() {
        let _ = write!(text, "\n{}", ledger::outside_text(&state.outside));
    }
    if !state.outside_stacks.is_empty() {
        let _ = write!(text, "\n{}", ledger::lines_text(&state));
    }
    if let Some(samples) = &state.worker_samples {
        let _ = write!(text, "\n{}", workers::text(&state, samples));
    }
    output::print(&text)
}

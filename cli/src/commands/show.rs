//! `memtape show ID`: an incident with its capture, or a capture.

use anyhow::bail;

use crate::api::{Client, Incident, Manifest, parse};
use crate::{output, render};

/// Shows what has this id.
///
/// # Errors
/// When the coordinator cannot be asked or does not know it.
pub(crate) fn run(id: &str, client: Client, json: bool) -> anyhow::Result<()> {
    let kind = match id.split_once('-') {
        Some(("inc", _)) => "incidents",
        Some(("cap", _)) => "captures",
        _ => bail!("{id:?} is no id: those of incidents begin with inc-, of captures with cap-"),
    };
    let answer = client.get(&[kind, id], &[])?;
    if json {
        return output::print_json(&answer);
    }
    if kind == "captures" {
        return output::print(&render::manifest(&parse(&answer)?));
    }
    let incident: Incident = parse(&answer)?;
    // The capture may still be in the making, or have been deleted since.
    let capture = incident.capture_id.as_deref().and_then(|id| {
        let answer = client.get(&["captures", id], &[]).ok()?;
        parse::<Manifest>(&answer).ok()
    });
    output::print(&render::incident(&incident, capture.as_ref()))
}

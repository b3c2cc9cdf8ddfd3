//! `memtape show ID`: an incident with its capture, or a capture.

use anyhow::bail;

use crate::api::{Client, Incident, Manifest, parse};
use crate::{collectives, output, render};

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
    let mut answer = client.get(&[kind, id], &[])?;
    // An older coordinator does not know of collectives.
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
        let text = render::manifest(&parse(&answer)?);
        return output::print(&(text + &collectives::of_capture(&collectives)));
    }
    if json {
        return output::print_json(&answer);
    }
    let incident: Incident = parse(&answer)?;
    // The capture may still be in the making, or have been deleted since.
    let capture = incident.capture_id.as_deref().and_then(|id| {
        let answer = client.get(&["captures", id], &[]).ok()?;
        parse::<Manifest>(&answer).ok()
    });
    let mut text = render::incident(&incident, capture.as_ref());
    if let Some(capture) = &capture {
        text += &collectives::of_capture(&collectives_of(&capture.id));
    }
    output::print(&text)
}

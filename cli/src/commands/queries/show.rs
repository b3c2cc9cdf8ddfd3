//! `memtape show ID|FILE`: an incident with its capture, a capture, or the state of one rank.

use std::path::{Path, PathBuf};

use anyhow::bail;
use memtape_proto::api::Incident;

use crate::client::parse;
use crate::globals::Globals;
use crate::output::shell_word;
use crate::read::captures::{known, list_of};
use crate::read::one_rank;
use crate::read::source::Source;
use crate::render::{answers, collectives, rank_state};

/// `memtape show`.
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// An incident (inc-…), a capture (cap-…), or a file of one rank: a tape, a snapshot of
    /// PyTorch, or the rank of a capture as the page downloads it.
    #[arg(value_name = "ID|FILE")]
    pub(crate) id: String,
    /// Of a capture or a folder: show which lines hold the memory of this rank, and where the
    /// bytes of its devices were.
    #[arg(long)]
    pub(crate) rank: Option<u32>,
}

/// Shows the incident, the capture, or the rank.
/// Fails when the coordinator does not answer or does not know the id, and when a file cannot be
/// read.
pub(crate) fn run(args: &ShowArgs, globals: &Globals) -> anyhow::Result<()> {
    let id = args.id.as_str();
    if Path::new(id).exists() {
        return of_rank(args, globals);
    }
    match (list_of(id)?, args.rank) {
        ("incidents", Some(_)) => {
            let word = shell_word(id);
            bail!("--rank needs a capture: `memtape show {word}` names the capture of the incident")
        }
        (_, Some(_)) => of_rank(args, globals),
        (_, None) => of_known(id, globals),
    }
}

/// Shows what a coordinator knows by this id.
fn of_known(id: &str, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let mut answer = known(&client, id)?;
    // An older coordinator has no collectives.
    let collectives_of = |id: &str| {
        let path = ["captures", id, "collectives"];
        client.get(&path, &[]).unwrap_or_default()
    };
    if list_of(id)? == "captures" {
        let collectives = collectives_of(id);
        answer["collectives"] = collectives.clone();
        return globals.print(&answer, |capture| {
            let collectives = parse(&collectives).unwrap_or_default();
            answers::manifest(&capture) + &collectives::of_capture(&collectives, "")
        });
    }
    globals.print(&answer, |incident: Incident| {
        let capture = client.capture_of(&incident);
        let mut text = answers::incident(&incident, capture.as_ref());
        if let Some(capture) = &capture {
            let collectives = parse(&collectives_of(&capture.id)).unwrap_or_default();
            text += &collectives::of_capture(&collectives, &text);
        }
        incident.clock.known().unwrap_or_default().in_words(&text)
    })
}

/// Shows the state of one rank.
fn of_rank(args: &ShowArgs, globals: &Globals) -> anyhow::Result<()> {
    let (source, opened) = one_rank::open(&PathBuf::from(&args.id), args.rank, globals)?;
    let (moment, clock, name) = (opened.moment, opened.clock, source.name());
    let state = opened.into_rank(&source);
    let mut json = rank_state::json(&name, &state);
    if let Source::Stored(of) = &source {
        json["capture"] = of.capture.clone().into();
    }
    globals.say(&json, || clock.in_words(&rank_state::text(&name, moment, &state)))
}

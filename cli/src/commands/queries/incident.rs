//! `memtape incident ID`: acknowledges, silences or assigns an incident, or adds a note to it.

use std::time::Duration;

use memtape_core::settings::duration;
use memtape_proto::api::{Incident, ThreadRequest};

use crate::client::unknown::of_id;
use crate::clock;
use crate::globals::Globals;
use crate::output::clean;
use crate::render::threads;

/// `memtape incident`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("wishes").required(true).multiple(true))]
pub(crate) struct IncidentArgs {
    /// The incident (inc-…).
    #[arg(value_name = "INCIDENT")]
    pub(crate) incident: String,
    /// Acknowledge it: a person knows of it.
    #[arg(long, group = "wishes")]
    pub(crate) acknowledge: bool,
    /// Take the acknowledgement back.
    #[arg(long, group = "wishes", conflicts_with = "acknowledge")]
    pub(crate) unacknowledge: bool,
    /// Raise no alert because of it for this time, such as 2h, and 30d at most. The silence ends
    /// early when the incident becomes more urgent, gets another class or reports another incident.
    #[arg(long, group = "wishes", value_name = "TIME", value_parser = duration)]
    pub(crate) silence: Option<Duration>,
    /// The same until this step.
    #[arg(long, group = "wishes", value_name = "N", conflicts_with = "silence")]
    pub(crate) silence_until_step: Option<u64>,
    /// End the silence.
    #[arg(long, group = "wishes", conflicts_with_all = ["silence", "silence_until_step"])]
    pub(crate) end_silence: bool,
    /// Assign it to this person or team; an empty name assigns it to no one.
    #[arg(long, group = "wishes", value_name = "NAME")]
    pub(crate) assign: Option<String>,
    /// Add a note, of one or more lines.
    #[arg(long, group = "wishes", value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

/// Changes the thread of the incident, and prints the new state.
/// Fails when the coordinator does not answer, does not know the incident or refuses.
pub(crate) fn run(args: &IncidentArgs, globals: &Globals) -> anyhow::Result<()> {
    let client = globals.client()?;
    let path = ["incidents", &args.incident, "thread"];
    let answer = client.post(&path, &request(args, clock::wall_ns()));
    let answer = answer.map_err(|error| of_id(error, &client, "incidents", &args.incident))?;
    globals.print(&answer, |incident: Incident| {
        let words = threads::words(&incident);
        let words = words.unwrap_or_else(|| "not acknowledged, silenced or assigned".to_string());
        clean(&format!("{}: {words}", incident.id))
    })
}

fn request(args: &IncidentArgs, now_ns: i64) -> ThreadRequest {
    let in_ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    ThreadRequest {
        acknowledge: args.acknowledge.then_some(true).or(args.unacknowledge.then_some(false)),
        silence_until_wall_ns: args.silence.map(|time| now_ns.saturating_add(in_ns(time))),
        silence_until_step: args.silence_until_step,
        end_silence: args.end_silence,
        assignee: args.assign.clone(),
        note: args.note.clone(),
    }
}

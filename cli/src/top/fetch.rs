//! A thread that asks the coordinator for what `memtape top` shows, so that a slow answer does not
//! hold up the keys.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use memtape_proto::api::{Incidents, Jobs, Ranks};

use super::model::{Answer, Event, Wanted};
use crate::client::Client;
use crate::clock;
use crate::output::error_line;

/// Steps of a series; wider screens are rare.
const POINTS_MAX: &str = "256";

/// Asks when something else is wanted, and again after each interval, until the receiver of the
/// events is gone.
pub(super) fn run(
    client: &Client,
    interval: Duration,
    wanted: &Receiver<Wanted>,
    events: &Sender<Event>,
) {
    let mut newest = Wanted::default();
    loop {
        let event = match answer(client, &newest) {
            Ok(answer) => Event::Answer(Box::new(answer)),
            Err(error) => Event::Lost(error_line(&error)),
        };
        if events.send(event).is_err() {
            return;
        }
        match wanted.recv_timeout(interval) {
            // Only the last of several is still wanted.
            Ok(next) => newest = wanted.try_iter().last().unwrap_or(next),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn answer(client: &Client, wanted: &Wanted) -> anyhow::Result<Answer> {
    let jobs: Jobs = client.fetch(&["jobs"], &[])?;
    let incidents: Incidents = client.fetch(&["incidents"], &[])?;
    let mut answer = Answer {
        of: wanted.clone(),
        jobs: jobs.jobs,
        incidents: incidents.incidents,
        wall_ns: clock::wall_ns(),
        ..Answer::default()
    };
    let Some(job) = &wanted.job else { return Ok(answer) };
    let ranks: Ranks = client.fetch(&["jobs", job, "ranks"], &[])?;
    answer.ranks = ranks.ranks;
    let Some(rank) = wanted.rank.map(|rank| rank.to_string()) else { return Ok(answer) };
    // A rank that has just begun has neither.
    let points = [("rank", rank.as_str()), ("points", POINTS_MAX)];
    answer.series = client.fetch(&["jobs", job, "series"], &points).unwrap_or_default();
    if wanted.lines {
        let of_rank = [("rank", rank.as_str())];
        answer.lines = client.fetch(&["jobs", job, "lines"], &of_rank).unwrap_or_default();
    }
    Ok(answer)
}

//! A thread that asks the coordinator for what `memtape top` shows, so that a slow answer does not
//! hold up the keys.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use memtape_proto::api::{Incidents, Jobs, Lines, Ranks, Series};

use super::model::{Answer, Event, Wanted};
use crate::client::{Client, parse};
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
    let jobs: Jobs = parse(&client.get(&["jobs"], &[])?)?;
    let incidents: Incidents = parse(&client.get(&["incidents"], &[])?)?;
    let mut answer = Answer {
        of: wanted.clone(),
        jobs: jobs.jobs,
        incidents: incidents.incidents,
        wall_ns: clock::wall_ns(),
        ..Answer::default()
    };
    let Some(job) = &wanted.job else { return Ok(answer) };
    let ranks: Ranks = parse(&client.get(&["jobs", job, "ranks"], &[])?)?;
    answer.ranks = ranks.ranks;
    let Some(rank) = wanted.rank.map(|rank| rank.to_string()) else { return Ok(answer) };
    // A rank that has just begun has neither.
    let series = client.get(&["jobs", job, "series"], &[("rank", &rank), ("points", POINTS_MAX)]);
    answer.series = series.and_then(|it| parse::<Series>(&it)).unwrap_or_default();
    if wanted.lines {
        let lines = client.get(&["jobs", job, "lines"], &[("rank", &rank)]);
        answer.lines = lines.and_then(|it| parse::<Lines>(&it)).unwrap_or_default();
    }
    Ok(answer)
}

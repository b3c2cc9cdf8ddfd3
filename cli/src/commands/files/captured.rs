//! What the coordinator has of a capture: the snapshots of its ranks, and what a report adds.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use memtape_core::identity::ids::Kind;
use memtape_core::limits::{REPORT_RANKS_MAX, REPORT_SNAPSHOTS_MAX};
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::api::{Capture, Collectives, Incident, Job, Jobs, Ranks, Series};
use memtape_proto::snapshot::{self, Bounds};

use crate::client::unknown::of_id;
use crate::client::{Client, parse};
use crate::read::captures::stored;
use crate::report::POINTS_MAX;
use crate::report::of_capture::Known;

/// The incident with this id and its capture, or the capture with this id.
/// Fails when the coordinator does not answer, does not know the id, or it is none.
pub(crate) fn named(
    client: &Client,
    id: &str,
) -> anyhow::Result<(Option<Incident>, Option<Capture>)> {
    let asked =
        |list: &str| client.get(&[list, id], &[]).map_err(|error| of_id(error, client, list, id));
    match Kind::of(id) {
        Some(Kind::Incident) => {
            let incident: Incident = parse(&asked("incidents")?)?;
            let capture = client.capture_of(&incident);
            Ok((Some(incident), capture))
        }
        Some(Kind::Capture) => Ok((None, Some(parse(&asked("captures")?)?))),
        Some(Kind::Action | Kind::KeepOut) | None => bail!(
            "{id:?} is neither a file nor an id: incidents begin with inc-, captures with cap-"
        ),
    }
}

/// The snapshot of one rank.
/// Fails when there is none, or it cannot be read.
pub(crate) fn one(client: &Client, capture: &str, rank: u32) -> anyhow::Result<RankSnapshot> {
    snapshot::decode(&client.snapshot(capture, rank)?, Bounds::default())
        .with_context(|| format!("cannot read rank {rank} of {capture}"))
}

/// The snapshots of several ranks, at most `count`: that of `first`, then those of its neighbours
/// in the order of the ranks. A rank without a snapshot is left out.
pub(crate) fn several(
    client: &Client,
    capture: &Capture,
    first: Option<u32>,
    count: usize,
) -> BTreeMap<u32, RankSnapshot> {
    let mut ranks = stored(capture);
    ranks.sort_unstable_by_key(|rank| (Some(*rank) != first, *rank));
    ranks.truncate(count);
    ranks
        .into_iter()
        .filter_map(|rank| Some((rank, one(client, &capture.id, rank).ok()?)))
        .collect()
}

/// All that a report shows of an incident or a capture.
/// Fails when there is no such incident or capture; what else is missing is left out.
pub(crate) fn known(client: &Client, id: &str, rank: Option<u32>) -> anyhow::Result<Known> {
    let (incident, capture) = named(client, id)?;
    let of_incident = incident.as_ref().map(|incident| (incident.job.clone(), incident.attempt));
    let of_capture = || capture.as_ref().map(|capture| (capture.job.clone(), capture.attempt));
    let (job, attempt) = of_incident.or_else(of_capture).unwrap_or_default();
    let first = rank
        .or(incident.as_ref().map(|incident| incident.rank))
        .or(capture.as_ref().and_then(|capture| capture.trigger_rank));
    let snapshots = capture.as_ref().map(|of| several(client, of, first, REPORT_SNAPSHOTS_MAX));
    let attempt_text = attempt.to_string();
    let of_attempt = [("attempt", attempt_text.as_str())];
    let ranks: Ranks = asked(client, &["jobs", &job, "ranks"], &of_attempt);
    let mut numbers: Vec<u32> = ranks.ranks.iter().map(|rank| rank.rank).collect();
    numbers.sort_unstable_by_key(|rank| (Some(*rank) != first, *rank));
    let series_left_out = numbers.len().saturating_sub(REPORT_RANKS_MAX);
    numbers.truncate(REPORT_RANKS_MAX);
    let device = incident.as_ref().map(|incident| incident.device.to_string());
    let series = |rank: u32| {
        let (rank_text, points) = (rank.to_string(), POINTS_MAX.to_string());
        let mut query = vec![("rank", rank_text.as_str()), ("points", &points), of_attempt[0]];
        // Ranks of one node may use different devices: of a peer, the one that holds most is meant.
        let device = device.as_deref().filter(|_| Some(rank) == first);
        query.extend(device.map(|device| ("device", device)));
        (rank, asked::<Series>(client, &["jobs", &job, "series"], &query))
    };
    let jobs: Jobs = asked(client, &["jobs"], &[]);
    let is_it = |of: &Job| of.job == job && of.attempt == attempt;
    let collectives: Collectives = capture.as_ref().map_or_else(Collectives::default, |of| {
        asked(client, &["captures", &of.id, "collectives"], &[])
    });
    Ok(Known {
        subject: rank,
        incident,
        snapshots: snapshots.unwrap_or_default(),
        series: numbers.into_iter().map(series).collect(),
        series_left_out,
        ranks: ranks.ranks,
        job: jobs.jobs.into_iter().find(is_it),
        collectives: collectives.sentences,
        capture,
        ..Known::default()
    })
}

/// An answer; its default where there is none, as from an older coordinator or of an old job.
fn asked<T: serde::de::DeserializeOwned + Default>(
    client: &Client,
    path: &[&str],
    query: &[(&str, &str)],
) -> T {
    client.get(path, query).ok().and_then(|answer| parse(&answer).ok()).unwrap_or_default()
}

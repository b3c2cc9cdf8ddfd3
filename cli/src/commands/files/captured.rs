//! What the coordinator has of a capture: the snapshots of its ranks.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use memtape_core::identity::ids::Kind;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::api::{Capture, Incident};
use memtape_proto::snapshot::{self, Bounds};

use crate::client::unknown::of_id;
use crate::client::{Client, parse};
use crate::read::captures::stored;

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
        Some(Kind::Action) | None => bail!(
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

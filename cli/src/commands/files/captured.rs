//! What the coordinator has of a capture: its manifest and the snapshots of its ranks.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::api::{Capture, Incident, Part, PartOutcome};
use memtape_proto::snapshot::{self, Bounds};

use crate::client::{Client, parse};

/// The incident with this id and its capture, or the capture with this id.
/// Fails when the coordinator does not answer, does not know the id, or it is none.
pub(crate) fn named(
    client: &Client,
    id: &str,
) -> anyhow::Result<(Option<Incident>, Option<Capture>)> {
    match id.split_once('-') {
        Some(("inc", _)) => {
            let incident: Incident = parse(&client.get(&["incidents", id], &[])?)?;
            let capture = client.capture_of(&incident);
            Ok((Some(incident), capture))
        }
        Some(("cap", _)) => Ok((None, Some(parse(&client.get(&["captures", id], &[])?)?))),
        _ => bail!(
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
    let has_snapshot = |part: &&Part| {
        matches!(
            part.outcome.known(),
            Some(PartOutcome::Aligned | PartOutcome::Late | PartOutcome::Dead)
        )
    };
    let parts = capture.parts.iter().filter(has_snapshot).map(|part| part.rank);
    let mut ranks: Vec<u32> = parts.collect();
    ranks.sort_unstable_by_key(|rank| (Some(*rank) != first, *rank));
    ranks.truncate(count);
    ranks
        .into_iter()
        .filter_map(|rank| Some((rank, one(client, &capture.id, rank).ok()?)))
        .collect()
}

//! The ranks of a capture that the coordinator has, by the id of the capture or of its incident.

use anyhow::{Context, bail};
use memtape_core::identity::ids::Kind;
use memtape_proto::api::{Capture, Incident};
use serde_json::Value;

use crate::client::unknown::of_id;
use crate::client::{Client, parse};

/// A rank of a stored capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRank {
    /// Id of the capture.
    pub(crate) capture: String,
    /// Global rank.
    pub(crate) rank: u32,
}

/// True for what looks like the id of a capture or an incident: `cap-…`, `inc-…`.
pub(crate) fn is_id(name: &str) -> bool {
    matches!(Kind::of(name), Some(Kind::Capture | Kind::Incident))
}

/// The ranks of this capture, or of the capture of this incident, whose snapshots are stored; only
/// `rank` if one is given.
/// Fails when the coordinator does not answer or does not know the id, when there is no such rank,
/// and when nothing of it is stored.
pub(crate) fn ranks(
    client: &Client,
    id: &str,
    rank: Option<u32>,
) -> anyhow::Result<Vec<StoredRank>> {
    let capture = capture_of(client, id)?;
    let found: Capture = parse(&known(client, "captures", &capture)?)?;
    let stored = chosen(&found, rank)?;
    Ok(stored.into_iter().map(|rank| StoredRank { capture: capture.clone(), rank }).collect())
}

/// The rank of an incident; none of a capture.
/// Fails when the coordinator does not answer or does not know the incident.
pub(crate) fn rank_of_incident(client: &Client, id: &str) -> anyhow::Result<Option<u32>> {
    if Kind::of(id) != Some(Kind::Incident) {
        return Ok(None);
    }
    let incident: Incident = parse(&known(client, "incidents", id)?)?;
    Ok(Some(incident.rank))
}

/// What the coordinator knows by this id.
fn known(client: &Client, list: &str, id: &str) -> anyhow::Result<Value> {
    client.get(&[list, id], &[]).map_err(|error| of_id(error, client, list, id))
}

fn capture_of(client: &Client, id: &str) -> anyhow::Result<String> {
    if Kind::of(id) != Some(Kind::Incident) {
        return Ok(id.to_string());
    }
    let incident: Incident = parse(&known(client, "incidents", id)?)?;
    incident.capture_id.with_context(|| format!("{id} has no capture yet"))
}

/// The ranks of a capture whose snapshots are stored, in order.
pub(crate) fn stored(capture: &Capture) -> Vec<u32> {
    let parts = capture.parts.iter().filter(|part| part.hash.is_some());
    let mut ranks: Vec<u32> = parts.map(|part| part.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// The stored ranks of a capture, or only this one.
fn chosen(capture: &Capture, rank: Option<u32>) -> anyhow::Result<Vec<u32>> {
    let id = &capture.id;
    if let Some(rank) = rank {
        let Some(part) = capture.parts.iter().find(|part| part.rank == rank) else {
            let known: Vec<u32> = capture.parts.iter().map(|part| part.rank).collect();
            bail!("{id} has no rank {rank}: {}", listed(&known));
        };
        if part.hash.is_none() {
            let outcome: &str = part.outcome.as_str();
            let detail = if part.detail.is_empty() { "" } else { ", " };
            bail!(
                "{id} has no snapshot of rank {rank} ({outcome}{detail}{}): {}",
                part.detail,
                listed(&stored(capture))
            );
        }
        return Ok(vec![rank]);
    }
    let ranks = stored(capture);
    if ranks.is_empty() {
        bail!("{id} holds no snapshot: `memtape show {id}` says what became of each rank");
    }
    Ok(ranks)
}

/// `it has ranks 0-3, 7`.
pub(crate) fn listed(ranks: &[u32]) -> String {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    ranks.dedup();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let shown = |&(first, last): &(u32, u32)| match last {
        last if last == first => first.to_string(),
        last => format!("{first}-{last}"),
    };
    let runs: Vec<String> = runs.iter().map(shown).collect();
    match runs.as_slice() {
        [] => "it has no rank".to_string(),
        [one] if !one.contains('-') => format!("it has rank {one} only"),
        runs => format!("it has ranks {}", runs.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use memtape_proto::api::Part;

    use super::*;

    #[test]
    fn unknown_ranks_are_answered_with_those_that_there_are() {
        let part = |rank: u32, hash: Option<&str>| Part {
            rank,
            hash: hash.map(str::to_string),
            ..Part::default()
        };
        let parts = vec![part(1, Some("a")), part(0, Some("b")), part(2, None)];
        let capture = Capture { id: "cap-1".to_string(), parts, ..Capture::default() };
        assert_eq!(chosen(&capture, None).expect("ranks"), [0, 1]);
        assert_eq!(chosen(&capture, Some(1)).expect("a rank"), [1]);
        let error = |rank: u32| chosen(&capture, Some(rank)).expect_err("refused").to_string();
        assert_eq!(error(9), "cap-1 has no rank 9: it has ranks 0-2");
        assert!(error(2).starts_with("cap-1 has no snapshot of rank 2 ("), "{}", error(2));
        assert!(error(2).ends_with("): it has ranks 0-1"), "{}", error(2));
        let empty = Capture { id: "cap-2".to_string(), ..Capture::default() };
        assert!(chosen(&empty, None).is_err());
    }

    #[test]
    fn ranks_are_listed_in_runs() {
        let check = |ranks: &[u32], expected: &str| assert_eq!(listed(ranks), expected);
        check(&[], "it has no rank");
        check(&[4], "it has rank 4 only");
        check(&[3, 1, 0, 2, 7, 9, 8, u32::MAX], "it has ranks 0-3, 7-9, 4294967295");
    }
}

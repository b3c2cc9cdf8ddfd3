//! Incidents, captures and snapshots of ranks, read from the coordinator by id.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use memtape_core::diagnosis::files::ProcessState;
use memtape_core::identity::ids::Kind;
use memtape_core::snapshot::RankSnapshot;
use memtape_proto::api::{Capture, Incident, Part, Ranks};
use memtape_proto::snapshot::{self, Bounds};
use serde_json::Value;

use crate::client::unknown::{listed_ranks, no_rank, of_id};
use crate::client::{Client, parse};
use crate::output::shell_word;

/// A rank of a stored capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredRank {
    /// Id of the capture.
    pub(crate) capture: String,
    /// Global rank.
    pub(crate) rank: u32,
    /// What the capture and its coordinator know of the process.
    pub(crate) process: ProcessState,
}

/// True for a name in the form of a capture id or an incident id: `cap-…`, `inc-…`.
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
    let (_, capture) = named(client, id)?;
    let capture = capture.with_context(|| format!("{id} has no capture"))?;
    let stored = chosen(&capture, rank)?;
    let processes = processes(client, &capture);
    let of_rank = |rank: u32| StoredRank {
        capture: capture.id.clone(),
        rank,
        process: processes.get(&rank).copied().unwrap_or_default(),
    };
    Ok(stored.into_iter().map(of_rank).collect())
}

/// What is known of the processes of a capture's ranks. The capture tells which were dead; how they
/// ended, the coordinator says for as long as it has their attempt.
fn processes(client: &Client, capture: &Capture) -> BTreeMap<u32, ProcessState> {
    let has_dead = capture.parts.iter().any(|part| part.dead);
    let ranks = has_dead.then(|| client.get(&["jobs", &capture.job, "ranks"], &[]).ok()).flatten();
    let ranks = ranks.and_then(|ranks| parse::<Ranks>(&ranks).ok());
    let process = |part: &Part| match part.dead {
        false => ProcessState::Alive,
        true => {
            let known = ranks.iter().flat_map(|known| &known.ranks);
            let own = known.filter(|of| of.tape_id == part.tape_id).find_map(|of| of.end.as_ref());
            own.and_then(|end| end.as_str().parse().ok())
                .map_or(ProcessState::Unknown, |end| ProcessState::Ended(end, None))
        }
    };
    capture.parts.iter().map(|part| (part.rank, process(part))).collect()
}

/// The list of the coordinator that has this id.
/// Fails when it is the id of neither an incident nor a capture.
pub(crate) fn list_of(id: &str) -> anyhow::Result<&'static str> {
    match Kind::of(id) {
        Some(Kind::Incident) => Ok("incidents"),
        Some(Kind::Capture) => Ok("captures"),
        Some(Kind::Action) | None => bail!(
            "{id:?} is no file and no id: incidents begin with inc-, captures with cap- \
             (`memtape incidents`, `memtape captures`); of a job, `memtape ranks {}` shows more",
            shell_word(id)
        ),
    }
}

/// The coordinator's answer to this id.
/// Fails when it does not answer, does not know the id, or it is none.
pub(crate) fn known(client: &Client, id: &str) -> anyhow::Result<Value> {
    let list = list_of(id)?;
    client.get(&[list, id], &[]).map_err(|error| of_id(error, client, list, id))
}

/// The incident with this id and its capture, or the capture with this id.
/// Fails as [`known`] does.
pub(crate) fn named(
    client: &Client,
    id: &str,
) -> anyhow::Result<(Option<Incident>, Option<Capture>)> {
    let found = known(client, id)?;
    if list_of(id)? == "captures" {
        return Ok((None, Some(parse(&found)?)));
    }
    let incident: Incident = parse(&found)?;
    let capture = client.capture_of(&incident);
    Ok((Some(incident), capture))
}

/// The snapshots of several ranks, at most `count`: first the snapshot of `first`, then of the
/// others in the order of the ranks. A rank without a readable snapshot is left out.
pub(crate) fn several(
    client: &Client,
    capture: &Capture,
    first: Option<u32>,
    count: usize,
) -> BTreeMap<u32, RankSnapshot> {
    let mut ranks = stored(capture);
    ranks.sort_unstable_by_key(|rank| (Some(*rank) != first, *rank));
    ranks.truncate(count);
    let one = |rank: u32| {
        let encoded = client.snapshot(&capture.id, rank).ok()?;
        Some((rank, snapshot::decode(&encoded, Bounds::default()).ok()?))
    };
    ranks.into_iter().filter_map(one).collect()
}

/// The ranks of a capture whose snapshots are stored, in order.
fn stored(capture: &Capture) -> Vec<u32> {
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
            bail!(no_rank(rank, id, &known));
        };
        if part.hash.is_none() {
            let outcome: &str = part.outcome.as_str();
            let detail = if part.detail.is_empty() { "" } else { ", " };
            bail!(
                "{id} has no snapshot of rank {rank} ({outcome}{detail}{}): {}",
                part.detail,
                listed_ranks(&stored(capture))
            );
        }
        return Ok(vec![rank]);
    }
    let ranks = stored(capture);
    if ranks.is_empty() {
        let word = shell_word(id);
        bail!("{id} holds no snapshot: `memtape show {word}` says what became of each rank");
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_rank_is_answered_with_the_list_of_ranks() {
        let part = |rank: u32, hash: Option<[u8; 32]>| Part { rank, hash, ..Part::default() };
        let parts = vec![part(1, Some([1; 32])), part(0, Some([2; 32])), part(2, None)];
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
}

//! How the ranks of a capture stand in their collectives, from their stored bodies.
//!
//! Read when it is asked for: the collectives stand in front of a body, so little of it is
//! unpacked. One body is in memory at a time.

use memtape_core::capture::collective::{self, Behind, GroupState, Lag, RankState};
use memtape_core::snapshot::{CollectiveGroup, Collectives};
use memtape_proto::snapshot;
use serde_json::{Value, json};

use crate::records::PartRecord;
use crate::store::Store;

/// Bodies that are read for one answer: the largest jobs take some seconds.
const BODIES_MAX: usize = 4096;

/// The comparison of a capture's ranks, and what each of them says.
pub(crate) async fn of(store: &Store, parts: Vec<PartRecord>) -> Value {
    let mut states = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let state = match part.hash() {
            Some(hash) if index < BODIES_MAX => read(store, hash).await,
            Some(_) => Err(format!("only the first {BODIES_MAX} ranks are read")),
            None => Err(format!("the capture has nothing of it ({})", part.outcome)),
        };
        states.push(state);
    }
    let ranks: Vec<RankState<'_>> = parts
        .iter()
        .zip(&states)
        .map(|(part, state)| RankState {
            rank: part.rank,
            dead: part.dead,
            state: state.as_ref().map_err(String::as_str),
        })
        .collect();
    let found = collective::compare(&ranks);
    let unknown = found.unknown.iter().map(|(why, ranks)| json!({ "why": why, "ranks": ranks }));
    json!({
        "sentences": found.sentences(),
        "groups": found.groups.iter().map(group).collect::<Vec<_>>(),
        "unknown": unknown.collect::<Vec<_>>(),
        "uncompared": found.uncompared, "waiting_untold": found.waiting_untold,
        "ranks": ranks.iter().map(rank).collect::<Vec<_>>(),
    })
}

async fn read(store: &Store, hash: blake3::Hash) -> Result<Collectives, String> {
    let body = store.blobs().get(hash).await?;
    let found = tokio::task::spawn_blocking(move || snapshot::collectives(&body)).await;
    let found = found.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    found.ok_or_else(|| "its agent does not say".to_string())
}

fn group(of: &GroupState) -> Value {
    json!({
        "name": of.name, "desc": of.desc, "size": of.size, "ranks": of.ranks,
        "verdict": of.verdict.as_str(), "sentence": of.sentence(), "furthest": of.furthest,
        "waiting": of.waiting, "waited_ns": of.waited_ns,
        "behind": of.behind.iter().map(behind).collect::<Vec<_>>(),
    })
}

fn behind(of: &Behind) -> Value {
    let (why, ns) = match of.lag {
        Lag::Late(ns) => ("late", Some(ns)),
        Lag::Dead => ("dead", None),
        Lag::Silent(ns) => ("silent", Some(ns)),
    };
    json!({ "rank": of.rank, "enqueued": of.enqueued, "why": why, "ns": ns })
}

fn rank(of: &RankState<'_>) -> Value {
    match of.state {
        Err(why) => json!({ "rank": of.rank, "unknown": why }),
        Ok(state) => json!({
            "rank": of.rank,
            "unknown": state.source.why_not(),
            "source_since_ns": state.source_since_ns,
            "look_wall_ns": state.look_wall_ns,
            "look_took_ns": state.look_took_ns,
            "asked_wall_ns": state.asked_wall_ns,
            "groups_lost": state.groups_lost,
            "groups": state.groups.iter().map(rank_group).collect::<Vec<_>>(),
        }),
    }
}

fn rank_group(of: &CollectiveGroup) -> Value {
    json!({
        "id": of.id, "key": format!("{:016x}", of.key), "name": of.name, "desc": of.desc,
        "size": of.size, "enqueued": of.enqueued, "started": of.started,
        "completed": of.completed, "since_wall_ns": of.since_wall_ns,
    })
}

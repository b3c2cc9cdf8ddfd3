//! Progress of the ranks of a capture in their collectives, from their stored snapshots.
//!
//! Read when it is asked for: the collectives stand in front of a snapshot, so little of it is kept
//! and unpacked. One snapshot is read at a time, and none any more when the client has left.

use memtape_core::capture::collective::{RankState, compare};
use memtape_core::capture::{Outcome, Part};
use memtape_core::limits::RANKS_COMPARED_MAX;
use memtape_core::snapshot::Collectives as Recorded;
use memtape_proto::api::{Collectives, RankCollectives};
use memtape_proto::snapshot::{self, DecodeError};
use tokio::task::JoinError;

use crate::work::blocking::blocking;
use memtape_store::Blobs;
use memtape_store::records::snapshot_of;

/// The comparison of a capture's ranks, and what each of them says.
pub(crate) async fn of(blobs: &Blobs, parts: Vec<Part>) -> Collectives {
    let mut states = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let state = match snapshot_of(part) {
            Some(hash) if index < RANKS_COMPARED_MAX => read(blobs, hash).await,
            Some(_) => Err(NotRead::TooMany),
            None => Err(NotRead::NotInCapture(part.outcome)),
        };
        states.push(state.map_err(|why| why.to_string()));
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
    Collectives { comparison: compare(&ranks), ranks: ranks.iter().map(rank).collect() }
}

/// Bytes at the beginning of a stored snapshot with which its collectives can be unpacked: more
/// than a block of zstd.
const FRONT_BYTES: usize = 256 << 10;

/// Why nothing is known of a rank's collectives.
#[derive(Debug, thiserror::Error)]
enum NotRead {
    #[error("only the first {RANKS_COMPARED_MAX} ranks are read")]
    TooMany,
    #[error("the capture has nothing of it ({})", .0.as_str())]
    NotInCapture(Outcome),
    #[error("its agent does not say")]
    NotSaid,
    #[error(transparent)]
    Store(#[from] memtape_store::Error),
    #[error(transparent)]
    Broken(#[from] JoinError),
    #[error(transparent)]
    Undecodable(#[from] DecodeError),
}

async fn read(blobs: &Blobs, hash: blake3::Hash) -> Result<Recorded, NotRead> {
    let mut reading = blobs.read(hash).await?;
    let mut front = Vec::new();
    // To the end, for its hash.
    while let Some(part) = reading.next().await? {
        let room = FRONT_BYTES.saturating_sub(front.len()).min(part.len());
        front.extend_from_slice(&part[..room]);
    }
    let found = blocking(move || snapshot::collectives(&front)).await??;
    found.ok_or(NotRead::NotSaid)
}

fn rank(of: &RankState<'_>) -> RankCollectives {
    match of.state {
        Err(why) => RankCollectives {
            rank: of.rank,
            unknown: Some(why.to_string()),
            ..RankCollectives::default()
        },
        Ok(state) => RankCollectives { rank: of.rank, ..state.into() },
    }
}

//! What a rank of a capture has kept, beside its peers: reads their stored snapshots.
//!
//! One snapshot is in memory at a time: each is added to a table of bounded size before the next
//! one is read. The decision what counts is core's ([`memtape_core::stacks`]). No snapshot is read
//! any more when the client has left.

use std::sync::{Arc, Mutex, PoisonError};

use memtape_core::limits::STACKS_COMPARED_BYTES_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::stacks::{AllocationSteps, ComparedStacks, LiveStacks, not_a_peer};
use memtape_proto::api::{Kept, MissingPeer};

use crate::work::blocking::blocking;
use crate::work::decoding::{NotRead, Snapshots};

/// A rank's snapshot and those of its peers.
pub(crate) struct Wanted {
    pub(crate) hash: blake3::Hash,
    /// Steps in which the memory was allocated.
    pub(crate) steps: AllocationSteps,
    /// The rank's snapshot in another capture, which it is compared with in place of peers.
    pub(crate) baseline: Option<blake3::Hash>,
    /// Each peer, and why it has no snapshot.
    pub(crate) peers: Vec<(u32, Result<blake3::Hash, String>)>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    #[error(transparent)]
    Unreadable(#[from] NotRead),
    /// The steps end after the snapshot.
    #[error("the snapshot shows no step after {last_step}")]
    Later { last_step: u64 },
}

/// The rank's own stacks, and what its peers must have in common with it.
struct Own {
    step: u64,
    role: String,
    compared: ComparedStacks,
}

/// The rank's memory beside its peers', or beside its own in another capture. A peer that cannot be
/// compared is listed as missing.
///
/// # Errors
/// A snapshot of the rank cannot be read, or the steps end after the first one.
pub(crate) async fn compare(stored: &Snapshots, wanted: Wanted) -> Result<Kept, NotKept> {
    let Wanted { hash, steps, baseline, peers: wanted } = wanted;
    let bounds = stored.bounds().without_trace();
    let own = stored.read(hash, bounds, move |of, _| own(&of, steps)).await?;
    let Own { step, role, compared } = own?;
    let (compared, role) = (Arc::new(Mutex::new(compared)), Arc::new(role));
    if let Some(hash) = baseline {
        let table = compared.clone();
        let add = move |of: RankSnapshot, _| add_other(&table, &of, steps);
        stored.read(hash, bounds, add).await?;
    }
    let (mut peers, mut missing_peers) = (Vec::new(), Vec::new());
    for (rank, hash) in wanted {
        let (table, role) = (compared.clone(), role.clone());
        let add = move |of: RankSnapshot, _| match not_a_peer(&role, step, &of) {
            Some(why) => Err(why.to_string()),
            None => {
                add_other(&table, &of, steps);
                Ok(())
            }
        };
        let added = match hash {
            Ok(hash) => {
                stored.read(hash, bounds, add).await.unwrap_or_else(|why| Err(why.to_string()))
            }
            Err(why) => Err(why),
        };
        match added {
            Ok(()) => peers.push(rank),
            Err(why) => missing_peers.push(MissingPeer { rank, why }),
        }
    }
    peers.sort_unstable();
    missing_peers.sort_unstable_by_key(|missing| missing.rank);
    let kept = blocking(move || Kept::of(&compared.lock().unwrap_or_else(PoisonError::into_inner)));
    let kept = kept.await.map_err(NotRead::from)?;
    Ok(Kept { step, peers, missing_peers, ..kept })
}

fn add_other(table: &Mutex<ComparedStacks>, of: &RankSnapshot, steps: AllocationSteps) {
    let live = LiveStacks::of_snapshot(of, steps);
    table.lock().unwrap_or_else(PoisonError::into_inner).add_other(&live);
}

fn own(of: &RankSnapshot, steps: AllocationSteps) -> Result<Own, NotKept> {
    let last_step = AllocationSteps::last_of(of);
    if steps.end_after(last_step) {
        return Err(NotKept::Later { last_step });
    }
    let live = LiveStacks::of_snapshot(of, steps);
    Ok(Own {
        step: of.step,
        role: of.identity.role.clone(),
        compared: ComparedStacks::of(&live, STACKS_COMPARED_BYTES_MAX),
    })
}

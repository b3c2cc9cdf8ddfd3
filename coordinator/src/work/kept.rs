//! What a rank of a capture has kept, beside its peers: reads their stored snapshots.
//!
//! One snapshot is in memory at a time: each is added to a table of bounded size before the next
//! one is read. The decision what counts is core's ([`memtape_core::stacks`]). No snapshot is read
//! any more when the client has left.

use std::sync::{Arc, Mutex, PoisonError};

use memtape_core::limits::STACKS_COMPARED_BYTES_MAX;
use memtape_core::snapshot::RankSnapshot;
use memtape_core::stacks::{AllocationSteps, ComparedStacks, HeldAt, LiveStacks, not_a_peer};
use memtape_proto::api::{FailedMemory, Kept, MissingPeer};
use memtape_proto::snapshot::Bounds;

use crate::work::blocking::blocking;
use crate::work::decoding::{NotRead, Snapshots};

/// A rank's snapshot and those of its peers.
pub(crate) struct Wanted {
    pub(crate) hash: blake3::Hash,
    pub(crate) at: HeldAt,
    /// Where a snapshot does not show `at`, the end of the step is shown.
    pub(crate) or_step_end: bool,
    /// Steps in which the memory was allocated; all of them except at the end of the step.
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
    /// The snapshot has no trace, or no request failed.
    #[error("the snapshot does not show the memory at the {}", at.as_str())]
    NotShown { at: HeldAt },
}

/// The rank's own stacks, and what its peers must have in common with it.
struct Own {
    /// The step of the snapshot.
    step: u64,
    role: String,
    /// The time and the step that the memory is of, and the failed request.
    known: Kept,
    compared: ComparedStacks,
}

/// The rank's memory beside its peers', or beside its own in another capture. A peer that cannot be
/// compared is listed as missing.
///
/// # Errors
/// A snapshot of the rank cannot be read or does not show this time, or the steps end after the
/// first one.
pub(crate) async fn compare(stored: &Snapshots, wanted: Wanted) -> Result<Kept, NotKept> {
    match compare_at(stored, &wanted, wanted.at).await {
        Err(NotKept::NotShown { .. }) if wanted.or_step_end => {
            compare_at(stored, &wanted, HeldAt::StepEnd).await
        }
        compared => compared,
    }
}

async fn compare_at(stored: &Snapshots, wanted: &Wanted, at: HeldAt) -> Result<Kept, NotKept> {
    let Wanted { hash, steps, baseline, peers: wanted, .. } = wanted;
    let steps = *steps;
    let own = stored.read(*hash, bounds(stored, at), move |of, _| own(&of, at, steps)).await?;
    let Own { step, role, known, compared } = own?;
    let (compared, role) = (Arc::new(Mutex::new(compared)), Arc::new(role));
    let at = at.of_others();
    let bounds = bounds(stored, at);
    let add_other = move |table: &Mutex<ComparedStacks>, of: &RankSnapshot| {
        let live = LiveStacks::held_at(of, at, steps).ok_or(NotKept::NotShown { at })?;
        table.lock().unwrap_or_else(PoisonError::into_inner).add_other(&live);
        Ok::<_, NotKept>(())
    };
    if let Some(hash) = baseline {
        let table = compared.clone();
        stored.read(*hash, bounds, move |of, _| add_other(&table, &of)).await??;
    }
    let (mut peers, mut missing_peers) = (Vec::new(), Vec::new());
    for (rank, hash) in wanted {
        let (table, role) = (compared.clone(), role.clone());
        let add = move |of: RankSnapshot, _| match not_a_peer(&role, step, &of) {
            Some(why) => Err(why.to_string()),
            None => add_other(&table, &of).map_err(|why| why.to_string()),
        };
        let added = match hash {
            Ok(hash) => {
                stored.read(*hash, bounds, add).await.unwrap_or_else(|why| Err(why.to_string()))
            }
            Err(why) => Err(why.clone()),
        };
        match added {
            Ok(()) => peers.push(*rank),
            Err(why) => missing_peers.push(MissingPeer { rank: *rank, why }),
        }
    }
    peers.sort_unstable();
    missing_peers.sort_unstable_by_key(|missing| missing.rank);
    let kept = blocking(move || Kept::of(&compared.lock().unwrap_or_else(PoisonError::into_inner)));
    let kept = kept.await.map_err(NotRead::from)?;
    let Kept { at, step, failed, .. } = known;
    Ok(Kept { at, step, failed, peers, missing_peers, ..kept })
}

/// A peak is in the trace.
fn bounds(stored: &Snapshots, at: HeldAt) -> Bounds {
    match at {
        HeldAt::Peak => stored.bounds(),
        HeldAt::StepEnd | HeldAt::FailedRequest => stored.bounds().without_trace(),
    }
}

fn own(of: &RankSnapshot, at: HeldAt, steps: AllocationSteps) -> Result<Own, NotKept> {
    let last_step = AllocationSteps::last_of(of);
    if steps.end_after(last_step) {
        return Err(NotKept::Later { last_step });
    }
    let live = LiveStacks::held_at(of, at, steps).ok_or(NotKept::NotShown { at })?;
    let (shown, failed) = (live.step(), FailedMemory::of(of));
    Ok(Own {
        step: of.step,
        role: of.identity.role.clone(),
        known: Kept { at: at.into(), step: shown, failed, ..Kept::default() },
        compared: ComparedStacks::of(&live, STACKS_COMPARED_BYTES_MAX),
    })
}

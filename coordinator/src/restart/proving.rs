//! The proof, right before a target is asked for a change, that this coordinator still owns its
//! store: what another coordinator took over is acted on by that one alone.
//!
//! In a cluster the proof is a write through the fence of the shard; with a folder it is free. It
//! holds for a short time ([`Proof::holds`]), which goes on while the process is stopped. A process
//! that is stopped between the last check and the request itself is not noticed: for that, targets
//! have preconditions of their own. Requests that end what was begun (an object that is resumed)
//! need no proof: left half done, they would hold a job up.

use memtape_core::action::Outcome;
use memtape_core::limits::{ACTION_PROOF_SECONDS_MAX, ACTION_PROOFS_MAX};
use memtape_core::placement::Proof;
use memtape_disk::clock;
use memtape_store::{Error, Store};
use tokio::sync::oneshot;

use crate::restart::target::refused;

/// The proof of ownership, as an order has it.
#[derive(Clone, Debug, Default)]
pub(crate) enum Prover {
    /// Proves nothing: an order that no target has got yet.
    #[default]
    None,
    /// Proves that the store is owned.
    Store(Store),
    /// The same without the store's thread, for simulations.
    #[cfg(all(feature = "cluster", feature = "simulation"))]
    Shard(crate::testing::SimulatedProof),
    #[cfg(test)]
    Always,
}

/// Why a request is not made.
#[derive(Debug, thiserror::Error)]
enum NotProved {
    #[error(
        "nothing was asked for: {0}: this coordinator cannot prove that it owns its store; look at \
         the bucket or the data folder, and ask the owner (`memtape cluster` names it)"
    )]
    NotOwned(#[from] Error),
    #[error(
        "nothing was asked for: of {ACTION_PROOFS_MAX} proofs that this coordinator owns its store \
         each took longer than {ACTION_PROOF_SECONDS_MAX} s: look at the bucket, and at the load \
         of this machine"
    )]
    TooSlow,
    #[error("nothing was asked for: the coordinator is stopping")]
    Stopping,
}

impl Prover {
    /// Proves the ownership. The request that needs it follows at once.
    ///
    /// # Errors
    /// The outcome of an action that was not asked for.
    pub(crate) async fn prove(&self) -> Result<(), Outcome> {
        self.proved().await.map_err(refused)
    }

    async fn proved(&self) -> Result<(), NotProved> {
        for _ in 0..ACTION_PROOFS_MAX {
            if self.proof().await?.holds(clock::now().mono_ns) {
                return Ok(());
            }
        }
        Err(NotProved::TooSlow)
    }

    /// Proves the ownership once.
    async fn proof(&self) -> Result<Proof, NotProved> {
        match self {
            Self::None => Err(NotProved::Stopping),
            Self::Store(store) => {
                let (reply, proof) = oneshot::channel();
                store.prove(Box::new(move |proved| drop(reply.send(proved))));
                Ok(proof.await.map_err(|_| NotProved::Stopping)??)
            }
            #[cfg(all(feature = "cluster", feature = "simulation"))]
            Self::Shard(shard) => shard.proof().await.ok_or(NotProved::Stopping),
            #[cfg(test)]
            Self::Always => Ok(Proof::new(clock::now().mono_ns)),
        }
    }
}

#[cfg(test)]
mod tests;

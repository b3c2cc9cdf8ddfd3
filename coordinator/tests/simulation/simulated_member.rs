//! A coordinator of a cluster in a simulated bucket: how it waits for the shard, takes it, renews
//! its hint and gives it up is the product's own code. What it stores is the simulation's matter.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use memtape_core::placement::Proof;
use memtape_disk::clock;
use memtape_store::bucket::Bucket;
use memtape_store::cluster::shard::Shard;

use crate::cluster::{Member, Ownership};
use crate::restart::proving::Prover;

/// A coordinator that may come to own the shard.
#[derive(Debug)]
pub struct SimulatedMember(Member);

/// The ownership of the shard.
#[derive(Debug)]
pub struct SimulatedOwnership(Ownership);

impl SimulatedMember {
    /// A coordinator's process of this name, which is never the same twice.
    pub fn new(bucket: Bucket, process: String) -> Self {
        Self(Member::new(bucket, 1, process, "http://simulated:7771".to_string()))
    }

    /// Waits until the shard may be taken, and takes it.
    ///
    /// # Errors
    /// The shard is damaged.
    pub async fn own(self) -> anyhow::Result<SimulatedOwnership> {
        self.0.own().await.map(SimulatedOwnership)
    }
}

impl SimulatedOwnership {
    /// The shard. It must be let go before the ownership is closed.
    pub fn shard(&self) -> Arc<Shard> {
        self.0.shard().rows()
    }

    /// Waits until another coordinator claimed the hint or took the shard.
    pub async fn lost(&mut self) {
        self.0.lost().await;
    }

    /// Gives the shard up.
    ///
    /// # Errors
    /// The bucket did not answer in time, or another coordinator took the shard.
    pub async fn close(self) -> anyhow::Result<()> {
        self.0.close().await
    }
}

/// Proofs of the ownership of a shard: what `Store::prove` does, without its thread.
#[derive(Clone, Debug)]
pub struct SimulatedProof {
    shard: Arc<Shard>,
    /// When the last one was begun, by the wall clock.
    begun_wall_ns: Arc<AtomicI64>,
}

impl SimulatedProof {
    /// Proofs of the ownership of this shard.
    pub fn new(shard: Arc<Shard>) -> Self {
        Self { shard, begun_wall_ns: Arc::default() }
    }

    /// Proves the ownership as before an action. When the proof that holds was begun, by the wall
    /// clock; none if nothing may be done.
    pub async fn prove(&self) -> Option<i64> {
        let proved = Prover::Shard(self.clone()).prove().await;
        proved.is_ok().then(|| self.begun_wall_ns.load(Relaxed))
    }

    pub(crate) async fn proof(&self) -> Option<Proof> {
        let begun = clock::now();
        self.begun_wall_ns.store(begun.wall_ns, Relaxed);
        self.shard.prove().await.ok().map(|()| Proof::new(begun.mono_ns))
    }
}

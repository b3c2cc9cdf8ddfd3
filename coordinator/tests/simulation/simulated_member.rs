//! A coordinator of a cluster in a simulated bucket: how it waits for the shard, takes it, renews
//! its hint and gives it up is the product's own code. What it stores is the simulation's matter.

use std::sync::Arc;

use memtape_store::bucket::Bucket;
use memtape_store::cluster::shard::Shard;

use crate::cluster::{Member, Ownership};

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

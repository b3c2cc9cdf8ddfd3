//! The coordinators that hold a load: one on a folder, or one for each shard of the tests' bucket,
//! which the generator's process serves.
//!
//! They are real processes. Each shard has its coordinator; none waits. They are killed and started
//! again all at once.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use memtape_bucket::{Fault, Rule, Server};
use memtape_core::placement::shard_of;
use memtape_proto::api::Cluster;
use memtape_proto::v1;
use tempfile::TempDir;

use crate::coordinator::{Binary, Coordinator, Target, Usage};
use crate::job::Node;
use crate::readback::{self, Found};

/// Running coordinators, in the order of their shards.
#[derive(Debug)]
pub(crate) struct Shards {
    binary: Binary,
    count: u16,
    all: Vec<Arc<Coordinator>>,
    bucket: Option<Server>,
    folder: TempDir,
}

/// What all of them have used so far, each on its own.
pub(crate) type Usages = Vec<Usage>;

impl Shards {
    /// Starts this number of coordinators, in a bucket whose requests take this time, or one on a
    /// folder.
    pub(crate) async fn start(
        binary: &Binary,
        bucket_ms: Option<u64>,
        count: u16,
    ) -> anyhow::Result<Self> {
        if count > 1 && bucket_ms.is_none() {
            bail!("several coordinators need a bucket: --bucket-ms");
        }
        let bucket = match bucket_ms {
            Some(ms) => Some(bucket(Duration::from_millis(ms)).await),
            None => None,
        };
        let settings = bucket.as_ref().map(|bucket| bucket.settings("a"));
        let binary = Binary { bucket: settings, ..binary.clone() };
        let folder = tempfile::tempdir()?;
        let mut shards = Self { binary, count, all: Vec::new(), bucket, folder };
        shards.begin().await?;
        Ok(shards)
    }

    /// Starts all coordinators at once, and waits until each listens; the time until then.
    async fn begin(&mut self) -> anyhow::Result<Duration> {
        let begin = Instant::now();
        let mut starting = Vec::new();
        for _ in 0..self.count {
            let (mut binary, folder) = (self.binary.clone(), self.folder.path().to_path_buf());
            if self.count > 1 {
                let arguments = ["--cluster-shards", &self.count.to_string()].map(String::from);
                binary.arguments.extend(arguments);
                // Others learn the port from the hint, so it must be known at the start.
                binary.listen = free_address()?;
            }
            starting.push(tokio::task::spawn_blocking(move || binary.start(&folder)));
        }
        let mut by_shard = Vec::new();
        for starting in starting {
            let coordinator = starting.await??;
            let shard = match self.count {
                1 => 0,
                _ => own_shard(&coordinator).await?,
            };
            by_shard.push((shard, Arc::new(coordinator)));
        }
        let listening = begin.elapsed();
        by_shard.sort_by_key(|(shard, _)| *shard);
        self.all = by_shard.into_iter().map(|(_, coordinator)| coordinator).collect();
        Ok(listening)
    }

    /// Kills all of them, and starts them again; the time until each listens.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<Duration> {
        for coordinator in self.all.drain(..) {
            coordinator.kill();
        }
        self.begin().await
    }

    /// Where agents of each shard connect.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let of = u32::from(self.count);
        let shard = |number| v1::Shard { number, of };
        let target = |(number, coordinator): (u32, &Arc<Coordinator>)| Target {
            shard: (of > 1).then(|| shard(number)),
            ..Target::of(coordinator)
        };
        (0..).zip(&self.all).map(target).collect()
    }

    /// What they have used so far.
    pub(crate) fn usages(&self) -> anyhow::Result<Usages> {
        self.all.iter().map(|coordinator| coordinator.usage()).collect()
    }

    /// Requests to the bucket so far, and those that were a PUT; none of a folder.
    pub(crate) fn requests(&self) -> Option<(u64, u64)> {
        self.bucket.as_ref().map(|bucket| (bucket.requests(), bucket.puts()))
    }

    /// Sum of a metric of all of them.
    pub(crate) async fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for coordinator in &self.all {
            sum += coordinator.metric(name, "").await?.unwrap_or(0.0);
        }
        Ok(sum)
    }

    /// Reads the records of these nodes back, each from the owner of its jobs.
    pub(crate) async fn read_back(&self, acked: &[(Node, u64)]) -> anyhow::Result<Found> {
        let mut found = Found::default();
        for (shard, coordinator) in (0..).zip(&self.all) {
            let is_own = |(node, _): &&(Node, u64)| shard_of(&node.job, self.count) == shard;
            let own: Vec<_> = acked.iter().filter(is_own).cloned().collect();
            found += readback::records(coordinator, &own).await?;
        }
        Ok(found)
    }
}

/// The shard that a coordinator owns.
async fn own_shard(coordinator: &Coordinator) -> anyhow::Result<u16> {
    let cluster: Cluster = coordinator.get("/cluster").await?;
    let own = cluster.shards.iter().find(|shard| shard.owner == coordinator.url);
    Ok(own.with_context(|| format!("{} names no shard of its own", coordinator.url))?.shard)
}

/// The tests' bucket, each of whose requests takes this time.
async fn bucket(latency: Duration) -> Server {
    let server = Server::start().await;
    server.add_rule(Rule::of("", Fault::Slow(latency)));
    server
}

/// A port that was free just now.
fn free_address() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

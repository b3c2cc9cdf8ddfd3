//! A coordinator of a cluster: it waits until it may own the shard in the bucket, takes it, and
//! renews the hint that says so.
//!
//! Of several coordinators on one bucket one owns the shard; the others wait, and do not listen.
//! When the owner's hint was not renewed for its time, one of them claims it and takes the shard.
//! An owner whose hint or shard was taken ends, and waits when it is started again. The hint
//! only decides who tries: the fence of the shard refuses every write of an earlier owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::bail;
use memtape_core::placement::{HINT_EVERY_NS, HintWatch, Owner};
use memtape_disk::clock;
use memtape_store::bucket::Bucket;
use memtape_store::cluster::hint::{Hint, Version};
use memtape_store::cluster::shard::{Epoch, Shard, ShardError, ShardId};
use memtape_store::cluster::{identity, proof::process_name};
use memtape_store::{Loaded, Recovery, Store};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The one shard, as long as jobs are not divided.
const SHARD: ShardId = ShardId(0);

/// Time for taking the shard, with the replay of what was not written to tables.
const TAKE_TIME: Duration = Duration::from_secs(120);

/// Time for writing tables and giving the shard up at the end.
const CLOSE_TIME: Duration = Duration::from_secs(20);

const HINT_EVERY: Duration = Duration::from_nanos(HINT_EVERY_NS);

/// Waits until the shard of the cluster in this bucket may be taken, and takes it.
pub(crate) async fn own(url: &str, address: String) -> anyhow::Result<Ownership> {
    Member::join(url, address).await?.own().await
}

/// A coordinator that knows the bucket of its cluster.
#[derive(Debug)]
struct Member {
    bucket: Bucket,
    hint: Hint,
    owner: Owner,
}

/// An owned shard, with the place of its snapshots.
#[derive(Clone, Debug)]
pub(crate) struct OwnedShard {
    shard: Arc<Shard>,
    snapshots_url: String,
}

/// The ownership of a shard, which is renewed until it ends.
#[derive(Debug)]
pub(crate) struct Ownership {
    shard: OwnedShard,
    /// Ends when another coordinator claimed the hint.
    renewing: JoinHandle<()>,
    process: String,
    hint: Hint,
}

impl Member {
    /// Connects to the bucket, by the `AWS_…` variables, and joins or makes its cluster.
    async fn join(url: &str, address: String) -> anyhow::Result<Self> {
        let bucket = Bucket::of_environment(url)?;
        let process = process_name();
        let cluster = identity::join(&bucket, &process).await?;
        tracing::info!(cluster = cluster.id, shards = cluster.shards, "joined {url}");
        let hint = Hint::new(&bucket, SHARD);
        Ok(Self { bucket, hint, owner: Owner { process, address, ..Owner::default() } })
    }

    /// Waits until the shard may be taken, and takes it.
    async fn own(self) -> anyhow::Result<Ownership> {
        let mut watch = HintWatch::default();
        let mut shown = None;
        loop {
            match self.hint.read().await {
                Err(why) => {
                    watch.missed();
                    say(&mut shown, format!("the cluster's bucket cannot be read: {why}"));
                }
                Ok(known) => {
                    let tag = known.as_ref().map(|(_, version)| version.tag());
                    let has_left = known.as_ref().is_some_and(|(owner, _)| owner.has_left);
                    if watch.may_claim(clock::now().mono_ns, tag) || has_left {
                        if let Some(taken) = self.claim(known).await? {
                            return Ok(taken);
                        }
                        watch.missed();
                    } else if let Some((owner, _)) = known {
                        say(&mut shown, format!("waiting: {} owns the cluster", owner.address));
                    }
                }
            }
            sleep(HINT_EVERY).await;
        }
    }

    /// Claims the hint, and takes the shard; none when another coordinator was faster.
    async fn claim(&self, known: Option<(Owner, Version)>) -> anyhow::Result<Option<Ownership>> {
        let (epoch, version) = known.map_or((0, None), |(owner, of)| (owner.epoch, Some(of)));
        let owner = Owner { epoch, ..self.owner.clone() };
        let Ok(Some(version)) = self.hint.write(version, &owner).await else { return Ok(None) };
        // Renewed from now on: taking the shard may last longer than a hint.
        let (epoch, seen) = (Arc::new(AtomicU64::new(epoch)), Epoch(owner.epoch));
        let renewing = tokio::spawn(renew(self.hint.clone(), owner, version, epoch.clone()));
        let shard = match Shard::take(&self.bucket, SHARD, Some(seen), TAKE_TIME).await {
            // The last owner did not come to note its epoch.
            Err(ShardError::Taken) if !renewing.is_finished() => {
                Shard::take(&self.bucket, SHARD, None, TAKE_TIME).await
            }
            taken => taken,
        };
        match shard {
            Ok(shard) => {
                epoch.store(shard.epoch().0, Relaxed);
                tracing::info!(epoch = shard.epoch().0, "owns {}", shard.name());
                if let Err(why) = identity::raise(&self.bucket).await {
                    tracing::warn!("the version of the cluster is not noted: {why}");
                }
                let snapshots_url = SHARD.snapshots_url(&self.bucket);
                let shard = OwnedShard { shard: Arc::new(shard), snapshots_url };
                let (process, hint) = (self.owner.process.clone(), self.hint.clone());
                Ok(Some(Ownership { shard, renewing, process, hint }))
            }
            Err(ShardError::Damaged) => {
                renewing.abort();
                bail!("{} is damaged, or of another version of Memtape", self.bucket.url())
            }
            Err(why) => {
                renewing.abort();
                tracing::warn!("the shard could not be taken: {why}");
                Ok(None)
            }
        }
    }
}

/// Renews the hint, with this epoch, until another coordinator claims it.
async fn renew(hint: Hint, mut owner: Owner, mut version: Version, epoch: Arc<AtomicU64>) {
    loop {
        sleep(HINT_EVERY).await;
        let renewed = Owner { epoch: epoch.load(Relaxed), renewals: owner.renewals + 1, ..owner };
        match hint.write(Some(version.clone()), &renewed).await {
            Ok(Some(of)) => version = of,
            Ok(None) => return,
            // While the bucket is away no other coordinator can claim the hint either.
            Err(why) => tracing::debug!("the hint of the shard is not renewed: {why}"),
        }
        owner = renewed;
    }
}

impl OwnedShard {
    /// Opens the store of the shard. Blocks, and not on an async loop.
    pub(crate) fn open_store(&self) -> memtape_store::Result<(Store, Loaded, Recovery)> {
        Store::open_shard(self.shard.clone(), Handle::current())
    }

    /// Where snapshots of captures are kept.
    pub(crate) fn snapshots_url(&self) -> &str {
        &self.snapshots_url
    }
}

impl Ownership {
    /// The shard.
    pub(crate) fn shard(&self) -> OwnedShard {
        self.shard.clone()
    }

    /// Waits until another coordinator claimed the hint or took the shard.
    pub(crate) async fn lost(&mut self) {
        let mut durable = self.shard.shard.durable();
        let taken = async { while durable.changed().await.end.is_none() {} };
        tokio::select! {
            _ = &mut self.renewing => {}
            () = taken => {}
        }
    }

    /// Gives the shard up, so that the next owner replays nothing and waits for nothing. The store
    /// must be closed.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Self { shard, renewing, process, hint } = self;
        let Some(shard) = Arc::into_inner(shard.shard) else { bail!("the shard is still in use") };
        let closed = shard.close(CLOSE_TIME).await;
        renewing.abort();
        closed.map_err(|why| anyhow::anyhow!("the shard could not be closed in order: {why}"))?;
        if let Some((owner, version)) = hint.read().await?
            && owner.process == process
        {
            let owner = Owner { has_left: true, ..owner };
            hint.write(Some(version), &owner).await?;
        }
        Ok(())
    }
}

/// Logs a line once, until it changes.
fn say(shown: &mut Option<String>, line: String) {
    if shown.as_ref() != Some(&line) {
        tracing::info!("{line}");
        *shown = Some(line);
    }
}

//! A coordinator of a cluster: it waits until it may own a shard in the bucket, takes it, and
//! renews the hint that says so.
//!
//! A coordinator owns one shard. Of several coordinators on one bucket as many work as there are
//! shards; the others wait, and listen on the port of health alone. When an owner's hint was not
//! renewed for its time, one of them claims it and takes the shard. An owner reads the hints of the
//! other shards, too, to tell agents and people where they are. An owner whose hint or shard was
//! taken ends, and waits when it is started again. One that cannot renew the hint sends its agents
//! away: the bucket may be there for another one. The hint only decides who tries: the fence of the
//! shard refuses every write of an earlier owner.

mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::bail;
use memtape_core::placement::{HINT_EVERY_NS, HINT_LASTS_NS, HintWatch, JobsShard, Owner};
use memtape_core::traffic::SAMPLE_EVERY_NS;
use memtape_core::waiting::WAITING_EVERY_NS;
use memtape_disk::clock;
use memtape_store::bucket::Bucket;
use memtape_store::cluster::hint::{Hint, Placement, Version};
use memtape_store::cluster::shard::{Epoch, Shard, ShardError, ShardId};
use memtape_store::cluster::waiting::WaitingNotes;
use memtape_store::cluster::{identity, proof::process_name};
use memtape_store::{Error, Kind, Loaded, Recovery, Requests, Store};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::access::Door;
use crate::cluster::waiting::Announcement;
use crate::config::Config;
use crate::http::gather::own_address;
#[cfg(feature = "kubernetes")]
use crate::kubernetes::api::is_name;
#[cfg(feature = "kubernetes")]
use crate::kubernetes::lease::{Lease, Leases};
use crate::members::{Members, Owners};
use crate::standing::{Claim, REPLACED, Sign, Standing};
use crate::state::counters::Counters;
use crate::tables;

/// Time for taking the shard, with the replay of what was not written to tables.
const TAKE_TIME: Duration = Duration::from_secs(120);

/// Time for writing tables and giving the shard up at the end.
const CLOSE_TIME: Duration = Duration::from_secs(20);

const WAITING_EVERY: Duration = Duration::from_nanos(WAITING_EVERY_NS);

const SAMPLE_EVERY: Duration = Duration::from_nanos(SAMPLE_EVERY_NS);

const HINT_EVERY: Duration = Duration::from_nanos(HINT_EVERY_NS);

/// Time for one renewal of the hint.
const HINT_LASTS: Duration = Duration::from_nanos(HINT_LASTS_NS);

/// Time between two reads of the other shards' hints by an owner, for each [`OWNERS_AT_ONCE`]
/// shards.
const OWNERS_EVERY: Duration = Duration::from_secs(2);

/// Hints that an owner reads at once, so that the requests of all owners do not grow with the
/// square of their number.
const OWNERS_AT_ONCE: usize = 8;

/// Waits until a shard of the cluster in this bucket may be taken, and takes it; none when the
/// shutdown came before.
pub(crate) async fn own(
    url: &str,
    config: &Config,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<Option<Ownership>> {
    let mut shutdown = std::pin::pin!(shutdown);
    let member = tokio::select! {
        joined = Member::join(url, config) => joined?,
        () = &mut shutdown => return Ok(None),
    };
    let announcement = member.announcement.clone();
    let owned = tokio::select! {
        owned = member.own() => owned.map(Some),
        () = &mut shutdown => Ok(None),
    };
    match (&owned, announcement) {
        // An owner serves at once.
        (Ok(Some(_)), Some(announcement)) => announcement.end(),
        (_, Some(announcement)) => announcement.end_in_order().await,
        (_, None) => {}
    }
    owned
}

/// The hint of one shard, where the settings say.
#[derive(Clone, Debug)]
enum ShardHint {
    Bucket(Hint),
    #[cfg(feature = "kubernetes")]
    Lease(Lease),
}

impl Placement for ShardHint {
    fn what(&self) -> String {
        match self {
            Self::Bucket(hint) => hint.what(),
            #[cfg(feature = "kubernetes")]
            Self::Lease(lease) => lease.what(),
        }
    }

    async fn read(&self) -> memtape_store::Result<Option<(Owner, Version)>> {
        match self {
            Self::Bucket(hint) => hint.read().await,
            #[cfg(feature = "kubernetes")]
            Self::Lease(lease) => lease.read().await,
        }
    }

    async fn put(
        &self,
        from: Option<&Version>,
        owner: &Owner,
    ) -> memtape_store::Result<Option<Version>> {
        match self {
            Self::Bucket(hint) => hint.put(from, owner).await,
            #[cfg(feature = "kubernetes")]
            Self::Lease(lease) => lease.put(from, owner).await,
        }
    }
}

/// A coordinator that knows the bucket of its cluster.
#[derive(Debug)]
pub(crate) struct Member {
    bucket: Bucket,
    /// Of all shards, in order.
    hints: Vec<ShardHint>,
    owner: Owner,
    /// Id of its cluster; none in a simulation.
    cluster: Option<String>,
    /// Says that it waits; none in a simulation.
    announcement: Option<Arc<Announcement>>,
    pod: Pod,
}

/// The pod that a Service finds by a label, if there is one, and where to label it.
#[derive(Clone, Debug, Default)]
#[cfg(feature = "kubernetes")]
struct Pod(Option<(Leases, String)>);

#[derive(Clone, Debug, Default)]
#[cfg(not(feature = "kubernetes"))]
struct Pod {}

/// An owned shard, with the place of its snapshots.
#[derive(Clone, Debug)]
pub(crate) struct OwnedShard {
    shard: Arc<Shard>,
    bucket: Bucket,
    snapshots_url: String,
    members: Members,
    claim: Arc<Claim>,
}

/// The ownership of a shard, which is renewed until it ends.
#[derive(Debug)]
pub(crate) struct Ownership {
    shard: OwnedShard,
    /// Ends when another coordinator claimed the hint.
    renewing: JoinHandle<()>,
    /// Reads the hints of the other shards and who waits, counts requests, and labels the pod.
    beside: Vec<JoinHandle<()>>,
    process: String,
    hint: ShardHint,
    pod: Pod,
}

impl Member {
    /// Connects to the bucket, by the `AWS_…` variables, and joins its cluster, or makes one of as
    /// many shards as the settings say, unless a cluster is expected.
    async fn join(url: &str, config: &Config) -> anyhow::Result<Self> {
        let bucket = Bucket::of_environment(url)?;
        let process = process_name();
        let shards = config.cluster_shards;
        let cluster = match config.expects_store {
            true => identity::join_expected(&bucket, &process, shards).await?,
            false => identity::join(&bucket, &process, shards).await?,
        };
        tracing::info!(cluster = cluster.id, shards = cluster.shards, "joined {url}");
        let mut member = Self::new(bucket, cluster.shards, process, config.address());
        let notes = WaitingNotes::new(&member.bucket);
        let announcement = Announcement::new(notes, &member.owner, WAITING_EVERY);
        member.announcement = Some(Arc::new(announcement));
        member.cluster = Some(cluster.id);
        #[cfg(feature = "kubernetes")]
        if let Some(name) = &config.cluster_leases {
            if !config.cluster_pod.as_deref().is_none_or(is_name) {
                bail!("--cluster-pod is no name of a pod: leave it out, or name this one");
            }
            return Ok(member.with(Leases::connect(None, name).await?, config.cluster_pod.clone()));
        }
        Ok(member)
    }

    /// Keeps the hints in these Leases, and labels this pod.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn with(mut self, leases: Leases, pod: Option<String>) -> Self {
        for (shard, hint) in (0..).map(ShardId).zip(&mut self.hints) {
            *hint = ShardHint::Lease(leases.shard(shard, Hint::new(&self.bucket, shard)));
        }
        self.pod = Pod(pod.map(|pod| (leases, pod)));
        self
    }

    /// A coordinator of this name, in the bucket of a cluster that it joined.
    pub(crate) fn new(bucket: Bucket, shards: u16, process: String, address: String) -> Self {
        let hint = |shard| ShardHint::Bucket(Hint::new(&bucket, ShardId(shard)));
        let hints = (0..shards).map(hint).collect();
        Self {
            bucket,
            hints,
            owner: Owner { process, address, ..Owner::default() },
            cluster: None,
            announcement: None,
            pod: Pod::default(),
        }
    }

    /// Waits until a shard may be taken, and takes it.
    pub(crate) async fn own(self) -> anyhow::Result<Ownership> {
        let pod = self.pod.clone();
        let unlabelled = tokio::spawn(async move { pod.label(false).await });
        let mut watches = vec![HintWatch::default(); self.hints.len()];
        let mut shown = None;
        loop {
            let known = read_all(&self.hints).await;
            let mut owners = Vec::new();
            for (shard, (known, watch)) in (0..).zip(known.into_iter().zip(&mut watches)) {
                match known {
                    Err(why) => {
                        watch.missed();
                        say(&mut shown, format!("the cluster's owners cannot be read: {why}"));
                    }
                    Ok(known) if may_claim(watch, known.as_ref()) => {
                        if let Some(taken) = self.claim(ShardId(shard), known).await? {
                            unlabelled.abort();
                            return Ok(taken.labelled());
                        }
                        watch.missed();
                    }
                    Ok(known) => owners.extend(known.map(|(owner, _)| owner.shown().to_string())),
                }
            }
            match owners.as_slice() {
                [owner] if self.hints.len() == 1 => {
                    say(&mut shown, format!("waiting: {owner} owns the cluster"));
                }
                owners if owners.len() == self.hints.len() => {
                    say(
                        &mut shown,
                        format!(
                            "waiting: all {} shards have owners, or had less than 5 s ago",
                            owners.len()
                        ),
                    );
                }
                _ => {}
            }
            if let Some(announcement) = &self.announcement {
                announcement.begin();
            }
            sleep(HINT_EVERY).await;
        }
    }

    /// Is the cluster where it was joined? False where the bucket cannot be read.
    async fn is_cluster_there(&self) -> anyhow::Result<bool> {
        let Some(cluster) = &self.cluster else { return Ok(true) };
        match identity::is_there(&self.bucket, cluster).await {
            Ok(true) => Ok(true),
            Ok(false) => bail!(
                "the cluster {cluster} is no longer at {}: bring it back, then start this \
                 coordinator again",
                self.bucket.url()
            ),
            Err(why) => {
                tracing::debug!("the cluster cannot be read: {why}");
                Ok(false)
            }
        }
    }

    /// Claims the hint, and takes the shard; none when another coordinator was faster.
    async fn claim(
        &self,
        id: ShardId,
        known: Option<(Owner, Version)>,
    ) -> anyhow::Result<Option<Ownership>> {
        let Some(hint) = self.hints.get(usize::from(id.0)) else { return Ok(None) };
        if !self.is_cluster_there().await? {
            return Ok(None);
        }
        let (epoch, version) = known.map_or((0, None), |(owner, of)| (owner.epoch, Some(of)));
        let owner = Owner { epoch, ..self.owner.clone() };
        let Ok(Some(version)) = hint.write(version, &owner).await else { return Ok(None) };
        // Renewed from now on: taking the shard may last longer than a hint.
        let renewed_ns = AtomicU64::new(clock::now().mono_ns);
        let claim = Arc::new(Claim { epoch: AtomicU64::new(epoch), renewed_ns });
        let seen = Epoch(owner.epoch);
        let renewing = tokio::spawn(renew(hint.clone(), owner, version, claim.clone()));
        let shard = match Shard::take(&self.bucket, id, Some(seen), TAKE_TIME).await {
            // The last owner did not come to note its epoch.
            Err(ShardError::Taken) if !renewing.is_finished() => {
                Shard::take(&self.bucket, id, None, TAKE_TIME).await
            }
            taken => taken,
        };
        match shard {
            Ok(shard) => {
                claim.epoch.store(shard.epoch().0, Relaxed);
                tracing::info!(epoch = shard.epoch().0, "owns {}", shard.name());
                if let Err(why) = identity::raise(&self.bucket).await {
                    tracing::warn!("the version of the cluster is not noted: {why}");
                }
                let snapshots_url = id.snapshots_url(&self.bucket);
                let is_own = |at: usize| at == usize::from(id.0);
                let address = |at| is_own(at).then(|| self.owner.address.clone());
                let known = (0..self.hints.len()).map(|at| address(at).unwrap_or_default());
                let (owners, read) = watch::channel(known.collect());
                let others = self.hints.iter().cloned().enumerate();
                let others = others.filter(|(at, _)| !is_own(*at)).unzip();
                let requests = self.bucket.requests().cloned();
                let named = (self.owner.process.clone(), claim.clone());
                let standing = Standing::new(named, self.hints.len(), move || {
                    requests.as_ref().map(Requests::counts)
                });
                let members = Members::new(id.0, read).with(standing.clone());
                let notes = WaitingNotes::new(&self.bucket);
                let beside = vec![
                    tokio::spawn(read_owners(others, owners, standing.clone())),
                    tokio::spawn(waiting::watch(notes, standing.clone(), WAITING_EVERY)),
                    tokio::spawn(sample(standing)),
                ];
                let (shard, bucket) = (Arc::new(shard), self.bucket.clone());
                let shard = OwnedShard { shard, bucket, snapshots_url, members, claim };
                let (process, hint) = (self.owner.process.clone(), hint.clone());
                let pod = self.pod.clone();
                Ok(Some(Ownership { shard, renewing, beside, process, hint, pod }))
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

/// A hint as it was read.
type Read = memtape_store::Result<Option<(Owner, Version)>>;

/// Reads hints at the same time; a bucket may take long for each.
async fn read_all(hints: &[ShardHint]) -> Vec<Read> {
    let read = |hint: &ShardHint| {
        let hint = hint.clone();
        tokio::spawn(async move { hint.read().await })
    };
    let reading: Vec<JoinHandle<Read>> = hints.iter().map(read).collect();
    let mut known = Vec::new();
    for reading in reading {
        let broken = |error: JoinError| Err(Error::new(Kind::Io, error.to_string()));
        known.push(reading.await.unwrap_or_else(broken));
    }
    known
}

/// May the hint be claimed, as it is now? Its owner may have said that it left.
fn may_claim(watch: &mut HintWatch, known: Option<&(Owner, Version)>) -> bool {
    let is_left =
        watch.may_claim(clock::now().mono_ns, known.map(|(_, version)| version.0.as_str()));
    is_left || known.is_some_and(|(owner, _)| owner.has_left)
}

/// Reads again and again who owns the other shards; what cannot be read stays.
async fn read_owners(
    (shards, hints): (Vec<usize>, Vec<ShardHint>),
    owners: watch::Sender<Owners>,
    standing: Standing,
) {
    while !owners.is_closed() {
        let known = read_all(&hints).await;
        for (shard, known) in shards.iter().zip(&known) {
            if let Ok(known) = known {
                standing.note_sign(*shard, known.as_ref().and_then(sign));
            }
        }
        owners.send_modify(|owners| {
            for (shard, known) in shards.iter().zip(known) {
                if let (Some(owner), Ok(known)) = (owners.get_mut(*shard), known) {
                    let known = known.filter(|(known, _)| !known.has_left);
                    *owner = known.map(|(known, _)| known.address).unwrap_or_default();
                }
            }
        });
        sleep(OWNERS_EVERY * hints.len().div_ceil(OWNERS_AT_ONCE).max(1) as u32).await;
    }
}

/// The sign of life in a hint, unless its owner has left.
fn sign((owner, version): &(Owner, Version)) -> Option<Sign> {
    let (name, epoch, version) = (owner.process.clone(), owner.epoch, version.0.clone());
    (!owner.has_left).then_some(Sign { name, epoch, version })
}

/// Notes the number of requests again and again.
async fn sample(standing: Standing) {
    loop {
        standing.sample();
        sleep(SAMPLE_EVERY).await;
    }
}

/// Renews the hint, with the epoch of the claim, until another coordinator claims it.
async fn renew(hint: ShardHint, mut owner: Owner, mut version: Version, claim: Arc<Claim>) {
    loop {
        sleep(HINT_EVERY).await;
        (owner.epoch, owner.renewals) = (claim.epoch.load(Relaxed), owner.renewals + 1);
        match timeout(HINT_LASTS, hint.write(Some(version.clone()), &owner)).await {
            Ok(Ok(Some(of))) => {
                claim.renewed_ns.store(clock::now().mono_ns, Relaxed);
                version = of;
            }
            Ok(Ok(None)) => return,
            Ok(Err(why)) => tracing::debug!("the hint of the shard is not renewed: {why}"),
            Err(_) => tracing::debug!("the hint of the shard is not renewed in time"),
        }
    }
}

impl Pod {
    /// Labels the pod, when its coordinator owns a shard, or takes the label off.
    #[cfg(feature = "kubernetes")]
    async fn label(&self, serves: bool) {
        if let Self(Some((leases, pod))) = self {
            leases.label(pod, serves).await;
        }
    }

    #[cfg(not(feature = "kubernetes"))]
    async fn label(&self, _: bool) {}
}

impl OwnedShard {
    /// Opens the store of the shard. Blocks, and not on an async loop.
    pub(crate) fn open_store(&self) -> memtape_store::Result<(Store, Loaded, Recovery)> {
        Store::open_shard(self.shard.clone(), Handle::current())
    }

    /// Writes the tables of this store into the bucket at this interval, until it is dropped.
    pub(crate) fn keep_tables(
        &self,
        store: Store,
        every: Duration,
        counters: Arc<Counters>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (shard, shards) = (self.members.own(), self.members.shards());
        tables::keep((self.bucket.clone(), JobsShard { shard, shards }), store, every, counters)
    }

    /// Asks the URL of this coordinator until it leads to it. The coordinator must listen.
    pub(crate) fn watch_address(&self, door: Arc<Door>) -> impl Future<Output = ()> + Send + use<> {
        let url = self.members.url(self.members.own());
        own_address::watch(door, url, self.members.standing().clone())
    }

    /// May another coordinator have claimed the hint by now?
    pub(crate) fn is_hint_old(&self) -> bool {
        self.claim.age_ns() >= HINT_LASTS_NS
    }

    /// The shard itself.
    #[cfg(feature = "simulation")]
    pub(crate) fn rows(&self) -> Arc<Shard> {
        self.shard.clone()
    }

    /// Keeps the snapshots of this store's captures in the bucket.
    pub(crate) async fn keep_snapshots(&self, store: &Store) -> memtape_store::Result<()> {
        store.keep_snapshots_beside(&self.snapshots_url, &self.bucket).await
    }

    /// The owners of all shards.
    pub(crate) fn members(&self) -> &Members {
        &self.members
    }
}

impl Ownership {
    /// Labels the pod, in a task.
    fn labelled(mut self) -> Self {
        let pod = self.pod.clone();
        self.beside.push(tokio::spawn(async move { pod.label(true).await }));
        self
    }

    /// The shard.
    pub(crate) fn shard(&self) -> OwnedShard {
        self.shard.clone()
    }

    /// Waits until another coordinator claimed the hint or took the shard.
    pub(crate) async fn lost(&mut self) {
        let mut durable = self.shard.shard.durable();
        tokio::select! {
            _ = &mut self.renewing => {}
            _ = durable.ended() => {}
        }
    }

    /// Did another coordinator claim the hint or take the shard?
    pub(crate) fn is_lost(&self) -> bool {
        let end = self.shard.shard.durable().now().end;
        self.renewing.is_finished() || end == Some(ShardError::Taken)
    }

    /// Gives the shard up, so that the next owner replays nothing and waits for nothing. The store
    /// must be closed.
    pub(crate) async fn close(self) -> anyhow::Result<()> {
        let Self { shard, renewing, beside, process, hint, pod } = self;
        for task in beside {
            task.abort();
        }
        // The next owner takes the label itself.
        let _ = timeout(HINT_EVERY, pod.label(false)).await;
        let Some(shard) = Arc::into_inner(shard.shard) else { bail!("the shard is still in use") };
        let closed = shard.close(CLOSE_TIME).await;
        renewing.abort();
        match closed {
            Ok(()) => {}
            Err(ShardError::Taken) => bail!(REPLACED),
            Err(why) => bail!("the shard could not be closed in order: {why}"),
        }
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

//! Snapshots in an S3-compatible store, by `object_store`: a prefix of a bucket that is this
//! store's alone.
//!
//! A snapshot counts as stored when the server has confirmed it; a server that answers with an
//! error, or not at all, is asked again for a while. What nothing refers to is removed at a start,
//! so two coordinators must never share a prefix: an object named `memtape-store` names its store.
//! Of a cluster, only the owner of the store removes: what another one refers to it does not know.
//! Requests for that are sent without retries, and end with the proof of the ownership. A removal
//! that was not confirmed may still be carried out for a while.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use memtape_core::placement::Proof;
use memtape_disk::clock;
use memtape_disk::files::Held;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, RetryConfig,
};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt;

use crate::blobs::reading::Objects;
use crate::bucket::{self, Bucket};
use crate::counting::Requests;
use crate::error::{During, Error, Kind, Result};

/// Says whose prefix it is.
pub(crate) const OWNER: &str = "memtape-store";

/// Maximum number and time of retries of a failed request. Then the upload fails, and the agent
/// sends the snapshot again.
const RETRIES_MAX: usize = 6;
const RETRY_TIME: Duration = Duration::from_secs(30);

/// The check at a start.
const CHECK_TIME: Duration = Duration::from_secs(20);

/// Time after a removal that was not confirmed until its snapshot may be stored or removed again:
/// longer than the request may be under way. Shorter in tests, which wait for it.
pub(crate) const GRACE_TIME: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 60 });

/// A prefix of a bucket.
#[derive(Clone, Debug)]
pub struct Remote {
    objects: Arc<dyn ObjectStore>,
    prefix: Path,
    /// None where nothing is removed.
    removing: Option<Removing>,
}

/// What removes snapshots.
#[derive(Clone, Debug)]
struct Removing {
    /// Without retries, where another machine can take the store: a retry could be sent when the
    /// proof of the ownership holds no more.
    once: Option<Arc<dyn ObjectStore>>,
    /// Lock of the store, while the store is open.
    lock: Weak<dyn Held>,
    /// For requests that a thread without a runtime orders.
    runtime: Handle,
}

impl Remote {
    /// Connects, and checks that the prefix can be written and is the store's own. Snapshots are
    /// removed only as long as this lock is held.
    pub async fn connect(
        url: &str,
        owned: (&str, Option<Weak<dyn Held>>),
        settings: Vec<(String, String)>,
    ) -> Result<Self> {
        Self::connect_counted(url, owned, settings, &Requests::default()).await
    }

    /// As [`Self::connect`], and counts the requests.
    pub(crate) async fn connect_counted(
        url: &str,
        (owner, lock): (&str, Option<Weak<dyn Held>>),
        settings: Vec<(String, String)>,
        requests: &Requests,
    ) -> Result<Self> {
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIME,
            backoff: BackoffConfig::default(),
        };
        let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let removing = lock.map(|lock| {
            let can_be_taken = lock.upgrade().is_some_and(|lock| lock.can_be_taken());
            let bucket = || Bucket::counted(url, settings.clone(), once, requests);
            let once = can_be_taken.then(bucket).transpose()?.map(|bucket| bucket.objects);
            Ok::<_, Error>(Removing { once, lock, runtime: Handle::current() })
        });
        let bucket = Bucket::counted(url, settings, retry, requests)?;
        let remote = Self { removing: removing.transpose()?, ..Self::at(bucket) };
        let claimed = timeout(CHECK_TIME, remote.claim(url, owner)).await;
        claimed.map_err(|_| {
            Error::io(format!(
                "the store of snapshots {url} does not answer: check AWS_ENDPOINT_URL"
            ))
        })??;
        Ok(remote)
    }

    /// The snapshots at a prefix, which is not claimed.
    pub(crate) fn at(Bucket { objects, prefix, .. }: Bucket) -> Self {
        Self { objects, prefix, removing: None }
    }

    /// Id of the store that wrote down that the prefix is its own; none where no store did.
    pub(crate) async fn owner(&self) -> object_store::Result<Option<String>> {
        match self.objects.get(&self.prefix.clone().join(OWNER)).await {
            Ok(known) => {
                let known = known.bytes().await?;
                Ok(Some(String::from_utf8_lossy(&known).trim().to_string()))
            }
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes down whose prefix it is, unless that is known.
    async fn claim(&self, url: &str, owner: &str) -> Result<()> {
        let what_to_do = || {
            format!(
                "the store of snapshots {url} cannot be written: check bucket, endpoint and \
                 credentials"
            )
        };
        let path = self.prefix.clone().join(OWNER);
        let mark = Bytes::from(format!("{owner}\n"));
        let is_taken = match self.owner().await.during(what_to_do)? {
            Some(known) => known != owner,
            // Of two that start at once, one gets it.
            None => match self.objects.put_opts(&path, mark.into(), PutMode::Create.into()).await {
                Ok(_) => false,
                Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => true,
                Err(error) => return Err(error).during(what_to_do),
            },
        };
        if is_taken {
            return Err(Error::new(
                Kind::Locked,
                format!(
                    "the store of snapshots {url} belongs to another coordinator: choose another \
                     prefix, or remove the object {OWNER} if that coordinator is gone for good"
                ),
            ));
        }
        Ok(())
    }

    fn path(&self, hash: blake3::Hash) -> Path {
        let name = hash.to_hex();
        self.prefix.clone().join(&name[..2]).join(name.as_str())
    }

    /// Stores a snapshot; returns when the server has confirmed it.
    pub async fn put(&self, hash: blake3::Hash, snapshot: Bytes) -> Result<()> {
        self.objects.put(&self.path(hash), snapshot.into()).await?;
        Ok(())
    }

    /// Begins to read a snapshot: its parts, not yet checked, and its size; none when it is gone.
    pub(super) async fn read(&self, hash: blake3::Hash) -> Result<Option<(Objects, u64)>> {
        match self.objects.get(&self.path(hash)).await {
            Ok(got) => {
                let bytes = got.meta.size;
                let parts = got.into_stream().map(|part| part.map_err(Error::from));
                Ok(Some((Box::pin(parts), bytes)))
            }
            Err(ObjectError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a whole snapshot: its length and hash; none when it is gone.
    #[cfg(feature = "cluster")]
    pub(crate) async fn hash_of(&self, hash: blake3::Hash) -> Result<Option<(u64, blake3::Hash)>> {
        let Some((mut parts, bytes)) = self.read(hash).await? else { return Ok(None) };
        let mut hasher = blake3::Hasher::new();
        while let Some(part) = parts.next().await {
            hasher.update(&part?);
        }
        Ok(Some((bytes, hasher.finalize())))
    }

    /// Removes snapshots in the background while it is proved that the store is owned. `done` is
    /// called for each: with true when the removal is confirmed, with false [`GRACE_TIME`] after an
    /// end without that. Blocks while it proves.
    pub fn remove(
        &self,
        hashes: Vec<blake3::Hash>,
        done: impl Fn(blake3::Hash, bool) + Send + Sync + 'static,
    ) {
        let Some(Removing { once, lock, runtime }) = self.removing.clone() else {
            return hashes.into_iter().for_each(|hash| done(hash, true));
        };
        let proof = Proof::new(clock::now().mono_ns);
        let is_owned = lock.upgrade().is_some_and(|lock| lock.prove().is_ok());
        let can_be_taken = once.is_some();
        let objects = once.unwrap_or_else(|| self.objects.clone());
        let paths: Vec<_> = hashes.iter().map(|hash| Ok(self.path(*hash))).collect();
        let mut unconfirmed: HashSet<_> = hashes.into_iter().collect();
        runtime.spawn(async move {
            let left =
                if can_be_taken { proof.left(clock::now().mono_ns) } else { Some(Duration::MAX) };
            let mut why = "it could not be proved that the store is this coordinator's".to_string();
            // A stream that is not asked sends nothing.
            if let Some(left) = left.filter(|_| is_owned) {
                let mut removed = objects.delete_stream(Box::pin(tokio_stream::iter(paths)));
                let removing = async {
                    while let Some(removed) = removed.next().await {
                        let path = match removed {
                            Ok(path) => path.to_string(),
                            Err(ObjectError::NotFound { path, .. }) => path,
                            Err(error) => {
                                why = Error::from(error).to_string();
                                continue;
                            }
                        };
                        let name = path.rsplit('/').next().unwrap_or_default();
                        let hash = blake3::Hash::from_hex(name).ok();
                        let hash = hash.filter(|hash| unconfirmed.remove(hash));
                        hash.into_iter().for_each(|hash| done(hash, true));
                    }
                };
                if timeout(left, removing).await.is_err() {
                    why = "the proof of the ownership ended before".to_string();
                }
            }
            if unconfirmed.is_empty() {
                return;
            }
            let (snapshots, seconds) = (unconfirmed.len(), GRACE_TIME.as_secs());
            tracing::warn!(
                snapshots,
                "snapshots could not be removed, which is tried again in {seconds} s: {why}"
            );
            sleep(GRACE_TIME).await;
            unconfirmed.into_iter().for_each(|hash| done(hash, false));
        });
    }

    /// All snapshots.
    pub async fn list(&self) -> Result<Vec<blake3::Hash>> {
        let mut found = Vec::new();
        let mut objects = self.objects.list(Some(&self.prefix));
        while let Some(object) = objects.next().await {
            let object = object?;
            let name = object.location.filename();
            found.extend(name.and_then(|name| blake3::Hash::from_hex(name).ok()));
        }
        Ok(found)
    }
}

/// True when snapshots could be kept at this URL.
pub fn is_snapshots_url(url: &str) -> bool {
    bucket::parse(url).is_some()
}

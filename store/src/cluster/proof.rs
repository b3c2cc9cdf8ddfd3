//! The proof that a bucket honours conditions of PUTs, on which the ownership of shards rests.
//!
//! It creates an object twice, updates it with an old ETag, and lets many clients race for one
//! creation and one update. It can refuse a bucket; it cannot prove one: a server that checks first
//! and writes later may pass by luck. A PUT whose answer was lost is repeated, and refused because
//! of itself: what it wrote tells. Its objects are removed by the request that removes snapshots,
//! which not every server has.

use std::time::Duration;

use bytes::Bytes;
use memtape_disk::clock;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use crate::bucket::Bucket;
use crate::error::{During as _, Error, Kind, Result};

/// Clients that race for one object.
const RACING: usize = 64;

/// Time for all requests but the removal: 137, of which 64 are sent at once, twice.
const PROOF_TIME: Duration = Duration::from_secs(30);

/// What a bucket does that a cluster cannot stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("the creation of a new object was refused: If-None-Match is not supported")]
    CreationRefused,
    #[error("a second creation of one object succeeded: If-None-Match is ignored")]
    CreatedTwice,
    #[error("an update with an old ETag succeeded: If-Match is ignored")]
    UpdatedWithOldETag,
    #[error("an update with the newest ETag was refused: If-Match is not supported")]
    UpdateRefused,
    #[error("an object has no ETag, so that it cannot be updated with If-Match")]
    NoETag,
    #[error("an object was read, and had other bytes than the last PUT")]
    OldRead,
    #[error("{0} of {RACING} racing creations of one object succeeded")]
    CreationsRaced(usize),
    #[error("{0} of {RACING} racing updates of one object succeeded")]
    UpdatesRaced(usize),
}

/// Outcome of a conditional PUT.
enum Put {
    Done(UpdateVersion),
    /// Its condition was not met.
    Refused,
}

/// A name of this process that no other one has or had.
pub fn process_name() -> String {
    format!("{}-{:016x}", std::process::id(), clock::now().wall_ns)
}

/// The folder of all proofs.
pub(crate) fn folder(bucket: &Bucket) -> Path {
    bucket.prefix.clone().join("proof")
}

/// Tries the conditions of a bucket on objects of this name under its prefix, and removes them.
///
/// # Errors
/// The bucket cannot be read or written, does not honour conditions, or removes no objects.
pub async fn prove(bucket: &Bucket, name: &str) -> Result<()> {
    let folder = folder(bucket).join(name);
    let proved = timeout(PROOF_TIME, try_all(bucket, &folder)).await;
    match proved {
        Ok(proved) => {
            // What is left of a proof does no harm, and the next one has another name.
            let removed = timeout(PROOF_TIME, remove(bucket, &folder)).await;
            proved.map_err(|error| bucket.refused(error))?.map_err(|unfit| {
                Error::new(
                    Kind::Foreign,
                    format!(
                        "{} cannot hold a cluster: {unfit}. Use a store that honours \
                         If-None-Match and If-Match on PUT (docs/cluster.md: Which bucket), or one \
                         coordinator with --data-dir",
                        bucket.url
                    ),
                )
            })?;
            removed.unwrap_or_else(|_| Err(bucket.silent(PROOF_TIME)))
        }
        Err(_) => Err(bucket.silent(PROOF_TIME)),
    }
}

/// Removes the objects of a proof.
async fn remove(bucket: &Bucket, folder: &Path) -> Result<()> {
    let objects = ["one", "created", "updated"].map(|object| Ok(folder.clone().join(object)));
    let mut removed = bucket.objects.delete_stream(Box::pin(tokio_stream::iter(objects)));
    while let Some(removed) = removed.next().await {
        if matches!(removed, Err(ObjectError::NotFound { .. })) {
            continue;
        }
        removed.during(|| {
            format!(
                "objects of {} cannot be removed: check that the key may delete objects, and set \
                 AWS_DISABLE_BULK_DELETE=true where the server has no DeleteObjects",
                bucket.url
            )
        })?;
    }
    Ok(())
}

async fn try_all(bucket: &Bucket, folder: &Path) -> Result<Result<(), Unfit>, ObjectError> {
    let one = folder.clone().join("one");
    let Put::Done(first) = put_met(bucket, &one, "first", PutMode::Create).await? else {
        return Ok(Err(Unfit::CreationRefused));
    };
    if let Put::Done(_) = put(bucket, &one, "second", PutMode::Create).await? {
        return Ok(Err(Unfit::CreatedTwice));
    }
    if first.e_tag.is_none() {
        return Ok(Err(Unfit::NoETag));
    }
    let update = PutMode::Update(first.clone());
    let Put::Done(_) = put_met(bucket, &one, "third", update).await? else {
        return Ok(Err(Unfit::UpdateRefused));
    };
    if let Put::Done(_) = put(bucket, &one, "fourth", PutMode::Update(first)).await? {
        return Ok(Err(Unfit::UpdatedWithOldETag));
    }
    if bucket.objects.get(&one).await?.bytes().await? != "third" {
        return Ok(Err(Unfit::OldRead));
    }
    let created = race(bucket, &folder.clone().join("created"), &PutMode::Create).await?;
    if created != 1 {
        return Ok(Err(Unfit::CreationsRaced(created)));
    }
    let updated = folder.clone().join("updated");
    let Put::Done(version) = put(bucket, &updated, "first", PutMode::Overwrite).await? else {
        return Ok(Err(Unfit::UpdateRefused));
    };
    match race(bucket, &updated, &PutMode::Update(version)).await? {
        1 => Ok(Ok(())),
        updates => Ok(Err(Unfit::UpdatesRaced(updates))),
    }
}

/// Number of clients that succeed, of many at once.
async fn race(bucket: &Bucket, path: &Path, mode: &PutMode) -> Result<usize, ObjectError> {
    let mut clients = JoinSet::new();
    for client in 0..RACING {
        let (bucket, path, mode) = (bucket.clone(), path.clone(), mode.clone());
        clients.spawn(async move { put(&bucket, &path, &client.to_string(), mode).await });
    }
    let mut succeeded = 0;
    for outcome in clients.join_all().await {
        succeeded += usize::from(matches!(outcome?, Put::Done(_)));
    }
    if succeeded == 0 {
        // The answer of the one that did may be lost.
        let written = bucket.objects.get(path).await?.bytes().await?;
        succeeded = (0..RACING).filter(|client| written == client.to_string()).count();
    }
    Ok(succeeded)
}

/// A PUT whose condition is met.
async fn put_met(
    bucket: &Bucket,
    path: &Path,
    body: &'static str,
    mode: PutMode,
) -> Result<Put, ObjectError> {
    let put = put(bucket, path, body, mode).await?;
    if matches!(put, Put::Refused) {
        let there = bucket.objects.get(path).await?;
        let version = UpdateVersion { e_tag: there.meta.e_tag.clone(), version: None };
        if there.bytes().await? == body {
            return Ok(Put::Done(version));
        }
    }
    Ok(put)
}

async fn put(bucket: &Bucket, path: &Path, body: &str, mode: PutMode) -> Result<Put, ObjectError> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    match bucket.objects.put_opts(path, body.into(), mode.into()).await {
        Ok(put) => Ok(Put::Done(put.into())),
        Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => {
            Ok(Put::Refused)
        }
        Err(error) => Err(error),
    }
}

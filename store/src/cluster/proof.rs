//! The proof that a bucket honours conditions of PUTs, on which the ownership of shards rests.
//!
//! It creates an object twice, updates it with an old ETag, and lets many clients race for one
//! creation and one update. It can refuse a bucket; it cannot prove one: a server that checks first
//! and writes later may pass by luck.

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use tokio::task::JoinSet;

use crate::bucket::Bucket;
use crate::error::{Error, Kind, Result};

/// Clients that race for one object.
const RACING: usize = 64;

/// What a bucket does that a cluster cannot stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Unfit {
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

/// Tries the conditions of a bucket on objects of this name under its prefix, and removes them.
///
/// # Errors
/// The bucket cannot be read or written, or does not honour conditions.
pub async fn prove(bucket: &Bucket, name: &str) -> Result<()> {
    let folder = bucket.prefix.clone().join("proof").join(name);
    let proved = try_all(bucket, &folder).await;
    for object in ["one", "created", "updated"] {
        // What is left of a proof does no harm, and the next one has another name.
        let _ = bucket.objects.delete(&folder.clone().join(object)).await;
    }
    let url = &bucket.url;
    match proved {
        Ok(Ok(())) => Ok(()),
        Ok(Err(unfit)) => Err(Error::new(
            Kind::Foreign,
            format!(
                "{url} cannot hold a cluster: {unfit}. Use a store that honours If-None-Match and \
                 If-Match on PUT (docs/cluster.md has a list), or one coordinator with --data-dir"
            ),
        )),
        Err(error) => Err(Error::io(format!(
            "{url} cannot be read and written: check bucket, AWS_ENDPOINT_URL and credentials: {}",
            Error::from(error)
        ))),
    }
}

async fn try_all(bucket: &Bucket, folder: &Path) -> Result<Result<(), Unfit>, ObjectError> {
    let one = folder.clone().join("one");
    let Put::Done(first) = put(bucket, &one, "first", PutMode::Create).await? else {
        // An earlier proof of the same name: its object is as good.
        return Ok(Err(Unfit::OldRead));
    };
    if let Put::Done(_) = put(bucket, &one, "second", PutMode::Create).await? {
        return Ok(Err(Unfit::CreatedTwice));
    }
    if first.e_tag.is_none() {
        return Ok(Err(Unfit::NoETag));
    }
    let Put::Done(_) = put(bucket, &one, "third", PutMode::Update(first.clone())).await? else {
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
    Ok(succeeded)
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

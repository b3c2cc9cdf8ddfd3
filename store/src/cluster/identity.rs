//! The identity of a cluster: an object at its prefix that says how the cluster is written.
//!
//! Reading it is the first request of every start, so that nothing is written below a prefix that
//! holds something else, or what another version of Memtape wrote. The first start makes it, on the
//! condition that there is none; an owner of a newer version notes that. Which cluster may be
//! opened is core's decision (`cluster.rs` there).

use std::time::Duration;

use memtape_core::cluster::{FORMAT, Identity, Version, may_open};
use memtape_disk::clock;
use memtape_disk::real::RealDisk;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use ring::rand::SecureRandom as _;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;

use crate::bucket::{Bucket, parse};
use crate::cluster::proof::{self, prove};
use crate::error::{Error, Kind, Result};
use crate::recovery::format::{self, Whose};

/// The object at the prefix.
const NAME: &str = "memtape-cluster";

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time for the first requests, which find out what lies at the prefix.
const LOOK_TIME: Duration = Duration::from_secs(10);

/// Joins the cluster at the prefix, or makes one where there is nothing: of this number of shards,
/// which an earlier start has decided for a cluster that is there; without it, of one. `process`
/// names the objects of the proof.
///
/// # Errors
/// One line that says what to do: the bucket cannot be used, or the prefix holds something else.
pub async fn join(bucket: &Bucket, process: &str, shards: Option<u16>) -> Result<Identity> {
    let known = look(bucket).await?;
    enter(bucket, process, shards, known).await
}

/// As [`join`], where a cluster is expected: makes none.
///
/// # Errors
/// As [`join`]; or there is no cluster at the prefix, where nothing was written.
pub async fn join_expected(
    bucket: &Bucket,
    process: &str,
    shards: Option<u16>,
) -> Result<Identity> {
    let known = look(bucket).await?.ok_or_else(|| {
        Error::foreign(format!(
            "there is no cluster in {}, and --expect-store expects one: check the URL, and for a \
             folder that its disk is mounted, or start once without the option",
            bucket.url
        ))
    })?;
    enter(bucket, process, shards, Some(known)).await
}

/// Joins the known cluster, or makes one.
async fn enter(
    bucket: &Bucket,
    process: &str,
    shards: Option<u16>,
    known: Option<Identity>,
) -> Result<Identity> {
    known.as_ref().map_or(Ok(()), |identity| is_whole(bucket, identity))?;
    prove(bucket, process).await?;
    let identity = match known {
        Some(identity) => identity,
        None => make(bucket, None, shards.unwrap_or(1)).await?,
    };
    is_whole(bucket, &identity)?;
    match shards {
        Some(shards) if shards != identity.shards => Err(Error::foreign(format!(
            "the cluster {} has {} shards, which cannot be changed: leave --cluster-shards out, or \
             choose an empty prefix",
            bucket.url, identity.shards
        ))),
        _ => Ok(identity),
    }
}

/// Refuses a cluster into which a store is being moved.
pub(super) fn is_whole(bucket: &Bucket, identity: &Identity) -> Result<()> {
    let url = &bucket.url;
    match identity.moving {
        None => Ok(()),
        Some(_) => Err(Error::foreign(format!(
            "a move of a store into {url} did not end: run memtape store move DIR {url} again"
        ))),
    }
}

/// Begins to move this store into a cluster of its own, or goes on with it.
///
/// # Errors
/// As [`join`]; the prefix holds another cluster.
pub(super) async fn begin_move(bucket: &Bucket, process: &str, store: &str) -> Result<()> {
    let known = look(bucket).await?;
    prove(bucket, process).await?;
    let identity = match known {
        Some(identity) => identity,
        None => make(bucket, Some(store), 1).await?,
    };
    match identity.moving.as_deref() {
        Some(moving) if moving == store => Ok(()),
        _ => Err(Error::foreign(format!(
            "{} holds a cluster with a store of its own: choose an empty prefix",
            bucket.url
        ))),
    }
}

/// The error that there is no cluster at the prefix.
pub(super) fn missing(bucket: &Bucket) -> Error {
    Error::foreign(format!("there is no cluster in {}: check the URL", bucket.url))
}

/// Lets coordinators work in a cluster into which this store was moved. A second call is harmless.
///
/// # Errors
/// The bucket cannot be read or written.
pub(super) async fn end_move(bucket: &Bucket, store: &str) -> Result<()> {
    let Some((identity, tag)) = read(bucket).await? else { return Err(missing(bucket)) };
    if identity.moving.as_deref() == Some(store) {
        // A PUT whose answer was lost is repeated, and refused because of itself.
        put(bucket, &Identity { moving: None, ..identity }, PutMode::Update(tag)).await?;
    }
    Ok(())
}

/// Reads the identity of the cluster at the prefix; none where there is nothing. Writes nothing.
///
/// # Errors
/// As [`join`].
pub async fn look(bucket: &Bucket) -> Result<Option<Identity>> {
    let looked = timeout(LOOK_TIME, async {
        if let Some((identity, _)) = read(bucket).await? {
            return Ok(Some(identity));
        }
        is_free(bucket).await
    });
    looked.await.unwrap_or_else(|_| Err(bucket.silent(LOOK_TIME)))
}

/// Notes the version of this program, if it is newer than that of the cluster.
///
/// # Errors
/// The bucket cannot be read or written.
pub async fn raise(bucket: &Bucket) -> Result<()> {
    let Some((identity, tag)) = read(bucket).await? else { return Ok(()) };
    if Version::parse(&identity.version) < Version::parse(VERSION) {
        let newer = Identity { version: VERSION.to_string(), ..identity };
        // Another owner may have noted its own.
        put(bucket, &newer, PutMode::Update(tag)).await?;
    }
    Ok(())
}

/// Is the cluster with this id still in the bucket? A disk may be unmounted, a folder renamed.
///
/// # Errors
/// The bucket cannot be read.
pub async fn is_there(bucket: &Bucket, id: &str) -> Result<bool> {
    Ok(read(bucket).await?.is_some_and(|(identity, _)| identity.id == id))
}

/// Makes a cluster, unless another coordinator has just made it.
async fn make(bucket: &Bucket, moving: Option<&str>, shards: u16) -> Result<Identity> {
    let mut id = [0; 16];
    // Without random numbers the time serves.
    let _ = ring::rand::SystemRandom::new().fill(&mut id);
    let seed = [id.as_slice(), &clock::now().wall_ns.to_le_bytes()].concat();
    let id = blake3::hash(&seed).to_hex()[..32].to_string();
    let (version, moving) = (VERSION.to_string(), moving.map(str::to_string));
    let made = Identity { format: FORMAT, version, id, shards, moving };
    if put(bucket, &made, PutMode::Create).await? {
        return Ok(made);
    }
    // A PUT whose answer was lost is repeated, and refused because of itself.
    let known = read(bucket).await?.map(|(identity, _)| identity);
    known.ok_or_else(|| Error::io(format!("{} changes while it is read: try again", bucket.url)))
}

/// Writes the object; false when its condition was not met.
async fn put(bucket: &Bucket, identity: &Identity, mode: PutMode) -> Result<bool> {
    let body = serde_json::to_vec(identity).unwrap_or_default();
    match bucket.objects.put_opts(&path(&bucket.prefix), body.into(), mode.into()).await {
        Ok(_) => Ok(true),
        Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => Ok(false),
        Err(error) => Err(bucket.refused(error)),
    }
}

/// Reads the object, and judges it.
async fn read(bucket: &Bucket) -> Result<Option<(Identity, UpdateVersion)>> {
    let got = match bucket.objects.get(&path(&bucket.prefix)).await {
        Ok(got) => got,
        Err(ObjectError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(bucket.refused(error)),
    };
    let tag = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: None };
    let body = got.bytes().await.map_err(|error| bucket.refused(error))?;
    let url = &bucket.url;
    let known: Identity = serde_json::from_slice(&body).map_err(|_| {
        Error::new(Kind::Damaged, format!("{url} has a damaged object {NAME}: put it back"))
    })?;
    let ours = Version::parse(VERSION).unwrap_or(Version { major: 0, minor: 0 });
    may_open(ours, &known)
        .map_err(|refusal| Error::foreign(format!("the cluster {url} {refusal}")))?;
    Ok(Some((known, tag)))
}

/// Refuses a prefix without an identity that lies inside another cluster, or holds anything but
/// proofs. Answers with the identity if a cluster was made meanwhile.
async fn is_free(bucket: &Bucket) -> Result<Option<Identity>> {
    let url = &bucket.url;
    let root = parse(url).map_or("file://".into(), |(name, _)| format!("s3://{name}"));
    let mut above = Path::default();
    for part in bucket.prefix.parts() {
        // Rights that end at the prefix say nothing about what lies above.
        if bucket.objects.head(&path(&above)).await.is_ok() {
            return Err(Error::foreign(format!(
                "{url} lies inside the cluster {root}/{above}: choose a prefix outside of it"
            )));
        }
        above = above.join(part);
    }
    let proofs = proof::folder(bucket);
    let mut objects = bucket.objects.list(Some(&bucket.prefix));
    while let Some(object) = objects.next().await {
        let object = match object {
            Ok(object) => object.location,
            Err(error) => return Err(unlisted(bucket, error).await),
        };
        if object.prefix_matches(&proofs) {
            continue;
        }
        if let Some((made, _)) = read(bucket).await? {
            return Ok(Some(made));
        }
        if is_data_folder(bucket) {
            let dir = url.trim_start_matches("file://");
            return Err(Error::foreign(format!(
                "{url} is the data folder of a coordinator: name another folder, and move the \
                 store there with memtape store move {dir} URL"
            )));
        }
        return Err(Error::foreign(format!(
            "{url} holds {object}, and no cluster: choose an empty prefix"
        )));
    }
    Ok(None)
}

/// Is the prefix a folder of this machine with the store of a coordinator without a cluster?
fn is_data_folder(bucket: &Bucket) -> bool {
    let folder = bucket.url.starts_with("file:").then(|| format!("/{}", bucket.prefix));
    folder.is_some_and(|folder| {
        matches!(format::whose(&RealDisk::new(folder.as_ref())), Ok(Whose::Ours))
    })
}

/// Why objects cannot be listed. An error of a list from S3 has no status; the removal of an object
/// that is not there tells the same. Of a folder of this machine, the error of the list has the
/// cause, and the removal would succeed where only the list is forbidden.
async fn unlisted(bucket: &Bucket, error: ObjectError) -> Error {
    if bucket.url.starts_with("file:") {
        return bucket.refused(error);
    }
    match bucket.objects.delete(&proof::folder(bucket).join("none")).await {
        Err(why @ (ObjectError::NotFound { .. } | ObjectError::PermissionDenied { .. })) => {
            bucket.refused(why)
        }
        _ => bucket.refused(error),
    }
}

fn path(prefix: &Path) -> Path {
    prefix.clone().join(NAME)
}

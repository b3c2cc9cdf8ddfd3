//! The hint of a shard, which says which coordinator owns it: an object in the bucket, or what
//! another [`Placement`] keeps.
//!
//! Every change is made on the condition that the hint did not change since it was read, so of
//! many who claim a hint at once one gets it. The hint proves nothing: the fence of the shard
//! decides who owns it. When a hint may be claimed is core's decision (`placement.rs`).

use memtape_core::placement::{Address, Owner};
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStoreExt, PutMode, UpdateVersion};

use crate::bucket::Bucket;
use crate::cluster::shard::ShardId;
use crate::error::{Error, Kind, Result};

/// Largest hint, in bytes: its names, and room for fields of newer versions.
const HINT_BYTES_MAX: u64 = 4096;

/// Longest name of a process, in bytes.
const PROCESS_BYTES_MAX: usize = 64;

/// Writes of one hint that are tried for one change: the one that was asked for, and those that
/// follow an answer that was lost.
const WRITES_MAX: usize = 3;

/// Where the hint of one shard lies.
pub trait Placement: Sync {
    /// Names the object that holds the hint to a person.
    fn what(&self) -> String;

    /// Reads the hint; none when it was never claimed.
    ///
    /// # Errors
    /// The hint cannot be read, or makes no sense.
    fn read(&self) -> impl Future<Output = Result<Option<(Owner, Version)>>> + Send;

    /// Writes the hint on the condition that it still has this version, or, without a version, that
    /// there is no hint. None where the condition is not met.
    ///
    /// # Errors
    /// The hint may have been written, or not.
    fn put(
        &self,
        from: Option<&Version>,
        owner: &Owner,
    ) -> impl Future<Output = Result<Option<Version>>> + Send;

    /// Changes the hint from this version (none: it must not be there); none when another
    /// coordinator changed it before. The version may be that of an earlier change by this process.
    ///
    /// # Errors
    /// As [`Placement::put`].
    fn write(
        &self,
        from: Option<Version>,
        owner: &Owner,
    ) -> impl Future<Output = Result<Option<Version>>> + Send {
        async {
            let mut from = from;
            for _ in 0..WRITES_MAX {
                if let Some(version) = self.put(from.as_ref(), owner).await? {
                    return Ok(Some(version));
                }
                match self.read().await? {
                    // A write whose answer was lost is repeated, and refused because of itself.
                    Some((known, version)) if known == *owner => return Ok(Some(version)),
                    // The answer to an earlier change of this process was lost.
                    Some((known, version)) if known.process == owner.process => {
                        from = Some(version);
                    }
                    _ => return Ok(None),
                }
            }
            Err(Error::io(format!(
                "{} refuses changes to its newest version: check this coordinator's rights to it",
                self.what()
            )))
        }
    }
}

/// Reads the contents of a hint; none when they make no sense, or are too long. Each client that
/// may write hints could name any URL, and callers' tokens are sent there: a URL that is not that
/// of a coordinator is left out. A process name that could write a line into a log is replaced.
pub fn parse(contents: &[u8]) -> Option<Owner> {
    let contents = (contents.len() as u64 <= HINT_BYTES_MAX).then_some(contents)?;
    let mut owner: Owner = serde_json::from_slice(contents).ok()?;
    let is_printable = owner.process.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_printable || owner.process.len() > PROCESS_BYTES_MAX {
        owner.process = "a coordinator without a name".to_string();
    }
    if Address::parse(&owner.address).is_none() {
        owner.address.clear();
    }
    Some(owner)
}

/// The hint of one shard in the bucket.
#[derive(Clone, Debug)]
pub struct Hint {
    bucket: Bucket,
    path: Path,
}

/// A version of a hint, for the condition of the next change. It differs from every other version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version(pub String);

impl Hint {
    /// The hint of a shard in this bucket.
    pub fn new(bucket: &Bucket, shard: ShardId) -> Self {
        let path = bucket.prefix.clone().join("owners").join(format!("{:04}", shard.0));
        Self { bucket: bucket.clone(), path }
    }
}

impl Placement for Hint {
    fn what(&self) -> String {
        let shard = self.path.filename().unwrap_or_default();
        format!("the object owners/{shard} of {}", self.bucket.url)
    }

    async fn read(&self) -> Result<Option<(Owner, Version)>> {
        let got = match self.bucket.objects.get(&self.path).await {
            Ok(got) => got,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let version = Version(got.meta.e_tag.clone().unwrap_or_default());
        let damaged = || Error::new(Kind::Damaged, format!("{} is damaged", self.what()));
        if got.meta.size > HINT_BYTES_MAX {
            return Err(damaged());
        }
        let owner = parse(&got.bytes().await?).ok_or_else(damaged)?;
        Ok(Some((owner, version)))
    }

    async fn put(&self, from: Option<&Version>, owner: &Owner) -> Result<Option<Version>> {
        let body = serde_json::to_vec(owner).unwrap_or_default();
        let mode = from.map_or(PutMode::Create, |Version(tag)| {
            PutMode::Update(UpdateVersion { e_tag: Some(tag.clone()), version: None })
        });
        match self.bucket.objects.put_opts(&self.path, body.into(), mode.into()).await {
            Ok(put) => Ok(Some(Version(put.e_tag.unwrap_or_default()))),
            Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

//! The hint of a shard: an object in the bucket that says which coordinator owns it.
//!
//! Every change is a PUT on the condition that the object did not change since it was read, so of
//! many who claim a hint at once one gets it. The hint proves nothing: the fence of the shard
//! decides who owns it. When a hint may be claimed is core's decision (`placement.rs`).

use memtape_core::placement::Owner;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStoreExt, PutMode, UpdateVersion};

use crate::bucket::Bucket;
use crate::cluster::shard::ShardId;
use crate::error::{Error, Kind, Result};

/// The hint of one shard.
#[derive(Clone, Debug)]
pub struct Hint {
    bucket: Bucket,
    path: Path,
}

/// A version of a hint, for the condition of the next change.
#[derive(Clone, Debug)]
pub struct Version(UpdateVersion);

impl Version {
    /// Differs from that of every other version.
    pub fn tag(&self) -> &str {
        self.0.e_tag.as_deref().unwrap_or_default()
    }
}

impl Hint {
    /// The hint of a shard in this bucket.
    pub fn new(bucket: &Bucket, shard: ShardId) -> Self {
        let path = bucket.prefix.clone().join("owners").join(format!("{:04}", shard.0));
        Self { bucket: bucket.clone(), path }
    }

    /// Reads the hint; none when it was never claimed.
    ///
    /// # Errors
    /// The bucket cannot be read, or the object makes no sense.
    pub async fn read(&self) -> Result<Option<(Owner, Version)>> {
        let got = match self.bucket.objects.get(&self.path).await {
            Ok(got) => got,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let version = UpdateVersion { e_tag: got.meta.e_tag.clone(), version: None };
        let owner = serde_json::from_slice(&got.bytes().await?).map_err(|_| {
            let path = &self.path;
            Error::new(
                Kind::Damaged,
                format!("the object {path} of {} is damaged", self.bucket.url),
            )
        })?;
        Ok(Some((owner, Version(version))))
    }

    /// Changes the hint from this version (none: it must not be there); none when another
    /// coordinator changed it before. The version may be that of an earlier change by this process.
    ///
    /// # Errors
    /// The bucket cannot be written.
    pub async fn write(&self, from: Option<Version>, owner: &Owner) -> Result<Option<Version>> {
        let body = serde_json::to_vec(owner).unwrap_or_default();
        let mut from = from;
        loop {
            let mode = from.map_or(PutMode::Create, |Version(version)| PutMode::Update(version));
            let put = self.bucket.objects.put_opts(&self.path, body.clone().into(), mode.into());
            match put.await {
                Ok(put) => return Ok(Some(Version(put.into()))),
                Err(ObjectError::AlreadyExists { .. } | ObjectError::Precondition { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            match self.read().await? {
                // A PUT whose answer was lost is repeated, and refused because of itself.
                Some((known, version)) if known == *owner => return Ok(Some(version)),
                // The answer to an earlier change of this process was lost.
                Some((known, version)) if known.process == owner.process => from = Some(version),
                _ => return Ok(None),
            }
        }
    }
}

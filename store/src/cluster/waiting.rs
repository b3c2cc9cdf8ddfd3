//! The objects of coordinators that wait to take over: `waiting/NAME`, one for each.
//!
//! They tell an operator who is there. Nothing else rests on them: a hint alone decides who tries
//! to own a shard. Which of them count is core's decision (`waiting.rs` there).

use memtape_core::placement::Address;
use memtape_core::waiting::WaitingNote;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore as _, ObjectStoreExt as _};
use tokio_stream::StreamExt as _;

use crate::bucket::Bucket;
use crate::error::Result;

/// Largest object that is read, in bytes.
const NOTE_BYTES_MAX: u64 = 4096;

/// Objects that are listed: one page.
pub const LISTED_MAX: usize = 1000;

/// Longest name of an object, and of what it says, in bytes.
const WORD_BYTES_MAX: usize = 64;

/// The objects below the prefix of a cluster.
#[derive(Clone, Debug)]
pub struct WaitingNotes {
    bucket: Bucket,
    folder: Path,
}

impl WaitingNotes {
    /// Those of the cluster in this bucket.
    pub fn new(bucket: &Bucket) -> Self {
        Self { bucket: bucket.clone(), folder: bucket.prefix.clone().join("waiting") }
    }

    /// Writes the object of a coordinator.
    ///
    /// # Errors
    /// The bucket cannot be written.
    pub async fn write(&self, note: &WaitingNote) -> Result<()> {
        let body = serde_json::to_vec(note).unwrap_or_default();
        let put = self.bucket.objects.put(&self.path(&note.process), body.into()).await;
        put.map(|_| ()).map_err(|error| self.bucket.refused(error))
    }

    /// Removes the object of this name.
    ///
    /// # Errors
    /// The bucket cannot be written.
    pub async fn remove(&self, name: &str) -> Result<()> {
        match self.bucket.objects.delete(&self.path(name)).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.bucket.refused(error)),
        }
    }

    /// Names and versions of the objects, at most [`LISTED_MAX`].
    ///
    /// # Errors
    /// The bucket cannot be listed.
    pub async fn list(&self) -> Result<Vec<(String, String)>> {
        let mut listed = Vec::new();
        let mut objects = self.bucket.objects.list(Some(&self.folder));
        for _ in 0..LISTED_MAX {
            let Some(object) = objects.next().await else { break };
            let object = match object {
                Ok(object) => object,
                // Of a folder of this machine, one may be removed while it is listed.
                Err(ObjectError::NotFound { .. }) => continue,
                Err(error) => return Err(self.bucket.refused(error)),
            };
            let name = object.location.filename().filter(|name| is_word(name));
            let version = object.e_tag.unwrap_or_else(|| object.last_modified.to_string());
            listed.extend(name.map(|name| (name.to_string(), version)));
        }
        Ok(listed)
    }

    /// Reads the object of this name; none where it is gone, or makes no sense. Each client that
    /// may write to the bucket could have written it: what is no URL of a coordinator, or could
    /// write a line of its own, is left out.
    ///
    /// # Errors
    /// The bucket cannot be read.
    pub async fn read(&self, name: &str) -> Result<Option<WaitingNote>> {
        let got = match self.bucket.objects.get(&self.path(name)).await {
            Ok(got) if got.meta.size > NOTE_BYTES_MAX => return Ok(None),
            Ok(got) => got,
            Err(ObjectError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(self.bucket.refused(error)),
        };
        let body = got.bytes().await.map_err(|error| self.bucket.refused(error))?;
        let note: Option<WaitingNote> = serde_json::from_slice(&body).ok();
        Ok(note.map(|note| WaitingNote {
            process: name.to_string(),
            address: Some(note.address)
                .filter(|of| Address::parse(of).is_some())
                .unwrap_or_default(),
            version: Some(note.version).filter(|of| is_word(of)).unwrap_or_default(),
            renewals: note.renewals,
        }))
    }

    fn path(&self, name: &str) -> Path {
        self.folder.clone().join(name)
    }
}

/// Is it short, printable and without spaces?
fn is_word(text: &str) -> bool {
    text.len() <= WORD_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

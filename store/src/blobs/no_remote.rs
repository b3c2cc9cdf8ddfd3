//! In the place of `remote.rs` where the feature `s3` is off: there is no remote store, and the
//! settings refuse one.

use bytes::Bytes;

use crate::blobs::reading::Objects;
use crate::error::{Error, Result};

/// A remote store in builds without one: it has no value.
#[derive(Clone, Debug)]
pub enum Remote {}

impl Remote {
    pub(crate) async fn connect<T>(url: &str, _: T, _: Vec<(String, String)>) -> Result<Self> {
        Err(Error::foreign(format!("{url:?} needs memtape with the feature s3")))
    }

    pub(crate) async fn put(&self, _: blake3::Hash, _: Bytes) -> Result<()> {
        match *self {}
    }

    pub(super) async fn read(&self, _: blake3::Hash) -> Result<Option<(Objects, u64)>> {
        match *self {}
    }

    pub(crate) fn remove<T>(&self, _: Vec<blake3::Hash>, _: T) {
        match *self {}
    }

    pub(crate) async fn list(&self) -> Result<Vec<blake3::Hash>> {
        match *self {}
    }
}

/// True: the settings refuse every URL with the line about the feature.
pub fn is_snapshots_url(_: &str) -> bool {
    true
}

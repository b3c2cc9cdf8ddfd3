//! A snapshot in small parts, from the disk or the remote store.
//!
//! Its hash is checked as it is read, and the last part is held back until the hash is right: a
//! reader that received every part has the whole snapshot. Only two parts are in memory at a time.

use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use tokio_stream::{Stream, StreamExt as _};

use crate::blobs::local::{blocking, damaged};
use crate::error::Result;
use memtape_disk::files::{Disk, DiskFile};

/// Bytes that are read from the disk at a time.
pub(crate) const PART_BYTES: usize = 256 << 10;

/// Parts of an object, as its server sends them.
pub(super) type Objects = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// A snapshot that is being read.
pub struct Reading {
    source: Source,
    bytes: u64,
    hash: blake3::Hash,
    hasher: blake3::Hasher,
    /// Read, and not given out yet.
    held: Option<Bytes>,
}

/// Source of the remaining bytes.
pub(super) enum Source {
    Disk { disk: Arc<dyn Disk>, file: Arc<dyn DiskFile>, offset: u64 },
    Remote(Objects),
}

impl Reading {
    pub(super) fn new(source: Source, bytes: u64, hash: blake3::Hash) -> Self {
        Self { source, bytes, hash, hasher: blake3::Hasher::new(), held: None }
    }

    /// Size of the whole snapshot.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next part; none after the last.
    ///
    /// # Errors
    /// It cannot be read, or is not the snapshot that it is called.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.read().await? {
                Some(part) => {
                    self.hasher.update(&part);
                    if let Some(before) = self.held.replace(part) {
                        return Ok(Some(before));
                    }
                }
                None if self.hasher.finalize() == self.hash => return Ok(self.held.take()),
                None => return Err(damaged(self.hash)),
            }
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>> {
        match &mut self.source {
            Source::Remote(objects) => objects.next().await.transpose(),
            Source::Disk { disk, file, offset } => {
                let rest = self.bytes.saturating_sub(*offset);
                let length = usize::try_from(rest).unwrap_or(PART_BYTES).min(PART_BYTES);
                if length == 0 {
                    return Ok(None);
                }
                let (file, from) = (file.clone(), *offset);
                *offset += length as u64;
                let reading = blocking(&**disk, move || {
                    let mut part = vec![0; length];
                    file.read_exact_at(&mut part, from).map(|()| part)
                });
                Ok(Some(reading.await?.into()))
            }
        }
    }
}

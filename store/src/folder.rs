//! A folder of this machine as a bucket (`file:///PATH`), for trying out a cluster without a
//! server.
//!
//! `object_store` keeps the objects as files, and syncs them. It knows no update on a condition:
//! here one process at a time compares the version and writes, under a lock on the object's folder.
//! Creations need no lock. Processes of several machines must not share such a folder: not every
//! network file system has locks.

use std::fmt;
use std::fs::File;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use rustix::fs::{FlockOperation, flock};
use tokio_stream::Stream;

/// A stream as `object_store` hands it out.
type Parts<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// The file system as objects: each path is one from its root.
#[derive(Debug)]
pub(crate) struct Folder {
    objects: LocalFileSystem,
}

impl Folder {
    /// Opens nothing and makes nothing.
    pub(crate) fn new() -> Self {
        Self { objects: LocalFileSystem::new().with_fsync(true) }
    }

    /// Waits for the lock on the folder of an object, which ends with the file.
    async fn lock(&self, object: &Path) -> Result<File> {
        let path = self.objects.path_to_filesystem(object)?;
        let locking = tokio::task::spawn_blocking(move || {
            let folder = File::open(path.parent().unwrap_or(&path))?;
            flock(&folder, FlockOperation::LockExclusive)?;
            Ok(folder)
        });
        locking.await.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::Generic { store: "folder", source: error.into() }
}

impl fmt::Display for Folder {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Folder {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let PutMode::Update(expected) = &options.mode else {
            return self.objects.put_opts(path, payload, options).await;
        };
        let _locked = self.lock(path).await?;
        let known = match self.objects.head(path).await {
            Ok(known) => known.e_tag,
            Err(Error::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        if known.is_none() || known != expected.e_tag {
            let source = "the object has another version".into();
            return Err(Error::Precondition { path: path.to_string(), source });
        }
        self.objects.put_opts(path, payload, PutMode::Overwrite.into()).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.objects.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.objects.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: Parts<Path>) -> Parts<Path> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> Parts<ObjectMeta> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

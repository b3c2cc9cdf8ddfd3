//! A folder of this machine as a bucket (`file:///PATH`), for trying out a cluster without a
//! server.
//!
//! `object_store` keeps the objects as files, and syncs them. It knows no update on a condition:
//! here one process at a time compares the version and writes, under a lock on the object's folder.
//! Creations need no lock. Processes of several machines must not share such a folder: not every
//! network file system has locks.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind};
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

/// The path in a URL `file:///PATH`; none in another URL.
///
/// # Errors
/// There is no path.
pub(crate) fn path(url: &str) -> crate::error::Result<Option<&str>> {
    // Slashes at the end may have been taken off.
    let Some(rest) = url.strip_prefix("file:") else { return Ok(None) };
    if rest.chars().all(|letter| matches!(letter, '/' | '.')) {
        let line = "file:/// names no folder: write file:///PATH, with the path of a folder";
        return Err(crate::error::Error::foreign(line));
    }
    if let Some(letter) = rest.chars().find(|letter| matches!(letter, '%' | '?' | '#')) {
        // Parts of a URL: some of the files would lie in a folder of another name.
        let line = format!("{url} has a {letter} in its path: name a folder without one");
        return Err(crate::error::Error::foreign(line));
    }
    Ok(rest.strip_prefix("//").filter(|path| path.starts_with('/')))
}

/// Why a folder cannot be used, and what to do.
pub(crate) fn reason(error: Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(of) = cause {
        if let Some(of) = of.downcast_ref::<io::Error>() {
            return match of.kind() {
                ErrorKind::NotADirectory => "it is a file, or lies in one: name a folder".into(),
                ErrorKind::PermissionDenied => {
                    "this user may not read and write it: check its owner and its mode".into()
                }
                ErrorKind::ReadOnlyFilesystem => "its file system is read-only".into(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    "its disk is full: make room, then start again".into()
                }
                ErrorKind::NotFound => "it cannot be made: check its path".into(),
                _ => of.to_string(),
            };
        }
        cause = of.source();
    }
    crate::error::Error::from(error).to_string()
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_folder_is_refused() {
        for url in ["file:", "file:/", "file://", "file:///", "file:///..", "file:////./"] {
            let line = path(url).unwrap_err().to_string();
            assert!(line.starts_with("file:/// names no folder"), "{url}: {line}");
        }
        let others = [("file:///a", Some("/a")), ("file://a", None), ("s3://a/b", None)];
        for (url, expected) in others {
            assert_eq!(path(url).unwrap(), expected, "{url}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_a_plain_line() {
        for (kind, expected) in [
            (ErrorKind::NotADirectory, "it is a file, or lies in one: name a folder"),
            (ErrorKind::PermissionDenied, "this user may not read and write it"),
            (ErrorKind::NotFound, "it cannot be made: check its path"),
        ] {
            // As the library wraps it.
            let source = Error::Generic { store: "inner", source: io::Error::from(kind).into() };
            let line = reason(Error::Generic { store: "outer", source: source.into() });
            assert!(line.starts_with(expected), "{line}");
        }
    }
}

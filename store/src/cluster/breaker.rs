//! The circuit breaker between one ownership of a shard and the bucket.
//!
//! SlateDB repeats a failed request without end, and goes on in the background when its handle is
//! dropped. After [`Breaker::cut`] each request of this ownership, begun or new, fails with an
//! error that SlateDB does not repeat: it closes. So an opening, a flush and a closing have a time
//! limit while the bucket is away, and a shard that was given up cannot write. A request that was
//! sent before may still reach the bucket: SlateDB's fence is for that.
//!
//! After [`Breaker::freeze`] only tables can be read: a reader stays at the point in time that it
//! has, because it hears of nothing newer.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use slatedb_common::retry::NonRetryable;
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// A stream as `object_store` hands it out.
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// The breaker. Clones are handles of the same.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    objects: Arc<dyn ObjectStore>,
    ended: CancellationToken,
    /// Ends with `ended`, or before.
    frozen: CancellationToken,
}

/// The folder of a shard's tables.
const TABLES: &str = "compacted";

/// The error of every request after the cut.
#[derive(Debug, thiserror::Error)]
#[error("the shard was given up")]
struct Cut;

impl Breaker {
    /// A breaker that lets requests pass.
    pub(crate) fn new(objects: Arc<dyn ObjectStore>) -> Self {
        let ended = CancellationToken::new();
        Self { objects, frozen: ended.child_token(), ended }
    }

    /// Ends all requests but those for tables, for good.
    pub(crate) fn freeze(&self) {
        self.frozen.cancel();
    }

    /// Ends all requests, for good.
    pub(crate) fn cut(&self) {
        self.ended.cancel();
    }

    /// Ends all requests when the guard is dropped.
    pub(crate) fn cut_on_drop(&self) -> DropGuard {
        self.ended.clone().drop_guard()
    }

    /// What ends a request for this object, or all objects of a folder.
    fn end(&self, of: Option<&Path>) -> &CancellationToken {
        let is_table = of.is_some_and(|of| of.as_ref().rsplit('/').nth(1) == Some(TABLES));
        if is_table { &self.ended } else { &self.frozen }
    }

    async fn pass<T>(&self, of: &Path, request: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.end(Some(of)).cancelled() => Err(refused()),
            answer = request => answer,
        }
    }

    /// Begins a request of many parts, unless it is cut before.
    fn pass_all<T: Send + 'static>(
        &self,
        of: Option<&Path>,
        begin: impl FnOnce() -> Parts<T>,
    ) -> Parts<T> {
        let end = self.end(of).clone();
        let none = || -> Parts<T> { Box::pin(tokio_stream::empty()) };
        let parts = if end.is_cancelled() { none() } else { begin() };
        Box::pin(Breakable { parts: Some(parts), cut: Box::pin(end.cancelled_owned()) })
    }
}

fn refused() -> Error {
    let source = Box::new(NonRetryable(Box::new(Cut)));
    Error::Generic { store: "memtape", source }
}

/// A stream that ends with an error at the cut.
struct Breakable<T> {
    parts: Option<Parts<T>>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<T> Stream for Breakable<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.parts.is_none() {
            return Poll::Ready(None);
        }
        // First: a poll may send a request.
        if self.cut.as_mut().poll(context).is_ready() {
            self.parts = None;
            return Poll::Ready(Some(Err(refused())));
        }
        self.parts.as_mut().map_or(Poll::Ready(None), |parts| parts.as_mut().poll_next(context))
    }
}

impl fmt::Display for Breaker {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.objects)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for Breaker {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.pass(location, self.objects.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let beginning = self.objects.put_multipart_opts(location, options);
        let upload = self.pass(location, beginning).await?;
        Ok(Box::new(BreakableUpload { upload, of: location.clone(), breaker: self.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut got = self.pass(location, self.objects.get_opts(location, options)).await?;
        got.payload = match got.payload {
            GetResultPayload::Stream(parts) => {
                GetResultPayload::Stream(self.pass_all(Some(location), || parts))
            }
            file => file,
        };
        Ok(got)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.pass(location, self.objects.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: Parts<Path>) -> Parts<Path> {
        self.pass_all(None, || self.objects.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> Parts<ObjectMeta> {
        self.pass_all(prefix, || self.objects.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Parts<ObjectMeta> {
        self.pass_all(prefix, || self.objects.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let of = prefix.cloned().unwrap_or_default();
        self.pass(&of, self.objects.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.pass(to, self.objects.copy_opts(from, to, options)).await
    }

    async fn rename_opts(
        &self,
        from: &Path,
        to: &Path,
        options: object_store::RenameOptions,
    ) -> Result<()> {
        self.pass(to, self.objects.rename_opts(from, to, options)).await
    }
}

/// An upload in parts, behind the breaker.
#[derive(Debug)]
struct BreakableUpload {
    upload: Box<dyn MultipartUpload>,
    of: Path,
    breaker: Breaker,
}

#[async_trait]
impl MultipartUpload for BreakableUpload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        let (breaker, of) = (self.breaker.clone(), self.of.clone());
        let request = self.upload.put_part(part);
        Box::pin(async move { breaker.pass(&of, request).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.breaker.pass(&self.of, self.upload.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.breaker.pass(&self.of, self.upload.abort()).await
    }
}

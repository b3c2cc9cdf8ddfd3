//! The counter of requests to a bucket, by what providers charge for them.
//!
//! It stands between everything of this process and the bucket. A request that the client repeats
//! by itself, because the bucket did not answer, counts once. Lists and removals go in pages of
//! [`PAGE`] objects, and each page is a request. Judges nothing; `core/src/traffic.rs` computes.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use memtape_core::traffic::RequestCounts;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio_stream::Stream;

/// Objects of one page of a list, and of one request that removes.
const PAGE: u64 = 1000;

/// A stream as `object_store` hands it out.
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T>> + Send>>;

/// The counter. Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    puts: AtomicU64,
    lists: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Put,
    List,
    Get,
    Delete,
}

impl Requests {
    /// The requests so far.
    pub fn counts(&self) -> RequestCounts {
        let Kinds { puts, lists, gets, deletes } = &*self.0;
        let count = |kind: &AtomicU64| kind.load(Relaxed);
        RequestCounts {
            puts: count(puts),
            lists: count(lists),
            gets: count(gets),
            deletes: count(deletes),
        }
    }

    fn add(&self, kind: Kind) {
        let counter = match kind {
            Kind::Put => &self.0.puts,
            Kind::List => &self.0.lists,
            Kind::Get => &self.0.gets,
            Kind::Delete => &self.0.deletes,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// A bucket whose requests are counted.
#[derive(Debug)]
pub(crate) struct Counted {
    objects: Arc<dyn ObjectStore>,
    requests: Requests,
}

impl Counted {
    /// The same bucket, with a counter in front of it.
    pub(crate) fn over(objects: Arc<dyn ObjectStore>, requests: &Requests) -> Arc<dyn ObjectStore> {
        Arc::new(Self { objects, requests: requests.clone() })
    }

    /// Counts the first page, and the others as they come.
    fn pages<T: Send + 'static>(&self, kind: Kind, parts: Parts<T>) -> Parts<T> {
        self.requests.add(kind);
        Box::pin(Pages { parts, kind, requests: self.requests.clone(), count: 0 })
    }
}

/// A stream of objects that comes in pages.
struct Pages<T> {
    parts: Parts<T>,
    kind: Kind,
    requests: Requests,
    count: u64,
}

impl<T> Stream for Pages<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.parts.as_mut().poll_next(context));
        if next.is_some() {
            if self.count > 0 && self.count.is_multiple_of(PAGE) {
                self.requests.add(self.kind);
            }
            self.count += 1;
        }
        Poll::Ready(next)
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.objects)
    }
}

// What is left out is made of these requests.
#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.requests.add(Kind::Put);
        self.objects.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.requests.add(Kind::Put);
        let upload = self.objects.put_multipart_opts(location, options).await?;
        Ok(Box::new(CountedUpload { upload, requests: self.requests.clone() }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.requests.add(Kind::Get);
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: Parts<Path>) -> Parts<Path> {
        self.pages(Kind::Delete, self.objects.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> Parts<ObjectMeta> {
        self.pages(Kind::List, self.objects.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> Parts<ObjectMeta> {
        self.pages(Kind::List, self.objects.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.requests.add(Kind::List);
        let listed = self.objects.list_with_delimiter(prefix).await?;
        let objects = (listed.objects.len() + listed.common_prefixes.len()) as u64;
        (1..objects.div_ceil(PAGE)).for_each(|_| self.requests.add(Kind::List));
        Ok(listed)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.requests.add(Kind::Put);
        self.objects.copy_opts(from, to, options).await
    }
}

/// An upload in parts, each of which is a request.
#[derive(Debug)]
struct CountedUpload {
    upload: Box<dyn MultipartUpload>,
    requests: Requests,
}

#[async_trait]
impl MultipartUpload for CountedUpload {
    fn put_part(&mut self, part: PutPayload) -> UploadPart {
        self.requests.add(Kind::Put);
        self.upload.put_part(part)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.requests.add(Kind::Put);
        self.upload.complete().await
    }

    async fn abort(&mut self) -> Result<()> {
        self.requests.add(Kind::Delete);
        self.upload.abort().await
    }
}

#[cfg(test)]
mod tests {
    use memtape_bucket::{BUCKET, Fault, Server};
    use object_store::memory::InMemory;
    use object_store::{ObjectStoreExt as _, PutMode};
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::bucket::Bucket;

    fn counts(puts: u64, lists: u64, gets: u64, deletes: u64) -> RequestCounts {
        RequestCounts { puts, lists, gets, deletes }
    }

    #[tokio::test]
    async fn each_request_is_counted_by_its_kind() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = Server::start().await;
        let url = format!("s3://{BUCKET}/cluster");
        let bucket = Bucket::with_few_retries(&url, server.settings("a")).unwrap();
        let (objects, path) = (&bucket.objects, Path::from("cluster/one"));
        let body = || PutPayload::from_static(b"0123456789");
        objects.put(&path, body()).await.unwrap();
        // Refused, and charged.
        objects.put_opts(&path, body(), PutMode::Create.into()).await.unwrap_err();
        assert_eq!(bucket.requests().counts(), counts(2, 0, 0, 0));
        objects.get(&path).await.unwrap().bytes().await.unwrap();
        objects.head(&path).await.unwrap();
        objects.head(&Path::from("cluster/none")).await.unwrap_err();
        // Near each other: one request.
        assert_eq!(objects.get_ranges(&path, &[0..1, 2..3]).await.unwrap().len(), 2);
        assert_eq!(bucket.requests().counts(), counts(2, 0, 4, 0));
        assert_eq!(objects.list(None).collect::<Vec<_>>().await.len(), 1);
        objects.list_with_delimiter(None).await.unwrap();
        assert_eq!(bucket.requests().counts(), counts(2, 2, 4, 0));
        let paths = tokio_stream::iter([Ok(path.clone()), Ok(Path::from("cluster/two"))]);
        assert_eq!(objects.delete_stream(Box::pin(paths)).collect::<Vec<_>>().await.len(), 2);
        assert_eq!(bucket.requests().counts(), counts(2, 2, 4, 1));
        assert_eq!(server.requests(), bucket.requests().counts().all(), "what the server saw");
        // Repeated by the client, and counted once.
        server.fail_next(&[Fault::Unavailable; 2]);
        objects.put(&path, body()).await.unwrap();
        assert_eq!(bucket.requests().counts(), counts(3, 2, 4, 1));
        assert_eq!(server.requests(), bucket.requests().counts().all() + 2);
    }

    #[tokio::test]
    async fn each_page_of_a_list_is_a_request() {
        let bucket = Bucket::counted(Arc::new(InMemory::new()), Path::default(), "memory", None);
        for number in 0..2 * PAGE + 1 {
            let path = Path::from(format!("{number}"));
            bucket.objects.put(&path, PutPayload::new()).await.unwrap();
        }
        let before = bucket.requests().counts();
        let listed = bucket.objects.list(None).collect::<Vec<_>>().await.len() as u64;
        assert_eq!(listed, 2 * PAGE + 1);
        assert_eq!(bucket.requests().counts().lists - before.lists, 3);
        let paths = (0..PAGE).map(|number| Ok(Path::from(format!("{number}"))));
        let paths = tokio_stream::iter(paths.collect::<Vec<_>>());
        bucket.objects.delete_stream(Box::pin(paths)).collect::<Vec<_>>().await;
        assert_eq!(bucket.requests().counts().deletes - before.deletes, 1);
    }
}

//! The counter of requests to a bucket, by what providers charge for them.
//!
//! It stands between the client and the network, so that each page and each part counts, and a
//! request that the client repeats by itself counts again, also where it could not connect. Requests
//! for the credentials of a role count, too: a few for each client and lifetime of credentials. A
//! folder gets no requests. Judges nothing; `core/src/traffic.rs` computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use async_trait::async_trait;
use memtape_core::traffic::RequestCounts;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::{ClientOptions, Result};

/// The counter, for the clients that it connects. Clones are handles of the same.
#[derive(Clone, Debug, Default)]
pub struct Requests(Arc<Kinds>);

#[derive(Debug, Default)]
struct Kinds {
    puts: AtomicU64,
    lists: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
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

    /// The count of requests as this one.
    fn kind(&self, method: &str, query: &str) -> &AtomicU64 {
        let has = |name| query.split('&').any(|of| of.split('=').next() == Some(name));
        match method {
            "GET" if has("list-type") => &self.0.lists,
            "GET" | "HEAD" => &self.0.gets,
            "POST" if has("delete") => &self.0.deletes,
            "DELETE" => &self.0.deletes,
            _ => &self.0.puts,
        }
    }
}

impl HttpConnector for Requests {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Counted { client, requests: self.clone() }))
    }
}

/// A client whose requests are counted.
#[derive(Debug)]
struct Counted {
    client: HttpClient,
    requests: Requests,
}

#[async_trait]
impl HttpService for Counted {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let query = request.uri().query().unwrap_or_default();
        self.requests.kind(request.method().as_str(), query).fetch_add(1, Relaxed);
        self.client.execute(request).await
    }
}

#[cfg(test)]
mod tests {
    use memtape_bucket::{BUCKET, Fault, Server};
    use object_store::path::Path;
    use object_store::{MultipartUpload as _, ObjectStoreExt as _, PutMode, PutPayload};
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
        assert_eq!(bucket.requests().unwrap().counts(), counts(2, 0, 0, 0));
        objects.get(&path).await.unwrap().bytes().await.unwrap();
        objects.head(&path).await.unwrap();
        objects.head(&Path::from("cluster/none")).await.unwrap_err();
        // Near each other: one request.
        assert_eq!(objects.get_ranges(&path, &[0..1, 2..3]).await.unwrap().len(), 2);
        assert_eq!(bucket.requests().unwrap().counts(), counts(2, 0, 4, 0));
        assert_eq!(objects.list(None).collect::<Vec<_>>().await.len(), 1);
        objects.list_with_delimiter(None).await.unwrap();
        assert_eq!(bucket.requests().unwrap().counts(), counts(2, 2, 4, 0));
        let paths = tokio_stream::iter([Ok(path.clone()), Ok(Path::from("cluster/two"))]);
        assert_eq!(objects.delete_stream(Box::pin(paths)).collect::<Vec<_>>().await.len(), 2);
        assert_eq!(bucket.requests().unwrap().counts(), counts(2, 2, 4, 1));
        assert_eq!(
            server.requests(),
            bucket.requests().unwrap().counts().all(),
            "what the server saw"
        );
        // Repeated by the client.
        server.fail_next(&[Fault::Unavailable; 2]);
        objects.put(&path, body()).await.unwrap();
        assert_eq!(bucket.requests().unwrap().counts(), counts(5, 2, 4, 1));
        let mut upload = objects.put_multipart(&path).await.unwrap();
        upload.put_part(body()).await.unwrap();
        upload.complete().await.unwrap();
        objects.put_multipart(&path).await.unwrap().abort().await.unwrap();
        assert_eq!(bucket.requests().unwrap().counts(), counts(9, 2, 4, 2));
        assert_eq!(server.requests(), bucket.requests().unwrap().counts().all());
    }

    #[tokio::test]
    async fn each_page_of_a_list_is_a_request() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = Server::start().await;
        let url = format!("s3://{BUCKET}/cluster");
        let bucket = Bucket::with_few_retries(&url, server.settings("a")).unwrap();
        (0..2001).for_each(|number| server.put(&format!("cluster/{number}"), ""));
        assert_eq!(bucket.objects.list(None).collect::<Vec<_>>().await.len(), 2001);
        assert_eq!(bucket.requests().unwrap().counts(), counts(0, 3, 0, 0));
    }
}

//! The counter of requests to a bucket, by what providers charge for them.
//!
//! It stands between the client and the network, so that each page and each part counts, and a
//! request that the client repeats by itself counts again, also where it could not connect.
//! Requests for the credentials of a role count, too: a few for each client and lifetime of
//! credentials. A folder gets no requests. Judges nothing; `core/src/traffic.rs` computes.

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

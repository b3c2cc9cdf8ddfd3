//! The S3 bucket of all tests: a server on loopback with one bucket, in memory.
//!
//! `s3s` speaks the protocol and checks signatures. All objects are in one map behind one lock, so
//! that a condition of a PUT is checked and applied in one step: servers that check first and write
//! later let two creators of one object win; it can be set to be such a server. Faults are ordered
//! for the next requests, or by rules for some clients, methods and paths. A client is an access
//! key: every one is accepted, with one secret. There are no versions of objects.

#![forbid(unsafe_code)]

mod faults;
mod objects;

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::S3Result;
use s3s::auth::{S3Auth, SecretKey};
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::faults::Faults;
pub use crate::faults::{Fault, Rule};
pub use crate::objects::Conditions;
use crate::objects::Objects;

/// Name of the bucket.
pub const BUCKET: &str = "bucket";

const SECRET: &str = "secret";

/// A server with one bucket. Its connections and objects end with it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    objects: Objects,
    faults: Arc<Faults>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Starts a server with an empty bucket on the runtime of the caller.
    ///
    /// # Panics
    /// When no port of loopback is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("a listener has an address");
        let (objects, faults) = (Objects::default(), Arc::<Faults>::default());
        let mut builder = S3ServiceBuilder::new(objects.clone());
        builder.set_auth(AnyKey);
        let mut tasks = JoinSet::new();
        let handled = (builder.build(), objects.clone(), faults.clone());
        tasks.spawn(serve(listener, handled));
        Self { address, objects, faults, _tasks: tasks }
    }

    /// The variables by which a client of this access key finds the server and signs its requests.
    pub fn settings(&self, client: &str) -> Vec<(String, String)> {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_ACCESS_KEY_ID", client.to_string()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_string()),
            ("AWS_REGION", "us-east-1".to_string()),
        ];
        settings.map(|(name, value)| (name.to_string(), value)).into()
    }

    /// Keys of all objects, in order.
    pub fn keys(&self) -> Vec<String> {
        self.objects.keys()
    }

    /// Puts an object, as a client would.
    pub fn put(&self, key: &str, body: impl Into<Bytes>) {
        self.objects.insert(key.to_string(), body.into());
    }

    /// Takes the objects of another server below a prefix, under another prefix.
    pub fn copy(&self, other: &Self, from: &str, to: &str) {
        self.objects.copy(&other.objects, from, to);
    }

    /// Number of PUTs that were carried out so far.
    pub fn puts(&self) -> u64 {
        self.objects.puts()
    }

    /// Number of multipart uploads that were begun so far.
    pub fn uploads_begun(&self) -> u64 {
        self.objects.uploads_begun()
    }

    /// Number of multipart uploads that were neither completed nor aborted.
    pub fn uploads_open(&self) -> usize {
        self.objects.uploads_open()
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.faults.requests()
    }

    /// Orders a fault for each of the next requests.
    pub fn fail_next(&self, faults: &[Fault]) {
        self.faults.order(faults);
    }

    /// Lets a fault happen to all requests of a rule. The first rule of a request counts.
    pub fn add_rule(&self, rule: Rule) {
        self.faults.add(rule);
    }

    /// Number of answers that are held back.
    pub fn held(&self) -> usize {
        self.faults.held()
    }

    /// Sets what happens to conditions of PUTs.
    pub fn set_conditions(&self, conditions: Conditions) {
        self.objects.set_conditions(conditions);
    }

    /// Flips a bit in the middle of an object; false if there is none of this key.
    pub fn damage(&self, key: &str) -> bool {
        self.objects.damage(key)
    }

    /// Ends all rules, and all faults that did not happen yet; returns the number of these.
    pub fn clear_faults(&self) -> usize {
        self.faults.clear()
    }
}

/// What a request is answered by.
type Handled = (S3Service, Objects, Arc<Faults>);

/// Accepts connections until the task is cancelled, which cancels the connections as well.
async fn serve(listener: TcpListener, by: Handled) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let by = by.clone();
        let service = service_fn(move |request| answer(by.clone(), request));
        connections.spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            // A fault ends the connection with an error.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Answers a request, or lets its fault happen; an error closes the connection.
async fn answer(
    (s3, objects, faults): Handled,
    request: Request<Incoming>,
) -> Result<Response<s3s::Body>, Closed> {
    let fault = faults.of(&request);
    let path = request.uri().path().to_string();
    match fault {
        Some(Fault::Closed { body_bytes }) => {
            faults::read(request.into_body(), body_bytes).await;
            return Err(Closed);
        }
        Some(Fault::Unavailable) => {
            return Ok(refuse(request, StatusCode::SERVICE_UNAVAILABLE, "SlowDown").await);
        }
        Some(Fault::Denied) => {
            return Ok(refuse(request, StatusCode::FORBIDDEN, "AccessDenied").await);
        }
        Some(Fault::Silent) => std::future::pending().await,
        Some(Fault::Slow(time)) => tokio::time::sleep(time).await,
        Some(Fault::AnswerLost | Fault::Held(_)) | None => {}
    }
    let answered = s3.call(request.map(s3s::Body::from)).await.map_err(|_| Closed)?;
    match fault {
        Some(Fault::AnswerLost) => return Err(Closed),
        Some(Fault::Held(text)) if objects.has_text(&path, text) => faults.hold().await,
        _ => {}
    }
    Ok(answered)
}

async fn refuse(request: Request<Incoming>, status: StatusCode, code: &str) -> Response<s3s::Body> {
    // The rest of the request is read, or the answer could be lost with it.
    faults::read(request.into_body(), usize::MAX).await;
    let body = Bytes::from(format!("<Error><Code>{code}</Code></Error>"));
    let mut answer = Response::new(s3s::Body::from(body));
    *answer.status_mut() = status;
    answer
}

/// Every access key has the same secret.
struct AnyKey;

#[async_trait]
impl S3Auth for AnyKey {
    async fn get_secret_key(&self, _: &str) -> S3Result<SecretKey> {
        Ok(SecretKey::from(SECRET))
    }
}

/// The connection is closed without an answer.
#[derive(Debug)]
struct Closed;

impl std::fmt::Display for Closed {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("closed without an answer")
    }
}

impl std::error::Error for Closed {}

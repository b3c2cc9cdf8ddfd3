//! The S3 bucket of all tests: a server on loopback with one bucket, in memory.
//!
//! `s3s` speaks the protocol and checks signatures. All objects are in one map behind one lock, so
//! that a condition of a PUT is checked and applied in one step: servers that check first and write
//! later let two creators of one object win. Faults are ordered for the next requests. There are no
//! multipart uploads and no versions of objects.

#![forbid(unsafe_code)]

mod faults;
mod objects;

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use crate::faults::Fault;
use crate::faults::Faults;
use crate::objects::Objects;

/// Name of the bucket.
pub const BUCKET: &str = "bucket";

const KEY: &str = "key";
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
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, builder.build(), faults.clone()));
        Self { address, objects, faults, _tasks: tasks }
    }

    /// The variables by which a client finds the server and signs its requests.
    pub fn settings(&self) -> Vec<(String, String)> {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_ACCESS_KEY_ID", KEY.to_string()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_string()),
            ("AWS_REGION", "us-east-1".to_string()),
        ];
        settings.map(|(name, value)| (name.to_string(), value)).into()
    }

    /// Keys of all objects, in order.
    pub fn keys(&self) -> Vec<String> {
        self.objects.keys()
    }

    /// Orders a fault for each of the next requests.
    pub fn fail_next(&self, faults: &[Fault]) {
        self.faults.order(faults);
    }

    /// Number of faults that were ordered and did not happen yet; none of them happens any more.
    pub fn clear_faults(&self) -> usize {
        self.faults.clear()
    }
}

/// Accepts connections until the task is cancelled, which cancels the connections as well.
async fn serve(listener: TcpListener, s3: S3Service, faults: Arc<Faults>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (s3, faults) = (s3.clone(), faults.clone());
        let service = service_fn(move |request| answer(s3.clone(), faults.clone(), request));
        connections.spawn(async move {
            let builder = Builder::new(TokioExecutor::new());
            // A fault ends the connection with an error.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// Answers a request, or lets its fault happen; an error closes the connection.
async fn answer(
    s3: S3Service,
    faults: Arc<Faults>,
    request: Request<Incoming>,
) -> Result<Response<s3s::Body>, Closed> {
    let fault = faults.next();
    match fault {
        Some(Fault::Closed { body_bytes }) => {
            faults::read(request.into_body(), body_bytes).await;
            return Err(Closed);
        }
        Some(Fault::Unavailable) => {
            // The rest of the request is read, or the answer could be lost with it.
            faults::read(request.into_body(), usize::MAX).await;
            let busy = Bytes::from_static(b"<Error><Code>SlowDown</Code></Error>");
            let mut answer = Response::new(s3s::Body::from(busy));
            *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(answer);
        }
        Some(Fault::AnswerLost) | None => {}
    }
    let answered = s3.call(request.map(s3s::Body::from)).await.map_err(|_| Closed)?;
    if fault.is_some() { Err(Closed) } else { Ok(answered) }
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

//! The real router with a small state behind it, without a socket, for a fuzzer's requests; and the
//! readers of what operators write.
//!
//! The store is real and lies in a folder of the caller's. One router lets everybody in, the other
//! has a file of roles and an OpenID provider. Nothing here bounds what a request may cost.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use memtape_core::identity::ids::Ids;
use memtape_proto::v1;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use crate::access::audit::Audit;
use crate::access::file::Policy;
use crate::access::tokens::Tokens;
use crate::access::{Door, Peer};
use crate::config::Config;
use crate::connections::{Connection, Connections};
use crate::coordinator::{Coordinator, Shared};
use crate::http::request::Api;
use crate::http::routes;
use crate::ingest::event::{EVENTS_MAX, Event, Queues};
use crate::ingest::frames::Frames;
use crate::ingest::grpc::{ATTACH, Service, UPLOAD};
use crate::ingest::wire;
use crate::members::Members;
use crate::quota::{MESSAGE_BYTES_MAX, Quotas};
use crate::restart::proving::Prover;
use crate::state::counters::Counters;
use crate::state::restored::Restored;
use crate::telemetry::export::Telemetry;
use crate::work::decoding::Snapshots;
use crate::work::tasks;
use memtape_disk::clock;
use memtape_store::Store;

/// Longest answer that is looked at, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Time for one answer; a request that takes longer hangs.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(10);

/// Turns of other tasks, in which a stream's last message reaches the loop.
const TURNS: u32 = 16;

/// Time between two looks at deadlines.
const TICK: Duration = Duration::from_millis(200);

/// The other router's file of roles; `KEYS` is the provider's keys.
const ROLES: &str = r#"
[oidc]
issuer = "https://login.example"
audience = "memtape"
keys_file = "KEYS"

[[grant]]
role = "viewer"
names = ["oidc:alice"]
groups = ["team-a"]
"#;

const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k1", "alg": "ES256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// A coordinator that is asked without a socket.
#[derive(Debug)]
pub struct FuzzedRouter {
    runtime: Runtime,
    open: Router,
    closed: Router,
    connections: Arc<Connections>,
    requests: u32,
}

/// A request, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// Its method.
    pub method: &'a str,
    /// Its path and query, or a whole URL.
    pub path: &'a str,
    /// Names and values.
    pub headers: Vec<(&'a str, &'a str)>,
    /// Its body.
    pub body: &'a [u8],
    /// It is for the router that lets everybody in, not for the one with a file of roles.
    pub is_open: bool,
}

impl Asked<'_> {
    /// The request; none where HTTP has none like it.
    pub fn request(&self) -> Option<Request<Vec<u8>>> {
        let request = Request::builder().method(self.method).uri(self.path);
        let headers = self.headers.iter();
        let request = headers.fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(self.body.to_vec()).ok()
    }
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Status of HTTP.
    pub status: u16,
    /// Content type.
    pub kind: String,
    /// All of it.
    pub body: Vec<u8>,
}

impl FuzzedRouter {
    /// Starts a coordinator whose store lies in an empty folder, with one job of two ranks.
    ///
    /// # Errors
    /// The folder cannot be used.
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (keys, roles) = (folder.join("keys.json"), folder.join("access.toml"));
        std::fs::write(&keys, KEYS)?;
        std::fs::write(&roles, ROLES.replace("KEYS", &keys.to_string_lossy()))?;
        let config = Arc::new(Config { data_dir: folder.join("store"), ..Config::default() });
        let memory = config.memory();
        let (store, loaded, _) = Store::open(&config.data_dir)?;
        let restored = Restored::new(clock::now(), &config, loaded, &store, &Ids::default());
        let counters = Arc::new(Counters::default());
        let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
        let entered = runtime.enter();
        let telemetry = Arc::new(Telemetry::start(None, &counters)?);
        let (events, requests, queues) = Queues::new();
        let (works, to_do) = mpsc::unbounded_channel();
        let snapshots = Snapshots::new(store.blobs().clone(), counters.clone(), memory);
        let shared = Shared { store, counters, audit, telemetry, events: events.clone() };
        let router = |roles| -> anyhow::Result<(Router, Arc<Door>)> {
            let tokens = Tokens::new(shared.audit.clone(), Vec::new());
            let door = Arc::new(Door::new(roles, None, tokens, shared.audit.clone())?);
            let quotas = Arc::new(Quotas::new(memory));
            let members = Members::alone();
            let service =
                Service::new(shared.clone(), quotas.clone(), door.clone(), members.clone());
            runtime.spawn(door.clone().follow());
            let (shared, requests) = (shared.clone(), requests.clone());
            let parts = (quotas, members);
            let api = Api::new(shared, requests, door.clone(), parts, snapshots.clone());
            Ok((service.routes().merge(routes::router(api, &[])), door))
        };
        let ((open, door), (closed, _)) = (router(None)?, router(Some(roles))?);
        let prover = Prover::Store(shared.store.clone());
        runtime.spawn(tasks::carry_out(to_do, snapshots.clone(), door, prover, events.clone()));
        let coordinator = Coordinator::new(clock::now(), config, restored, shared.clone(), works);
        runtime.spawn(follow(coordinator, queues));
        runtime.block_on(train(&events))?;
        drop(entered);
        let connections = Arc::new(Connections::new(memory.unknown_calls_max()));
        Ok(Self { runtime, open, closed, connections, requests: 0 })
    }

    /// The answer to a request of [`Asked::request`], by the router that lets everybody in or by
    /// the other one; none when there is no answer in time.
    pub fn answer(&mut self, request: Request<Vec<u8>>, is_open: bool) -> Option<Answered> {
        let connection = self.connect();
        let router = if is_open { &self.open } else { &self.closed };
        let answering = send(router.clone(), &connection, request.map(Body::from));
        self.runtime.block_on(async {
            let answering = async {
                let answer = answering.await?;
                let status = answer.status().as_u16();
                let kind = header(answer.headers(), "content-type");
                let body = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await;
                Some(Answered { status, kind, body: body.unwrap_or_default().into() })
            };
            timeout(ANSWER_TIME_MAX, answering).await.ok()?
        })
    }

    /// The gRPC statuses of an agent's stream and of an upload beside it, on one connection, whose
    /// bytes come in parts of a size; none when there is no answer in time.
    pub fn exchange(&mut self, stream: &[u8], upload: &[u8], part: usize) -> Option<[String; 2]> {
        let connection = self.connect();
        let call = |path, (sender, receiver): (mpsc::Sender<Vec<u8>>, _)| {
            let parts = ReceiverStream::new(receiver).map(Ok::<_, std::io::Error>);
            let request = Request::post(path).body(Body::from_stream(parts)).ok()?;
            Some((sender, send(self.open.clone(), &connection, request)))
        };
        let (streaming, stream_answer) = call(ATTACH, mpsc::channel(1))?;
        let (uploading, upload_answer) = call(UPLOAD, mpsc::channel(1))?;
        self.runtime.block_on(async {
            let calls = async {
                let stream_status = tokio::spawn(status(stream_answer));
                say(&streaming, stream, part).await;
                let upload_status = tokio::spawn(status(upload_answer));
                say(&uploading, upload, part).await;
                drop(uploading);
                let upload_status = upload_status.await.ok()??;
                drop(streaming);
                Some([stream_status.await.ok()??, upload_status])
            };
            timeout(ANSWER_TIME_MAX, calls).await.ok()?
        })
    }

    /// The messages of a call whose bytes come in parts of a size, and why reading them ends:
    /// empty at the end of the call.
    pub fn messages(&self, wire: &[u8], part: usize) -> (Vec<Vec<u8>>, String) {
        let parts = wire.chunks(part).map(|of| Ok::<_, std::io::Error>(of.to_vec()));
        let parts: Vec<_> = parts.collect();
        let mut frames = Frames::new(Body::from_stream(tokio_stream::iter(parts)));
        let mut messages = Vec::new();
        self.runtime.block_on(async {
            loop {
                let message = match frames.begin(MESSAGE_BYTES_MAX).await {
                    Ok(Some(length)) => frames.read(length).await,
                    Ok(None) => return (messages, String::new()),
                    Err(why) => Err(why),
                };
                match message {
                    Ok(message) => messages.push(message.to_vec()),
                    Err(why) => return (messages, why.to_string()),
                }
            }
        })
    }

    /// A client of its own for each call, so that no rate of requests is reached.
    fn connect(&mut self) -> Arc<Connection> {
        self.requests = self.requests.wrapping_add(1);
        let address = SocketAddr::from((self.requests.to_be_bytes(), 1));
        self.connections.open(Peer::new(address))
    }
}

fn send(
    router: Router,
    connection: &Arc<Connection>,
    mut request: Request<Body>,
) -> impl Future<Output = Option<Response<Body>>> + Send + use<> {
    request.extensions_mut().insert(connection.begin());
    let answering = TowerToHyperService::new(router).call(request);
    async { answering.await.ok() }
}

/// Sends bytes in parts, and waits until they are read.
async fn say(sender: &mpsc::Sender<Vec<u8>>, wire: &[u8], part: usize) {
    for part in wire.chunks(part) {
        if sender.send(part.to_vec()).await.is_err() {
            return;
        }
    }
    if sender.reserve().await.is_ok() {
        for _ in 0..TURNS {
            yield_now().await;
        }
    }
}

/// The status at the end of a gRPC call.
async fn status(answering: impl Future<Output = Option<Response<Body>>>) -> Option<String> {
    let (head, body) = answering.await?.into_parts();
    let trailers = body.collect().await.ok()?.trailers().cloned().unwrap_or_default();
    Some(header(&head.headers, "grpc-status") + &header(&trailers, "grpc-status"))
}

fn header(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    value.unwrap_or_default().into_owned()
}

async fn follow(mut coordinator: Coordinator, mut queues: Queues) {
    let mut ticks = tokio::time::interval(TICK);
    loop {
        let event = tokio::select! {
            _ = ticks.tick() => Event::Tick,
            Some(event) = queues.next() => event,
            else => return,
        };
        coordinator.handle(clock::now(), event);
    }
}

/// Reports some steps of two ranks.
async fn train(events: &mpsc::Sender<Event>) -> anyhow::Result<()> {
    use v1::agent_message::Body;
    let message = |body| v1::AgentMessage { body: Some(body) };
    let hello = v1::Hello {
        protocol: memtape_proto::PROTOCOL,
        node: "node-1".to_string(),
        ..v1::Hello::default()
    };
    let (hello, _) = wire::hello(message(Body::Hello(hello)))?;
    let (outgoing, _) = mpsc::channel(EVENTS_MAX);
    let (reply, attached) = oneshot::channel();
    let stopped = || anyhow::anyhow!("the coordinator has stopped");
    let (from, end) = (([127, 0, 0, 1], 1).into(), CancellationToken::new());
    let attach = Event::Attached { hello, from, outgoing, end, reply };
    events.send(attach).await.map_err(|_| stopped())?;
    let stream = attached.await??;
    let mut said = Vec::new();
    let mut ranks = Vec::new();
    for rank in 0..2 {
        let tape_id = format!("{:032x}", rank + 1);
        let up = v1::RankUp {
            tape_id: tape_id.clone(),
            job: "train".to_string(),
            rank,
            world_size: 2,
            owner: Some(v1::Owner::default()),
            ..v1::RankUp::default()
        };
        said.push(Body::RankUp(up));
        let step =
            |step| v1::StepRecord { first_step: step, last_step: step, ..Default::default() };
        let steps = (1..50).map(step).collect();
        ranks.push(v1::RankReport { tape_id, steps, step: 49, ..v1::RankReport::default() });
    }
    said.push(Body::Report(v1::Report { number: 1, ranks, ..v1::Report::default() }));
    for body in said {
        if let Some(message) = wire::incoming(message(body))? {
            let said = Event::Said { stream, message: message.into(), share: None, turn: None };
            events.send(said).await.map_err(|_| stopped())?;
        }
    }
    Ok(())
}

/// What is wrong with a file of roles; none where it can be used.
pub fn mistake_in_roles(text: &str) -> Option<String> {
    Policy::parse(text).err()
}

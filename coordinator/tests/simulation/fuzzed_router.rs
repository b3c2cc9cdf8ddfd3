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
use axum::http::Request;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use memtape_proto::v1;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::access::audit::Audit;
use crate::access::file::Policy;
use crate::access::tokens::Tokens;
use crate::access::{Door, Peer};
use crate::config::Config;
use crate::connections::Connections;
use crate::coordinator::{Coordinator, Shared};
use crate::http::request::Api;
use crate::http::routes;
use crate::ingest::event::{EVENTS_MAX, Event, Queues};
use crate::ingest::grpc::Service;
use crate::ingest::wire;
use crate::quota::Quotas;
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
        let restored = Restored::new(clock::now(), &config, loaded, &store);
        let counters = Arc::new(Counters::default());
        let audit = Audit::new(store.clone(), counters.clone(), Vec::new());
        let entered = runtime.enter();
        let telemetry = Arc::new(Telemetry::start(None, &counters)?);
        let (events, requests, queues) = Queues::new();
        let (works, to_do) = mpsc::unbounded_channel();
        let snapshots = Snapshots::new(store.blobs().clone(), counters.clone(), memory);
        let shared = Shared { store, counters, audit, telemetry, events: events.clone() };
        let router = |roles| -> anyhow::Result<(Router, Arc<Door>)> {
            let tokens = Tokens::new(shared.store.clone(), Vec::new());
            let door = Arc::new(Door::new(roles, None, tokens, shared.audit.clone())?);
            let quotas = Arc::new(Quotas::new(memory));
            let service = Service::new(shared.clone(), quotas.clone(), door.clone());
            runtime.spawn(door.clone().follow());
            let (shared, requests) = (shared.clone(), requests.clone());
            let api = Api::new(shared, requests, door.clone(), quotas, snapshots.clone());
            Ok((service.routes().merge(routes::router(api, &[])), door))
        };
        let ((open, door), (closed, _)) = (router(None)?, router(Some(roles))?);
        runtime.spawn(tasks::carry_out(to_do, snapshots.clone(), door, events.clone()));
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
        // A client of its own for each, so that no rate of requests is reached.
        self.requests = self.requests.wrapping_add(1);
        let address = SocketAddr::from((self.requests.to_be_bytes(), 1));
        let connection = self.connections.open(Peer::new(address));
        let mut request = request.map(Body::from);
        request.extensions_mut().insert(connection.begin());
        let router = if is_open { self.open.clone() } else { self.closed.clone() };
        self.runtime.block_on(async {
            let answering = async {
                let answer = TowerToHyperService::new(router).call(request).await.ok()?;
                let status = answer.status().as_u16();
                let kind = answer.headers().get("content-type").cloned();
                let kind = kind.map_or(String::new(), |kind| {
                    String::from_utf8_lossy(kind.as_bytes()).into_owned()
                });
                let body = to_bytes(answer.into_body(), ANSWER_BYTES_MAX).await;
                Some(Answered { status, kind, body: body.unwrap_or_default().into() })
            };
            tokio::time::timeout(ANSWER_TIME_MAX, answering).await.ok()?
        })
    }
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
    let hello = wire::hello(message(Body::Hello(hello)))?;
    let (outgoing, _) = mpsc::channel(EVENTS_MAX);
    let (reply, attached) = oneshot::channel();
    let stopped = || anyhow::anyhow!("the coordinator has stopped");
    let end = CancellationToken::new();
    let attach = Event::Attached { hello, outgoing, end, reply };
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
            let said = Event::Said { stream, message, share: None };
            events.send(said).await.map_err(|_| stopped())?;
        }
    }
    Ok(())
}

/// What is wrong with a file of roles; none where it can be used.
pub fn mistake_in_roles(text: &str) -> Option<String> {
    Policy::parse(text).err()
}

//! A coordinator for tests: records every message, acknowledges those that the test wants.
//!
//! It has a runtime of its own, so that it can be killed like a process: all connections at once,
//! in the middle of whatever they do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use memtape_proto::v1;
use memtape_proto::v1::agent_message::Body as FromAgent;
use memtape_proto::v1::coordinator_message::Body as ToAgent;
use memtape_proto::v1::coordinator_server::{Coordinator, CoordinatorServer};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::{Request, Response, Status, Streaming};

type ToAgents = mpsc::UnboundedSender<Result<v1::CoordinatorMessage, Status>>;

/// Everything a coordinator received, over all of its restarts.
pub(crate) struct Seen {
    /// What it says to each agent first.
    pub(crate) welcome: v1::Welcome,
    /// First messages of streams.
    pub(crate) hellos: Vec<v1::Hello>,
    pub(crate) ups: Vec<v1::RankUp>,
    /// Each with the number of its stream, from 1.
    pub(crate) reports: Vec<(usize, v1::Report)>,
    pub(crate) downs: Vec<v1::RankDown>,
    pub(crate) answers: Vec<v1::CaptureAnswer>,
    pub(crate) captures: Vec<v1::AgentCapture>,
    pub(crate) remedies: Vec<v1::RemedyAnswer>,
    /// By capture and tape.
    pub(crate) snapshots: BTreeMap<(String, String), Vec<u8>>,
    /// Every message in order, by kind: `up 0`, `report 3`, `down 0`.
    pub(crate) order: Vec<String>,
    /// Uploads to fail before one is taken.
    pub(crate) uploads_to_fail: usize,
    /// The last report of each stream that is acknowledged.
    pub(crate) acks_until: Option<u64>,
    /// Streams that were asked for.
    pub(crate) attaches: usize,
    /// Makes the refusal of a stream, from its number.
    pub(crate) refuses: Option<fn(usize, &str) -> v1::NotOwner>,
    /// The owner that a refusal names.
    pub(crate) owner: String,
    agents: Vec<ToAgents>,
}

/// The listener.
pub(crate) struct FakeCoordinator {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    runtime: Option<Runtime>,
}

#[derive(Clone)]
struct Service(Arc<Mutex<Seen>>);

impl FakeCoordinator {
    /// Listens on a free port.
    pub(crate) fn start() -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (runtime, address) = serve("127.0.0.1:0".parse().expect("address"), &seen);
        Self { address, seen, runtime: Some(runtime) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Dies, without a word.
    pub(crate) fn kill(&mut self) {
        self.runtime.take().expect("alive").shutdown_background();
        self.seen().agents.clear();
    }

    /// Comes back at the same address, with its memory.
    pub(crate) fn revive(&mut self) {
        self.runtime = Some(serve(self.address, &self.seen).0);
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no panic")
    }

    /// Says something to the agent that attached last.
    pub(crate) fn say(&self, body: ToAgent) {
        let seen = self.seen();
        let agent = seen.agents.last().expect("an agent");
        agent.send(Ok(v1::CoordinatorMessage { body: Some(body) })).expect("a stream");
    }

    /// Waits until `look` finds what it looks for.
    pub(crate) async fn wait<T>(&self, what: &str, look: impl Fn(&Seen) -> Option<T>) -> T {
        for _ in 0..6000 {
            if let Some(found) = look(&self.seen()) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: not within 60 s; seen {:?}", self.seen().order);
    }

    /// Waits for reports that were made from now on.
    pub(crate) async fn wait_for_reports(&self, more: usize) {
        let before = self.seen().reports.len();
        self.wait("more reports", |seen| (seen.reports.len() >= before + more).then_some(())).await;
    }
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            welcome: v1::Welcome {
                protocol: 1,
                version: "test".to_string(),
                report_interval_ms: 0,
                store: String::new(),
            },
            hellos: Vec::new(),
            ups: Vec::new(),
            reports: Vec::new(),
            downs: Vec::new(),
            answers: Vec::new(),
            captures: Vec::new(),
            remedies: Vec::new(),
            snapshots: BTreeMap::new(),
            order: Vec::new(),
            uploads_to_fail: 0,
            acks_until: None,
            attaches: 0,
            refuses: None,
            owner: String::new(),
            agents: Vec::new(),
        }
    }
}

impl Drop for FakeCoordinator {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Seen {
    /// All step records of a tape, in the order of their arrival, on one stream or on all.
    pub(crate) fn steps(&self, tape_id: &str, stream: Option<usize>) -> Vec<v1::StepRecord> {
        self.reports
            .iter()
            .filter(|(number, _)| stream.is_none_or(|stream| stream == *number))
            .flat_map(|(_, report)| &report.ranks)
            .filter(|rank| is_of(&rank.tape_id, tape_id))
            .flat_map(|rank| rank.steps.clone())
            .collect()
    }

    /// The newest report about a tape.
    pub(crate) fn newest(&self, tape_id: &str) -> Option<&v1::RankReport> {
        let ranks = self.reports.iter().rev().flat_map(|(_, report)| &report.ranks);
        ranks.into_iter().find(|rank| is_of(&rank.tape_id, tape_id))
    }
}

fn serve(address: SocketAddr, seen: &Arc<Mutex<Seen>>) -> (Runtime, SocketAddr) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("runtime");
    let listener = {
        let _entered = runtime.enter();
        let listener = std::net::TcpListener::bind(address).expect("port");
        listener.set_nonblocking(true).expect("nonblocking");
        TcpListener::from_std(listener).expect("listener")
    };
    let address = listener.local_addr().expect("address");
    let service = CoordinatorServer::new(Service(Arc::clone(seen)));
    runtime.spawn(
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming(TcpListenerStream::new(listener)),
    );
    (runtime, address)
}

impl Service {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no panic")
    }

    /// Notes a message; answers the acknowledgement it gets.
    fn note(&self, stream: usize, message: FromAgent) -> Option<ToAgent> {
        let mut seen = self.seen();
        match message {
            FromAgent::Hello(hello) => {
                seen.order.push("hello".to_string());
                seen.hellos.push(hello);
            }
            FromAgent::RankUp(up) => {
                seen.order.push(format!("up {}", up.rank));
                seen.ups.push(up);
            }
            FromAgent::Report(report) => {
                let number = report.number;
                seen.order.push(format!("report {number}"));
                seen.reports.push((stream, report));
                let is_acked = seen.acks_until.is_none_or(|last| number <= last);
                return is_acked.then_some(ToAgent::ReportAck(v1::ReportAck { number }));
            }
            FromAgent::RankDown(down) => {
                seen.order.push(format!("down {}", down.tape_id));
                seen.downs.push(down);
            }
            FromAgent::AgentCapture(capture) => {
                let answer = capture.answer.clone().unwrap_or_default();
                seen.order.push(format!("capture {}", answer.tape_id));
                seen.captures.push(capture);
            }
            FromAgent::CaptureAnswer(answer) => {
                seen.order.push(format!("answer {}", answer.capture_id));
                seen.answers.push(answer);
            }
            FromAgent::RemedyAnswer(answer) => {
                seen.order.push(format!("remedy {}", answer.call_id));
                seen.remedies.push(answer);
            }
        }
        None
    }
}

#[tonic::async_trait]
impl Coordinator for Service {
    type AttachStream = Pin<Box<dyn Stream<Item = Result<v1::CoordinatorMessage, Status>> + Send>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let say = |sender: &ToAgents, body| {
            let _ = sender.send(Ok(v1::CoordinatorMessage { body: Some(body) })); // agent gone
        };
        let stream = {
            let mut seen = self.seen();
            seen.attaches += 1;
            if let Some(refuses) = seen.refuses {
                let details = refuses(seen.attaches, &seen.owner).encode_to_vec().into();
                let code = tonic::Code::FailedPrecondition;
                return Err(Status::with_details(code, "not mine", details));
            }
            say(&sender, ToAgent::Welcome(seen.welcome.clone()));
            seen.agents.push(sender.clone());
            seen.hellos.len() + 1
        };
        let service = self.clone();
        let mut messages = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(message)) = messages.message().await {
                let Some(body) = message.body else { continue };
                if let Some(ack) = service.note(stream, body) {
                    say(&sender, ack);
                }
            }
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn upload(
        &self,
        request: Request<Streaming<v1::UploadChunk>>,
    ) -> Result<Response<v1::UploadReceipt>, Status> {
        let mut chunks = request.into_inner();
        let mut snapshot = Vec::new();
        let mut key = None;
        while let Some(chunk) = chunks.message().await? {
            assert_eq!(chunk.offset, snapshot.len() as u64);
            snapshot.extend_from_slice(&chunk.data);
            key.get_or_insert((chunk.capture_id, chunk.tape_id));
        }
        let mut seen = self.seen();
        if seen.uploads_to_fail > 0 {
            seen.uploads_to_fail -= 1;
            return Err(Status::unavailable("the disk is slow"));
        }
        let snapshot_hash = blake3::hash(&snapshot).as_bytes().to_vec();
        seen.snapshots.insert(key.ok_or_else(|| Status::invalid_argument("no chunk"))?, snapshot);
        Ok(Response::new(v1::UploadReceipt { snapshot_hash }))
    }
}

/// Is this the tape, as a coordinator of any version knows it? Before version 1.6 ids did not name
/// the owner.
fn is_of(sent: &str, tape_id: &str) -> bool {
    let own = tape_id.rsplit_once('-').map_or(tape_id, |(own, _)| own);
    sent == tape_id || sent == own
}

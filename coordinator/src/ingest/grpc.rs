//! The gRPC service: streams of agents and uploads of snapshots.
//!
//! A task per call stands between the network and the loop. It understands messages, keeps
//! unanswered reports and waiting snapshots within bounds, and writes snapshots to disk, so that
//! the loop only ever sees small, sound events.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use memtape_core::limits::{
    CHUNK_BYTES_MAX, MESSAGE_DECODED_BYTES_MAX, MESSAGE_MIB_SECONDS_MAX, MESSAGES_WAITING_MAX,
    REQUEST_BYTES_MAX, UPLOAD_SECONDS_MAX,
};
use memtape_core::placement::JobsShard;
use memtape_proto::decoding::{Encoded, Measured};
use memtape_proto::snapshot::{self, DecodeError};
use memtape_proto::v1;
use opentelemetry::KeyValue;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codec::{Codec as _, EncodeBody};
use tonic_prost::ProstCodec;

use crate::access::Door;
use crate::connections::{Call, Connection};
use crate::coordinator::Shared;
use crate::ingest::event::Event;
use crate::ingest::frames::Frames;
use crate::ingest::streams::{StreamId, ToAgent};
use crate::ingest::wire::{self, BadMessage, Outgoing};
use crate::members::Members;
use crate::quota::{MESSAGE_BYTES_MAX, NodePermit, NodeQuota, Quotas, REPORTS_PER_STREAM_MAX};
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::counters::Loss;
use crate::state::jobs::agents::AgentRefused;
use crate::state::messages::{Hello, Incoming};
use memtape_disk::clock;

/// The calls. Their messages are read here: the library would take memory before there is a share.
pub(crate) const ATTACH: &str = "/memtape.v1.Coordinator/Attach";
pub(crate) const UPLOAD: &str = "/memtape.v1.Coordinator/Upload";

/// Time for the first message of a stream.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// The first chunk must come sooner: few uploads may be at this stage at the same time, and a lost
/// machine must not hold up the others for long.
const FIRST_CHUNK_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time by which a snapshot may arrive before the answer that announces it; then the
/// largest size is assumed.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(200);

/// Time between two polls for that answer.
const ANSWER_POLL: Duration = Duration::from_millis(10);

/// The service.
#[derive(Clone)]
pub(crate) struct Service {
    shared: Shared,
    quotas: Arc<Quotas>,
    door: Arc<Door>,
    members: Members,
}

impl Service {
    pub(crate) fn new(
        shared: Shared,
        quotas: Arc<Quotas>,
        door: Arc<Door>,
        members: Members,
    ) -> Self {
        Self { shared, quotas, door, members }
    }

    /// The routes of agents.
    pub(crate) fn routes(self) -> Router {
        Router::new().route(ATTACH, post(attach)).route(UPLOAD, post(upload)).with_state(self)
    }
}

async fn attach(
    State(service): State<Service>,
    Extension(call): Extension<Arc<Call>>,
    body: Body,
) -> axum::response::Response {
    answer(service.attach(&call, Frames::new(body)).await)
}

async fn upload(
    State(service): State<Service>,
    Extension(call): Extension<Arc<Call>>,
    body: Body,
) -> axum::response::Response {
    let receipt = service.upload(&call, Frames::new(body)).await;
    answer(receipt.map(|receipt| tokio_stream::once(Ok(receipt))))
}

/// The answer of a call: messages, or why there are none.
fn answer<M: prost::Message + Default + 'static>(
    messages: Result<impl Stream<Item = Result<M, Status>> + Send + 'static, Status>,
) -> axum::response::Response {
    match messages {
        Ok(messages) => {
            let encoder = ProstCodec::<M, M>::default().encoder();
            let body = EncodeBody::new_server(encoder, messages, None, Default::default(), None);
            ([(header::CONTENT_TYPE, "application/grpc")], Body::new(body)).into_response()
        }
        Err(status) => status.into_http(),
    }
}

impl Service {
    /// Opens the stream of an agent, and reads it in a task. Returns the messages to the agent.
    async fn attach(
        &self,
        call: &Arc<Call>,
        mut incoming: Frames,
    ) -> Result<impl Stream<Item = Result<Outgoing, Status>> + Send + use<>, Status> {
        let connection = call.connection().clone();
        // Nothing is read of a client that is the agent of no node.
        if !self.door.may_be_agent(connection.peer()) {
            return Err(self.no_agent(&connection, None));
        }
        let permit = connection.permit_stream().ok_or_else(|| {
            Status::resource_exhausted("the connection has too many streams of agents")
        })?;
        call.keep(Box::new(permit));
        let first = timeout(HELLO_TIMEOUT, self.first(&mut incoming)).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello came in time"))?;
        let (hello, jobs) = first.map_err(|why| self.bad(&connection, &why))?;
        let node = hello.node.clone();
        if !self.door.is_agent(connection.peer(), &node) {
            return Err(self.no_agent(&connection, Some(&node)));
        }
        if !self.members.is_own(jobs) {
            return Err(wire::not_owner(&self.members, jobs));
        }
        let (door, of) = (self.door.clone(), node.clone());
        call.admit((Some(node.clone()), Box::new(move |peer| door.is_agent(peer, &of))));
        // The roles may have been replaced before the stream was there to be closed.
        if !self.door.is_agent(connection.peer(), &node) {
            return Err(self.no_agent(&connection, Some(&node)));
        }
        let (quota, from) = (self.quotas.node(&node), connection.peer().address);
        let turn = quota.begin_event().await;
        let (outgoing, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (reply, attached) = oneshot::channel();
        let end = CancellationToken::new();
        let reports = Arc::new(Semaphore::new(REPORTS_PER_STREAM_MAX));
        let (service, unanswered, ended) = (self.clone(), reports.clone(), end.clone());
        // The agent is gone when the library drops its messages: the other direction ends, too.
        let gone = end.clone().drop_guard();
        // A task, so that `Gone` follows whenever the agent leaves.
        tokio::spawn(async move {
            let opened = service.open(hello, from, outgoing, end).await;
            drop(turn);
            let stream = opened.as_ref().ok().copied();
            // The receiver is gone if the connection broke meanwhile.
            let _ = reply.send(opened);
            let Some(stream) = stream else { return };
            let listening = service.listen(stream, &quota, incoming, unanswered);
            match ended.run_until_cancelled_owned(listening).await {
                // The agent will be back.
                None | Some(Ok(()) | Err(BadMessage::Broken)) => {}
                Some(Err(why)) => drop(service.bad(&connection, &why)),
            }
            let turn = quota.begin_event().await;
            // The loop is gone: the coordinator stops.
            let _ = service.shared.events.send(Event::Gone { stream, turn }).await;
        });
        attached.await.map_err(|_| stopping())??;
        Ok(ReceiverStream::new(receiver).map(move |message| {
            let _ = &gone;
            if let Ok(Outgoing { body: Some(v1::coordinator_message::Body::ReportAck(_)) }) =
                &message
                && reports.available_permits() < REPORTS_PER_STREAM_MAX
            {
                reports.add_permits(1);
            }
            message
        }))
    }

    /// Has a stream opened by the loop.
    async fn open(
        &self,
        hello: Hello,
        from: SocketAddr,
        outgoing: ToAgent,
        end: CancellationToken,
    ) -> Result<StreamId, Status> {
        let (reply, answer) = oneshot::channel();
        self.tell(Event::Attached { hello, from, outgoing, end, reply }).await?;
        answer.await.map_err(|_| stopping())?.map_err(|why| match why {
            AgentRefused::TooOften(_) => Status::resource_exhausted(why.to_string()),
            AgentRefused::NotRenewed => Status::unavailable(why.to_string()),
            _ => Status::already_exists(why.to_string()),
        })
    }

    /// The first message of a stream, and the jobs that it is about.
    async fn first(&self, incoming: &mut Frames) -> Result<(Hello, Option<JobsShard>), BadMessage> {
        let length = incoming.begin(REQUEST_BYTES_MAX).await?.ok_or(BadMessage::NotHello)?;
        let raw = Encoded::new(incoming.read(length).await?).measured(MESSAGE_DECODED_BYTES_MAX);
        wire::hello(raw.and_then(Measured::decode).map_err(BadMessage::NotDecoded)?)
    }

    /// Hears an agent until its stream has ended.
    async fn listen(
        &self,
        stream: u64,
        node: &Arc<NodeQuota>,
        mut incoming: Frames,
        reports: Arc<Semaphore>,
    ) -> Result<(), BadMessage> {
        loop {
            // Given back for what turns out to be no report. First of all: who does not read
            // acknowledgements shall not keep a share of the memory.
            let Ok(permit) = reports.acquire().await else { return Ok(()) };
            let Some(length) = incoming.begin(MESSAGE_BYTES_MAX).await? else { return Ok(()) };
            let _raw = self.quotas.reserve_message(node, length as u64).await;
            let raw = Encoded::<v1::AgentMessage>::new(incoming.read(length).await?);
            let raw = raw.measured(self.quotas.message_decoded_bytes_max());
            let raw = raw.map_err(BadMessage::NotDecoded)?;
            let share = self.quotas.reserve_report(node, raw.cost_bytes()).await;
            let message = wire::incoming(raw.decode().map_err(BadMessage::NotDecoded)?)?;
            let Some(message) = message else { continue };
            if matches!(message, Incoming::Report(_)) {
                permit.forget();
            }
            let turn = node.begin_event().await;
            if self
                .tell(Event::Said { stream, message: message.into(), share, turn })
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    }

    /// Takes the snapshot of a rank.
    async fn upload(
        &self,
        call: &Arc<Call>,
        mut chunks: Frames,
    ) -> Result<v1::UploadReceipt, Status> {
        // The places of uploads are for agents: a client without a stream gets none.
        let nodes = call.connection().nodes();
        // One, but for agents of several nodes that share a connection and so a line.
        let Some(node) = nodes.iter().min() else {
            return Err(Status::unavailable("no agent is attached on this connection"));
        };
        call.admit((None, Box::new(|_| true)));
        // Nothing of a snapshot is read before its permit.
        let queued = self.quotas.queue_upload(node).await;
        let queued =
            queued.ok_or_else(|| Status::unavailable("too many snapshots come at once"))?;
        let begin = clock::now();
        let first = timeout(FIRST_CHUNK_TIMEOUT, self.chunk(&queued.node, &mut chunks)).await;
        let first = first.map_err(|_| self.too_slow())??;
        let first = first.ok_or_else(|| Status::invalid_argument("the snapshot has no chunk"))?;
        let capture = wire::id(&first.capture_id).map_err(refused)?;
        let tape_id = wire::id(&first.tape_id).map_err(refused)?;
        let result = self.receive(&capture, &tape_id, &nodes, (queued, first, chunks)).await;
        let failure = result.as_ref().err().map(Status::message);
        let attributes = [
            KeyValue::new("memtape.capture.id", capture),
            KeyValue::new("memtape.tape.id", tape_id),
        ];
        self.shared.telemetry.work("upload", begin, failure, attributes);
        Ok(v1::UploadReceipt { snapshot_hash: result?.as_bytes().to_vec() })
    }

    /// The next chunk of a snapshot, within its time.
    async fn chunk(
        &self,
        node: &NodeQuota,
        chunks: &mut Frames,
    ) -> Result<Option<v1::UploadChunk>, Status> {
        let slow = |_| self.too_slow();
        let patience = Duration::from_secs(MESSAGE_MIB_SECONDS_MAX);
        let length = timeout(patience, chunks.begin(MESSAGE_BYTES_MAX)).await.map_err(slow)?;
        let Some(length) = length.map_err(refused)? else { return Ok(None) };
        let _raw = self.quotas.reserve_message(node, length as u64).await;
        let raw = chunks.read(length).await.map_err(|why| match why {
            BadMessage::Slow => self.too_slow(),
            why => refused(why),
        });
        let chunk = Encoded::new(raw?).measured(MESSAGE_DECODED_BYTES_MAX);
        let chunk = chunk.and_then(Measured::decode).map(Some);
        chunk.map_err(|why| refused(BadMessage::NotDecoded(why)))
    }

    async fn tell(&self, event: Event) -> Result<(), Status> {
        self.shared.events.send(event).await.map_err(|_| stopping())
    }

    /// Refuses a client that is no agent; without the node it is that of none.
    fn no_agent(&self, connection: &Connection, node: Option<&str>) -> Status {
        self.shared.counters.lose(Loss::AgentRefused, 1);
        let peer = connection.peer();
        let of = node.map_or_else(|| "any node".to_string(), |node| format!("node {node:?}"));
        let (why, place) = match self.door.denied(peer) {
            Some(name) => (format!("{name} is denied"), "deny"),
            None => (
                format!("the certificate is not that of the agent of {of}"),
                "the grants of role agent",
            ),
        };
        if self.door.is_logged(peer) {
            tracing::warn!(
                node = ?node, from = %peer.address, names = ?peer.names(),
                "an agent is refused: {why}"
            );
        }
        self.door.note_refusal(peer, 0, None, why.clone());
        Status::permission_denied(format!("{why}: see {place} in the coordinator's file of roles"))
    }

    fn bad(&self, connection: &Connection, why: &BadMessage) -> Status {
        self.shared.counters.lose(Loss::BadMessage, 1);
        let peer = connection.peer();
        if self.door.is_logged(peer) {
            tracing::warn!(from = %peer.address, "an agent's stream is closed: {why}");
        }
        Status::invalid_argument(why.to_string())
    }

    /// Takes a snapshot to disk and into the manifest.
    async fn receive(
        &self,
        capture: &str,
        tape_id: &str,
        nodes: &[String],
        (queued, first, chunks): (NodePermit, v1::UploadChunk, Frames),
    ) -> Result<blake3::Hash, Status> {
        let verdict = self.ask(&queued.node, capture, tape_id, nodes).await?;
        let promised = match verdict {
            Upload::Wanted { promised } => promised,
            Upload::Stored { hash } => return Ok(hash),
            Upload::Later => return Err(Status::unavailable("the store cannot be written now")),
            Upload::Refused => {
                return Err(Status::failed_precondition("no capture waits for this snapshot"));
            }
        };
        let bytes_max = self.quotas.memory.snapshot_bytes_max();
        let bytes = promised.map_or(bytes_max as u64, |(bytes, _)| bytes);
        if bytes > bytes_max as u64 {
            return Err(self.refuse(&DecodeError::TooLarge { bytes, bytes_max }));
        }
        // All of it at once: snapshots that wait for each other's rest would wait forever.
        let permit = self.quotas.reserve_upload(queued, bytes).await;
        let patience = Duration::from_secs(UPLOAD_SECONDS_MAX);
        let collected = timeout(patience, self.collect(&permit, first, chunks, bytes)).await;
        let snapshot = collected.map_err(|_| self.too_slow())??;
        let hash = blake3::hash(&snapshot);
        if !verdict.is_as_promised(snapshot.len() as u64, &hash) {
            self.shared.counters.lose(Loss::BadSnapshot, 1);
            return Err(Status::aborted("the snapshot is not the one that was announced"));
        }
        // Bounds the decoder's memory. The diagnosis reads the contents, and reports a snapshot
        // that cannot be decoded.
        if let Err(why) = snapshot::unpacked_bytes(&snapshot, bytes_max) {
            return Err(self.refuse(&why));
        }
        // On its own: a call that is given up midway would leave a snapshot in use without an
        // owner.
        let (service, capture, tape_id) = (self.clone(), capture.to_string(), tape_id.to_string());
        let kept = tokio::spawn(async move {
            let _permit = permit;
            service.keep(&capture, &tape_id, snapshot, hash).await
        });
        kept.await.map_err(|error| Status::internal(error.to_string()))?
    }

    /// Asks the loop about a snapshot; waits briefly for the answer with the snapshot's size. That
    /// answer was sent before the snapshot, but on another stream.
    async fn ask(
        &self,
        node: &Arc<NodeQuota>,
        capture: &str,
        tape_id: &str,
        nodes: &[String],
    ) -> Result<Upload, Status> {
        let begin = Instant::now();
        loop {
            let (reply, answer) = oneshot::channel();
            let (capture, tape_id) = (capture.to_string(), tape_id.to_string());
            let turn = node.begin_event().await;
            let nodes = nodes.to_vec();
            self.tell(Event::UploadBegun { capture, tape_id, nodes, reply, turn }).await?;
            let upload = answer.await.map_err(|_| stopping())?;
            let is_known = upload != Upload::Wanted { promised: None };
            if is_known || begin.elapsed() >= ANSWER_TIME_MAX {
                return Ok(upload);
            }
            sleep(ANSWER_POLL).await;
        }
    }

    async fn collect(
        &self,
        permit: &NodePermit,
        first: v1::UploadChunk,
        mut chunks: Frames,
        bytes_max: u64,
    ) -> Result<Bytes, Status> {
        // Not by doubling, which would take twice the share. Memory is taken as it is written to.
        let mut snapshot = BytesMut::with_capacity(usize::try_from(bytes_max).unwrap_or(0));
        let mut next = Some(first);
        while let Some(chunk) = next {
            // All but the last are whole, and each has its time: so an upload has a minimum speed.
            let is_next = chunk.offset == snapshot.len() as u64
                && snapshot.len().is_multiple_of(CHUNK_BYTES_MAX)
                && (snapshot.is_empty() || !chunk.data.is_empty());
            if !is_next || (snapshot.len() + chunk.data.len()) as u64 > bytes_max {
                self.shared.counters.lose(Loss::BadSnapshot, 1);
                let line = if is_next { "the snapshot is too long" } else { "a chunk is missing" };
                return Err(Status::invalid_argument(line));
            }
            snapshot.extend_from_slice(&chunk.data);
            next = self.chunk(&permit.node, &mut chunks).await?;
        }
        Ok(snapshot.freeze())
    }

    /// The agent tries again later.
    fn too_slow(&self) -> Status {
        self.shared.counters.lose(Loss::SlowUpload, 1);
        Status::deadline_exceeded("the snapshot comes too slowly")
    }

    fn refuse(&self, why: &DecodeError) -> Status {
        self.shared.counters.lose(Loss::BadSnapshot, 1);
        match why {
            DecodeError::TooLarge { .. } => Status::out_of_range(why.to_string()),
            _ => Status::invalid_argument(why.to_string()),
        }
    }

    async fn keep(
        &self,
        capture: &str,
        tape_id: &str,
        snapshot: Bytes,
        hash: blake3::Hash,
    ) -> Result<blake3::Hash, Status> {
        let bytes = snapshot.len() as u64;
        let begin = clock::now();
        let stored = self.shared.store.blobs().put(hash, snapshot).await;
        let failure = stored.err().map(|error| error.to_string());
        let size =
            KeyValue::new("memtape.snapshot.bytes", i64::try_from(bytes).unwrap_or(i64::MAX));
        self.shared.telemetry.work("store snapshot", begin, failure.as_deref(), [size]);
        let (capture, tape_id) = (capture.to_string(), tape_id.to_string());
        if let Some(why) = failure {
            tracing::error!("a snapshot cannot be stored: {why}");
            let status = Status::unavailable(format!("the snapshot cannot be stored now: {why}"));
            self.tell(Event::SnapshotFailed { capture, tape_id, why }).await?;
            return Err(status);
        }
        let (reply, answer) = oneshot::channel();
        let snapshot = StoredSnapshot { capture, tape_id, bytes, hash };
        self.tell(Event::SnapshotStored { snapshot, reply }).await?;
        match answer.await.map_err(|_| stopping())? {
            Ok(()) => Ok(hash),
            Err(UploadRefused::Stale(why)) => Err(Status::failed_precondition(why)),
            Err(UploadRefused::Store(why)) => Err(Status::unavailable(why)),
        }
    }
}

fn refused(why: BadMessage) -> Status {
    Status::invalid_argument(why.to_string())
}

fn stopping() -> Status {
    Status::unavailable("the coordinator is stopping")
}

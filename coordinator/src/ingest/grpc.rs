//! The gRPC service: streams of agents and uploads of snapshots.
//!
//! A task per call stands between the network and the loop. It understands messages, keeps
//! unanswered reports and waiting snapshots within bounds, and writes snapshots to disk, so that
//! the loop only ever sees small, sound events.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use memtape_core::limits::{
    CHUNK_BYTES_MAX, MESSAGE_DECODED_BYTES_MAX, MESSAGES_WAITING_MAX, SNAPSHOT_BYTES_MAX,
    UPLOAD_SECONDS_MAX,
};
use memtape_proto::decoding::{Encoded, Measured, coordinator_server};
use memtape_proto::snapshot::{self, DecodeError};
use memtape_proto::v1;
use opentelemetry::KeyValue;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{Duration, Instant, sleep, timeout, timeout_at};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use crate::access::Door;
use crate::connections::{Call, Connection};
use crate::coordinator::Shared;
use crate::ingest::event::Event;
use crate::ingest::progress::{Progress, TooSlow};
use crate::ingest::wire::{self, BadMessage, Outgoing};
use crate::quota::{QueuedUpload, Quotas, REPORTS_PER_STREAM_MAX};
use crate::state::captures::uploads::{StoredSnapshot, Upload, UploadRefused};
use crate::state::counters::Loss;
use crate::state::effects::Share;
use crate::state::messages::Incoming;
use memtape_disk::clock;

/// Largest message of an agent, as it comes.
pub(crate) const MESSAGE_BYTES_MAX: usize = CHUNK_BYTES_MAX * 4;

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
}

impl Service {
    pub(crate) fn new(shared: Shared, quotas: Arc<Quotas>, door: Arc<Door>) -> Self {
        Self { shared, quotas, door }
    }

    /// The service for the router.
    pub(crate) fn server(self) -> coordinator_server::CoordinatorServer<Self> {
        coordinator_server::CoordinatorServer::new(self)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

/// Messages to one agent. Dropped when the agent is gone, or the loop has no more messages.
pub(crate) struct Messages {
    receiver: mpsc::Receiver<Outgoing>,
    /// Dropped with it, to end the other direction too.
    _end: oneshot::Sender<()>,
    /// Reports whose acknowledgement was not sent yet.
    reports: Arc<Semaphore>,
}

impl Stream for Messages {
    type Item = Result<Outgoing, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.receiver.poll_recv(context);
        if let Poll::Ready(Some(message)) = &polled
            && matches!(message.body, Some(v1::coordinator_message::Body::ReportAck(_)))
            && self.reports.available_permits() < REPORTS_PER_STREAM_MAX
        {
            self.reports.add_permits(1);
        }
        polled.map(|message| message.map(Ok))
    }
}

#[tonic::async_trait]
impl coordinator_server::Coordinator for Service {
    type AttachStream = Messages;

    async fn attach(
        &self,
        request: Request<Streaming<Encoded<v1::AgentMessage>>>,
    ) -> Result<Response<Messages>, Status> {
        let call = call(&request)?;
        let connection = call.connection().clone();
        // Nothing is read of a client that is the agent of no node.
        if !self.door.may_be_agent(connection.peer()) {
            return Err(self.no_agent(&connection, None));
        }
        let mut incoming = request.into_inner();
        let first = timeout(HELLO_TIMEOUT, incoming.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no Hello came in time"))??;
        let first = first.ok_or_else(|| Status::invalid_argument("the stream is empty"))?;
        let first = first
            .measured(MESSAGE_DECODED_BYTES_MAX)
            .and_then(Measured::decode)
            .map_err(|why| self.bad(&connection, &BadMessage::NotDecoded(why)))?;
        let hello = wire::hello(first).map_err(|why| self.bad(&connection, &why))?;
        if !self.door.is_agent(connection.peer(), &hello.node) {
            return Err(self.no_agent(&connection, Some(&hello.node)));
        }
        call.admit();
        drop(call);
        let open = connection.begin_stream(&hello.node);
        // The roles may have been replaced before the stream was there to be closed.
        if !self.door.is_agent(connection.peer(), &hello.node) {
            return Err(self.no_agent(&connection, Some(&hello.node)));
        }
        let (outgoing, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
        let (reply, answer) = oneshot::channel();
        self.tell(Event::Attached { hello, outgoing, reply }).await?;
        let stream = answer.await.map_err(|_| stopping())?;
        let stream = stream.map_err(|why| Status::already_exists(why.to_string()))?;
        let reports = Arc::new(Semaphore::new(REPORTS_PER_STREAM_MAX));
        let (service, unanswered) = (self.clone(), reports.clone());
        let (end, ended) = oneshot::channel();
        tokio::spawn(async move {
            let _open = open;
            tokio::select! {
                () = service.listen(stream, &connection, incoming, unanswered) => {}
                _ = ended => {}
            }
            // The loop is gone: the coordinator stops.
            let _ = service.shared.events.send(Event::Gone { stream }).await;
        });
        Ok(Response::new(Messages { receiver, _end: end, reports }))
    }

    async fn upload(
        &self,
        request: Request<Streaming<Encoded<v1::UploadChunk>>>,
    ) -> Result<Response<v1::UploadReceipt>, Status> {
        // The places of uploads are for agents: a client without a stream gets none.
        let call = call(&request)?;
        let nodes = call.connection().nodes();
        // One, but for agents of several nodes that share a connection and so a line.
        let Some(node) = nodes.iter().min() else {
            return Err(Status::unavailable("no agent is attached on this connection"));
        };
        call.admit();
        // Nothing of a snapshot is read before its permit.
        let queued = self.quotas.queue_upload(node).await;
        let queued =
            queued.ok_or_else(|| Status::unavailable("too many snapshots come at once"))?;
        let begin = clock::now();
        let mut chunks = request.into_inner();
        let first = next_chunk(&mut chunks, FIRST_CHUNK_TIMEOUT).await?;
        let first = first.ok_or_else(|| Status::invalid_argument("the snapshot has no chunk"))?;
        let capture = wire::id(&first.capture_id).map_err(refused)?;
        let tape_id = wire::id(&first.tape_id).map_err(refused)?;
        let sent = Sent { nodes, queued, first, chunks };
        let result = self.receive(&capture, &tape_id, sent).await;
        let failure = result.as_ref().err().map(Status::message);
        let attributes = [
            KeyValue::new("memtape.capture.id", capture),
            KeyValue::new("memtape.tape.id", tape_id),
        ];
        self.shared.telemetry.work("upload", begin, failure, attributes);
        let hash = result?;
        Ok(Response::new(v1::UploadReceipt { snapshot_hash: hash.as_bytes().to_vec() }))
    }
}

impl Service {
    async fn listen(
        &self,
        stream: u64,
        connection: &Connection,
        mut incoming: Streaming<Encoded<v1::AgentMessage>>,
        reports: Arc<Semaphore>,
    ) {
        // An error here is a broken connection; the agent will be back.
        while let Ok(Some(raw)) = incoming.message().await {
            // Given back for what turns out to be no report. First of all: who does not read
            // acknowledgements shall not keep a share of the memory.
            let Ok(permit) = reports.acquire().await else { return };
            let admitted = self.admit(raw).await;
            let (message, share) = match admitted {
                Ok(Some(admitted)) => admitted,
                Ok(None) => continue,
                Err(why) => {
                    let _ = self.bad(connection, &why);
                    return;
                }
            };
            if matches!(message, Incoming::Report(_)) {
                permit.forget();
            }
            if self.tell(Event::Said { stream, message, share }).await.is_err() {
                return;
            }
        }
    }

    /// Reserves the bytes of a message, and decodes it then.
    async fn admit(
        &self,
        raw: Encoded<v1::AgentMessage>,
    ) -> Result<Option<(Incoming, Share)>, BadMessage> {
        let raw = raw.measured(MESSAGE_DECODED_BYTES_MAX).map_err(BadMessage::NotDecoded)?;
        let share = self.quotas.reports.reserve(raw.cost_bytes()).await;
        let message = wire::incoming(raw.decode().map_err(BadMessage::NotDecoded)?)?;
        Ok(message.map(|message| (message, share)))
    }

    async fn tell(&self, event: Event) -> Result<(), Status> {
        self.shared.events.send(event).await.map_err(|_| stopping())
    }

    /// Refuses a client that is no agent; without the node it is that of none.
    fn no_agent(&self, connection: &Connection, node: Option<&str>) -> Status {
        self.shared.counters.lose(Loss::CallerRefused, 1);
        let peer = connection.peer();
        if self.door.is_logged(peer) {
            tracing::warn!(
                node = ?node, from = %peer.address, names = ?peer.names(),
                "an agent is refused: no role makes this the agent of that node"
            );
        }
        let of = node.map_or_else(|| "any node".to_string(), |node| format!("node {node:?}"));
        Status::permission_denied(format!(
            "the certificate is not that of the agent of {of}: see the grants of role agent in \
             the coordinator's file of roles"
        ))
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
        Sent { nodes, queued, first, chunks }: Sent,
    ) -> Result<blake3::Hash, Status> {
        let verdict = self.ask_patiently(capture, tape_id, &nodes).await?;
        let promised = match verdict {
            Upload::Wanted { promised } => promised,
            Upload::Stored { hash } => return Ok(hash),
            Upload::Later => return Err(Status::unavailable("the store cannot be written now")),
            Upload::Refused => {
                return Err(Status::failed_precondition("no capture waits for this snapshot"));
            }
        };
        let bytes = promised.map_or(SNAPSHOT_BYTES_MAX as u64, |(bytes, _)| bytes);
        if bytes > SNAPSHOT_BYTES_MAX as u64 {
            let bytes_max = SNAPSHOT_BYTES_MAX;
            return Err(self.refuse(&DecodeError::TooLarge { bytes, bytes_max }));
        }
        // All of it at once: snapshots that wait for each other's rest would wait forever.
        let permit = self.quotas.reserve_upload(queued, bytes).await;
        let patience = Duration::from_secs(UPLOAD_SECONDS_MAX);
        let collected = timeout(patience, self.collect(first, chunks, bytes)).await;
        let snapshot = collected.map_err(|_| {
            self.shared.counters.lose(Loss::SlowUpload, 1);
            Status::deadline_exceeded("the snapshot comes too slowly")
        })??;
        let hash = blake3::hash(&snapshot);
        if !verdict.is_as_promised(snapshot.len() as u64, &hash) {
            self.shared.counters.lose(Loss::BadSnapshot, 1);
            return Err(Status::aborted("the snapshot is not the one that was announced"));
        }
        // Bounds the decoder's memory. The diagnosis reads the contents, and reports a snapshot
        // that cannot be decoded.
        if let Err(why) = snapshot::unpacked_bytes(&snapshot, SNAPSHOT_BYTES_MAX) {
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

    /// As [`Self::ask`]; waits briefly for the answer with the snapshot's size. The answer was sent
    /// before the snapshot, but on another stream.
    async fn ask_patiently(
        &self,
        capture: &str,
        tape_id: &str,
        nodes: &[String],
    ) -> Result<Upload, Status> {
        let begin = Instant::now();
        loop {
            let upload = self.ask(capture, tape_id, nodes).await?;
            let is_known = upload != Upload::Wanted { promised: None };
            if is_known || begin.elapsed() >= ANSWER_TIME_MAX {
                return Ok(upload);
            }
            sleep(ANSWER_POLL).await;
        }
    }

    async fn ask(&self, capture: &str, tape_id: &str, nodes: &[String]) -> Result<Upload, Status> {
        let (reply, answer) = oneshot::channel();
        let (capture, tape_id) = (capture.to_string(), tape_id.to_string());
        let nodes = nodes.to_vec();
        self.tell(Event::UploadBegun { capture, tape_id, nodes, reply }).await?;
        answer.await.map_err(|_| stopping())
    }

    async fn collect(
        &self,
        first: v1::UploadChunk,
        mut chunks: Streaming<Encoded<v1::UploadChunk>>,
        bytes_max: u64,
    ) -> Result<Bytes, Status> {
        // Not by doubling, which would take twice the share. Memory is taken as it is written to.
        let mut snapshot = BytesMut::with_capacity(usize::try_from(bytes_max).unwrap_or(0));
        let (mut next, mut progress) = (Some(first), Progress::begin());
        while let Some(chunk) = next {
            // An empty one is no progress, and would hold the share for ever.
            let is_next = chunk.offset == snapshot.len() as u64
                && (snapshot.is_empty() || !chunk.data.is_empty());
            if !is_next || (snapshot.len() + chunk.data.len()) as u64 > bytes_max {
                self.shared.counters.lose(Loss::BadSnapshot, 1);
                let line = if is_next { "the snapshot is too long" } else { "a chunk is missing" };
                return Err(Status::invalid_argument(line));
            }
            snapshot.extend_from_slice(&chunk.data);
            progress.add(chunk.data.len()).map_err(|why| self.too_slow(why))?;
            let arrived = timeout_at(progress.ends(), chunks.message()).await;
            next = decoded(arrived.map_err(|_| self.too_slow(TooSlow))??)?;
        }
        Ok(snapshot.freeze())
    }

    /// The agent tries again later.
    fn too_slow(&self, why: TooSlow) -> Status {
        self.shared.counters.lose(Loss::SlowUpload, 1);
        Status::deadline_exceeded(why.to_string())
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

/// A snapshot on its way.
struct Sent {
    /// Nodes of the agents attached on the connection.
    nodes: Vec<String>,
    queued: QueuedUpload,
    first: v1::UploadChunk,
    chunks: Streaming<Encoded<v1::UploadChunk>>,
}

fn call<T>(request: &Request<T>) -> Result<Arc<Call>, Status> {
    let call = request.extensions().get::<Arc<Call>>();
    call.cloned().ok_or_else(|| Status::internal("the call has no connection"))
}

async fn next_chunk(
    chunks: &mut Streaming<Encoded<v1::UploadChunk>>,
    patience: Duration,
) -> Result<Option<v1::UploadChunk>, Status> {
    let chunk = timeout(patience, chunks.message()).await;
    let chunk =
        chunk.map_err(|_| Status::deadline_exceeded("the snapshot makes no progress"))??;
    decoded(chunk)
}

fn decoded(chunk: Option<Encoded<v1::UploadChunk>>) -> Result<Option<v1::UploadChunk>, Status> {
    let decode = |chunk: Encoded<v1::UploadChunk>| {
        chunk.measured(MESSAGE_DECODED_BYTES_MAX).and_then(Measured::decode)
    };
    chunk.map(decode).transpose().map_err(|why| refused(BadMessage::NotDecoded(why)))
}

fn refused(why: BadMessage) -> Status {
    Status::invalid_argument(why.to_string())
}

fn stopping() -> Status {
    Status::unavailable("the coordinator is stopping")
}

//! Closes connections that are idle, stalled, no longer trusted, or needed for others.
//!
//! A call is *admitted* when its client is known: an agent by its first message, a caller of the
//! API by a certificate or a token. Calls that are not cost memory, and connections without a call
//! cost places that agents need. Such connections give way (`connections/waiting.rs`): one of the
//! network that has most of them where all places are taken, one of the network with most unknown
//! calls where there are too many of these. Bytes of an unauthenticated client are bounded, too. A
//! connection without a call is closed after [`Times::idle`]; one whose certificate or role is
//! valid no more at once; and one whose client does not read its answer after [`Times::stalled`];
//! the streams of agents have pings instead. No timer of the HTTP library covers all of this: none
//! runs before the protocol is known, nor between two calls of HTTP/2. This file reads no request.

mod waiting;

use std::any::Any;
use std::cmp::Reverse;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use memtape_core::limits::{UNKNOWN_CALL_BYTES_MAX, UNKNOWN_CALLS_MAX};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::access::Peer;
use crate::connections::waiting::{Kind, Standing, Waiting};

/// Interval between two checks for clients that do not read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Bytes of an answer that the library is given at once.
const FRAME_BYTES_MAX: usize = 16 << 10;

/// Maximum idle times of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Time without a call in progress.
    pub(crate) idle: Duration,
    /// Time for which the client does not read an answer.
    pub(crate) stalled: Duration,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Overdue {
    /// Another connection replaces it.
    GivenUp,
    /// No call is in progress.
    Idle,
    /// The client does not read the answer.
    Stalled,
    /// The connection's certificate or role is no longer valid.
    Distrusted,
}

impl Overdue {
    /// The reason in words, for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::GivenUp => "another connection needs its place",
            Self::Idle => "no call is in progress",
            Self::Stalled => "its client does not read the answer",
            Self::Distrusted => "its certificate or its role is valid no more",
        }
    }
}

/// All connections that can give way.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    yielding: Mutex<Yielding>,
}

#[derive(Debug, Default)]
struct Yielding {
    /// Connections that can give way and were not given up.
    waiting: Waiting,
    next: u64,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Arc<Connections>,
    peer: Peer,
    calls: Mutex<Calls>,
    /// The nodes of the agents whose streams are among the calls.
    nodes: Mutex<Vec<String>>,
    changed: Notify,
    is_given_up: AtomicBool,
    /// Time of the last read from each answer in progress.
    answers: Mutex<Vec<Weak<Mutex<Instant>>>>,
    /// Calls whose trust can end before them.
    trusted: Mutex<Vec<Weak<Call>>>,
}

/// The calls on a connection.
#[derive(Debug, Default)]
struct Calls {
    in_progress: usize,
    /// Number of admitted calls.
    admitted: usize,
    /// Kind and rank among the connections that can give way.
    place: Option<(Kind, Standing)>,
    /// Since when there is no call.
    idle_since: Option<Instant>,
}

/// A call in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Call {
    connection: Arc<Connection>,
    is_admitted: AtomicBool,
    /// Dropped with it.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    /// Check that the credentials of the call are still valid.
    trust: OnceLock<Trust>,
}

/// Whether the client at this end may still make a call.
pub(crate) struct Trust(pub(crate) Box<dyn Fn(&Peer) -> bool + Send + Sync>);

impl std::fmt::Debug for Trust {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Trust")
    }
}

/// An agent's stream in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct AgentStream(Arc<Connection>, String);

/// The body of a request: a small part of it until the call is admitted.
struct Request {
    body: Body,
    call: Weak<Call>,
    bytes_left: usize,
}

/// The body of an answer. The call is in progress until it is sent: the library keeps unsent bytes
/// without a bound, so it is given few bytes at once.
struct Answer {
    body: Body,
    /// Part of the last frame that was not given to the library.
    rest: Bytes,
    read: Option<Arc<Mutex<Instant>>>,
    _call: Arc<Call>,
}

/// The error of an unauthenticated client that sends too much.
#[derive(Debug, thiserror::Error)]
#[error("more than {UNKNOWN_CALL_BYTES_MAX} bytes came before the caller was known")]
struct TooMuch;

impl Connections {
    /// Takes up a connection, idle at first.
    pub(crate) fn open(self: &Arc<Self>, peer: Peer) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            all: self.clone(),
            peer,
            calls: Mutex::new(Calls::default()),
            nodes: Mutex::default(),
            changed: Notify::new(),
            is_given_up: AtomicBool::new(false),
            answers: Mutex::new(Vec::new()),
            trusted: Mutex::default(),
        });
        connection.settle(&mut lock(&connection.calls));
        connection
    }

    /// Gives up a connection for another.
    pub(crate) fn give_up_one(&self) -> Option<Arc<Connection>> {
        self.give_up(Waiting::pop)
    }

    /// Gives up a connection where too many calls are not admitted.
    fn give_up_unknown(&self) -> Option<Arc<Connection>> {
        self.give_up(|waiting| {
            let is_too_many = waiting.unknown_calls() > UNKNOWN_CALLS_MAX;
            is_too_many.then(|| waiting.pop_unknown()).flatten()
        })
    }

    fn give_up(
        &self,
        choose: impl Fn(&mut Waiting) -> Option<Weak<Connection>>,
    ) -> Option<Arc<Connection>> {
        loop {
            let mut all = lock(&self.yielding);
            let Some(connection) = choose(&mut all.waiting)?.upgrade() else { continue };
            // Under the lock: its calls count no more from here on.
            connection.is_given_up.store(true, SeqCst);
            // Not held below: a connection that is dropped there takes the lock.
            drop(all);
            connection.changed.notify_one();
            return Some(connection);
        }
    }
}

impl Connection {
    /// The peer of the connection.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A call begins. Where too many are not admitted another connection gives way.
    pub(crate) fn begin(self: &Arc<Self>) -> Arc<Call> {
        let (is_admitted, kept) = (AtomicBool::new(false), Mutex::default());
        let call = Call { connection: self.clone(), is_admitted, kept, trust: OnceLock::new() };
        self.change(|calls| calls.in_progress += 1);
        self.all.give_up_unknown();
        Arc::new(call)
    }

    /// Notes that the peer has shown an accepted certificate.
    pub(crate) fn proven(self: &Arc<Self>) {
        self.change(|_| {});
    }

    /// A stream of a node's agent begins.
    pub(crate) fn begin_stream(self: &Arc<Self>, node: &str) -> AgentStream {
        lock(&self.nodes).push(node.to_string());
        AgentStream(self.clone(), node.to_string())
    }

    /// The nodes whose agents have a stream on the connection.
    pub(crate) fn nodes(&self) -> Vec<String> {
        lock(&self.nodes).clone()
    }

    /// Are the credentials of all calls still valid?
    pub(crate) fn is_trusted(&self) -> bool {
        let mut trusted = lock(&self.trusted);
        trusted.retain(|call| call.strong_count() > 0);
        let calls: Vec<Arc<Call>> = trusted.iter().filter_map(Weak::upgrade).collect();
        // Not held below: a call that ends there changes its connection.
        drop(trusted);
        let is_trusted = |call: &Arc<Call>| call.trust.get().is_none_or(|of| of.0(&self.peer));
        calls.iter().all(is_trusted)
    }

    /// Returns when the connection is to be closed, with the reason.
    pub(crate) async fn overdue(&self, times: Times) -> Overdue {
        loop {
            if self.is_given_up.load(SeqCst) {
                return Overdue::GivenUp;
            }
            let idle_since = lock(&self.calls).idle_since;
            let ends = idle_since.map(|since| since + times.idle);
            if ends.is_some_and(|end| Instant::now() >= end) {
                return Overdue::Idle;
            }
            if self.stalled_since().is_some_and(|since| since.elapsed() >= times.stalled) {
                return Overdue::Stalled;
            }
            let next = match ends {
                Some(end) => end,
                None => Instant::now() + LOOK_EVERY.min(times.stalled),
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Time of the last read from the most slowly read answer.
    fn stalled_since(&self) -> Option<Instant> {
        let mut answers = lock(&self.answers);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.iter().filter_map(Weak::upgrade).map(|read| *lock(&read)).min()
    }

    /// Changes the calls.
    fn change(self: &Arc<Self>, change: impl FnOnce(&mut Calls)) {
        let mut calls = lock(&self.calls);
        change(&mut calls);
        self.settle(&mut calls);
    }

    /// Takes the place that belongs to its calls.
    fn settle(self: &Arc<Self>, calls: &mut Calls) {
        let unknown_calls = calls.in_progress - calls.admitted;
        let kind = match (calls.in_progress, unknown_calls) {
            (0, _) => Some(Kind::Idle),
            (_, 0) => None,
            _ => Some(Kind::Unknown),
        };
        let before = calls.place.take();
        let mut all = lock(&self.all.yielding);
        if let Some(place) = before {
            all.waiting.remove(self.peer.network(), place);
        }
        // What was given up is about to be closed, and counts nowhere.
        if let Some(kind) = kind.filter(|_| !self.is_given_up.load(SeqCst)) {
            let number = match before {
                Some((same, place)) if same == kind => place.number,
                _ => {
                    all.next += 1;
                    all.next
                }
            };
            let standing = Standing {
                is_proven: !self.peer.chain().is_empty(),
                unknown_calls: Reverse(unknown_calls),
                is_known: calls.admitted > 0,
                number,
            };
            all.waiting.add(self.peer.network(), (kind, standing), Arc::downgrade(self));
            calls.place = Some((kind, standing));
        }
        drop(all);
        if before.map(|(kind, _)| kind) != kind {
            calls.idle_since = (kind == Some(Kind::Idle)).then(Instant::now);
            self.changed.notify_one();
        }
    }

    /// Gives its place back.
    fn leave(&self, calls: &mut Calls) {
        if let Some(place) = calls.place.take() {
            lock(&self.all.yielding).waiting.remove(self.peer.network(), place);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.leave(&mut lock(&self.calls));
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let is_admitted = self.is_admitted.load(SeqCst);
        self.connection.change(|calls| {
            calls.in_progress -= 1;
            calls.admitted -= usize::from(is_admitted);
        });
    }
}

impl Drop for AgentStream {
    fn drop(&mut self) {
        let mut nodes = lock(&self.0.nodes);
        if let Some(index) = nodes.iter().position(|node| *node == self.1) {
            nodes.swap_remove(index);
        }
    }
}

impl Call {
    /// The connection of the call.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Keeps a reservation of the answer until the answer is sent.
    pub(crate) fn keep(&self, occupied: Box<dyn Any + Send>) {
        lock(&self.kept).push(occupied);
    }

    /// Marks the call's client as authenticated and allowed.
    pub(crate) fn admit(&self) {
        if !self.is_admitted.swap(true, SeqCst) {
            self.connection.change(|calls| calls.admitted += 1);
        }
    }

    /// As [`Self::admit`], for as long as `trust` holds.
    pub(crate) fn admit_while(self: &Arc<Self>, trust: Trust) {
        // A call is admitted once.
        let _ = self.trust.set(trust);
        lock(&self.connection.trusted).push(Arc::downgrade(self));
        self.admit();
    }

    /// The body of the request.
    pub(crate) fn request(self: &Arc<Self>, body: Body) -> Body {
        let call = Arc::downgrade(self);
        Body::new(Request { body, call, bytes_left: UNKNOWN_CALL_BYTES_MAX })
    }

    /// The answer, which is in progress until it is sent.
    pub(crate) fn answer(self: Arc<Self>, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(is_grpc);
        let read = (!is_grpc).then(|| Arc::new(Mutex::new(Instant::now())));
        if let Some(read) = &read {
            lock(&self.connection.answers).push(Arc::downgrade(read));
        }
        response.map(|body| Body::new(Answer { body, rest: Bytes::new(), read, _call: self }))
    }
}

/// Is this gRPC's content type? Its streams are silent for long, and have pings.
fn is_grpc(content_type: &HeaderValue) -> bool {
    content_type.as_bytes().starts_with(b"application/grpc")
}

impl HttpBody for Request {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        let bytes = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame.data_ref().map_or(0, Bytes::len),
            _ => return polled,
        };
        let is_admitted = |call: Arc<Call>| call.is_admitted.load(SeqCst);
        if !self.call.upgrade().is_some_and(is_admitted) {
            let Some(bytes_left) = self.bytes_left.checked_sub(bytes) else {
                return Poll::Ready(Some(Err(axum::Error::new(TooMuch))));
            };
            self.bytes_left = bytes_left;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(read) = &self.read {
            *lock(read) = Instant::now();
        }
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            let Poll::Ready(Some(Ok(frame))) = polled else { return polled };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = self.rest.len().min(FRAME_BYTES_MAX);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (mut hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

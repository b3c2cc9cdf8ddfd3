//! Which connections stay open: those on which a call is in progress.
//!
//! A connection that says nothing costs a file descriptor and one of the places that agents need.
//! Such a connection is closed after [`Times::idle`]; earlier where all places are taken: then the
//! network with most idle connections gives up the one that is idle longest. A connection whose
//! certificate or role is valid no more is closed, too, and one whose client does not read its
//! answer for [`Times::stalled`]; the streams of agents have pings instead. No timer of the HTTP
//! library covers all of this: none runs before the protocol is known, nor between two calls of
//! HTTP/2. This file reads no request.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::access::Peer;

/// Time between two looks for clients that do not read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long a connection may do nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Without a call in progress.
    pub(crate) idle: Duration,
    /// With an answer that the client does not read.
    pub(crate) stalled: Duration,
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Overdue {
    /// Another connection needs its place.
    GivenUp,
    /// No call is in progress.
    Idle,
    /// Its client does not read the answer.
    Stalled,
    /// The certificate or the role that it came with is valid no more.
    Distrusted,
}

impl Overdue {
    /// In words, for the log.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::GivenUp => "another connection needs its place",
            Self::Idle => "no call is in progress",
            Self::Stalled => "its client does not read the answer",
            Self::Distrusted => "its certificate or its role is valid no more",
        }
    }
}

/// All connections on which no call is in progress.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    /// Of each network, in the order in which they became idle.
    waiting: HashMap<IpAddr, BTreeMap<u64, Weak<Connection>>>,
    next: u64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Arc<Connections>,
    peer: Peer,
    calls: Mutex<Calls>,
    /// The nodes of the agents whose streams are among the calls.
    nodes: Mutex<Vec<String>>,
    changed: Notify,
    is_given_up: AtomicBool,
    /// When each answer that is on its way was last read from.
    answers: Mutex<Vec<Weak<Mutex<Instant>>>>,
}

/// The calls on a connection.
#[derive(Debug, Default)]
struct Calls {
    in_progress: usize,
    /// Its place among the idle connections, and since when it is there.
    idle: Option<(u64, Instant)>,
}

/// A call in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Call(Arc<Connection>);

/// An agent's stream in progress; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct AgentStream(Arc<Connection>, String);

/// The body of an answer. The call is in progress until it is sent.
struct Answer {
    body: Body,
    read: Option<Arc<Mutex<Instant>>>,
    _call: Call,
}

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
        });
        connection.wait(&mut lock(&connection.calls));
        connection
    }

    /// Gives up the connection that is idle longest of the network that has most of them.
    pub(crate) fn give_up_one(&self) -> Option<Arc<Connection>> {
        loop {
            // Not held below: a connection that is dropped there takes the lock.
            let first = lock(&self.idle).pop();
            let Some(connection) = first?.upgrade() else { continue };
            connection.is_given_up.store(true, SeqCst);
            connection.changed.notify_one();
            return Some(connection);
        }
    }
}

impl Idle {
    fn pop(&mut self) -> Option<Weak<Connection>> {
        let most = |(_, waiting): &(&IpAddr, &mut BTreeMap<u64, Weak<Connection>>)| {
            (waiting.len(), std::cmp::Reverse(waiting.keys().next().copied()))
        };
        let (&network, waiting) = self.waiting.iter_mut().max_by_key(most)?;
        let (_, connection) = waiting.pop_first()?;
        if waiting.is_empty() {
            self.waiting.remove(&network);
        }
        Some(connection)
    }

    fn remove(&mut self, network: IpAddr, place: u64) {
        let Some(waiting) = self.waiting.get_mut(&network) else { return };
        waiting.remove(&place);
        if waiting.is_empty() {
            self.waiting.remove(&network);
        }
    }
}

impl Connection {
    /// Its other end.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// A call begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        let mut calls = lock(&self.calls);
        calls.in_progress += 1;
        self.leave(&mut calls);
        Call(self.clone())
    }

    /// A stream of a node's agent begins.
    pub(crate) fn begin_stream(self: &Arc<Self>, node: &str) -> AgentStream {
        lock(&self.nodes).push(node.to_string());
        AgentStream(self.clone(), node.to_string())
    }

    /// The nodes whose agents have a stream on it.
    pub(crate) fn nodes(&self) -> Vec<String> {
        lock(&self.nodes).clone()
    }

    /// Returns when the connection is to be closed, with the reason.
    pub(crate) async fn overdue(&self, times: Times) -> Overdue {
        loop {
            if self.is_given_up.load(SeqCst) {
                return Overdue::GivenUp;
            }
            let idle_since = lock(&self.calls).idle.map(|(_, since)| since);
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

    /// When the answer that is read most slowly was last read from.
    fn stalled_since(&self) -> Option<Instant> {
        let mut answers = lock(&self.answers);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.iter().filter_map(Weak::upgrade).map(|read| *lock(&read)).min()
    }

    /// It is idle from now on.
    fn wait(self: &Arc<Self>, calls: &mut Calls) {
        let mut all = lock(&self.all.idle);
        let place = all.next;
        all.next += 1;
        let of_network = all.waiting.entry(self.peer.network()).or_default();
        of_network.insert(place, Arc::downgrade(self));
        calls.idle = Some((place, Instant::now()));
        self.changed.notify_one();
    }

    /// It is idle no more.
    fn leave(&self, calls: &mut Calls) {
        if let Some((place, _)) = calls.idle.take() {
            lock(&self.all.idle).remove(self.peer.network(), place);
            self.changed.notify_one();
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
        let mut calls = lock(&self.0.calls);
        calls.in_progress -= 1;
        if calls.in_progress == 0 {
            self.0.wait(&mut calls);
        }
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
    /// The answer, which is in progress until it is sent.
    pub(crate) fn answer(self, response: Response<Body>) -> Response<Body> {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let is_grpc = content_type.is_some_and(is_grpc);
        let read = (!is_grpc).then(|| Arc::new(Mutex::new(Instant::now())));
        if let Some(read) = &read {
            lock(&self.0.answers).push(Arc::downgrade(read));
        }
        response.map(|body| Body::new(Answer { body, read, _call: self }))
    }
}

/// Is this content gRPC's? Its streams are silent for long, and have pings.
fn is_grpc(content_type: &HeaderValue) -> bool {
    content_type.as_bytes().starts_with(b"application/grpc")
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
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const TIMES: Times = Times { idle: Duration::from_secs(30), stalled: Duration::from_secs(60) };

    fn peer(last: u8, port: u16) -> Peer {
        Peer::new(SocketAddr::from(([127, 0, 0, last], port)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_overdue_and_a_busy_one_is_not() {
        let all = Arc::new(Connections::default());
        let connection = all.open(peer(1, 1));
        let begin = Instant::now();
        assert_eq!(connection.overdue(TIMES).await.as_str(), "no call is in progress");
        assert_eq!(begin.elapsed(), TIMES.idle);

        let call = connection.begin();
        let is_overdue = tokio::time::timeout(Duration::from_secs(600), connection.overdue(TIMES));
        assert!(is_overdue.await.is_err(), "a call is in progress");
        drop(call);
        assert_eq!(connection.overdue(TIMES).await.as_str(), "no call is in progress");
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_is_idle_longest_gives_way() {
        let all = Arc::new(Connections::default());
        let connections: Vec<_> = (1..=3).map(|port| all.open(peer(1, port))).collect();
        let busy = connections[0].begin();
        let given_up = || all.give_up_one().map(|it| it.peer().address.port());
        assert_eq!(given_up(), Some(2));
        assert_eq!(
            connections[1].overdue(TIMES).await.as_str(),
            "another connection needs its place"
        );
        drop(busy);
        assert_eq!((given_up(), given_up(), given_up()), (Some(3), Some(1), None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_costs_other_networks_nothing() {
        let all = Arc::new(Connections::default());
        let _other = all.open(peer(2, 9));
        let _flood: Vec<_> = (1..=50).map(|port| all.open(peer(1, port))).collect();
        for port in 1..=49 {
            let given_up = all.give_up_one().map(|it| it.peer().address.port());
            assert_eq!(given_up, Some(port));
        }
        // One each: the older goes.
        assert_eq!(all.give_up_one().map(|it| it.peer().address.port()), Some(9));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_is_overdue_but_for_grpc() {
        let all = Arc::new(Connections::default());
        let connection = all.open(peer(1, 1));
        let answer = connection.begin().answer(Response::new(Body::from("unread")));
        let begin = Instant::now();
        assert_eq!(connection.overdue(TIMES).await.as_str(), "its client does not read the answer");
        assert_eq!(begin.elapsed(), TIMES.stalled);
        drop(answer);
        let mut stream = Response::new(Body::from("unread"));
        stream
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc+proto"));
        let _stream = connection.begin().answer(stream);
        let is_overdue = tokio::time::timeout(Duration::from_secs(600), connection.overdue(TIMES));
        assert!(is_overdue.await.is_err(), "an agent's stream may be silent");
    }
}

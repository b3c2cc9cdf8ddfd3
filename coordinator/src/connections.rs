//! Closes connections that are idle, stalled, no longer trusted, or needed for others.
//!
//! A call is *admitted* when its client is known: an agent by its first message, a caller of the
//! API by a certificate or a token. Calls that are not cost memory, and connections without a call
//! cost places that agents need. Such connections give way (`connections/waiting.rs`): one of the
//! network that has most of them where all places are taken, one of the network with most unknown
//! calls where there are too many of these. Bytes of an unauthenticated client are bounded, too. A
//! connection without a call is closed after [`IDLE_MAX`]; one whose certificate or role is
//! valid no more at once; and one whose client does not read its answer after [`STALLED_MAX`].
//! No timer of the HTTP library covers all of this: none
//! runs before the protocol is known, nor between two calls of HTTP/2. This file reads no request.

mod waiting;

use std::any::Any;
use std::cmp::Reverse;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Response;
use http_body::{Body as HttpBody, Frame, SizeHint};
use memtape_core::limits::{
    ANSWER_STALLED_SECONDS_MAX, CONNECTION_IDLE_SECONDS_MAX, STREAMS_PER_CONNECTION_MAX,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::access::Peer;
use crate::connections::waiting::{Standing, Waiting};
use crate::state::counters::Loss;

/// Interval between two checks for clients that do not read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time after which a connection without a call, and one whose client reads nothing, is closed.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(CONNECTION_IDLE_SECONDS_MAX);
const STALLED_MAX: Duration = Duration::from_secs(ANSWER_STALLED_SECONDS_MAX);

/// All connections that can give way.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Calls that may be in progress without being admitted.
    unknown_calls_max: usize,
    /// Connections that can give way and were not given up.
    waiting: Mutex<Waiting>,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Arc<Connections>,
    peer: Peer,
    calls: Mutex<Calls>,
    changed: Notify,
    is_given_up: AtomicBool,
    /// Permits of agents' streams, each until its answer is sent.
    streams: Arc<Semaphore>,
    /// The calls themselves.
    in_progress: Mutex<Vec<Weak<Call>>>,
}

/// The calls on a connection.
#[derive(Debug, Default)]
struct Calls {
    in_progress: usize,
    /// Number of admitted calls.
    admitted: usize,
    /// Place among the connections that can give way.
    place: Option<Standing>,
    /// Since when there is no call.
    idle_since: Option<Instant>,
}

/// A call in progress; it ends when this is dropped.
pub(crate) struct Call {
    connection: Arc<Connection>,
    admission: OnceLock<Admission>,
    /// Dropped with it.
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
    unread: Arc<Unread>,
}

/// The node of the agent whose stream a call is, and whether the client at this end may still make
/// the call.
pub(crate) type Admission = (Option<String>, Box<dyn Fn(&Peer) -> bool + Send + Sync>);

/// The body of an answer. The call is in progress until it is sent.
struct Answer {
    body: Body,
    call: Arc<Call>,
}

/// Since when an answer has bytes that the library does not take, because the client does not read.
/// None while the library waits for more; and the waker with which it does.
#[derive(Debug)]
struct Unread(Mutex<(Option<Instant>, Waker)>);

impl Wake for Unread {
    fn wake(self: Arc<Self>) {
        let mut unread = lock(&self.0);
        unread.0.get_or_insert_with(Instant::now);
        let library = unread.1.clone();
        drop(unread);
        library.wake();
    }
}

impl Connections {
    /// No connection yet.
    pub(crate) fn new(unknown_calls_max: usize) -> Self {
        Self { unknown_calls_max, waiting: Mutex::default() }
    }

    /// Takes up a connection, idle at first.
    pub(crate) fn open(self: &Arc<Self>, peer: Peer) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            all: self.clone(),
            peer,
            calls: Mutex::new(Calls::default()),
            changed: Notify::new(),
            is_given_up: AtomicBool::new(false),
            streams: Arc::new(Semaphore::new(STREAMS_PER_CONNECTION_MAX)),
            in_progress: Mutex::default(),
        });
        connection.settle(&mut lock(&connection.calls));
        connection
    }

    /// Gives up a connection for another.
    pub(crate) fn give_up_one(&self) -> Option<Arc<Connection>> {
        self.give_up(false)
    }

    /// Gives up a connection for another one, or for a call, where too many are not admitted.
    fn give_up(&self, for_call: bool) -> Option<Arc<Connection>> {
        loop {
            let mut all = lock(&self.waiting);
            if for_call && all.unknown_calls <= self.unknown_calls_max {
                return None;
            }
            let Some(connection) = all.pop(for_call)?.upgrade() else { continue };
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
        let call = Arc::new(Call {
            connection: self.clone(),
            admission: OnceLock::new(),
            kept: Mutex::default(),
            unread: Arc::new(Unread(Mutex::new((None, Waker::noop().clone())))),
        });
        let mut all = lock(&self.in_progress);
        all.retain(|call| call.strong_count() > 0);
        all.push(Arc::downgrade(&call));
        drop(all);
        self.change(|calls| calls.in_progress += 1);
        self.all.give_up(true);
        call
    }

    /// Notes that the peer has shown an accepted certificate.
    pub(crate) fn proven(self: &Arc<Self>) {
        self.change(|_| {});
    }

    /// Permit for one more stream of an agent; none where too many are in progress.
    pub(crate) fn permit_stream(&self) -> Option<OwnedSemaphorePermit> {
        self.streams.clone().try_acquire_owned().ok()
    }

    /// The nodes whose agents have a stream on the connection.
    pub(crate) fn nodes(&self) -> Vec<String> {
        let node = |call: &Arc<Call>| call.admission.get()?.0.clone();
        self.calls_in_progress().iter().filter_map(node).collect()
    }

    /// Are the credentials of all calls still valid?
    pub(crate) fn is_trusted(&self) -> bool {
        let holds = |call: &Arc<Call>| call.admission.get().is_none_or(|(_, of)| of(&self.peer));
        self.calls_in_progress().iter().all(holds)
    }

    fn calls_in_progress(&self) -> Vec<Arc<Call>> {
        lock(&self.in_progress).iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns when the connection is to be closed, with the reason.
    pub(crate) async fn overdue(&self) -> Loss {
        loop {
            if self.is_given_up.load(SeqCst) {
                return Loss::ConnectionGivenUp;
            }
            let idle_since = lock(&self.calls).idle_since;
            let ends = idle_since.map(|since| since + IDLE_MAX);
            if ends.is_some_and(|end| Instant::now() >= end) {
                return Loss::ConnectionOverdue;
            }
            if self.stalled_since().is_some_and(|since| since.elapsed() >= STALLED_MAX) {
                return Loss::ConnectionOverdue;
            }
            let next = ends.unwrap_or_else(|| Instant::now() + LOOK_EVERY);
            tokio::select! {
                () = self.changed.notified() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Since when the most slowly read answer is not read.
    fn stalled_since(&self) -> Option<Instant> {
        self.calls_in_progress().iter().filter_map(|call| lock(&call.unread.0).0).min()
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
        let is_calling = calls.in_progress > 0;
        let before = calls.place.take();
        let mut all = lock(&self.all.waiting);
        if let Some(place) = before {
            all.remove(self.peer.network(), place);
        }
        // What was given up is about to be closed, and counts nowhere.
        if (unknown_calls > 0 || !is_calling) && !self.is_given_up.load(SeqCst) {
            let same = before.filter(|place| place.is_calling == is_calling);
            all.last += u64::from(same.is_none());
            let place = Standing {
                is_proven: !self.peer.chain().is_empty(),
                is_calling,
                unknown_calls: Reverse(unknown_calls),
                is_known: calls.admitted > 0,
                number: same.map_or(all.last, |place| place.number),
            };
            all.add(self.peer.network(), place, Arc::downgrade(self));
            calls.place = Some(place);
        }
        drop(all);
        if calls.idle_since.is_some() == is_calling {
            calls.idle_since = (!is_calling).then(Instant::now);
            self.changed.notify_one();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(place) = lock(&self.calls).place.take() {
            lock(&self.all.waiting).remove(self.peer.network(), place);
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let is_admitted = self.admission.get().is_some();
        self.connection.change(|calls| {
            calls.in_progress -= 1;
            calls.admitted -= usize::from(is_admitted);
        });
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

    /// Marks the call's client as authenticated and allowed. A call is admitted once.
    pub(crate) fn admit(&self, admission: Admission) {
        if self.admission.set(admission).is_ok() {
            self.connection.change(|calls| calls.admitted += 1);
        }
    }

    /// The answer, which is in progress until it is sent.
    pub(crate) fn answer(self: Arc<Self>, response: Response<Body>) -> Response<Body> {
        lock(&self.unread.0).0 = Some(Instant::now());
        response.map(|body| Body::new(Answer { body, call: self }))
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let unread = self.call.unread.clone();
        *lock(&unread.0) = (None, context.waker().clone());
        let waker = unread.clone().into();
        let polled = Pin::new(&mut self.body).poll_frame(&mut Context::from_waker(&waker));
        if polled.is_ready() {
            lock(&unread.0).0 = Some(Instant::now());
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

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

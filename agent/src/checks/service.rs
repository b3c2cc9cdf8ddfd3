//! The Unix socket of the health check, and the server behind it.
//!
//! Each user of the node may ask: an answer has UUIDs of GPUs and what they hold, no names of jobs.
//! Connections are bounded in number and time, requests in size, and questions to the agent's loop
//! in number; where there are too many connections, the user who has most loses the oldest one. A
//! file at the path of the socket is replaced only when it is a socket behind which no server
//! listens. The file stays when the agent stops, because a launcher looks for it at its start alone
//! (`docs/nvrx.md`).

use std::collections::{BTreeMap, VecDeque};
use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use memtape_core::limits::{
    NODE_CHECK_ANSWER_SECONDS_MAX, NODE_CHECK_CONNECTION_SECONDS_MAX, NODE_CHECK_CONNECTIONS_MAX,
};
use memtape_core::policy::node_check::Verdict;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::codegen::Service as _;

use crate::checks::authority::WithAuthority;
use crate::checks::gpu_memory::{Answer, Question};
use crate::checks::wire::{self, Ask};
use crate::tapes::folders::{FolderError, check_above};

/// Mode of the socket's file: each user may connect.
const MODE: u32 = 0o666;

/// Bits of a folder's mode by which others than its owner make files in it.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Wait between two connections: a flood of them takes no more of the agent's time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(5);

/// Wait after an error of `accept`.
const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Time for a server behind the socket's file to accept.
const PROBE_TIME_MAX: Duration = Duration::from_secs(2);

/// Time for a connection.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(NODE_CHECK_CONNECTION_SECONDS_MAX);

/// Time for the agent's loop to answer, a little more than it takes at most.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(NODE_CHECK_ANSWER_SECONDS_MAX + 5);

/// Bytes of the headers of a request.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// Bytes of a request's content that wait unread.
const WINDOW_BYTES_MAX: u32 = 64 << 10;

/// Why the socket cannot be listened on, with what to do.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Something else is there.
    #[error("{path:?} is there and is no socket: remove it, or give --health-socket another path")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Another server has it.
    #[error("another server listens on {path:?}: stop it, or give --health-socket another path")]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// Another user could replace it.
    #[error(
        "{path:?} could be replaced by other users, who own or can write {above:?}: give \
         --health-socket a path in a folder that only root or the agent's user can write"
    )]
    Replaceable {
        /// The path.
        path: PathBuf,
        /// The folder or the link on the way to it.
        above: PathBuf,
    },
    /// It cannot be made.
    #[error("{path:?} cannot be listened on ({source}): give --health-socket another path")]
    Closed {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What was answered and refused since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// No GPU held memory.
    pub(crate) healthy: u64,
    /// A GPU did.
    pub(crate) failed: u64,
    /// It was not known.
    pub(crate) unknown: u64,
    /// Connections that were closed for others.
    pub(crate) connections: u64,
    /// Connections that took too long.
    pub(crate) late: u64,
    /// Requests that were too large or not of this service, or came when the agent stopped.
    pub(crate) requests: u64,
}

/// The same while it is counted; shared between the server and the agent's health.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally(Arc<TallyParts>);

#[derive(Debug, Default)]
struct TallyParts {
    healthy: AtomicU64,
    failed: AtomicU64,
    unknown: AtomicU64,
    connections: AtomicU64,
    late: AtomicU64,
    requests: AtomicU64,
}

impl Tally {
    /// What was counted so far.
    pub(crate) fn counts(&self) -> Counts {
        let TallyParts { healthy, failed, unknown, connections, late, requests } = &*self.0;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            healthy: read(healthy),
            failed: read(failed),
            unknown: read(unknown),
            connections: read(connections),
            late: read(late),
            requests: read(requests),
        }
    }

    fn answered(&self, verdict: Verdict) {
        add(match verdict {
            Verdict::Healthy => &self.0.healthy,
            Verdict::Failed => &self.0.failed,
            Verdict::Unknown => &self.0.unknown,
        });
    }
}

fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

/// Makes the socket, for all users.
///
/// # Errors
/// A [`SocketError`] that says what to do. What is at the path is then as it was.
pub(crate) async fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let closed = |source| SocketError::Closed { path: path.to_path_buf(), source };
    check_above(path).map_err(|error| match error {
        FolderError::Above { path, above } => SocketError::Replaceable { path, above },
        other => closed(io::Error::other(other)),
    })?;
    // In a sticky folder another user could make the socket first.
    let above = path.parent().unwrap_or(Path::new("/"));
    if std::fs::metadata(above).map_err(closed)?.permissions().mode() & WRITABLE_BY_OTHERS != 0 {
        let (path, above) = (path.to_path_buf(), above.to_path_buf());
        return Err(SocketError::Replaceable { path, above });
    }
    clear(path).await?;
    let listener = UnixListener::bind(path).map_err(closed)?;
    // The mode at the start is subject to the umask.
    std::fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(closed)?;
    Ok(listener)
}

/// Removes a socket that an earlier agent left.
async fn clear(path: &Path) -> Result<(), SocketError> {
    let closed = |source| SocketError::Closed { path: path.to_path_buf(), source };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(closed(error)),
        Ok(of) if !of.file_type().is_socket() => {
            return Err(SocketError::NoSocket { path: path.to_path_buf() });
        }
        Ok(_) => {}
    }
    // A server that does not accept in time is busy. A socket of another type is in use, too.
    match timeout(PROBE_TIME_MAX, UnixStream::connect(path)).await {
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(closed)
        }
        Ok(Ok(_) | Err(_)) | Err(_) => Err(SocketError::InUse { path: path.to_path_buf() }),
    }
}

/// Connections, by the user at their other end.
#[derive(Debug, Default)]
struct Open {
    /// Oldest first.
    by_user: BTreeMap<u32, VecDeque<AbortHandle>>,
}

impl Open {
    /// Makes room for one more.
    fn make_room(&mut self, tally: &Tally) {
        self.by_user.retain(|_, open| {
            open.retain(|connection| !connection.is_finished());
            !open.is_empty()
        });
        if self.by_user.values().map(VecDeque::len).sum::<usize>() < NODE_CHECK_CONNECTIONS_MAX {
            return;
        }
        let most = self.by_user.values_mut().max_by_key(|open| open.len());
        if let Some(oldest) = most.and_then(VecDeque::pop_front) {
            oldest.abort();
            add(&tally.0.connections);
        }
    }
}

/// Asks the agent's loop.
#[derive(Debug)]
struct Asker<E> {
    events: mpsc::Sender<E>,
    /// Questions that the loop has at once.
    permits: Arc<Semaphore>,
    tally: Tally,
}

impl<E: From<Question> + Send + 'static> Asker<E> {
    async fn answer(&self) -> Option<Answer> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
        let (question, answer) = Question::new(Some(permit));
        self.events.send(question.into()).await.ok()?;
        answer.await.ok()
    }
}

impl<E: From<Question> + Send + 'static> Ask for Asker<E> {
    async fn ask(&self) -> Option<Answer> {
        let silent = || {
            let details = vec!["the agent does not answer in time: nothing is known".to_string()];
            Some(Answer { verdict: Verdict::Unknown, details })
        };
        let answer = timeout(ANSWER_TIME_MAX, self.answer()).await.unwrap_or_else(|_| silent())?;
        self.tally.answered(answer.verdict);
        Some(answer)
    }
}

/// Answers until its task is aborted.
pub(crate) async fn serve<E: From<Question> + Send + 'static>(
    listener: UnixListener,
    events: mpsc::Sender<E>,
    tally: Tally,
) {
    let permits = Arc::new(Semaphore::new(NODE_CHECK_CONNECTIONS_MAX));
    let mut open = Open::default();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_ERROR_PAUSE).await;
            continue;
        };
        // A client that has disconnected has no credentials.
        let Ok(user) = stream.peer_cred().map(|of| of.uid()) else { continue };
        open.make_room(&tally);
        let (events, permits) = (events.clone(), Arc::clone(&permits));
        let asker = Asker { events, permits, tally: tally.clone() };
        let connection = tokio::spawn(connection(stream, asker));
        open.by_user.entry(user).or_default().push_back(connection.abort_handle());
        sleep(ACCEPT_PAUSE).await;
    }
}

/// Serves one connection until its client ends it, or its time is over.
async fn connection<E: From<Question> + Send + 'static>(stream: UnixStream, asker: Asker<E>) {
    let tally = asker.tally.clone();
    let server = wire::server(asker);
    let answering = service_fn(|request| {
        let (answer, tally) = (server.clone().call(request), tally.clone());
        async move {
            let response = answer.await?;
            // Errors have their status there, answers behind their content.
            if response.headers().contains_key("grpc-status") {
                add(&tally.0.requests);
            }
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(1)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES_MAX)
        .initial_connection_window_size(WINDOW_BYTES_MAX);
    let served = builder.serve_connection(TokioIo::new(WithAuthority::new(stream)), answering);
    // A client that disconnects is not counted.
    if timeout(CONNECTION_TIME_MAX, served).await.is_err() {
        add(&tally.0.late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One user with many connections does not close those of others.
    #[tokio::test]
    async fn the_user_with_most_connections_makes_room() {
        let (mut open, tally) = (Open::default(), Tally::default());
        for (user, count) in [(1, 1), (2, NODE_CHECK_CONNECTIONS_MAX - 2), (3, 1)] {
            for _ in 0..count {
                let connection = tokio::spawn(std::future::pending::<()>());
                open.by_user.entry(user).or_default().push_back(connection.abort_handle());
            }
        }
        for closed in 1..=5 {
            open.make_room(&tally);
            assert_eq!(tally.counts().connections, closed);
            let connection = tokio::spawn(std::future::pending::<()>());
            open.by_user.entry(4).or_default().push_back(connection.abort_handle());
        }
        let counts: Vec<usize> = open.by_user.values().map(VecDeque::len).collect();
        assert_eq!(counts, [1, NODE_CHECK_CONNECTIONS_MAX - 7, 1, 5]);
    }
}

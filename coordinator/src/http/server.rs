//! The accept loop: gRPC and HTTP/1 on one port.
//!
//! Ready-made loops lack HTTP/2 pings, which find agents whose machine is gone, a bound on
//! connections, the closing of connections that are idle or no longer trusted
//! (`../connections.rs`), and certificates that are replaced while it runs. For each connection the
//! process needs a file descriptor, and most systems give a service 1,024 unless it asks for more.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use memtape_core::capacity::Division;
use memtape_core::limits::{CALLS_PER_CONNECTION_MAX, CONNECTIONS_MAX, UNREAD_UPLOAD_BYTES_MAX};
use memtape_tls::steady;
use memtape_tls::unreachable::Unreachable;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::access::{Door, Peer};
use crate::connections::{Connection, Connections};
use crate::state::counters::{Counters, Loss};

/// Open files that are no connections: the store, and snapshots on their way to the disk.
const FILES_BESIDE: usize = 1024;

/// A connection without a sign of life for the sum of both is closed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for a handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bounds of the port of health, which answers a few small questions.
pub(crate) const HEALTH: Bounds = Bounds { connections_max: 64, unknown_calls_max: 64 };

/// Interval between two checks for expired certificates.
const TRUST_EVERY: Duration = Duration::from_secs(10);

/// Time for the header of an HTTP/1 request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that TLS keeps for a client that is slow to read: one record.
const TLS_BUFFER_BYTES_MAX: usize = 16 << 10;

/// Bytes that the library keeps of a client that is slow to send or to read over HTTP/1. They must
/// hold the header, with a token in it.
const HTTP1_BUFFER_BYTES_MAX: usize = 16 << 10;

/// Bytes that a call may send unread: a queued snapshot occupies this memory. At a millisecond to
/// the agent one call reaches 32 MB/s with it, and the calls add up.
const STREAM_WINDOW_BYTES: u32 = UNREAD_UPLOAD_BYTES_MAX as u32;

/// Unread bytes of all calls of a connection together: waiting snapshots of a node must not stop
/// its reports.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * CALLS_PER_CONNECTION_MAX;

/// Bytes of an answer that the library keeps for a slow client of HTTP/2.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;

/// Wait after an error of `accept`, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Open connections get this long to end at a shutdown.
const DRAIN: Duration = Duration::from_secs(3);

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A port that this process has, and that refuses connections: nothing listens on it yet.
#[derive(Debug)]
pub(crate) struct Reserved {
    socket: TcpSocket,
    listen: SocketAddr,
}

impl Reserved {
    /// Takes the port. No other process can take it then, or listen on it.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) fn new(listen: SocketAddr) -> anyhow::Result<Self> {
        let take = || {
            let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // With the option, two processes could take a port on which none listens. It is
            // needed for a moment where connections of an earlier process have not ended.
            if socket.bind(listen).is_err() {
                socket.set_reuseaddr(true)?;
                socket.bind(listen)?;
                socket.set_reuseaddr(false)?;
            }
            Ok(Self { socket, listen })
        };
        take().map_err(|error| unusable(listen, &error))
    }

    /// Lets clients connect.
    ///
    /// # Errors
    /// One line that says what to do.
    pub(crate) fn listen(self) -> anyhow::Result<TcpListener> {
        let Self { socket, listen } = self;
        // Connections inherit it: the next process can take the port before they have ended.
        let listening = socket.set_reuseaddr(true).and_then(|()| socket.listen(BACKLOG));
        listening.map_err(|error| unusable(listen, &error))
    }
}

fn unusable(listen: SocketAddr, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "address {listen} is in use: stop the program that has it, or choose another"
        ),
        _ => anyhow::anyhow!("address {listen} cannot be listened on: {error}"),
    }
}

/// Bounds of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at the same time.
    pub(crate) connections_max: usize,
    /// Calls of unknown clients at the same time.
    pub(crate) unknown_calls_max: usize,
}

impl Bounds {
    /// Bounds of the port of agents and users, by the memory.
    pub(crate) fn within(memory: &Division) -> Self {
        let connections_max = memory.connections_max();
        Self { connections_max, unknown_calls_max: memory.unknown_calls_max() }
    }
}

/// Serves until `shutdown` is ready, then drains. Without a door there is no TLS.
///
/// # Errors
/// None but those of a listener that is broken from the start.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    door: Option<Arc<Door>>,
    counters: Arc<Counters>,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    listener.local_addr().context("the listener is broken")?;
    let connections_max = bounds.connections_max.min(ask_for_files());
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HTTP1_BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let room = Arc::new(Semaphore::new(connections_max));
    let all = Arc::new(Connections::new(bounds.unknown_calls_max));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &room, &all) => accepted,
        };
        let Some((stream, peer, place)) = accepted else { continue };
        let connection = all.open(Peer::new(peer));
        let (builder, router, watcher) = (builder.clone(), router.clone(), graceful.watcher());
        let (counters, door) = (counters.clone(), door.clone());
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            let why = tokio::select! {
                why = answer(stream, builder, router, watcher, &connection, door.as_deref()) => why,
                why = connection.overdue() => Some(why),
                () = distrusted(door.as_deref(), &connection) => Some(Loss::ConnectionDistrusted),
            };
            if let Some(why) = why {
                counters.lose(why, 1);
                log_closed(door.as_deref(), &connection, why);
            }
            drop(place);
        });
    }
    drop(listener);
    if timeout(DRAIN, graceful.shutdown()).await.is_err() {
        tracing::info!("connections that did not end in time are cut");
    }
    connections.shutdown().await;
    Ok(())
}

/// Raises the soft limit of open files as far as the hard one lets us. Returns how many of them are
/// for connections, at least half.
fn ask_for_files() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS_MAX + FILES_BESIDE) as u64;
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_none_or(|current| current >= wanted) {
        return CONNECTIONS_MAX;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    let current = if raised.is_ok() { Some(current) } else { limit.current };
    let files = current.and_then(|files| usize::try_from(files).ok()).unwrap_or(FILES_BESIDE);
    let connections = files.saturating_sub(FILES_BESIDE).max(files / 2).min(CONNECTIONS_MAX);
    if connections < CONNECTIONS_MAX {
        tracing::warn!("at most {connections} agents can connect: raise the limit of open files");
    }
    connections
}

/// Logs that a connection was closed for this cause: a distrusted client at the rate of refusals.
fn log_closed(door: Option<&Door>, connection: &Connection, why: Loss) {
    let peer = connection.peer();
    tracing::debug!(from = %peer.address, ?why, "a connection is closed");
    if why == Loss::ConnectionDistrusted && door.is_some_and(|door| door.is_logged(peer)) {
        tracing::warn!(
            from = %peer.address, names = ?peer.names(),
            "a connection is closed: its certificate or role is not valid"
        );
    }
}

/// Serves a connection until the client or the coordinator ends it. Returns what is counted of a
/// client that is not let in.
async fn answer(
    stream: TcpStream,
    builder: Builder<TokioExecutor>,
    router: Router,
    watcher: Watcher,
    connection: &Arc<Connection>,
    door: Option<&Door>,
) -> Option<Loss> {
    let stream = match secure(stream, connection, door).await {
        Ok(stream) => stream,
        Err(why) => return why,
    };
    let connection = connection.clone();
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let call = connection.begin();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(call.clone());
        let answering = TowerToHyperService::new(router.clone()).call(request);
        async move { Ok::<_, Infallible>(call.answer(answering.await?)) }
    });
    let served = builder.serve_connection(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(served).await {
        tracing::debug!("a connection broke: {error}");
    }
    None
}

/// Does the handshake where the door has TLS. Fails where it fails, or the client is not admitted,
/// with what is counted: rustls tells no name of a certificate that it does not take.
async fn secure(
    stream: TcpStream,
    connection: &Arc<Connection>,
    door: Option<&Door>,
) -> Result<Either<TcpStream, TlsStream<TcpStream>>, Option<Loss>> {
    let Some((door, tls)) = door.and_then(|door| Some((door, door.tls()?))) else {
        return Ok(Either::Left(stream));
    };
    let handshake = TlsAcceptor::from(tls.config())
        .accept_with(stream, |tls| tls.set_buffer_limit(Some(TLS_BUFFER_BYTES_MAX)));
    // Not in time, where its client says nothing.
    let stream = timeout(HANDSHAKE_TIMEOUT, handshake).await.map_err(|_| None)?;
    let stream = stream.map_err(|error| {
        let from = connection.peer().address;
        tracing::debug!(%from, "a handshake of TLS failed: {error}");
        let is_outside = |why| matches!(why, Unreachable::Ended(_) | Unreachable::NotYet(_));
        Unreachable::of(&error).filter(|why| is_outside(*why)).map(|_| Loss::ConnectionDistrusted)
    })?;
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let chain = chain.iter().map(|certificate| certificate.clone().into_owned());
    connection.peer().prove(chain.collect());
    // What it was trusted by may have been replaced since the handshake began.
    let is_admitted = door.still_admits(connection.peer());
    if !is_admitted {
        return Err(Some(Loss::ConnectionDistrusted));
    }
    connection.proven();
    Ok(Either::Right(stream))
}

/// Returns when the credentials shown at a connection's beginning are no longer valid.
async fn distrusted(door: Option<&Door>, connection: &Connection) {
    let Some(door) = door else { return std::future::pending().await };
    let mut changes = door.changes();
    loop {
        let has_changed = timeout(TRUST_EVERY, changes.changed()).await.is_ok();
        let has_ended = connection.peer().ends_unix().is_some_and(|ends| steady::now() >= ends);
        // Chains are verified again only where something has changed.
        let is_admitted = || door.still_admits(connection.peer());
        if has_ended || (has_changed && !is_admitted()) || !connection.is_trusted() {
            return;
        }
    }
}

/// The next connection and its place. Where all places are taken another connection gives way.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
    all: &Connections,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let accepted = listener.accept().await;
    match accepted {
        Ok((stream, peer)) => {
            // Small messages shall not wait for larger ones; without it they are only slower.
            let _ = stream.set_nodelay(true);
            let place = match room.clone().try_acquire_owned() {
                Ok(place) => place,
                Err(_) => {
                    all.give_up_one();
                    room.clone().acquire_owned().await.ok()?
                }
            };
            Some((stream, peer, place))
        }
        Err(error) => {
            tracing::warn!("a connection could not be accepted: {error}");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::connections::IDLE_MAX;

    /// A server of three connections.
    async fn start() -> SocketAddr {
        let listener =
            Reserved::new(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap().listen().unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(async || "here");
        let bounds = Bounds { connections_max: 3, unknown_calls_max: 3 };
        let counters = Arc::new(Counters::default());
        tokio::spawn(serve(listener, router, bounds, None, counters, std::future::pending()));
        address
    }

    async fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn silent_connections_lock_no_client_out() {
        let address = start().await;
        let mut silent = Vec::new();
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n", b"GET / HT", b"", b"", b""] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            silent.push(stream);
        }
        assert!(ask(address).await.ends_with("here"));
        // The last two are there still; the first ones gave way.
        let mut byte = [0];
        assert_eq!(silent[0].read(&mut byte).await.unwrap_or(0), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_ends() {
        let address = start().await;
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(said).await.unwrap();
            let mut all = Vec::new();
            let ended = timeout(2 * IDLE_MAX, stream.read_to_end(&mut all)).await;
            assert!(ended.is_ok(), "still open after {said:?}");
        }
    }

    #[tokio::test]
    async fn a_reserved_port_refuses_connections_and_no_other_process_gets_it() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        for round in 0..2 {
            let reserved = Reserved::new(free).unwrap();
            let refused = TcpStream::connect(free).await.unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "round {round}");
            for other in [free, ([0, 0, 0, 0], free.port()).into()] {
                let line = Reserved::new(other).unwrap_err().to_string();
                assert!(line.contains("is in use: stop the program"), "{line}");
            }
            assert!(std::net::TcpListener::bind(free).is_err(), "another program");
            let listener = reserved.listen().unwrap();
            let (client, accepted) = tokio::join!(TcpStream::connect(free), listener.accept());
            assert!(Reserved::new(free).is_err());
            // The end that closes first keeps its port for a minute.
            drop(accepted);
            drop((client, listener));
        }
    }
}

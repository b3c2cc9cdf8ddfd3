//! The accept loop: gRPC and HTTP/1 on one port.
//!
//! It is our own because of two things that ready-made ones do not have: HTTP/2 pings, which find
//! agents whose machine is gone, and a bound on connections. For each connection the process needs
//! a file descriptor, and most systems give a service 1,024 unless it asks for more.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use memtape_core::limits::{CALLS_PER_CONNECTION_MAX, CONNECTIONS_MAX};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Open files that are no connections: the store, and snapshots on their way to the disk.
const FILES_BESIDE: usize = 1024;

/// A connection without a sign of life for the sum of both is closed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for the header of an HTTP/1 request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a call may send unread: a snapshot that waits for its turn lies in memory up to here. At a
/// millisecond to the agent one call is as fast as 32 MB/s then, and the calls add up.
pub(crate) const STREAM_WINDOW_BYTES: u32 = 32 << 10;

/// The same for all calls of a connection together: the snapshots of a node that wait shall not
/// stop its reports.
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * CALLS_PER_CONNECTION_MAX;

/// Wait after an error of `accept`, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Open connections get this long to end at a shutdown.
const DRAIN: Duration = Duration::from_secs(3);

/// Binds the one port.
///
/// # Errors
/// One line that says what to do.
pub(crate) async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "address {listen} is in use: stop the program that has it, or choose another"
        ),
        _ => anyhow::anyhow!("address {listen} cannot be listened on: {error}"),
    })
}

/// Serves until `shutdown` is ready, then drains.
///
/// # Errors
/// None but those of a listener that is broken from the start.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    listener.local_addr().context("the listener is broken")?;
    ask_for_files();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(CALLS_PER_CONNECTION_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &room) => accepted,
        };
        let Some((stream, place)) = accepted else { continue };
        let service = TowerToHyperService::new(router.clone());
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let watched = graceful.watch(connection);
        while connections.try_join_next().is_some() {}
        connections.spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!("a connection broke: {error}");
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

/// Raises the soft limit of open files as far as the hard one lets us.
fn ask_for_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (CONNECTIONS_MAX + FILES_BESIDE) as u64;
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    if raised.is_err() || current < wanted {
        let agents = current.saturating_sub(FILES_BESIDE as u64);
        tracing::warn!("at most {agents} agents can connect: raise the limit of open files");
    }
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let place = room.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => {
            // Small messages shall not wait for larger ones; without it they are only slower.
            let _ = stream.set_nodelay(true);
            Some((stream, place))
        }
        Err(error) => {
            tracing::warn!("a connection could not be accepted: {error}");
            sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

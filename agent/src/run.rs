//! The agent on a node: the loop that feeds [`Agent`] with events and carries out its work.
//!
//! The clock is read here, once per event. What takes time runs elsewhere and comes back as an
//! event: rewinds on blocking threads, uploads in tasks of their own. How many there are at once
//! is the agent's own decision.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use memtape_core::identity::accounts::Accounts;
use memtape_core::identity::boot_id_words;
use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_disk::real::RealDisk;
use memtape_tls::TlsError;
use memtape_tls::client::ClientTls;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, timeout};
use tonic::transport::Channel;

use crate::agent::{Agent, Event};
use crate::capture::answers::Work;
use crate::capture::rewind::Rewound;
use crate::config::Config;
use crate::health::{self, Published};
use crate::link::channel::{AddressError, channel};
use crate::link::stream;
use crate::link::upload::{UploadError, upload};
use crate::link::wire;
use crate::node::accounts::AccountFiles;
use crate::node::clock;
use crate::node::ends::Ends;
use crate::node::host::Host;
use crate::node::machine::ThisNode;
use crate::node::nvml::Gpus;
use crate::node::process;
use crate::node::workers::Workers;
use crate::spool::Spool;
use crate::tapes::folders::{FolderError, check_above, check_folder, make_folder};
use crate::tapes::source::TapeFolders;

/// Maximum number of events in the queue of the loop; senders wait beyond it.
const EVENTS_MAX: usize = 256;

/// Open files other than tapes: connections, the spool, and files of /proc.
const FILES_BESIDE: usize = 512;

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Invalid settings, all of them at once.
    #[error("the agent's settings are wrong: {}", .0.join("; "))]
    Settings(Vec<String>),
    /// The coordinator's address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A folder of tapes in which users could replace each other's, or which they could replace.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The health port cannot be bound.
    #[error("{0} cannot be listened on ({1}): give --health-listen another address")]
    Health(SocketAddr, #[source] std::io::Error),
    /// A thread that watches the node cannot be started.
    #[error("a thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
}

/// Open files of a rank: its tape, and the descriptor of its process.
const FILES_PER_RANK: usize = 2;

/// Raises the soft limit of open files as far as the hard one lets us.
fn ask_for_files() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = (TAPES_PER_NODE_MAX * FILES_PER_RANK + FILES_BESIDE) as u64;
    let current = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    if raised.is_err() || current < wanted {
        let tapes = current.saturating_sub(FILES_BESIDE as u64) / FILES_PER_RANK as u64;
        tracing::warn!("at most {tapes} tapes can be read: raise the limit of open files");
    }
}

/// Runs an agent until `shutdown` is ready.
///
/// It goes on for as long as it is let: without a coordinator, without NVML, with tapes that are
/// garbage.
///
/// # Errors
/// Before it has started; afterwards the agent goes on.
pub async fn run(
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let mistakes = config.mistakes();
    if !mistakes.is_empty() {
        return Err(RunError::Settings(mistakes));
    }
    ask_for_files();
    let tls = config.tls_dir.as_deref().map(ClientTls::open).transpose()?.map(Arc::new);
    if let Some(tls) = tls.clone() {
        tokio::spawn(tls.follow());
    }
    let channel = channel(&config.coordinator, tls.clone())?;
    let host = Host::new(Path::new("/"));
    let gpus = Gpus::start(host.root()).map_err(RunError::Thread)?;
    let workers = Workers::start(host.root()).map_err(RunError::Thread)?;
    let ends = Ends::start(host.root()).map_err(RunError::Thread)?;
    let (sender, mut events) = mpsc::channel(EVENTS_MAX);
    let boot_id = process::boot_id(host.root());
    let hello = wire::hello(&config.node, &boot_id);
    check_folders(&config.tape_dirs)?;
    let published = Published::new(tls.clone());
    let listening = listen(&config, &published).await?;
    let coordinator = config.coordinator.clone();
    let holding = stream::hold(channel.clone(), (coordinator, tls), hello, sender.clone());
    let holding = tokio::spawn(holding);
    tracing::info!(node = %config.node, dirs = ?config.tape_dirs, "agent started");

    let source = Box::new(TapeFolders::new(config.tape_dirs.clone(), config.pod_folders));
    let mut accounts = AccountFiles::default();
    let spool = config
        .spool()
        .and_then(|dir| spool(dir, config.spool_bytes_max, accounts.read(host.root())));
    let (boot_id, accounts) = (boot_id_words(&boot_id), RefCell::new(accounts));
    let node = Box::new(ThisNode { boot_id, host, accounts, gpus, workers, ends });
    let mut agent = Agent::new(clock::now(), config, node, source, spool);
    let mut ticks = ticks(agent.report_interval());
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let event = tokio::select! {
            () = &mut shutdown => break,
            _ = ticks.tick() => Event::Tick,
            Some(event) = events.recv() => event,
            () = until(agent.next_ns()) => Event::Timeout,
        };
        let (now, is_look) = (clock::now(), matches!(event, Event::Tick));
        agent.handle(now, event);
        if is_look {
            published.set(agent.health(now));
        }
        if agent.report_interval() != ticks.period() {
            ticks = self::ticks(agent.report_interval());
        }
        while let Some(work) = agent.take_work() {
            begin(work, &channel, &sender);
        }
    }
    holding.abort();
    if let Some(listening) = listening {
        listening.abort();
    }
    tracing::info!("agent stopped");
    Ok(())
}

/// Starts the server of the health port.
///
/// # Errors
/// The port cannot be bound.
async fn listen(config: &Config, published: &Published) -> Result<Option<AbortHandle>, RunError> {
    let Some(listen) = config.health_listen else { return Ok(None) };
    let bound = TcpListener::bind(listen).await.map_err(|error| RunError::Health(listen, error))?;
    Ok(Some(tokio::spawn(health::serve(bound, published.clone())).abort_handle()))
}

/// Makes the folders of tapes that are missing, where this is root: the user who makes one can
/// delete the tapes of others.
///
/// # Errors
/// In none of the folders that are there tapes of one user are safe from another.
fn check_folders(folders: &[PathBuf]) -> Result<(), FolderError> {
    let mut refused = Vec::new();
    for folder in folders {
        let is_there = std::fs::symlink_metadata(folder).is_ok();
        let checked = if is_there { check_folder(folder) } else { check_above(folder) };
        match checked {
            // Without root the first recorder makes it; it is checked when it is there.
            Ok(()) if !is_there && rustix::process::geteuid().is_root() => {
                match make_folder(folder) {
                    Ok(()) => tracing::info!("folder {folder:?} was not there and is made"),
                    Err(error) => tracing::warn!("folder {folder:?} cannot be made: {error}"),
                }
            }
            checked => refused.extend(checked.err()),
        }
    }
    // One of several is left out, and named in the log when it is searched.
    let are_all = refused.len() == folders.len();
    refused.into_iter().next().filter(|_| are_all).map_or(Ok(()), Err)
}

/// Opens the spool in a folder; on failure the agent works without one, and logs the error.
fn spool(dir: &Path, bytes_max: u64, accounts: &Accounts) -> Option<Spool> {
    let opened = Spool::open(Arc::new(RealDisk::new(dir)), bytes_max, accounts.clone());
    let tell = |error: &std::io::Error| {
        let path = dir.display();
        tracing::warn!(
            "folder {path} cannot be used for the spool ({error}): nothing is kept on disk while \
             the coordinator is away; give --spool-dir another folder"
        );
    };
    opened.inspect_err(tell).ok()
}

/// Carries out one work; its result comes back as an event.
fn begin(work: Work, channel: &Channel, events: &mpsc::Sender<Event>) {
    let (channel, events) = (channel.clone(), events.clone());
    tokio::spawn(async move {
        let event = match work {
            Work::Rewind(id, rewind) => {
                let made = tokio::task::spawn_blocking(move || rewind.make(clock::now)).await;
                let failed = |error| format!("the tape could not be rewound: {error}");
                let made = made.unwrap_or_else(|error| Rewound::nothing(&failed(error)));
                Event::Rewound(id, made)
            }
            Work::Count(key, count) => {
                let failure = count.failure();
                let counted = tokio::task::spawn_blocking(move || count.make()).await;
                Event::Counted(key, counted.unwrap_or(failure))
            }
            Work::Upload(id, key, snapshot, time_left) => {
                let uploading = upload(channel, &key.capture_id, &key.tape_id, snapshot);
                Event::Uploaded(id, within(time_left, uploading).await)
            }
        };
        let _ = events.send(event).await; // the loop is gone: the agent stops
    });
}

/// Runs an upload for at most this long.
async fn within(
    time_left: Duration,
    uploading: impl Future<Output = Result<(), UploadError>>,
) -> Result<(), UploadError> {
    timeout(time_left, uploading).await.unwrap_or(Err(UploadError::Late))
}

/// Waits for a time of the monotonic clock; forever for none.
async fn until(moment_ns: Option<u64>) {
    let Some(moment_ns) = moment_ns else { return std::future::pending().await };
    sleep(Duration::from_nanos(moment_ns.saturating_sub(clock::now().mono_ns))).await;
}

fn ticks(period: Duration) -> Interval {
    let mut ticks = interval(period);
    // A slow look at the tapes is not made up for by several quick ones.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upload_that_times_out_is_not_a_refusal() {
        let end = within(Duration::from_millis(1), std::future::pending()).await;
        assert_eq!(end, Err(UploadError::Late));
        assert!(!UploadError::Late.is_final());
        let refusal = Err(UploadError::Refused("it is not wanted".to_string()));
        let end = within(Duration::MAX, std::future::ready(refusal.clone())).await;
        assert_eq!(end, refusal);
    }
}

//! The start and the end of an agent on a node.
//!
//! The work is done in loops ([`supervise`]): one, or one for each shard of the cluster that has
//! jobs on this node.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memtape_core::identity::boot_id_words;
use memtape_core::limits::TAPES_PER_NODE_MAX;
use memtape_tls::TlsError;
use memtape_tls::client::ClientTls;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::config::Config;
use crate::health::{self, Published};
use crate::link::channel::AddressError;
use crate::link::coordinators::Coordinators;
use crate::link::stream::ShardCount;
use crate::node::accounts::AccountFiles;
use crate::node::ends::Ends;
use crate::node::host::Host;
use crate::node::machine::Machine;
use crate::node::nvml::Gpus;
use crate::node::process;
use crate::node::workers::Workers;
use crate::supervisor::{Parts, supervise};
use crate::tapes::folders::{FolderError, check_above, check_folder, make_folder};

/// Time for which a number of shards that a coordinator named holds, whatever others name.
const SHARD_COUNT_HOLDS: Duration = Duration::from_secs(60);

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
    // Addresses that cannot be used end the agent before anything has started.
    Coordinators::new(&config.coordinator, tls.clone())?;
    let host = Host::new(Path::new("/"));
    let gpus = Gpus::start(host.root()).map_err(RunError::Thread)?;
    let workers = Workers::start(host.root()).map_err(RunError::Thread)?;
    let ends = Ends::start(host.root()).map_err(RunError::Thread)?;
    let boot_id = process::boot_id(host.root());
    check_folders(&config.tape_dirs)?;
    let published = Published::new(tls.clone());
    let listening = listen(&config, &published).await?;
    tracing::info!(node = %config.node, dirs = ?config.tape_dirs, "agent started");
    let mut accounts = AccountFiles::default();
    let of_spool = accounts.read(host.root()).clone();
    let machine = Arc::new(Machine {
        boot_id: boot_id_words(&boot_id),
        host,
        accounts: Mutex::new(accounts),
        gpus,
        workers,
        ends,
        watched: Mutex::default(),
    });
    let parts = Parts { config, tls, boot_id, published, accounts: of_spool, machine };
    let mut shard_count = ShardCount { shards: parts.known_shards(), holds_until: Instant::now() };
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        parts.divide(shard_count.shards);
        let divided = supervise(&parts, shard_count, &mut shutdown).await;
        let Some(shards) = divided else { break };
        tracing::info!(shards, "the coordinators of the cluster divide the jobs");
        shard_count = ShardCount { shards, holds_until: Instant::now() + SHARD_COUNT_HOLDS };
    }
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

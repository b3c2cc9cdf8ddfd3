//! The agents of one process: one, or one for each shard of the cluster that has jobs on this node.
//!
//! Where a cluster divides its jobs, the shards of a node's jobs have different coordinators. The
//! primary agent, of the shard of the node's name, reads the folders of tapes and makes the node
//! known; the tapes of other shards that it finds have agents of their own, with a stream and a
//! spool of their own, as long as there are tapes or kept records. All share the node, and its
//! bounds of memory in equal parts; of the bounds of dead tapes and of the spool, each agent has an
//! equal part at least, and what the others leave.

use std::collections::BTreeSet;
use std::fs;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;

use memtape_core::identity::accounts::Accounts;
use memtape_core::placement::{JobsShard, SHARDS_MAX, shard_of};
use memtape_disk::files::{Disk, replace};
use memtape_disk::real::RealDisk;
use memtape_tls::client::ClientTls;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::config::Config;
use crate::follow::{Ended, Following, Found, Kind, Permits, follow};
use crate::health::Published;
use crate::link::coordinators::Coordinators;
use crate::link::stream::ShardCount;
use crate::link::wire;
use crate::node::clock;
use crate::node::machine::{Machine, ThisNode};
use crate::spool::{self, Dropped, Spool, jobs_of, spool_of};
use crate::tapes::divided::{DividedFolders, PRIMARY};
use crate::tapes::source::{TapeFolders, TapeSource};

/// File in the folder of the spool with the number of shards.
const SHARDS: &str = "shards";

/// What the agents of a process are made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) config: Config,
    pub(crate) tls: Option<Arc<ClientTls>>,
    pub(crate) boot_id: String,
    pub(crate) published: Published,
    /// The accounts that share a spool.
    pub(crate) accounts: Accounts,
    pub(crate) machine: Arc<Machine>,
}

impl Parts {
    /// The number of shards that the coordinators named last; 1 before the first.
    pub(crate) fn known_shards(&self) -> u16 {
        let folder = self.config.spool();
        let text = folder.and_then(|folder| fs::read_to_string(folder.join(SHARDS)).ok());
        let known = text.and_then(|text| text.trim().parse().ok());
        known.filter(|shards| (1..=SHARDS_MAX).contains(shards)).unwrap_or(1)
    }

    /// Starts an agent in a task.
    fn start(
        &self,
        kind: Kind,
        (shard_count, jobs): (ShardCount, Option<JobsShard>),
        source: Box<dyn TapeSource>,
        (stop, agents, permits): (&CancellationToken, &watch::Sender<u64>, &Arc<Permits>),
    ) -> Option<impl Future<Output = Ended> + Send + use<>> {
        let health_listen = self.config.health_listen.filter(|_| kind.shard().is_none());
        let config = Config { health_listen, ..self.config.clone() };
        let coordinators = Coordinators::new(&config.coordinator, self.tls.clone()).ok()?;
        let node = ThisNode::new(self.machine.clone(), kind.shard().unwrap_or(PRIMARY));
        let spool = config.spool().and_then(|folder| self.spool(&spool_of(folder, jobs)));
        let hello = wire::hello(&config.node, &self.boot_id, jobs);
        let following = Following {
            kind,
            shard_count,
            coordinators: Arc::new(coordinators),
            published: self.published.clone(),
            stop: stop.clone(),
            agents: agents.subscribe(),
            permits: permits.clone(),
        };
        let agent = Agent::new(clock::now(), config, Box::new(node), (source, jobs), spool);
        Some(follow(agent, hello, following))
    }

    /// Opens the spool in a folder; on failure the agent works without one, and logs the error.
    fn spool(&self, folder: &Path) -> Option<Spool> {
        let disk = Arc::new(RealDisk::new(folder));
        let opened = Spool::open(disk, self.config.spool_bytes_max, self.accounts.clone());
        let tell = |error: &std::io::Error| {
            let path = folder.display();
            tracing::warn!(
                "folder {path} cannot be used for the spool ({error}): nothing is kept on disk \
                 while the coordinator is away; give --spool-dir another folder"
            );
        };
        opened.inspect_err(tell).ok()
    }
}

/// Runs the agents of a number of shards until `shutdown` is ready, or a coordinator names another
/// number of shards, which is returned.
pub(crate) async fn supervise(
    parts: &Parts,
    shard_count: ShardCount,
    shutdown: &mut (impl Future<Output = ()> + Send + Unpin),
) -> Option<u16> {
    let shards = shard_count.shards;
    let jobs = |shard| (shard_count, jobs_of(shard, shards));
    let primary = shard_of(&parts.config.node, shards);
    let folders = TapeFolders::new(parts.config.tape_dirs.clone(), parts.config.pod_folders);
    let folders = DividedFolders::new(folders);
    let (found, mut others) = watch::channel(None);
    let (stop, agents) = (CancellationToken::new(), watch::Sender::new(1));
    let permits = Arc::new(Permits::new(parts.config.rewinds_max));
    let shared = (&stop, &agents, &permits);
    let mut running = JoinSet::new();
    let mut shards_running = BTreeSet::new();
    let source = Box::new(folders.clone());
    let kind = Kind::Primary(found, folders.clone());
    running.extend(parts.start(kind, jobs(primary), source, shared));
    let mut with_spool = parts.shards_with_records(shards, primary);
    let divided = loop {
        let found = others.borrow_and_update().clone();
        for shard in missing(found, &mut with_spool, &mut shards_running) {
            let source = Box::new(folders.of_shard(shard));
            let kind = Kind::Other(shard, others.clone());
            running.extend(parts.start(kind, jobs(shard), source, shared));
        }
        agents.send_replace(1 + shards_running.len() as u64);
        tokio::select! {
            () = &mut *shutdown => break None,
            Ok(()) = others.changed() => {}
            Some(ended) = running.join_next() => match ended {
                Ok(Ended::Divided(shards)) => break Some(shards),
                // It starts again if it was found meanwhile.
                Ok(Ended::Idle(shard)) => {
                    shards_running.remove(&shard);
                    parts.remove_empty_spool(shard, shards);
                }
                // All agents end together.
                Ok(Ended::Stopped) => break None,
                // A panic ends the process with a failure, so that it is started again.
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => break None,
                },
            },
        }
    };
    stop.cancel();
    while running.join_next().await.is_some() {}
    for shard in shards_running {
        parts.published.forget(Some(shard));
    }
    divided
}

/// Adds the shards whose agents are to run to the running ones. None before folders were read: an
/// agent says which tapes there are as soon as it is connected.
fn missing(found: Found, with_spool: &mut BTreeSet<u16>, running: &mut BTreeSet<u16>) -> Vec<u16> {
    let Some(mut wanted) = found else { return Vec::new() };
    wanted.append(with_spool);
    wanted.into_iter().filter(|shard| running.insert(*shard)).collect()
}

impl Parts {
    /// The shards beside the primary one in whose spools an earlier process has left records.
    fn shards_with_records(&self, shards: u16, primary: u16) -> BTreeSet<u16> {
        let Some(folder) = self.config.spool() else { return BTreeSet::new() };
        spool::shards_with_records(folder, (shards, primary), |folder| self.spool(folder))
    }

    /// Deletes the folder of a shard's spool, unless it has records or counts of dropped ones, or
    /// another process uses it.
    fn remove_empty_spool(&self, shard: u16, shards: u16) {
        let Some(folder) = self.config.spool() else { return };
        let folder = spool_of(folder, jobs_of(shard, shards));
        let is_unused = |of: &Spool| of.is_empty() && of.dropped() == Dropped::default();
        if let Some(_locked) = self.spool(&folder).filter(is_unused)
            && let Err(error) = fs::remove_dir_all(&folder)
        {
            tracing::warn!("the empty spool in {} cannot be deleted: {error}", folder.display());
        }
    }

    /// Moves the entries of other divisions' spools to this number of shards, and keeps the
    /// number for the next start, which may find no coordinator.
    pub(crate) fn divide(&self, shards: u16) {
        let Some(folder) = self.config.spool() else { return };
        if self.known_shards() != shards {
            let (disk, text) = (RealDisk::new(folder), format!("{shards}\n"));
            let kept = disk.make_folder("").and_then(|()| replace(&disk, SHARDS, text.as_bytes()));
            if let Err(error) = kept {
                let folder = folder.display();
                tracing::warn!("the number of shards cannot be kept in {folder}: {error}");
            }
        }
        spool::divide(folder, shards, |folder| self.spool(folder));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_agent_of_a_shard_starts_before_the_folders_were_read() {
        let (mut with_spool, mut running) = (BTreeSet::from([2, 5]), BTreeSet::new());
        let mut missing = |found: Option<&[u16]>| {
            let found = found.map(|shards| shards.iter().copied().collect());
            super::missing(found, &mut with_spool, &mut running)
        };
        assert_eq!(missing(None), Vec::<u16>::new());
        assert_eq!(missing(Some(&[1, 2])), [1, 2, 5]);
        assert_eq!(missing(Some(&[1, 3])), [3]);
        assert_eq!(missing(Some(&[])), Vec::<u16>::new());
    }
}

//! The machine of several agents in one process: one for each shard of the cluster that has jobs on
//! this node.
//!
//! The thread that waits for the ends of ranks, and the one that looks below them, have one list of
//! ranks: that of all agents.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_core::identity::owner::Workload;
use memtape_proto::readings;

use crate::node::cgroup::Cgroup;
use crate::node::clock::Now;
use crate::node::ends::State;
use crate::node::fence::{Hold, NotFenced};
use crate::node::machine::{Node, ThisNode};
use crate::node::nvml::{NoReading, Reading};
use crate::node::process::{Holder, Memory, Process};

/// The machine, as one of its agents has it.
#[derive(Clone, Debug)]
pub(crate) struct SharedNode {
    shard: u16,
    node: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    node: ThisNode,
    /// The ranks that the agent of each shard watches.
    watched: BTreeMap<u16, Vec<Process>>,
}

impl SharedNode {
    /// The machine for the agent of the first shard.
    pub(crate) fn new(node: ThisNode) -> Self {
        let inner = Inner { node, watched: BTreeMap::new() };
        Self { shard: 0, node: Arc::new(Mutex::new(inner)) }
    }

    /// The machine for the agent of another shard.
    pub(crate) fn of(&self, shard: u16) -> Self {
        Self { shard, node: self.node.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic while it was held leaves whole values.
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node for SharedNode {
    fn memory(&self) -> readings::Host {
        self.lock().node.memory()
    }

    fn oom_kills(&self) -> Option<u64> {
        self.lock().node.oom_kills()
    }

    fn boot_id(&self) -> [u64; 2] {
        self.lock().node.boot_id()
    }

    fn holder(&self, pid: u32, own_pid: u32, uid: u32, made_wall_ns: i64) -> Holder {
        self.lock().node.holder(pid, own_pid, uid, made_wall_ns)
    }

    fn fence(&self, process: Process) -> Result<Box<dyn Hold>, NotFenced> {
        self.lock().node.fence(process)
    }

    fn account_of(&self, uid: u32) -> u32 {
        self.lock().node.account_of(uid)
    }

    fn workload(&self, process: Process) -> Option<Workload> {
        self.lock().node.workload(process)
    }

    fn sees_processes(&self) -> bool {
        self.lock().node.sees_processes()
    }

    fn has_pods(&self) -> bool {
        self.lock().node.has_pods()
    }

    fn memory_of(&self, process: Process) -> Option<Memory> {
        self.lock().node.memory_of(process)
    }

    fn watch(&self, ranks: Vec<Process>) {
        let mut inner = self.lock();
        inner.watched.insert(self.shard, ranks);
        let all = inner.watched.values().flatten().copied().collect();
        inner.node.watch(all);
    }

    fn ranks_of_others(&self) -> BTreeSet<u32> {
        let inner = self.lock();
        let others = inner.watched.iter().filter(|(shard, _)| **shard != self.shard);
        others.flat_map(|(_, ranks)| ranks.iter().map(|rank| rank.pid)).collect()
    }

    fn state_of(&self, process: Process) -> State {
        self.lock().node.state_of(process)
    }

    fn below(&self, now: Now, rank: Process) -> Option<readings::Workers> {
        self.lock().node.below(now, rank)
    }

    fn processes_below(&self, now: Now, rank: Process) -> Vec<Process> {
        self.lock().node.processes_below(now, rank)
    }

    fn cgroup(&self, pid: u32) -> Option<Cgroup> {
        self.lock().node.cgroup(pid)
    }

    fn gpus(&self, now: Now) -> Result<Arc<Reading>, NoReading> {
        self.lock().node.gpus(now)
    }
}

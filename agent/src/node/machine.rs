//! Interface of the agent to its machine: memory, GPUs, processes.
//!
//! The agent knows its node by a trait alone, so that a simulated one costs nothing. The real one
//! is made of `host.rs`, `accounts.rs`, `cgroup.rs`, `process.rs`, `fence.rs`, `workload.rs`,
//! `workers.rs`, `ends.rs` and `nvml.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memtape_core::identity::owner::Workload;
use memtape_proto::readings;

use crate::node::accounts::AccountFiles;
use crate::node::cgroup::Cgroup;
use crate::node::clock::Now;
use crate::node::ends::{Ends, State};
use crate::node::fence::{Fence, Hold, NotFenced};
use crate::node::host::Host;
use crate::node::nvml::{Gpus, NoReading, Reading};
use crate::node::process::{Holder, Memory, Process};
use crate::node::workers::Workers;
use crate::node::workload;

/// A machine. An unreadable figure is none.
pub(crate) trait Node: Debug + Send {
    /// Memory of the host.
    fn memory(&self) -> readings::Host;

    /// Processes killed on it for want of memory since boot, in any cgroup.
    fn oom_kills(&self) -> Option<u64>;

    /// Boot id, in the form that tapes hold; zeros when unknown.
    fn boot_id(&self) -> [u64; 2];

    /// Relation of the process `pid` to a tape that names `own_pid`, belongs to the user `uid` and
    /// was made at the Unix time `made_wall_ns`.
    fn holder(&self, pid: u32, own_pid: u32, uid: u32, made_wall_ns: i64) -> Holder;

    /// Opens a handle of a process, so that a signal reaches it and no other process.
    /// The error says why there is no handle.
    fn fence(&self, process: Process) -> Result<Box<dyn Hold>, NotFenced>;

    /// The user whom a user id belongs to: for a subordinate one, the user it was given to.
    fn account_of(&self, uid: u32) -> u32;

    /// Scheduler ids of a process; none where they cannot be read.
    fn workload(&self, process: Process) -> Option<Workload>;

    /// True if the processes of this node, and their pods, can be seen.
    fn sees_processes(&self) -> bool;

    /// True if processes of this node may be in pods.
    fn has_pods(&self) -> bool;

    /// Host memory of a process.
    fn memory_of(&self, process: Process) -> Option<Memory>;

    /// Which processes to watch from now on, and whose descendants to look at.
    fn watch(&self, ranks: Vec<Process>);

    /// Pids of ranks that other parts of this agent watch.
    fn ranks_of_others(&self) -> BTreeSet<u32> {
        BTreeSet::new()
    }

    /// Whether a process that is watched has ended, when and how.
    fn state_of(&self, process: Process) -> State;

    /// Memory of all processes below a rank.
    fn below(&self, now: Now, rank: Process) -> Option<readings::Workers>;

    /// The processes below a rank, largest first; empty when the newest sample is too old.
    fn processes_below(&self, now: Now, rank: Process) -> Vec<Process>;

    /// The cgroup of a process.
    fn cgroup(&self, pid: u32) -> Option<Cgroup>;

    /// Newest NVML reading of the GPUs.
    /// The error says why there is none.
    fn gpus(&self, now: Now) -> Result<Arc<Reading>, NoReading>;
}

/// The machine that this process runs on, as one of its agents has it.
///
/// The thread that waits for the ends of ranks, and the thread that samples below them, watch the
/// ranks of all agents, each until the agent is dropped.
#[derive(Debug)]
pub(crate) struct ThisNode {
    /// Number of the agent: its shard, or another number that no shard has.
    agent: u16,
    machine: Arc<Machine>,
}

/// The parts of the machine.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Boot id, in the form that tapes hold.
    pub(crate) boot_id: [u64; 2],
    /// Reads `/proc` and `/sys`.
    pub(crate) host: Host,
    /// Says whom subordinate user ids were given to.
    pub(crate) accounts: Mutex<AccountFiles>,
    /// The thread that reads NVML.
    pub(crate) gpus: Gpus,
    /// Looks at the processes below ranks.
    pub(crate) workers: Workers,
    /// Waits for the ends of ranks.
    pub(crate) ends: Ends,
    /// The ranks that each agent watches.
    pub(crate) watched: Mutex<BTreeMap<u16, Vec<Process>>>,
}

impl ThisNode {
    /// The machine for the agent of this number.
    pub(crate) fn new(machine: Arc<Machine>, agent: u16) -> Self {
        Self { agent, machine }
    }
}

impl Drop for ThisNode {
    fn drop(&mut self) {
        self.watch(Vec::new());
    }
}

/// A panic while it was held leaves whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node for ThisNode {
    fn memory(&self) -> readings::Host {
        self.machine.host.memory()
    }

    fn oom_kills(&self) -> Option<u64> {
        self.machine.host.oom_kills()
    }

    fn boot_id(&self) -> [u64; 2] {
        self.machine.boot_id
    }

    fn holder(&self, pid: u32, own_pid: u32, uid: u32, made_wall_ns: i64) -> Holder {
        Holder::of(self.machine.host.root(), pid, own_pid, uid, made_wall_ns)
    }

    fn fence(&self, process: Process) -> Result<Box<dyn Hold>, NotFenced> {
        Ok(Box::new(Fence::of(self.machine.host.root(), process)?))
    }

    fn account_of(&self, uid: u32) -> u32 {
        lock(&self.machine.accounts).account_of(self.machine.host.root(), uid)
    }

    fn workload(&self, process: Process) -> Option<Workload> {
        workload::of_process(self.machine.host.root(), process.pid)
    }

    fn sees_processes(&self) -> bool {
        workload::sees_processes(self.machine.host.root())
    }

    fn has_pods(&self) -> bool {
        workload::has_pods(self.machine.host.root())
    }

    fn memory_of(&self, process: Process) -> Option<Memory> {
        process.memory(self.machine.host.root())
    }

    fn watch(&self, ranks: Vec<Process>) {
        let mut watched = lock(&self.machine.watched);
        watched.insert(self.agent, ranks);
        let all: Vec<Process> = watched.values().flatten().copied().collect();
        self.machine.ends.watch(self.machine.host.root(), &all);
        self.machine.workers.watch(all);
    }

    fn ranks_of_others(&self) -> BTreeSet<u32> {
        let watched = lock(&self.machine.watched);
        let others = watched.iter().filter(|(agent, _)| **agent != self.agent);
        others.flat_map(|(_, ranks)| ranks.iter().map(|rank| rank.pid)).collect()
    }

    fn state_of(&self, process: Process) -> State {
        self.machine.ends.of(process)
    }

    fn below(&self, now: Now, rank: Process) -> Option<readings::Workers> {
        self.machine.workers.below(now, rank)
    }

    fn processes_below(&self, now: Now, rank: Process) -> Vec<Process> {
        self.machine.workers.processes_below(now, rank)
    }

    fn cgroup(&self, pid: u32) -> Option<Cgroup> {
        Cgroup::of_process(self.machine.host.root(), pid)
    }

    fn gpus(&self, now: Now) -> Result<Arc<Reading>, NoReading> {
        self.machine.gpus.newest(now)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn an_agent_that_has_ended_watches_no_rank() {
        let host = Host::new(Path::new("/"));
        let machine = Arc::new(Machine {
            boot_id: [1, 2],
            accounts: Mutex::default(),
            gpus: Gpus::start(host.root()).expect("a thread"),
            workers: Workers::start(host.root()).expect("a thread"),
            ends: Ends::start(host.root()).expect("a thread"),
            watched: Mutex::default(),
            host,
        });
        let [first, second] = [1, 2].map(|agent| ThisNode::new(machine.clone(), agent));
        let pid = std::process::id();
        let stat = crate::node::process::read(Path::new("/"), pid, "stat").expect("it runs");
        let start_ticks = crate::node::process::start_ticks(&stat).expect("a start");
        let own = Process::known(pid, start_ticks);
        first.watch(vec![own]);
        assert_eq!(second.ranks_of_others(), BTreeSet::from([pid]));
        assert_eq!(second.state_of(own), State::Running);
        drop(first);
        assert_eq!(second.ranks_of_others(), BTreeSet::new());
        assert_eq!(second.state_of(own), State::Unknown);
    }
}

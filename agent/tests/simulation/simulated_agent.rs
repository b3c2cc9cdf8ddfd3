//! The agent for simulations: the real logic in one thread, with the time it is given.
//!
//! A [`SimulatedAgent`] has no runtime, no thread, no file and no clock. It is fed with [`Event`]s
//! and asked for [`Output`]s; tapes lie in memory ([`MemoryTapes`]) and are written by core's own
//! writer, and rewinding them is the real thing. Dropping the value is a SIGKILL of the agent; a
//! new one over the same tapes is its restart. What the shell does on a node (connecting, backing
//! off, obeying a goodbye) is the simulation's business.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use memtape_core::action::remedy::Signal;
use memtape_core::identity::accounts::Accounts;
use memtape_core::identity::owner::{Workload, workload_of_cgroup};
use memtape_core::limits::MESSAGES_WAITING_MAX;
use memtape_core::policy::gpu_memory::Verdict;
use memtape_disk::files::Disk;
use memtape_proto::readings::{self, Gpu};
use tokio::sync::mpsc;

use super::memory_tapes::MemoryTapes;
use crate::agent::{self, Agent};
use crate::capture::answers::{Work, WorkId};
use crate::capture::rewind::Rewind;
use crate::config::Config;
use crate::link::stream::{Session, StreamEvent};
use crate::link::upload::UploadError;
use crate::link::wire::{self, FromAgent, FromCoordinator};
use crate::node::cgroup::Cgroup;
use crate::node::clock;
use crate::node::ends::State;
use crate::node::fence::{Hold, NotFenced};
use crate::node::machine::Node;
use crate::node::nvml::{NoReading, Reading};
use crate::node::process::{Holder, Memory, Process};
use crate::spool::Spool;
use crate::tapes::census::Count;
use crate::tapes::quota::TapeKey;

/// The `/etc/subuid` of every simulated node.
const SUBORDINATE: &str = "1001:100000:65536\n";

fn accounts() -> Accounts {
    Accounts::parse(SUBORDINATE, "")
}

/// Both clocks of a simulated node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Unix time.
    pub wall_ns: i64,
    /// CLOCK_MONOTONIC of the node, also that of its tapes.
    pub mono_ns: u64,
}

/// What can happen to a simulated agent.
#[derive(Clone, Debug)]
pub enum Event {
    /// [`SimulatedAgent::report_interval`] has passed since the last one.
    Tick,
    /// The moment of [`SimulatedAgent::next_ns`] has come.
    Timeout,
    /// The coordinator answered a stream's hello with a welcome; anything else, or another major
    /// version, is no stream.
    Connected {
        /// Its first message.
        welcome: FromCoordinator,
    },
    /// The stream is gone; what is not polled yet goes with it.
    Disconnected,
    /// The coordinator said something on the stream.
    Message(FromCoordinator),
    /// An upload came to its end. Each [`Output::Upload`] must come to exactly one.
    Uploaded {
        /// Of the upload.
        id: u64,
        /// How it ended.
        end: UploadEnd,
    },
}

/// How an upload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadEnd {
    /// The receipt came, with the hash of the snapshot.
    Stored,
    /// It failed in a way that another try may mend; so does one that took longer than its
    /// `time_left`.
    Failed,
    /// The coordinator said that it does not want it.
    Refused,
}

/// What a simulated agent wants of the world.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "it is moved once, and never kept in a list")]
pub enum Output {
    /// A message for the present stream.
    Message(FromAgent),
    /// A tape has to be rewound: [`SimulatedAgent::do_work`] does, whenever the simulation likes.
    Rewind {
        /// For `do_work`.
        id: u64,
    },
    /// A snapshot has to be sent to the coordinator, once.
    Upload {
        /// For [`Event::Uploaded`].
        id: u64,
        /// Which capture.
        capture_id: String,
        /// Which tape.
        tape_id: String,
        /// All of it.
        snapshot: Bytes,
        /// Its BLAKE3.
        hash: [u8; 32],
        /// After this long the real agent gives up the try, as [`UploadEnd::Failed`].
        time_left: Duration,
    },
}

/// An agent without a node.
#[derive(Debug)]
pub struct SimulatedAgent {
    agent: Agent,
    hello: FromAgent,
    outgoing: Option<mpsc::Receiver<FromAgent>>,
    rewinds: BTreeMap<WorkId, Rewind>,
    /// Counts that wait for [`SimulatedAgent::count_one`]; none where counting takes no time.
    counts: Option<VecDeque<(TapeKey, Count)>>,
    now: Now,
}

/// Facts about a machine that is not there.
#[derive(Clone, Debug, Default)]
pub struct MemoryNode {
    oom_kills: Arc<AtomicU64>,
    processes: Arc<Mutex<Processes>>,
    /// What the driver said last; none without a driver.
    gpus: Arc<Mutex<Option<Arc<Reading>>>>,
}

/// The processes of which signals are known.
#[derive(Debug, Default)]
struct Processes {
    running: BTreeSet<u32>,
    cgroups: BTreeMap<u32, String>,
    signalled: Vec<(u32, Signal)>,
}

/// Hold of such a process.
#[derive(Debug)]
struct MemoryHold(MemoryNode, u32);

impl Hold for MemoryHold {
    fn send(&self, signal: Signal) -> io::Result<()> {
        let mut processes = self.0.processes();
        if !processes.running.contains(&self.1) {
            return Err(io::Error::other("it has ended"));
        }
        processes.signalled.push((self.1, signal));
        Ok(())
    }
}

impl MemoryNode {
    /// The kernel's OOM killer has killed one more process.
    pub fn count_oom_kill(&self) {
        self.oom_kills.fetch_add(1, Ordering::Relaxed);
    }

    /// A process runs from now on. Pids are not given away again.
    pub fn run(&self, pid: u32) {
        self.processes().running.insert(pid);
    }

    /// A process runs from now on, in the cgroup of this path.
    pub fn run_in(&self, pid: u32, cgroup: &str) {
        self.processes().cgroups.insert(pid, cgroup.to_string());
        self.run(pid);
    }

    /// It has ended.
    pub fn end(&self, pid: u32) {
        self.processes().running.remove(&pid);
    }

    /// The driver reads one GPU: the bytes in use, and the processes that compute on it.
    pub fn read_gpu(&self, now: Now, uuid: &str, used_bytes: u64, pids: &[u32]) {
        let gpu = Gpu {
            uuid: uuid.to_string(),
            index: 0,
            total_bytes: 80 << 30,
            used_bytes,
            free_bytes: (80 << 30) - used_bytes,
            processes: u32::try_from(pids.len()).ok(),
            ranks: None,
        };
        let processes = pids.iter().map(|pid| ((*pid, uuid.to_ascii_lowercase()), 1)).collect();
        let reading = Reading { begun_ns: now.mono_ns, gpus: vec![gpu], processes };
        *self.gpus.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(reading));
    }

    /// The signals since the last call, each with the process that got it.
    pub fn signalled(&self) -> Vec<(u32, Signal)> {
        std::mem::take(&mut self.processes().signalled)
    }

    fn processes(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node for MemoryNode {
    fn memory(&self) -> readings::Host {
        readings::Host::default()
    }

    fn oom_kills(&self) -> Option<u64> {
        Some(self.oom_kills.load(Ordering::Relaxed))
    }

    fn boot_id(&self) -> [u64; 2] {
        [0, 0]
    }

    fn holder(&self, pid: u32, own_pid: u32, _: u32, _: i64) -> Holder {
        match self.processes().running.contains(&pid) {
            true if pid == own_pid => Holder::Writer(Process::known(pid, u64::from(pid))),
            true => Holder::Other,
            false => Holder::Unproved,
        }
    }

    fn fence(&self, process: Process) -> Result<Box<dyn Hold>, NotFenced> {
        let is_running = self.processes().running.contains(&process.pid);
        if !is_running {
            return Err(NotFenced::Ended);
        }
        Ok(Box::new(MemoryHold(self.clone(), process.pid)))
    }

    fn account_of(&self, uid: u32) -> u32 {
        accounts().of(uid)
    }

    fn workload(&self, process: Process) -> Option<Workload> {
        match self.processes().cgroups.get(&process.pid) {
            Some(path) => workload_of_cgroup(path),
            None => Some(Workload::default()),
        }
    }

    fn sees_processes(&self) -> bool {
        true
    }

    fn has_pods(&self) -> bool {
        false
    }

    fn memory_of(&self, _: Process) -> Option<Memory> {
        None
    }

    fn watch(&self, _: Vec<Process>) {}

    fn state_of(&self, _: Process) -> State {
        State::Unknown
    }

    fn processes_below(&self, _: clock::Now, _: Process) -> Vec<Process> {
        Vec::new()
    }

    fn below(&self, _: clock::Now, _: Process) -> Option<readings::Workers> {
        None
    }

    fn cgroup(&self, _: u32) -> Option<Cgroup> {
        None
    }

    fn gpus(&self, _: clock::Now) -> Result<Arc<Reading>, NoReading> {
        let newest = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        newest.clone().ok_or(NoReading::NoDriver)
    }
}

impl SimulatedAgent {
    /// Starts an agent; `config.node` is its name, its folders mean nothing. Without a disk, or
    /// with one that cannot be read, it keeps nothing, as the real one does.
    pub fn new(
        now: Now,
        boot_id: &str,
        config: Config,
        node: MemoryNode,
        tapes: MemoryTapes,
        disk: Option<Arc<dyn Disk>>,
    ) -> Self {
        let hello = wire::raw(wire::hello(&config.node, boot_id, None));
        let spool =
            disk.and_then(|disk| Spool::open(disk, config.spool_bytes_max, accounts()).ok());
        let agent = Agent::new(now.into(), config, Box::new(node), (Box::new(tapes), None), spool);
        Self { agent, hello, outgoing: None, rewinds: BTreeMap::new(), counts: None, now }
    }

    /// What the agent says first on every stream.
    pub fn hello(&self) -> FromAgent {
        self.hello.clone()
    }

    /// Time between two ticks, as config or coordinator have it.
    pub fn report_interval(&self) -> Duration {
        self.agent.report_interval()
    }

    /// When a [`Event::Timeout`] is wanted, on the node's monotonic clock; none when it is not.
    pub fn next_ns(&self) -> Option<u64> {
        self.agent.next_ns()
    }

    /// Bytes of memory that captures take, or have room for; their bound is part of
    /// `config.memory_bytes_max`.
    pub fn memory_bytes(&self) -> u64 {
        self.agent.memory_bytes()
    }

    /// Bytes of snapshots in the agent's memory that are being uploaded; its bound is
    /// `config.upload_bytes_max`.
    pub fn held_bytes(&self) -> u64 {
        self.agent.held_bytes()
    }

    /// One event.
    pub fn handle(&mut self, now: Now, event: Event) {
        self.now = now;
        let event = match event {
            Event::Tick => agent::Event::Tick,
            Event::Timeout => agent::Event::Timeout,
            Event::Connected { welcome } => {
                let (outgoing, receiver) = mpsc::channel(MESSAGES_WAITING_MAX);
                let Ok(session) = Session::open(wire::incoming(welcome), outgoing) else { return };
                self.outgoing = Some(receiver);
                StreamEvent::Connected(session).into()
            }
            Event::Disconnected => {
                self.outgoing = None;
                StreamEvent::Disconnected.into()
            }
            Event::Message(raw) => match wire::incoming(raw) {
                Some(message) => StreamEvent::Message(message).into(),
                None => return,
            },
            Event::Uploaded { id, end } => {
                let why = "simulated".to_string();
                let result = match end {
                    UploadEnd::Stored => Ok(()),
                    UploadEnd::Failed => Err(UploadError::Failed(why)),
                    UploadEnd::Refused => Err(UploadError::Refused(why)),
                };
                agent::Event::Uploaded(WorkId(id), result)
            }
        };
        self.agent.handle(now.into(), event);
    }

    /// The health check of the node that was first asked for at this time, as `/node-check` answers
    /// it: the verdict, none while there is none, and what is known of each GPU.
    pub fn check_node(&self, asked: Now, now: Now) -> (Option<Verdict>, Vec<String>) {
        self.agent.health(now.into()).gpu_memory.answer(asked.mono_ns, now.mono_ns)
    }

    /// Carries out a rewind; false when there is none of this name.
    pub fn do_work(&mut self, now: Now, id: u64) -> bool {
        let Some(rewind) = self.rewinds.remove(&WorkId(id)) else { return false };
        let rewound = rewind.make(|| now.into());
        self.agent.handle(now.into(), agent::Event::Rewound(WorkId(id), rewound));
        true
    }

    /// From now on counting a tape takes until [`Self::count_one`]; before, it takes no time.
    pub fn hold_counts(&mut self) {
        self.counts = Some(VecDeque::new());
    }

    /// Carries out the count that waits; false when none does.
    pub fn count_one(&mut self, now: Now) -> bool {
        self.now = now;
        let waiting = self.counts.as_mut().and_then(VecDeque::pop_front);
        waiting.map(|(key, count)| self.count(key, count)).is_some()
    }

    fn count(&mut self, key: TapeKey, count: Count) {
        self.agent.handle(self.now.into(), agent::Event::Counted(key, count.make()));
    }

    /// The next thing the agent wants, messages first; none when it waits.
    pub fn poll(&mut self) -> Option<Output> {
        loop {
            let receiver = self.outgoing.as_mut();
            if let Some(message) = receiver.and_then(|receiver| receiver.try_recv().ok()) {
                return Some(Output::Message(message));
            }
            match self.agent.take_work()? {
                Work::Count(key, count) => match &mut self.counts {
                    Some(counts) => counts.push_back((key, count)),
                    None => self.count(key, count),
                },
                Work::Rewind(id, rewind) => {
                    self.rewinds.insert(id, rewind);
                    return Some(Output::Rewind { id: id.0 });
                }
                Work::Upload(id, key, snapshot, time_left) => {
                    return Some(Output::Upload {
                        id: id.0,
                        capture_id: key.capture_id,
                        tape_id: key.tape_id,
                        hash: *snapshot.hash.as_bytes(),
                        snapshot: snapshot.bytes,
                        time_left,
                    });
                }
            }
        }
    }
}

impl From<Now> for clock::Now {
    fn from(now: Now) -> Self {
        Self { wall_ns: now.wall_ns, mono_ns: now.mono_ns }
    }
}

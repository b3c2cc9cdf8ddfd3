//! One simulated node: its clocks, its tapes, its ranks and its agent.

use memtape_agent::Config;
use memtape_agent::testing::{MemoryNode, MemoryRank, MemoryTapes, Now, SMALL, SimulatedAgent};
use memtape_core::identity::Identity;
use memtape_core::tape::layout::Sizes;
use memtape_simulated_disk::SimulatedDisk;

use crate::plan::SECOND_NS;
use crate::world::{SPOOL_BYTES_MAX, UPLOAD_BYTES_MAX};

/// Unix time at which every simulation begins.
pub(crate) const WALL_NS: u64 = 1_750_000_000 * SECOND_NS;

/// Memory of a rank that does not leak, in bytes.
const LEVEL_BYTES: u64 = 1 << 30;

/// What a leaking rank keeps of each step, in bytes.
const LEAK_BYTES: u64 = 16 << 20;

/// Tapes that reach back a hundred steps or more, with room for every block of a leak.
const SIZES: Sizes = Sizes { events: 512, table_entries: 2048, ..SMALL };

/// The same with room for the leak of half an hour.
const LONG_SIZES: Sizes = Sizes { table_entries: 8_192, ..SIZES };

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its number and name.
    pub(crate) name: String,
    /// Names the boot in the names of tapes: no two nodes share one.
    pub(crate) boots: u32,
    /// Its wall clock is off by this much.
    pub(crate) skew_ns: i64,
    /// Tapes in its memory.
    pub(crate) tapes: MemoryTapes,
    /// The disk of its agent's spool.
    pub(crate) disk: SimulatedDisk,
    /// The agent; none while it is down.
    pub(crate) agent: Option<SimulatedAgent>,
    /// Agents so far: what belongs to an earlier one is stale.
    pub(crate) agents: u64,
    /// When the agent wants to be woken.
    pub(crate) wakes_ns: Option<u64>,
    /// Its present stream.
    pub(crate) stream: Option<u64>,
    /// Tries to connect that failed in a row.
    pub(crate) failures: u32,
    /// Cut off until then.
    pub(crate) cut_until_ns: Option<u64>,
    /// Processes started so far.
    pub(crate) pids: u32,
    /// What its agents know of processes.
    pub(crate) machine: MemoryNode,
}

impl Node {
    /// A node that has just booted, without an agent.
    pub(crate) fn new(number: usize, skew_ns: i64) -> Self {
        Self {
            name: format!("node-{number}"),
            boots: (number as u32 + 1) << 16,
            skew_ns,
            tapes: MemoryTapes::default(),
            disk: SimulatedDisk::new(number as u64),
            agent: None,
            agents: 0,
            wakes_ns: None,
            stream: None,
            failures: 0,
            cut_until_ns: None,
            pids: 100,
            machine: MemoryNode::default(),
        }
    }

    /// The time on this node.
    pub(crate) fn now(&self, now_ns: u64) -> Now {
        let wall_ns = (WALL_NS + now_ns) as i64 + self.skew_ns;
        Now { wall_ns, mono_ns: now_ns + SECOND_NS }
    }

    /// The simulation's time of a moment on this node's monotonic clock.
    pub(crate) fn time_of(mono_ns: u64) -> u64 {
        mono_ns.saturating_sub(SECOND_NS)
    }

    /// Its disk is well again.
    pub(crate) fn mend_disk(&self) {
        self.disk.set_failing(false);
        self.disk.set_room(None);
    }

    /// Starts the agent; an earlier one is gone.
    pub(crate) fn start_agent(&mut self, now_ns: u64) {
        let config = Config {
            node: self.name.clone(),
            upload_bytes_max: UPLOAD_BYTES_MAX,
            spool_bytes_max: SPOOL_BYTES_MAX,
            ..Config::default()
        };
        let boot = format!("boot-{}", self.boots);
        let node = self.machine.clone();
        self.disk.kill();
        let (tapes, disk) = (self.tapes.clone(), Some(self.disk.process()));
        let agent = SimulatedAgent::new(self.now(now_ns), &boot, config, node, tapes, disk);
        self.agent = Some(agent);
        self.agents += 1;
        (self.wakes_ns, self.stream, self.failures) = (None, None, 0);
    }

    /// Starts a rank's process; that of a long simulation has a larger tape.
    pub(crate) fn start_rank(
        &mut self,
        now_ns: u64,
        identity: &Identity,
        is_long: bool,
    ) -> MemoryRank {
        self.pids += 1;
        let now = self.now(now_ns);
        let sizes = if is_long { LONG_SIZES } else { SIZES };
        let mut rank =
            MemoryRank::start(&self.tapes, now, (self.boots, self.pids), identity, sizes);
        rank.alloc(now, 1 << 48, LEVEL_BYTES);
        rank
    }
}

/// One step of a rank; answers what is allocated at its end.
pub(crate) fn step(rank: &mut MemoryRank, now: Now, allocated: u64, leaks: bool) -> u64 {
    if leaks {
        rank.train(now, LEAK_BYTES);
        return allocated + LEAK_BYTES;
    }
    rank.alloc(now, 0x100, 512);
    rank.free(now, 0x100, 512);
    rank.end_step(now);
    allocated
}

/// What is allocated before the first step.
pub(crate) fn level() -> u64 {
    LEVEL_BYTES
}

//! The GPUs are read for the health check of this node at each scan of the tapes.
//!
//! A rank's end is known from the lock of its tape: a launcher asks right after its workers have
//! ended. Without a health port nothing is read here.

use super::Agent;
use crate::node::clock::Now;
use crate::tapes::known::KnownTape;
use crate::tapes::liveness::Writer;

impl Agent {
    /// Passes the newest NVML reading to the GPU check of the health port.
    pub(super) fn check_gpus(&mut self, now: Now) {
        if self.config.health_listen.is_none() {
            return;
        }
        let newest = self.node.gpus(now);
        let mut pids = self.node.ranks_of_others();
        pids.extend(self.tapes.iter().filter_map(|(_, known)| living_pid(known)));
        self.gpu_memory.take(newest.as_deref(), &pids);
    }
}

/// The process of a rank, while it still holds its tape.
fn living_pid(known: &KnownTape) -> Option<u32> {
    let pid = known.process?.pid;
    (known.file().writer() == Writer::Alive(Some(pid))).then_some(pid)
}

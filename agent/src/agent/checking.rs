//! When the GPUs are looked at for the health check of this node.
//!
//! The check needs readings in seconds, however seldom the coordinator wants reports, and knows a
//! rank's end from the lock of its tape, not from the last look at the tapes: a launcher asks right
//! after its workers have ended. Without a socket nothing is looked at.

use std::collections::BTreeSet;

use super::Agent;
use crate::node::clock::Now;
use crate::tapes::known::KnownTape;
use crate::tapes::liveness::Writer;

impl Agent {
    /// When the GPUs are to be looked at, on the monotonic clock; none where no launcher asks.
    pub(super) fn next_check_ns(&self) -> Option<u64> {
        self.config.health_socket.as_ref().map(|_| self.gpu_memory.next_ns())
    }

    /// Takes what the driver has said since, and answers the launchers that can be answered.
    pub(super) fn check_gpus(&mut self, now: Now) {
        if self.config.health_socket.is_none() {
            return;
        }
        let newest = self.node.gpus(now);
        let pids: BTreeSet<u32> =
            self.tapes.iter().filter_map(|(_, known)| living_pid(known)).collect();
        self.gpu_memory.look(now.mono_ns, newest.as_deref(), &pids);
    }
}

/// The process of a rank, while it still holds its tape.
fn living_pid(known: &KnownTape) -> Option<u32> {
    let pid = known.process?.pid;
    (known.file().writer() == Writer::Alive(Some(pid))).then_some(pid)
}

//! What goes wrong, and how it becomes well again.

use crate::plan::{Fault, MS_NS};
use crate::world::{Happening, World};

impl World {
    pub(crate) fn go_wrong(&mut self, fault: Fault) {
        match fault {
            Fault::KillRank(rank) => {
                self.kill_rank(rank);
                self.launcher_polls();
            }
            Fault::HangRank(rank, for_ns) => {
                self.ranks[rank].hangs_until_ns = Some(self.now_ns + for_ns);
                let processes = self.ranks[rank].processes;
                self.after(for_ns, Happening::Resume(rank, processes));
            }
            Fault::OutOfMemory(rank) => {
                let now = self.nodes[self.node_of(rank)].now(self.now_ns);
                if let Some(process) = &mut self.ranks[rank].process {
                    process.out_of_memory(now, 80 << 30);
                }
                if self.rng.bool() {
                    self.kill_rank(rank);
                    self.launcher_polls();
                }
            }
            Fault::RestartJob { is_counted } => self.start_job(is_counted),
            Fault::KillAgent(node, for_ns) => {
                self.stop_agent(node);
                self.after(for_ns, Happening::StartAgent(node));
            }
            Fault::Reboot(node, for_ns) => self.reboot(node, for_ns),
            Fault::Cut(node, for_ns) => self.cut(node, for_ns),
            Fault::Break(node) => {
                if let Some(conn) = self.nodes[node].stream {
                    let (agent_ns, coordinator_ns) = (self.delay_ns(), self.delay_ns());
                    self.break_conn(conn, Some(agent_ns), Some(coordinator_ns));
                }
            }
            Fault::KillCoordinator { is_power_loss, operations, down_ns } => {
                self.down_ns = down_ns;
                match operations {
                    Some(operations) => self.disk.crash_after(Some(operations), is_power_loss),
                    None if is_power_loss => self.disk.power_loss(),
                    None => self.disk.kill(),
                }
                self.heed_coordinator();
            }
            Fault::FullDisk(for_ns) => {
                self.disk.set_room(Some(self.disk.used_bytes()));
                self.after(for_ns, Happening::EmptyDisk);
            }
            Fault::FullSpool(node, for_ns) => {
                let disk = &self.nodes[node].disk;
                disk.set_room(Some(disk.used_bytes()));
                self.after(for_ns, Happening::MendSpool(node));
            }
            Fault::FailSpool(node, for_ns) => {
                self.nodes[node].disk.set_failing(true);
                self.after(for_ns, Happening::MendSpool(node));
            }
            Fault::FailWrites(count) => self.disk.fail_writes(count),
            Fault::FailSyncs(count) => self.disk.fail_syncs(count),
            Fault::SlowDisk(delay_ns) => self.disk_delay_ns = delay_ns,
        }
    }

    fn reboot(&mut self, node: usize, for_ns: u64) {
        self.stop_agent(node);
        for rank in 0..self.ranks.len() {
            if self.node_of(rank) == node {
                self.kill_rank(rank);
            }
        }
        for tape in self.truth.tapes.values_mut().filter(|tape| tape.node == node) {
            tape.is_lost = true;
        }
        self.is_count_needed = true;
        self.nodes[node].tapes.clear();
        self.nodes[node].disk.power_loss();
        self.nodes[node].boots += 1;
        self.launcher_polls();
        self.after(for_ns, Happening::StartAgent(node));
    }

    /// No more faults: whatever is down comes up, whatever is cut is joined, and a job that lost
    /// ranks is started again.
    pub(crate) fn all_is_well(&mut self) {
        self.is_calm = true;
        self.disk.set_room(None);
        self.disk.fail_writes(0);
        self.disk.fail_syncs(0);
        self.disk.crash_after(None, false);
        self.disk_delay_ns = 0;
        self.down_ns = 0;
        (self.plan.lost_percent, self.plan.twice_percent) = (0, 0);
        self.plan.delay_ns = self.plan.delay_ns.min(10 * MS_NS);
        for node in 0..self.nodes.len() {
            self.nodes[node].mend_disk();
            self.uncut(node);
            self.start_agent(node);
        }
        for rank in &mut self.ranks {
            rank.hangs_until_ns = None;
        }
        self.start_coordinator();
        if self.ranks.iter().any(|rank| rank.process.is_none()) {
            self.start_job(true);
        }
    }
}

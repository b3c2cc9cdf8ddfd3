//! Starting the demo's processes: coordinator, agents, and ranks.

use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::Value;

use super::found::Found;
use super::{Demo, watch};
use crate::client::Client;
use crate::client::credentials::Credentials;
use crate::output::error_line;
use crate::render::units::plural;
use crate::{clock, library};

/// Fewest simulated nodes, where there are as many ranks; each gets a contiguous range of ranks.
const NODES_MIN: u32 = 2;
/// Most ranks of a node: as many as most real ones have GPUs.
const RANKS_PER_NODE_MAX: u32 = 8;
/// Time between two reports of an agent; short, so that the demo ends soon.
const REPORT_TIME: Duration = Duration::from_millis(200);
/// Events on a tape: the demo's ranks make about 250 a step, so this covers 500 steps.
const TAPE_EVENTS: u32 = 1 << 17;
/// Live blocks on a tape.
const TAPE_BLOCKS: u32 = 1 << 16;
/// Upper bound of the bytes of a rank's tape of these sizes.
pub(super) const TAPE_BYTES: u64 = 48 << 20;
/// Time between the start of the rank processes and their common step 1.
const START_DELAY: Duration = Duration::from_millis(1500);
const START_TIME_MAX: Duration = Duration::from_secs(20);

const COORDINATOR: &str = "coordinator";

/// The name of a rank's process.
pub(super) fn rank_name(rank: u32) -> String {
    format!("rank-{rank}")
}

impl Demo {
    /// Starts agents and ranks, and says what they model.
    pub(super) fn start_processes(&mut self, url: &str) -> anyhow::Result<()> {
        self.start_agents(url)?;
        match &self.torch {
            None => self.start_ranks(),
            Some(_) => self.start_torch(),
        }
    }

    /// Starts the coordinator on this port (0: any free port) and waits until it answers.
    pub(super) fn start_coordinator(&mut self, port: u16) -> anyhow::Result<Client> {
        let arguments = [
            "coordinator",
            "--json",
            "--listen",
            &format!("127.0.0.1:{port}"),
            "--data-dir",
            &self.folders.data.to_string_lossy(),
        ];
        let line = self.children.start_and_read(COORDINATOR, &arguments.map(str::to_string))?;
        let line: Value = serde_json::from_str(&line).unwrap_or_default();
        let url =
            line["listening"].as_str().context("the coordinator did not print its address")?;
        let client = Client::new(url, &Credentials::default())?;
        let polls = START_TIME_MAX.as_millis() / watch::POLL_TIME.as_millis();
        for _ in 0..polls {
            if client.get(&["jobs"], &[]).is_ok() {
                return Ok(client);
            }
            self.watch.pause();
        }
        bail!("the coordinator does not answer at {url}")
    }

    fn start_agents(&mut self, url: &str) -> anyhow::Result<()> {
        for node in 0..self.nodes() {
            let folder = self.folders.tapes(node)?;
            let arguments = [
                "agent",
                "--coordinator",
                url,
                "--node",
                &format!("node-{node}"),
                "--tape-dir",
                &folder.to_string_lossy(),
                "--report-interval",
                &format!("{}ms", REPORT_TIME.as_millis()),
                // No spool: agent and coordinator end together.
                "--spool-bytes-max",
                "0",
            ];
            self.children.start(&format!("agent-{node}"), &arguments.map(str::to_string), &[])?;
        }
        Ok(())
    }

    fn start_ranks(&mut self) -> anyhow::Result<()> {
        let (ranks, plan) = (self.args.ranks, self.plan);
        let per_node = ranks.div_ceil(self.nodes());
        let start_ns = clock::mono_ns() + START_DELAY.as_nanos() as u64;
        for rank in 0..ranks {
            let (node, local_rank) = (rank / per_node, rank % per_node);
            let mut arguments = vec![
                "demo-rank".to_string(),
                format!("--start-ns={start_ns}"),
                format!("--collectives={}", self.folders.collectives().display()),
            ];
            if self.faulty == Some(rank) {
                arguments.push(format!("--fault={}", self.args.scenario.name()));
                arguments.push(format!("--fault-from={}", plan.from_step));
            }
            let variables = [
                ("MEMTAPE_DIR", self.folders.tapes(node)?.to_string_lossy().into_owned()),
                ("MEMTAPE_JOB", self.job.clone()),
                ("MEMTAPE_EVENTS", TAPE_EVENTS.to_string()),
                ("MEMTAPE_BLOCKS", TAPE_BLOCKS.to_string()),
                ("MEMTAPE_RANK", rank.to_string()),
                ("MEMTAPE_WORLD_SIZE", ranks.to_string()),
                ("RANK", rank.to_string()),
                ("LOCAL_RANK", local_rank.to_string()),
            ];
            self.children.start(&rank_name(rank), &arguments, &variables)?;
        }
        let (scenario, from_step) = (self.args.scenario.name(), plan.from_step);
        let (ranks, nodes) = (plural(ranks.into(), "rank"), plural(self.nodes().into(), "node"));
        self.watch.say(&format!("{ranks} on {nodes}: real processes, modelled devices and steps"));
        self.watch.say(&match self.faulty {
            Some(rank) => {
                format!(
                    "scenario {scenario}: from step {from_step} on, rank {rank} {}",
                    plan.models
                )
            }
            None => "no rank has a fault".to_string(),
        });
        Ok(())
    }

    fn start_torch(&mut self) -> anyhow::Result<()> {
        let Some(torch) = &self.torch else { return Ok(()) };
        let (ranks, faulty) = (self.args.ranks, self.faulty);
        let leak = faulty.map_or("no rank leaks".to_string(), |rank| format!("rank {rank} leaks"));
        self.watch.say(&format!("ranks: {ranks} of a DDP job on {}, {leak}", torch.runtime()));
        let arguments = torch.arguments(&self.job, &self.folders.tapes(0)?, ranks, faulty);
        let library = library::find()?.display().to_string();
        self.children.start("torchrun", &arguments, &[("MEMTAPE_LIBRARY", library)])
    }

    /// The number of simulated nodes: one for a torchrun launcher.
    fn nodes(&self) -> u32 {
        match &self.torch {
            Some(_) => 1,
            None => nodes(self.args.ranks),
        }
    }

    /// Kills the coordinator (SIGKILL), starts it on the same store, and compares the result.
    pub(super) fn restart_and_read_back(
        &mut self,
        client: &Client,
        found: &Found,
    ) -> anyhow::Result<bool> {
        self.children.kill(COORDINATOR);
        let port = client.base().rsplit(':').next().and_then(|port| port.parse().ok()).unwrap_or(0);
        let client = self.start_coordinator(port)?;
        let (stored, outcome) = match found.read_back(&client) {
            Ok(()) => (true, "the result is in the store".to_string()),
            Err(error) => (false, error_line(&error)),
        };
        self.watch.say(&format!("coordinator killed (SIGKILL) and started again: {outcome}"));
        Ok(stored)
    }
}

/// The nodes for this many ranks.
fn nodes(ranks: u32) -> u32 {
    ranks.div_ceil(RANKS_PER_NODE_MAX).max(NODES_MIN).min(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_node_has_too_many_ranks() {
        for (ranks, expected) in [(1, 1), (2, 2), (4, 2), (16, 2), (17, 3), (64, 8)] {
            assert_eq!(nodes(ranks), expected);
            assert!(ranks.div_ceil(nodes(ranks)) <= RANKS_PER_NODE_MAX);
        }
    }
}

//! Agents of nodes: their admission, and the begin and the end of their streams.
//!
//! A node has one stream: a new one replaces it. An agent of another boot has to wait until the
//! connected one is silent, and an agent whose stream is replaced learns why. This
//! file neither authenticates agents nor applies their messages (`reports.rs`).

use std::net::SocketAddr;

use memtape_core::limits::NODES_MAX;

use crate::quota::number;
use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::{Node, Presence};
use crate::state::messages::Hello;
use memtape_disk::clock::Now;

/// Another agent under the same name is taken for a mistake while the first one was heard within
/// this time; a rebooted node comes back later.
const NAME_HELD_NS: u64 = 5_000_000_000;

/// Streams of one node that replace each other within [`REPLACED_NS`]: this many are two agents.
const REPLACED_MAX: u32 = 4;
const REPLACED_NS: u64 = 60_000_000_000;

/// Why an agent is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum AgentRefused {
    #[error("there are more than {NODES_MAX} nodes")]
    TooMany,
    #[error("the agents of node {0:?} open streams too often: come back in a second")]
    TooOften(String),
    #[error("another agent is connected as node {0:?}: give one of them another --node")]
    NameTaken(String),
    #[error("another agent, at {1}, connected as node {0:?}: give one of them another --node")]
    Replaced(String, SocketAddr),
    #[error("this coordinator cannot renew its sign of life: another one may own its jobs by now")]
    NotRenewed,
}

impl Jobs {
    /// Admits an agent's node within the bound and its rate of streams, if its name is free.
    ///
    /// # Errors
    /// Why the agent is refused.
    pub(crate) fn admit(&mut self, now: Now, hello: &Hello) -> Result<(), AgentRefused> {
        let name = &hello.node;
        if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(name) {
            self.forget_a_node().ok_or(AgentRefused::TooMany)?;
        }
        let is_held = |node: &Node| {
            let is_other = node.is_connected && node.boot_id != hello.boot_id;
            is_other && now.mono_ns.saturating_sub(node.heard_ns) < NAME_HELD_NS
        };
        if self.nodes.get(name).is_some_and(is_held) {
            return Err(AgentRefused::NameTaken(name.clone()));
        }
        let permit = self.streams.take(now.mono_ns, number(name));
        permit.map_err(|_| AgentRefused::TooOften(name.clone()))
    }

    /// The agent of a node opened a stream.
    pub(crate) fn attach(&mut self, now: Now, hello: Hello) {
        if self.is_stream_logged(now, &hello.node) {
            tracing::info!(node = ?hello.node, version = ?hello.version, "agent connected");
        }
        let node = self.nodes.entry(hello.node).or_default();
        node.boot_id = hello.boot_id;
        node.version = hello.version;
        (node.is_connected, node.reports) = (true, 0);
        (node.heard_ns, node.reported_ns) = (now.mono_ns, now.mono_ns);
    }

    /// Is an event of a node's streams worth a line in the log?
    pub(crate) fn is_stream_logged(&mut self, now: Now, node: &str) -> bool {
        self.streams_logged.take(now.mono_ns, number(node)).is_ok()
    }

    /// Notes that a stream replaced another that was alive, and returns the cause, which that one's
    /// agent learns. An agent that lost its connection causes that now and then, and does not hear
    /// it; two agents of one name replace each other for ever.
    pub(crate) fn replaced(
        &mut self,
        now: Now,
        name: &str,
        by: SocketAddr,
    ) -> Option<AgentRefused> {
        let (count, since_ns) = &mut self.nodes.get_mut(name)?.replaced;
        if now.mono_ns.saturating_sub(*since_ns) > REPLACED_NS {
            (*count, *since_ns) = (0, now.mono_ns);
        }
        *count += 1;
        let why = AgentRefused::Replaced(name.to_string(), by);
        if *count == REPLACED_MAX {
            tracing::warn!(node = ?name, "connections of a node replace each other: {why}");
        }
        Some(why)
    }

    /// Notes that the agent of a node sent a message.
    pub(crate) fn heard(&mut self, now: Now, node: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.heard_ns = now.mono_ns;
        }
    }

    /// Forgets the node with the oldest report among the nodes without a stream and without ranks.
    fn forget_a_node(&mut self) -> Option<Node> {
        let is_idle =
            |name: &str, node: &Node| !node.is_connected && self.holdings.of(name).ranks == 0;
        let idle = self.nodes.iter().filter(|(name, node)| is_idle(name, node));
        let oldest = idle.min_by_key(|(_, node)| node.heard_ns)?.0.clone();
        self.nodes.remove(&oldest)
    }

    /// Handles the close of a node's stream: whether its ranks live is unknown from now on.
    pub(crate) fn node_lost(&mut self, now: Now, node: &str) {
        if let Some(known) = self.nodes.get_mut(node) {
            known.is_connected = false;
        }
        for (serial, numbers) in self.holdings.attempts_on(node) {
            let Some(attempt) = self.attempts.get_mut(&serial) else { continue };
            attempt.captures.agent_lost(now.mono_ns, node);
            for number in numbers {
                let rank = attempt.ranks.get_mut(number);
                if let Some(rank) = rank.filter(|rank| rank.presence == Presence::Here) {
                    rank.presence = Presence::Unknown;
                    self.touched.insert(serial);
                }
            }
        }
    }
}

//! Ray: keeps a node out by draining it, so that Ray Train starts its workers on others.
//!
//! The nodes are looked at first. Exactly one that is alive must have the name, or the host name,
//! that the agent has proved; it must not be the head, which runs the cluster, and must not drain
//! already. What a rank says of itself is not read. The node's id, which no other raylet ever has,
//! is what is drained.
//!
//! Ray is asked for the drain of an idle node. A node that runs anything refuses, and goes on; a
//! driver does not count for Ray, so where one runs, Ray is not asked. For the other reason that
//! Ray knows, preemption, no node refuses, and Ray Train restarts each job that has a rank on the
//! node, although it is in no trouble.
//!
//! A drained node ends. Ray keeps the reason, which contains the id of the decision. A coordinator
//! that was restarted meanwhile finds the drain by that id. Memtape never starts a node again.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::http::Uri;
use memtape_core::limits::NODES_KEPT_OUT_MAX;
use memtape_core::policy::keep_out::may_keep_out;
use memtape_proto::api::ActionKind;
use tokio::time::sleep;

use crate::restart::drain_reason;
use crate::restart::ray::wire::{Answer, Gcs, GcsError, Node, State};
use crate::restart::target::{Order, Resuming, Running, Target, outcome};

mod wire;

/// Checks of a node that was drained, and the wait after each: it ends by itself.
const CHECKS_MAX: usize = 10;
const CHECK_WAIT: Duration = Duration::from_millis(300);

/// Where a Ray cluster is asked to drain nodes.
#[derive(Clone, PartialEq, Eq)]
pub struct RayCluster {
    /// Host and port of its Global Control Service, such as `head:6379`.
    pub address: String,
    /// Its token, where it wants one.
    pub token: Option<String>,
}

/// A token is never printed.
impl std::fmt::Debug for RayCluster {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (address, token) = (&self.address, self.token.as_ref().map(|_| "…"));
        formatter
            .debug_struct("RayCluster")
            .field("address", address)
            .field("token", &token)
            .finish()
    }
}

/// Why a node was not kept out.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("{0}: nothing was done")]
    NotSeen(GcsError),
    #[error("Ray has no node {0} that is alive: nothing was done")]
    Unknown(String),
    #[error(
        "{count} nodes of Ray have the name or the host name {node}: nothing was done; give each a \
         name of its own with ray start --node-name"
    )]
    Several { node: String, count: usize },
    #[error("node {0} is the head of the Ray cluster, which would end with it: nothing was done")]
    Head(String),
    #[error("node {0} drains already: nothing was done")]
    Drains(String),
    #[error(
        "{0} nodes are kept out already, and at most {NODES_KEPT_OUT_MAX} may be: nothing was \
             done"
    )]
    TooMany(usize),
    #[error("on node {0} the driver of a job runs, whose actors end with it: nothing was done")]
    Driver(String),
    #[error("node {node} runs something, so Ray did not drain it: {words}")]
    InUse { node: String, words: String },
    #[error("{0}: nothing was done")]
    NotTaken(GcsError),
    #[error("{0}: it may have been done")]
    Uncertain(GcsError),
    #[error("Ray took the request, but node {0} is in use as before")]
    Unchanged(String),
    #[error("it is not known whether node {node} is drained: {why}")]
    Unverified { node: String, why: GcsError },
    #[error("it is not known by which decision node {0} drains")]
    DrainsUnknown(String),
    #[error("it is not known whether node {0} was drained: Ray does not remember it")]
    Forgotten(String),
    #[error("node {0} is not kept out by this decision")]
    NotOut(String),
}

impl NodeError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::NotSeen(_)
            | Self::Unknown(_)
            | Self::Several { .. }
            | Self::Head(_)
            | Self::Drains(_)
            | Self::TooMany(_)
            | Self::Driver(_)
            | Self::InUse { .. }
            | Self::NotTaken(_)
            | Self::NotOut(_) => true,
            Self::Uncertain(_)
            | Self::Unchanged(_)
            | Self::Unverified { .. }
            | Self::DrainsUnknown(_)
            | Self::Forgotten(_) => false,
        }
    }
}

/// Keeps nodes of a Ray cluster out.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) cluster: RayCluster,
    /// Time for the connection, and for each request.
    pub(crate) timeout: Duration,
}

impl Target for Drain {
    fn kind(&self) -> ActionKind {
        ActionKind::Ray
    }

    fn mistake(&self) -> Option<&'static str> {
        let is_sent =
            |token: &String| !token.is_empty() && token.bytes().all(|it| it.is_ascii_graphic());
        if !self.cluster.token.as_ref().is_none_or(is_sent) {
            return Some("the token of Ray must be one word of visible ASCII characters");
        }
        let address = &self.cluster.address;
        let uri = format!("http://{address}").parse::<Uri>().ok();
        let is_sound = uri.and_then(|uri| {
            let authority = uri.authority()?;
            authority.port_u16()?;
            let has_host = !authority.host().is_empty() && !address.contains('@');
            Some(has_host && authority.as_str() == address)
        });
        (is_sound != Some(true))
            .then_some("the address of Ray must be HOST:PORT, such as head:6379")
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(self.drain(order).await, NodeError::is_refusal) })
    }

    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        Box::pin(async { Some(outcome(self.is_drained(order).await, NodeError::is_refusal)) })
    }
}

impl Drain {
    async fn drain(&self, order: &Order) -> Result<String, NodeError> {
        let gcs = self.gcs().await.map_err(NodeError::NotSeen)?;
        let nodes = gcs.nodes().await.map_err(NodeError::NotSeen)?;
        let node = find(&nodes, &order.node)?;
        if node.is_head {
            return Err(NodeError::Head(order.node.clone()));
        }
        if node.state == State::Draining {
            return Err(NodeError::Drains(order.node.clone()));
        }
        let kept_out = kept_out(&nodes);
        if !may_keep_out(kept_out) {
            return Err(NodeError::TooMany(kept_out));
        }
        if gcs.drivers().await.map_err(NodeError::NotSeen)?.contains(&node.id) {
            return Err(NodeError::Driver(order.node.clone()));
        }
        match gcs.drain(node, drain_reason::of_decision(&order.action)).await {
            Ok(Answer::Accepted) => {}
            Ok(Answer::Refused { words }) => {
                return Err(NodeError::InUse { node: order.node.clone(), words });
            }
            Err(error) if error.is_refusal() => return Err(NodeError::NotTaken(error)),
            Err(error) => {
                // The answer is lost: the node says what came of it.
                return match gcs.nodes().await {
                    Ok(nodes) if is_out(&nodes, &order.action) => Ok(drained(&order.node)),
                    Ok(_) | Err(_) => Err(NodeError::Uncertain(error)),
                };
            }
        }
        self.see_drained(&gcs, &node.id, order).await
    }

    /// Waits until the node that Ray drains has ended.
    async fn see_drained(&self, gcs: &Gcs, id: &[u8], order: &Order) -> Result<String, NodeError> {
        let mut is_draining = false;
        for _ in 0..CHECKS_MAX {
            let unverified = |why| NodeError::Unverified { node: order.node.clone(), why };
            let nodes = gcs.nodes().await.map_err(unverified)?;
            if is_out(&nodes, &order.action) {
                return Ok(drained(&order.node));
            }
            let mut same = nodes.iter().filter(|node| node.id == id);
            is_draining = same.any(|node| node.state == State::Draining);
            sleep(CHECK_WAIT).await;
        }
        match is_draining {
            // It takes nothing new.
            true => Ok(drained(&order.node)),
            false => Err(NodeError::Unchanged(order.node.clone())),
        }
    }

    /// Is the node kept out by this decision? It changes nothing.
    async fn is_drained(&self, order: &Order) -> Result<String, NodeError> {
        let node = || order.node.clone();
        let looked = async { self.gcs().await?.nodes().await };
        let nodes = looked.await.map_err(|why| NodeError::Unverified { node: node(), why })?;
        if is_out(&nodes, &order.action) {
            return Ok(drained(&order.node));
        }
        match find(&nodes, &order.node) {
            Ok(found) if found.state == State::Draining => Err(NodeError::DrainsUnknown(node())),
            Ok(_) => Err(NodeError::NotOut(node())),
            Err(_) if nodes.iter().any(|known| known.has_name(&order.node)) => {
                Err(NodeError::NotOut(node()))
            }
            Err(_) => Err(NodeError::Forgotten(node())),
        }
    }

    async fn gcs(&self) -> Result<Gcs, GcsError> {
        Gcs::connect(&self.cluster, self.timeout).await
    }
}

fn drained(node: &str) -> String {
    format!("drained node {node}")
}

impl Node {
    fn is_alive(&self) -> bool {
        match self.state {
            State::Alive | State::Draining => true,
            State::Drained { .. } | State::Dead => false,
        }
    }

    fn has_name(&self, name: &str) -> bool {
        !name.is_empty() && [&self.name, &self.host].iter().any(|known| known.as_str() == name)
    }

    /// The id of the decision by which it was drained, once it has ended.
    fn decision(&self) -> Option<&str> {
        let State::Drained { reason } = &self.state else { return None };
        drain_reason::decision(reason)
    }

    /// What a raylet that is started again has in common with the one before.
    fn names(&self) -> (&str, &str) {
        (&self.host, &self.name)
    }
}

/// The one node that is alive and has this name or host name.
fn find<'a>(nodes: &'a [Node], name: &str) -> Result<&'a Node, NodeError> {
    let alive = nodes.iter().filter(|node| node.is_alive());
    let found: Vec<&Node> = alive.filter(|node| node.has_name(name)).collect();
    match found[..] {
        [] => Err(NodeError::Unknown(name.to_string())),
        [node] => Ok(node),
        _ => Err(NodeError::Several { node: name.to_string(), count: found.len() }),
    }
}

/// Was a node drained by this decision?
fn is_out(nodes: &[Node], action: &str) -> bool {
    nodes.iter().any(|node| node.decision() == Some(action))
}

/// Nodes that drain, for any reason, because Ray does not say for which, and those that Memtape has
/// drained and that were not started again.
fn kept_out(nodes: &[Node]) -> usize {
    let draining = nodes.iter().filter(|node| node.state == State::Draining).count();
    let alive = nodes.iter().filter(|node| node.is_alive()).map(Node::names);
    let alive: BTreeSet<_> = alive.collect();
    let ended = nodes.iter().filter(|node| node.decision().is_some()).map(Node::names);
    draining + ended.filter(|names| !alive.contains(names)).collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
mod tests;

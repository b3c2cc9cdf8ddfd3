//! Slurm: keeps a node out by draining it, so that no job begins there.
//!
//! The node is looked at first. One that is drained, down or failed already is left alone, and no
//! node is ever given back: that is for people, when they have seen to it. The reason of the drain
//! has the id of the decision, by which a coordinator that was killed meanwhile finds out whether
//! it came to be. `scontrol update` needs an operator or administrator of Slurm.

use std::collections::BTreeSet;

use memtape_core::action::TargetKind;
use memtape_core::limits::NODES_KEPT_OUT_MAX;
use memtape_core::policy::keep_out::may_keep_out;
use tokio::time::sleep;

use super::{CHECKS_MAX, Slurm, Unseen, is_plain_node};
use crate::restart::child::ChildError;
use crate::restart::drain_reason;
use crate::restart::target::{Order, Resuming, Running, Target, outcome};

/// What `sinfo` prints of a node, once for each of its partitions: name, state, reason.
const FORMAT: &str = "--format=%N %T %E";

/// Why a node was not kept out.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("the node has no name that Slurm can know: {0:?}")]
    NoName(String),
    #[error("node {node} was not looked at, so it was not drained: {why}")]
    NotSeen { node: String, why: Unseen },
    #[error("Slurm has no node {0}: nothing was done")]
    Unknown(String),
    #[error("node {node} is {state} already: nothing was done")]
    IsOut { node: String, state: String },
    #[error(
        "{0} nodes are kept out already, and at most {NODES_KEPT_OUT_MAX} may be: nothing was \
             done"
    )]
    TooMany(usize),
    #[error("node {node} was not drained: {line}")]
    Refused { node: String, line: String },
    #[error(transparent)]
    NotAsked(ChildError),
    #[error("Slurm took the request, but node {node} is {state}")]
    Unchanged { node: String, state: String },
    #[error("it is not known whether node {node} is drained: {why}")]
    Unverified { node: String, why: Unseen },
    #[error("node {0} is not kept out by this decision")]
    NotOut(String),
}

impl NodeError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::NoName(_)
            | Self::NotSeen { .. }
            | Self::Unknown(_)
            | Self::IsOut { .. }
            | Self::TooMany(_)
            | Self::Refused { .. }
            | Self::NotOut(_) => true,
            Self::NotAsked(error) => error.is_refusal(),
            Self::Unchanged { .. } | Self::Unverified { .. } => false,
        }
    }
}

/// Keeps nodes of Slurm out.
#[derive(Clone, Debug)]
pub(crate) struct Drain(pub(crate) Slurm);

/// A node as `sinfo` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    state: String,
    reason: String,
}

impl Node {
    fn read(line: &str) -> Option<Self> {
        let (name, rest) = line.trim().split_once(' ')?;
        let (state, reason) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        let [name, state, reason] = [name, state, reason.trim()].map(String::from);
        Some(Self { name, state, reason })
    }

    /// Is it out of use, for any reason?
    fn is_out(&self) -> bool {
        ["drain", "down", "fail", "maint"].iter().any(|word| self.state.starts_with(word))
    }

    /// The id of the decision by which it is drained.
    fn decision(&self) -> Option<&str> {
        drain_reason::decision(&self.reason).filter(|_| self.state.starts_with("drain"))
    }
}

impl Target for Drain {
    fn kind(&self) -> TargetKind {
        TargetKind::Slurm
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
        let node = order.node.clone();
        if !is_plain_node(&node) {
            return Err(NodeError::NoName(node));
        }
        let unseen = |why| NodeError::NotSeen { node: node.clone(), why };
        let found = self.node(&node).await.map_err(unseen)?;
        let found = found.ok_or_else(|| NodeError::Unknown(node.clone()))?;
        if found.is_out() {
            return Err(NodeError::IsOut { node, state: found.state });
        }
        let drained = self.look(&["--states=drain"]).await.map_err(unseen)?;
        let ours = drained.iter().filter(|node| node.decision().is_some());
        let kept_out = ours.map(|node| &node.name).collect::<BTreeSet<_>>().len();
        if !may_keep_out(kept_out) {
            return Err(NodeError::TooMany(kept_out));
        }
        let name = format!("NodeName={node}");
        let reason = format!("Reason={}", drain_reason::of_decision(&order.action));
        let asked = self.0.ask("scontrol", &["update", &name, "State=DRAIN", &reason]).await;
        let asked = match asked {
            Err(error) if error.is_refusal() => return Err(NodeError::NotAsked(error)),
            asked => asked,
        };
        let mut state = found.state;
        for _ in 0..CHECKS_MAX {
            match self.node(&node).await {
                Ok(Some(now)) if now.decision() == Some(&order.action) => {
                    return Ok(format!("drained node {node}"));
                }
                Ok(now) => state = now.map_or("unknown".to_string(), |now| now.state),
                Err(why) => return Err(NodeError::Unverified { node, why }),
            }
            sleep(self.0.poll).await;
        }
        let ended = asked.map_err(NodeError::NotAsked)?;
        Err(match ended.status.code() {
            Some(0) | None => NodeError::Unchanged { node, state },
            // It also fails when the answer of a busy `slurmctld` is late.
            Some(_) => NodeError::Refused { node, line: ended.line },
        })
    }

    /// Is the node kept out by this decision? It changes nothing.
    async fn is_drained(&self, order: &Order) -> Result<String, NodeError> {
        let node = order.node.clone();
        if !is_plain_node(&node) {
            return Err(NodeError::NoName(node));
        }
        match self.node(&node).await {
            Ok(Some(now)) if now.decision() == Some(&order.action) => {
                Ok(format!("drained node {node}"))
            }
            Ok(_) => Err(NodeError::NotOut(node)),
            Err(why) => Err(NodeError::Unverified { node, why }),
        }
    }

    /// The node as it is now; none where Slurm has none of that name.
    async fn node(&self, name: &str) -> Result<Option<Node>, Unseen> {
        let found = self.look(&[&format!("--nodes={name}")]).await?;
        Ok(found.into_iter().find(|node| node.name == name))
    }

    async fn look(&self, which: &[&str]) -> Result<Vec<Node>, Unseen> {
        let fixed = ["--noheader", "--Node", FORMAT];
        let printed = self.0.printed("sinfo", &[&fixed[..], which].concat()).await?;
        Ok(printed.lines().filter_map(Node::read).collect())
    }
}

#[cfg(test)]
mod tests;

//! Slurm: keeps a node out by draining it, so that no job begins there.
//!
//! The node is checked first. A node that is drained, down or failed is left alone, and no node is
//! ever given back: people do that, after they repaired it. The reason of the drain has the id of
//! the decision, by which a restarted coordinator finds out whether the drain was made. `scontrol
//! update` needs an operator or administrator of Slurm.

use std::collections::BTreeSet;

use memtape_core::action::{Outcome, TargetKind};
use tokio::time::sleep;

use super::{CHECKS_MAX, Slurm, Unseen, check_node};
use crate::restart::child::ChildError;
use crate::restart::drain_reason;
use crate::restart::target::{
    Done, Order, Resuming, Running, Target, admit_one_more, failed, outcome, refused,
};

/// Fields of a node that `sinfo` prints, once for each of its partitions: name, state, reason.
const FORMAT: &str = "--format=%N %T %E";

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

    /// Id of the decision that drained the node.
    fn decision(&self) -> Option<&str> {
        drain_reason::decision(&self.reason).filter(|_| self.state.starts_with("drain"))
    }
}

impl Target for Drain {
    fn kind(&self) -> TargetKind {
        TargetKind::Slurm
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(self.drain(order).await) })
    }

    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        Box::pin(async { Some(outcome(self.is_drained(order).await)) })
    }
}

impl Drain {
    async fn drain(&self, order: &Order) -> Done {
        let node = &order.node;
        check_node(node, "the node")?;
        let unseen =
            |why| refused(format!("node {node} was not looked at, so it was not drained: {why}"));
        let found = self.node(node).await.map_err(unseen)?;
        let Some(Node { mut state, .. }) = found else {
            return Err(refused(format!("Slurm has no node {node}: nothing was done")));
        };
        if is_out(&state) {
            return Err(refused(format!("node {node} is {state} already: nothing was done")));
        }
        let drained = self.look(&["--states=drain"]).await.map_err(unseen)?;
        let ours = drained.iter().filter(|node| node.decision().is_some());
        admit_one_more(ours.map(|node| &node.name).collect::<BTreeSet<_>>().len())?;
        let name = format!("NodeName={node}");
        let reason = format!("Reason={}", drain_reason::of_decision(&order.action));
        order.prove().await?;
        let asked = self.0.ask("scontrol", &["update", &name, "State=DRAIN", &reason]).await;
        let asked = match asked {
            Err(error) if error.is_refusal() => return Err(refused(error)),
            asked => asked,
        };
        for _ in 0..CHECKS_MAX {
            match self.node(node).await {
                Ok(Some(now)) if now.decision() == Some(&order.action) => {
                    return Ok(format!("drained node {node}"));
                }
                Ok(now) => state = now.map_or("unknown".to_string(), |now| now.state),
                Err(why) => return Err(unverified(node, &why)),
            }
            sleep(self.0.poll).await;
        }
        let ended = asked.map_err(ChildError::outcome)?;
        Err(match ended.status.code() {
            Some(0) | None => failed(format!("Slurm took the request, but node {node} is {state}")),
            // It also fails when the answer of a busy `slurmctld` is late.
            Some(_) => refused(format!("node {node} was not drained: {}", ended.line)),
        })
    }

    /// Is the node kept out by this decision? It changes nothing.
    async fn is_drained(&self, order: &Order) -> Done {
        let node = &order.node;
        check_node(node, "the node")?;
        match self.node(node).await {
            Ok(Some(now)) if now.decision() == Some(&order.action) => {
                Ok(format!("drained node {node}"))
            }
            Ok(_) => Err(refused(format!("node {node} is not kept out by this decision"))),
            Err(why) => Err(unverified(node, &why)),
        }
    }

    /// Present state of the node; none where Slurm has no node of that name.
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

/// Is a node in this state out of use, for any reason?
fn is_out(state: &str) -> bool {
    ["drain", "down", "fail", "maint"].iter().any(|word| state.starts_with(word))
}

fn unverified(node: &str, why: &Unseen) -> Outcome {
    failed(format!("it is not known whether node {node} is drained: {why}"))
}

#[cfg(test)]
mod tests;

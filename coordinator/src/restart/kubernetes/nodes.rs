//! Kubernetes: keeps a node out by a taint, so that no pod is put there that does not tolerate it.
//!
//! The node is read first, and changed only as it was read (`resourceVersion` and uid). One that is
//! cordoned or has the taint already is left alone, and no taint is ever taken off: that is for
//! people, when they have seen to the node. The taint's value is the id of the decision, by which a
//! coordinator that was killed meanwhile finds out whether it came to be.

use memtape_core::action::Outcome;
use memtape_core::action::TargetKind;
use memtape_core::limits::NODES_KEPT_OUT_MAX;
use memtape_core::policy::keep_out::may_keep_out;
use serde_json::{Value, json};

use super::Kubernetes;
use super::api::{Api, ApiError};
use super::objects::{as_read, is_name};
use crate::restart::target::{Order, Resuming, Running, Target, outcome};

/// Key of the taint.
const TAINT: &str = "memtape.io/suspect";

/// Label of a node that was kept out: the id of the decision. It stays when people take the taint
/// off, and counts no more then.
const LABEL: &str = "memtape.io/suspect";

/// Nodes with the label that are looked at; with more, none is kept out.
const LABELLED_MAX: usize = 100;

/// Why a node was not kept out.
#[derive(Debug, thiserror::Error)]
enum NodeError {
    #[error("the node has no name that Kubernetes can know: {0:?}")]
    NoName(String),
    #[error("{0}: nothing was done")]
    NotRead(ApiError),
    #[error("node {0} has the taint {TAINT} already: nothing was done")]
    Tainted(String),
    #[error("node {0} is cordoned already: nothing was done")]
    Cordoned(String),
    #[error(
        "{0} nodes are kept out already, and at most {NODES_KEPT_OUT_MAX} may be: nothing was \
             done"
    )]
    TooMany(usize),
    #[error("{0} nodes have the label {LABEL}: take it off those that are back in use")]
    TooManyLabels(usize),
    #[error("{0}: nothing was done")]
    NotTaken(ApiError),
    #[error("{0}: it may have been done")]
    Uncertain(ApiError),
    #[error("node {0} is not kept out by this decision")]
    NotOut(String),
}

impl NodeError {
    fn is_refusal(&self) -> bool {
        match self {
            Self::NoName(_)
            | Self::NotRead(_)
            | Self::Tainted(_)
            | Self::Cordoned(_)
            | Self::TooMany(_)
            | Self::TooManyLabels(_)
            | Self::NotTaken(_)
            | Self::NotOut(_) => true,
            Self::Uncertain(_) => false,
        }
    }
}

/// Keeps nodes out of the cluster that the coordinator has credentials for.
#[derive(Clone, Debug)]
pub(crate) struct Taint(pub(crate) Kubernetes);

impl Target for Taint {
    fn kind(&self) -> TargetKind {
        TargetKind::Kubernetes
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(self.taint(order).await, NodeError::is_refusal) })
    }

    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        Box::pin(async {
            let found = self.is_out(order).await;
            Some(match found {
                // It is as unknown as before.
                Err(NodeError::NotRead(why)) => Outcome::Failed {
                    why: format!("it is not known whether the node is kept out: {why}"),
                },
                found => outcome(found, NodeError::is_refusal),
            })
        })
    }
}

impl Taint {
    async fn taint(&self, order: &Order) -> Result<String, NodeError> {
        let (node, action) = (&order.node, &order.action);
        let api = self.api().await?;
        let found = self.read(&api, node).await?;
        if taint_of(&found).is_some() {
            return Err(NodeError::Tainted(node.clone()));
        }
        if found["spec"]["unschedulable"] == true {
            return Err(NodeError::Cordoned(node.clone()));
        }
        let known = api.list("/api/v1/nodes", LABEL, LABELLED_MAX, &"nodes").await;
        let known = known.map_err(NodeError::NotRead)?;
        if known.len() >= LABELLED_MAX {
            return Err(NodeError::TooManyLabels(known.len()));
        }
        let kept_out = known.iter().filter(|node| taint_of(node).is_some()).count();
        if !may_keep_out(kept_out) {
            return Err(NodeError::TooMany(kept_out));
        }
        let (path, what) = (path(node), shown(node));
        match api.patch(&path, &what, &tainting(&found, action)).await {
            Ok(_) => {}
            Err(error) if error.is_refusal() => {
                return Err(NodeError::NotTaken(error));
            }
            Err(error) => {
                // The answer is lost: the node says what came of it.
                let found = self.read(&api, node).await;
                if !found.is_ok_and(|found| taint_of(&found) == Some(action)) {
                    return Err(NodeError::Uncertain(error));
                }
            }
        }
        Ok(format!("tainted node {node}: {TAINT}:NoSchedule"))
    }

    /// Is the node kept out by this decision? It changes nothing.
    async fn is_out(&self, order: &Order) -> Result<String, NodeError> {
        let node = &order.node;
        let found = self.read(&self.api().await?, node).await?;
        match taint_of(&found) == Some(&order.action) {
            true => Ok(format!("tainted node {node}: {TAINT}:NoSchedule")),
            false => Err(NodeError::NotOut(node.clone())),
        }
    }

    async fn api(&self) -> Result<Api, NodeError> {
        let connected = Api::connect(self.0.config.as_ref(), self.0.timeout).await;
        connected.map_err(NodeError::NotRead)
    }

    async fn read(&self, api: &Api, node: &str) -> Result<Value, NodeError> {
        if !is_name(node) {
            return Err(NodeError::NoName(node.to_string()));
        }
        api.get(&path(node), &shown(node)).await.map_err(NodeError::NotRead)
    }
}

fn path(node: &str) -> String {
    format!("/api/v1/nodes/{node}")
}

fn shown(node: &str) -> String {
    format!("node {node}")
}

/// The value of the taint, where the node has it.
fn taint_of(node: &Value) -> Option<&str> {
    let taints = node["spec"]["taints"].as_array().into_iter().flatten();
    let mut ours = taints.filter(|taint| taint["key"] == TAINT);
    ours.next().map(|taint| taint["value"].as_str().unwrap_or_default())
}

/// The change that adds the taint, if the node is still as it was read: a merge patch has all
/// taints.
pub(super) fn tainting(node: &Value, action: &str) -> Value {
    let mut metadata = as_read(node);
    metadata["labels"] = json!({ LABEL: action });
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.push(json!({ "key": TAINT, "value": action, "effect": "NoSchedule" }));
    json!({ "metadata": metadata, "spec": { "taints": taints } })
}

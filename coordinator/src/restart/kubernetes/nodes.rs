//! Kubernetes: keeps a node out by a taint, so that no pod is put there that does not tolerate it.
//!
//! The node is read first, and changed only if unchanged since (`resourceVersion` and uid). A node
//! that is cordoned or has the taint is left alone, and no taint is ever removed: people do that,
//! after they repaired the node. The taint's value is the id of the decision, by which a restarted
//! coordinator finds out whether the taint was set.

use memtape_core::action::Outcome;
use memtape_core::action::TargetKind;
use serde_json::{Value, json};

use super::objects::as_read;
use super::{Kubernetes, not_done, uncertain};
use crate::kubernetes::api::{Api, is_name};
use crate::restart::target::{
    Done, Order, Resuming, Running, Target, admit_one_more, failed, outcome, refused,
};

/// Key of the taint.
const TAINT: &str = "memtape.io/suspect";

/// Label of a node that was kept out: the id of the decision. It stays when people remove the
/// taint, and does not count then.
const LABEL: &str = "memtape.io/suspect";

/// Maximum number of nodes with the label; with more, no node is kept out.
const LABELLED_MAX: usize = 100;

/// Keeps nodes out of the cluster that the coordinator has credentials for.
#[derive(Clone, Debug)]
pub(crate) struct Taint(pub(crate) Kubernetes);

impl Target for Taint {
    fn kind(&self) -> TargetKind {
        TargetKind::Kubernetes
    }

    fn run<'a>(&'a self, order: &'a Order) -> Running<'a> {
        Box::pin(async { outcome(self.taint(order).await) })
    }

    fn resume<'a>(&'a self, order: &'a Order) -> Resuming<'a> {
        Box::pin(async { Some(outcome(self.is_out(order).await)) })
    }
}

impl Taint {
    async fn taint(&self, order: &Order) -> Done {
        let (node, action) = (&order.node, &order.action);
        check_name(node)?;
        let (path, what) = (path(node), shown(node));
        let api = self.0.connect().await?;
        let found = api.get(&path, &what).await.map_err(not_done)?;
        if taint_of(&found).is_some() {
            return Err(not_done(format!("node {node} has the taint {TAINT} already")));
        }
        if found["spec"]["unschedulable"] == true {
            return Err(not_done(format!("node {node} is cordoned already")));
        }
        let known = api.list("/api/v1/nodes", LABEL, LABELLED_MAX, &"nodes").await;
        let known = known.map_err(not_done)?;
        if known.len() >= LABELLED_MAX {
            let count = known.len();
            let why = format!(
                "{count} nodes have the label {LABEL}: take it off those that are back in use"
            );
            return Err(refused(why));
        }
        admit_one_more(known.iter().filter(|node| taint_of(node).is_some()).count())?;
        order.prove().await?;
        match api.patch(&path, &what, &tainting(&found, action)).await {
            Ok(_) => {}
            Err(error) if error.is_refusal() => return Err(not_done(error)),
            Err(error) => {
                // The answer is lost: the node says what came of it.
                let found = api.get(&path, &what).await;
                if !found.is_ok_and(|found| taint_of(&found) == Some(action)) {
                    return Err(uncertain(&error));
                }
            }
        }
        Ok(format!("tainted node {node}: {TAINT}:NoSchedule"))
    }

    /// Is the node kept out by this decision? It changes nothing.
    async fn is_out(&self, order: &Order) -> Done {
        let node = &order.node;
        check_name(node)?;
        // It is as unknown as before.
        let unknown = |why| failed(format!("it is not known whether the node is kept out: {why}"));
        let api = Api::connect(self.0.config.as_ref(), self.0.timeout).await.map_err(unknown)?;
        let found = api.get(&path(node), &shown(node)).await.map_err(unknown)?;
        match taint_of(&found) == Some(&order.action) {
            true => Ok(format!("tainted node {node}: {TAINT}:NoSchedule")),
            false => Err(refused(format!("node {node} is not kept out by this decision"))),
        }
    }
}

fn check_name(node: &str) -> Result<(), Outcome> {
    let why = || refused(format!("the node has no name that Kubernetes can know: {node:?}"));
    is_name(node).then_some(()).ok_or_else(why)
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

/// Change that adds the taint, if the node is unchanged since it was read: a merge patch has all
/// taints.
pub(super) fn tainting(node: &Value, action: &str) -> Value {
    let mut metadata = as_read(node);
    metadata["labels"] = json!({ LABEL: action });
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.push(json!({ "key": TAINT, "value": action, "effect": "NoSchedule" }));
    json!({ "metadata": metadata, "spec": { "taints": taints } })
}

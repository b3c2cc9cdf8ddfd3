//! Taints against a stand-in server.

use std::collections::BTreeSet;

use super::stand_in::StandIn;
use super::*;
use crate::restart::kubernetes::nodes::Taint;

fn node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

fn nodes() -> StandIn {
    let server = StandIn::default();
    server.with(|cluster| {
        let other = json!([{ "key": "nvidia.com/gpu", "effect": "NoSchedule" }]);
        cluster.add(&node("gpu-1"), json!({ "spec": { "taints": other } }));
        cluster.add(&node("gpu-2"), json!({ "spec": {} }));
        cluster.add(&node("gpu-3"), json!({ "spec": {} }));
        cluster.add(&node("gpu-4"), json!({ "spec": { "unschedulable": true } }));
    });
    server
}

pub(super) fn out(node: &str, action: &str) -> Order {
    let (node, action) = (node.to_string(), action.to_string());
    Order { node, action, prover: Prover::Always, ..Order::default() }
}

fn tainted(node: &str) -> Outcome {
    finished(&format!("tainted node {node}: memtape.io/suspect:NoSchedule"))
}

/// The rights that a taint needs.
pub(super) async fn used() -> BTreeSet<(String, String)> {
    let server = nodes();
    let said = Taint(target(&server).await).run(&out("gpu-1", "out-1")).await;
    assert_eq!(said, tainted("gpu-1"));
    server.with(|cluster| cluster.used.clone())
}

#[track_caller]
fn check_untouched(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
}

#[tokio::test]
async fn a_node_is_tainted_beside_its_other_taints() {
    let server = nodes();
    let taint = Taint(target(&server).await);
    assert_eq!(taint.run(&out("gpu-1", "out-1")).await, tainted("gpu-1"));
    server.with(|cluster| {
        let taints = json!([
            { "key": "nvidia.com/gpu", "effect": "NoSchedule" },
            { "key": "memtape.io/suspect", "value": "out-1", "effect": "NoSchedule" },
        ]);
        assert_eq!(cluster.objects[&node("gpu-1")]["spec"]["taints"], taints);
        let (_, sent) = cluster.requests.last().unwrap();
        let bound = json!({ "resourceVersion": "1", "uid": "uid-gpu-1",
            "labels": { "memtape.io/suspect": "out-1" } });
        assert_eq!(sent, &json!({ "metadata": bound, "spec": { "taints": taints } }));
    });
    let why = "node gpu-1 has the taint memtape.io/suspect already: nothing was done";
    check_untouched(&taint.run(&out("gpu-1", "out-1")).await, why);
    check_untouched(&taint.run(&out("gpu-4", "out-2")).await, "node gpu-4 is cordoned already");
    check_untouched(&taint.run(&out("gpu-9", "out-2")).await, "there is no node gpu-9");
    check_untouched(&taint.run(&out("../pods", "out-2")).await, "has no name");
    assert_eq!(server.with(|cluster| cluster.writes().len()), 1);
}

#[tokio::test]
async fn no_more_nodes_are_tainted_than_may_be_out_at_once() {
    let server = nodes();
    let taint = Taint(target(&server).await);
    for node in ["gpu-1", "gpu-2"] {
        assert_eq!(taint.run(&out(node, "out-1")).await, tainted(node));
    }
    let why = "2 nodes are kept out already, and at most 2 may be: nothing was done";
    check_untouched(&taint.run(&out("gpu-3", "out-3")).await, why);
    // A person takes one back in.
    server.with(|cluster| {
        cluster.objects.get_mut(&node("gpu-1")).unwrap()["spec"] = json!({});
    });
    assert_eq!(taint.run(&out("gpu-3", "out-3")).await, tainted("gpu-3"));
    // Of 100 labels and more not all are seen.
    server.with(|cluster| {
        for number in 10..110 {
            let labels = json!({ "memtape.io/suspect": "out-4" });
            cluster
                .add(&node(&format!("gpu-{number}")), json!({ "metadata": { "labels": labels } }));
        }
    });
    let said = taint.run(&out("gpu-1", "out-5")).await;
    check_untouched(&said, "nodes have the label memtape.io/suspect: take it off those");
}

#[tokio::test]
async fn a_node_that_was_changed_or_may_not_be_changed_is_left_alone() {
    let server = nodes();
    server.with(|cluster| cluster.changed_by_other = true);
    let taint = Taint(target(&server).await);
    let said = taint.run(&out("gpu-1", "out-1")).await;
    check_untouched(&said, "node gpu-1 has changed meanwhile: nothing was done");
    for (verb, why) in [
        ("get", "the coordinator has no right to get node gpu-1: nothing was done"),
        ("list", "the coordinator has no right to list nodes: nothing was done"),
        ("patch", "the coordinator has no right to patch node gpu-1: nothing was done"),
    ] {
        let server = nodes();
        server.with(|cluster| cluster.denied.insert((verb, "nodes")));
        let taint = Taint(target(&server).await);
        check_untouched(&taint.run(&out("gpu-1", "out-1")).await, why);
    }
}

#[tokio::test]
async fn what_a_kill_left_is_looked_at_and_not_repeated() {
    let server = nodes();
    let taint = Taint(target(&server).await);
    let looked = async |action| taint.resume(&out("gpu-1", action)).await.unwrap();
    check_untouched(&looked("out-1").await, "node gpu-1 is not kept out by this decision");
    // The answer is lost, and the change was taken.
    server.with(|cluster| cluster.lost.push_back(("PATCH", 504)));
    assert_eq!(taint.run(&out("gpu-1", "out-1")).await, tainted("gpu-1"));
    assert_eq!(looked("out-1").await, tainted("gpu-1"));
    check_untouched(&looked("out-2").await, "is not kept out by this decision");
    server.with(|cluster| {
        assert_eq!(cluster.writes().len(), 1);
        cluster.lost.push_back(("GET", 503));
    });
    let unknown = looked("out-1").await;
    assert!(matches!(unknown, Outcome::Failed { .. }), "{unknown:?}");
    assert!(unknown.to_string().contains("it is not known whether the node is kept out"));
}

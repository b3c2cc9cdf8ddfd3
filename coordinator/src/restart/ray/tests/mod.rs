//! Drains of a stand-in and, where there is one, of a real Ray.

use std::time::Duration;

use memtape_core::policy::Outcome;
use memtape_proto::ray::node_death_info::Reason;
use memtape_proto::ray::node_snapshot::State as Snapshot;
use tokio::net::TcpListener;

use self::stand_in::{Behaviour, Cluster, serve};
use super::*;

mod real_ray;
mod stand_in;

const DRAIN_IDLE: i32 = 1;

fn order(node: &str, action: &str) -> Order {
    Order { node: node.to_string(), action: action.to_string(), ..Order::default() }
}

fn finished(node: &str) -> Outcome {
    Outcome::Finished { said: format!("drained node {node}") }
}

#[track_caller]
fn check_refused(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Refused { .. }), "{outcome:?}");
    check_words(outcome, why);
}

#[track_caller]
fn check_failed(outcome: &Outcome, why: &str) {
    assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
    check_words(outcome, why);
}

#[track_caller]
fn check_words(outcome: &Outcome, why: &str) {
    assert!(outcome.to_string().contains(why), "{outcome} has no {why:?}");
    assert_eq!(outcome.to_string().lines().count(), 1, "{outcome}");
}

/// The nodes that `tests/ray/cluster` starts, all on one host.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    cluster.add("memtape-head", "host-1", Snapshot::Idle);
    cluster.add("memtape-busy", "host-1", Snapshot::Active);
    for name in ["memtape-driver", "memtape-1", "memtape-2", "memtape-3"] {
        cluster.add(name, "host-1", Snapshot::Idle);
    }
    cluster
}

fn with(behaviour: Behaviour) -> Cluster {
    let mut cluster = cluster();
    cluster.behaviour = behaviour;
    cluster
}

/// What a cluster of those nodes does, the real one and the stand-in.
async fn check_drains(drain: &Drain, host: &str) {
    let asked = async |node: &str, action: &str| drain.run(&order(node, action)).await;
    let looked = async |node: &str, action: &str| drain.resume(&order(node, action)).await.unwrap();
    for (node, why) in [
        ("unknown-node", "Ray has no node unknown-node that is alive: nothing was done"),
        ("", "Ray has no node  that is alive"),
        (host, "6 nodes of Ray have the name or the host name"),
        ("memtape-head", "node memtape-head is the head of the Ray cluster"),
        ("memtape-driver", "on node memtape-driver the driver of a job runs, whose actors end"),
        (
            "memtape-busy",
            "node memtape-busy runs something, so Ray did not drain it: The node to be idle \
             terminated is no longer idle.",
        ),
    ] {
        check_refused(&asked(node, "out-0000001").await, why);
    }
    check_refused(&looked("memtape-1", "out-0000001").await, "is not kept out by this decision");
    assert_eq!(asked("memtape-1", "out-0000001").await, finished("memtape-1"));
    check_refused(
        &asked("memtape-1", "out-0000001").await,
        "Ray has no node memtape-1 that is alive",
    );
    // After a kill.
    assert_eq!(looked("memtape-1", "out-0000001").await, finished("memtape-1"));
    for node in ["memtape-1", "memtape-2", "memtape-busy"] {
        check_refused(&looked(node, "out-0000002").await, "is not kept out by this decision");
    }
    check_failed(&looked("unknown-node", "out-0000002").await, "Ray does not remember it");
    assert_eq!(asked("memtape-2", "out-0000002").await, finished("memtape-2"));
    let why = "2 nodes are kept out already, and at most 2 may be: nothing was done";
    check_refused(&asked("memtape-3", "out-0000003").await, why);
}

/// What a cluster that wants a token says to a wrong one, and to none.
async fn check_token(drain: &Drain) {
    for token in [None, Some("another-token-with-32-letters-or-more".to_string())] {
        let cluster = RayCluster { token, ..drain.cluster.clone() };
        let without = Drain { cluster, ..drain.clone() };
        let why = "Ray refuses the token (--keep-out-ray-token-file): InvalidAuthToken: \
                   Authentication token is missing or incorrect: nothing was done";
        check_refused(&without.run(&order("memtape-1", "out-0000001")).await, why);
        let looked = without.resume(&order("memtape-1", "out-0000001")).await.unwrap();
        check_failed(&looked, "it is not known whether node memtape-1 is drained: Ray refuses");
    }
}

#[tokio::test]
async fn a_node_of_ray_is_drained_only_where_it_is_idle() {
    let (asked, drain) = serve(cluster(), true).await;
    check_token(&drain).await;
    assert!(asked.lock().unwrap().drains.is_empty(), "nothing was asked");
    check_drains(&drain, "host-1").await;
    let reason = |id| format!("memtape {id}: GPU memory was not given back");
    let expected = ["out-0000001", "out-0000002"].map(|id| (DRAIN_IDLE, reason(id)));
    assert_eq!(asked.lock().unwrap().drains, expected);
}

#[tokio::test]
async fn a_node_of_ray_that_drains_or_has_ended_is_left_alone() {
    let mut cluster = cluster();
    cluster.add("gpu-1", "host-2", Snapshot::Draining);
    cluster.add("10.0.0.3", "gpu-2", Snapshot::Idle);
    cluster.add("10.0.0.4", "gpu-3", Snapshot::Idle);
    cluster.add("10.0.0.4", "gpu-3", Snapshot::Idle);
    cluster.end("memtape-1", Reason::UnexpectedTermination, "health check failed");
    let (asked, drain) = serve(cluster, false).await;
    for (node, why) in [
        ("gpu-1", "node gpu-1 drains already: nothing was done"),
        ("memtape-1", "Ray has no node memtape-1 that is alive"),
        ("gpu-3", "2 nodes of Ray have the name or the host name gpu-3: nothing was done; give"),
    ] {
        check_refused(&drain.run(&order(node, "out-0000001")).await, why);
    }
    // Ray does not say which decision it was.
    let looked = drain.resume(&order("gpu-1", "out-0000001")).await.unwrap();
    check_failed(&looked, "it is not known by which decision node gpu-1 drains");
    assert!(asked.lock().unwrap().drains.is_empty());
    // By the name of its host.
    assert_eq!(drain.run(&order("gpu-2", "out-0000001")).await, finished("gpu-2"));
    // The one that drains counts, for Ray does not say for what.
    check_refused(
        &drain.run(&order("memtape-2", "out-0000002")).await,
        "2 nodes are kept out already",
    );
}

#[tokio::test]
async fn a_node_of_ray_that_was_started_again_is_in_use() {
    let mut cluster = cluster();
    for name in ["memtape-1", "memtape-2"] {
        cluster.end(name, Reason::AutoscalerDrainIdle, "memtape out-0000001: GPU memory");
    }
    cluster.end("memtape-3", Reason::AutoscalerDrainIdle, "Termination of node that's idle");
    let (asked, drain) = serve(cluster, false).await;
    asked.lock().unwrap().add("memtape-3", "host-1", Snapshot::Idle);
    check_refused(
        &drain.run(&order("memtape-3", "out-0000003")).await,
        "2 nodes are kept out already",
    );
    asked.lock().unwrap().add("memtape-1", "host-1", Snapshot::Idle);
    assert_eq!(drain.run(&order("memtape-1", "out-0000003")).await, finished("memtape-1"));
}

#[tokio::test]
async fn a_drain_whose_answer_is_lost_is_no_refusal() {
    let socket = "Ray's DrainNode failed: Socket closed: it may have been done";
    for (behaviour, is_done, why) in [
        (Behaviour::LosesAnswer, true, "drained node memtape-1"),
        (Behaviour::Breaks, false, socket),
        (Behaviour::GoesOn, false, "Ray took the request, but node memtape-1 is in use as before"),
        (Behaviour::KeepsDraining, true, "drained node memtape-1"),
    ] {
        let (_, drain) = serve(with(behaviour), false).await;
        let outcome = drain.run(&order("memtape-1", "out-0000001")).await;
        match is_done {
            true => assert_eq!(outcome, finished("memtape-1"), "{behaviour:?}"),
            false => check_failed(&outcome, why),
        }
    }
}

#[tokio::test]
async fn a_cluster_of_ray_that_was_started_again_is_not_asked() {
    let (asked, drain) = serve(with(Behaviour::HasRestarted), false).await;
    let outcome = drain.run(&order("memtape-1", "out-0000001")).await;
    check_refused(&outcome, "the cluster of Ray was started again meanwhile: nothing was done");
    assert!(asked.lock().unwrap().drains.is_empty());
}

#[tokio::test]
async fn a_ray_that_is_gone_or_hangs_is_reported() {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = hanging.local_addr().unwrap().to_string();
    let timeout = Duration::from_millis(300);
    let mut drain = Drain { cluster: RayCluster { address, token: None }, timeout };
    let outcome = drain.run(&order("memtape-1", "out-0000001")).await;
    check_refused(&outcome, "Ray did not answer GetClusterId within 300ms: nothing was done");
    let outcome = drain.resume(&order("memtape-1", "out-0000001")).await.unwrap();
    check_failed(&outcome, "it is not known whether node memtape-1 is drained: Ray did not answer");
    drop(hanging);
    let outcome = drain.run(&order("memtape-1", "out-0000001")).await;
    check_refused(&outcome, &format!("Ray at {} cannot be reached", drain.cluster.address));
    drain.cluster.token = Some("a\ntoken".to_string());
    check_refused(&drain.run(&order("memtape-1", "out-0000001")).await, "cannot be sent");
}

#[tokio::test]
async fn an_answer_of_ray_beyond_the_limit_drains_nothing() {
    let mut cluster = cluster();
    let name = "n".repeat(memtape_core::limits::RAY_ANSWER_BYTES_MAX);
    cluster.add(&name, "host-1", Snapshot::Idle);
    let (asked, drain) = serve(cluster, false).await;
    check_refused(
        &drain.run(&order("memtape-1", "out-0000001")).await,
        "Ray's GetAllNodeInfo failed",
    );
    assert!(asked.lock().unwrap().drains.is_empty());
}

#[test]
fn the_address_and_the_token_of_ray_are_checked() {
    for (address, is_sound) in [
        ("head:6379", true),
        ("10.0.0.1:6379", true),
        ("[::1]:6379", true),
        ("head", false),
        ("", false),
        (":6379", false),
        ("ray://head:10001", false),
        ("http://head:6379", false),
        ("head:6379/path", false),
        ("me@head:6379", false),
        ("head:port", false),
    ] {
        let cluster = RayCluster { address: address.to_string(), token: None };
        let drain = Drain { cluster, timeout: Duration::from_secs(1) };
        assert_eq!(drain.mistake().is_none(), is_sound, "{address}");
    }
    for (token, is_sound) in [("hush", true), ("", false), ("two words", false), ("é", false)] {
        let token = Some(token.to_string());
        let cluster = RayCluster { address: "head:6379".to_string(), token };
        assert!(!format!("{cluster:?}").contains("hush"));
        let drain = Drain { cluster, timeout: Duration::from_secs(1) };
        assert_eq!(drain.mistake().is_none(), is_sound, "{:?}", drain.cluster.token);
    }
}

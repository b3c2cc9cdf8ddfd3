//! What callers who see different jobs learn of the others: of streams of changes, and of a job
//! beside another one, nothing.

use std::time::Duration;

use tokio::time::timeout;

use super::{Cluster, OTHER};
use crate::fake::Agent;

/// A stream of changes names the jobs that its caller sees, and no other.
pub(super) async fn check(cluster: &Cluster, other: &mut Agent) {
    let beside = "/jobs/alices-job/differences?baseline_job=bobs-secret";
    for (name, status) in [("alice", 404), ("admin", 200)] {
        assert_eq!(cluster.user(name).get(beside).await.0, status, "{name}");
    }
    let stream = |name: &str| {
        let user = cluster.user(name);
        async move { user.http.get(format!("{}/changes", user.base)).send().await.unwrap() }
    };
    let (mut alices, mut admins) = (stream("alice").await, stream("admin").await);
    for events in [&mut alices, &mut admins] {
        events.chunk().await.unwrap().expect("the first event");
    }
    other.train(&OTHER, 9..=16).await;
    other.settle().await;
    let named = admins.chunk().await.unwrap().expect("an event");
    assert!(String::from_utf8_lossy(&named).contains("bobs-secret"), "{named:?}");
    let quiet = timeout(Duration::from_secs(2), alices.chunk()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}

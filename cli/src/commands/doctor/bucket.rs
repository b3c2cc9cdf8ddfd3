//! Checks of the bucket of a cluster: whether a coordinator can work there, and how fast.

use std::time::Duration;

use memtape_core::placement::{HINT_LASTS_NS, OPENING_REQUESTS, Owner};
use memtape_store::cluster::examining::examine;
use memtape_store::reports::ClusterFacts;

use super::Check;
use crate::render::units::plural;
use crate::runtime;

/// The cluster at a prefix.
/// Fails when threads cannot be started.
pub(super) fn check(url: &str, checks: &mut Vec<Check>) -> anyhow::Result<()> {
    match examine(url, runtime::threads()?.handle()) {
        Ok(facts) => checks.extend(of_facts(url, &facts)),
        Err(error) => checks.push(Check::fail(
            "cluster",
            error.to_string(),
            "no coordinator starts with --cluster and this URL",
        )),
    }
    Ok(())
}

fn of_facts(url: &str, facts: &ClusterFacts) -> Vec<Check> {
    let mut checks = vec![cluster(url, facts), conditions(facts), round_trip(facts.round_trip)];
    let shards = facts.owners.len();
    let what = |shard| if shards == 1 { "the cluster".into() } else { format!("shard {shard}") };
    if facts.owners.is_empty() {
        checks.push(owner("the cluster", None));
    }
    let owners = facts.owners.iter().enumerate();
    checks.extend(owners.map(|(shard, known)| owner(&what(shard), known.as_ref())));
    checks
}

fn cluster(url: &str, facts: &ClusterFacts) -> Check {
    const NAME: &str = "cluster";
    let Some(cluster) = &facts.cluster else {
        return Check::ok(NAME, format!("{url} is empty: the first coordinator makes a cluster"));
    };
    let shards = plural(u64::from(cluster.shards), "shard");
    let found = format!("{url} has cluster {}, memtape {}, {shards}", cluster.id, cluster.version);
    match &cluster.moving {
        None => Check::ok(NAME, found),
        Some(store) => Check::fail(
            NAME,
            format!("{found}; the move of store {store} into it did not end"),
            format!("run memtape store move DIR {url} again"),
        ),
    }
}

fn conditions(facts: &ClusterFacts) -> Check {
    const NAME: &str = "conditions";
    match &facts.conditions {
        Ok(()) => Check::ok(NAME, "the bucket honours If-None-Match and If-Match on PUT"),
        Err(error) => Check::fail(NAME, error.to_string(), ""),
    }
}

fn round_trip(median: Duration) -> Check {
    const NAME: &str = "round trip";
    let opening = median * OPENING_REQUESTS;
    let lasts = Duration::from_nanos(HINT_LASTS_NS);
    let found = format!(
        "a request takes {:.1} ms (median); another coordinator takes over from a killed one about \
         {:.1} s later: {} s until the sign of life is old enough, then {OPENING_REQUESTS} \
         requests",
        median.as_secs_f64() * 1e3,
        (lasts + opening).as_secs_f64(),
        lasts.as_secs()
    );
    match opening.as_nanos() > u128::from(HINT_LASTS_NS) {
        true => Check::warn(NAME, found, "use a bucket that is nearer: reports wait as long"),
        false => Check::ok(NAME, found),
    }
}

fn owner(what: &str, known: Option<&Owner>) -> Check {
    const NAME: &str = "owner";
    let found = match known {
        None => format!("no coordinator has owned {what} yet"),
        Some(owner) if owner.has_left => {
            format!("{} was the last owner of {what}, and has left in order", owner.shown())
        }
        Some(owner) => {
            format!("{} says that it owns {what}, epoch {}", owner.shown(), owner.epoch)
        }
    };
    Check::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use memtape_core::cluster::Identity;

    use super::super::Outcome;
    use super::*;

    fn facts() -> ClusterFacts {
        let identity = Identity {
            format: 1,
            version: "0.2.0".to_string(),
            id: "4f".to_string(),
            shards: 1,
            moving: None,
        };
        let owner = Owner { address: "10.0.0.1:7771".into(), epoch: 3, ..Owner::default() };
        let round_trip = Duration::from_millis(40);
        ClusterFacts {
            cluster: Some(identity),
            owners: vec![Some(owner)],
            round_trip,
            conditions: Ok(()),
        }
    }

    fn judged(change: impl Fn(&mut ClusterFacts)) -> Vec<(Outcome, String)> {
        let mut facts = facts();
        change(&mut facts);
        let checks = of_facts("s3://b/c", &facts).into_iter();
        checks.map(|check| (check.outcome, check.found)).collect()
    }

    #[test]
    fn a_cluster_is_described() {
        let good = judged(|_| {});
        assert!(good.iter().all(|(outcome, _)| *outcome == Outcome::Ok), "{good:?}");
        assert_eq!(good[0].1, "s3://b/c has cluster 4f, memtape 0.2.0, 1 shard");
        let takeover =
            "about 6.2 s later: 5 s until the sign of life is old enough, then 29 requests";
        assert!(good[2].1.contains("40.0 ms") && good[2].1.ends_with(takeover), "{good:?}");
        assert_eq!(good[3].1, "10.0.0.1:7771 says that it owns the cluster, epoch 3");
        let slow = judged(|facts| facts.round_trip = Duration::from_millis(200));
        assert_eq!(slow[2].0, Outcome::Warn);
        let moving = judged(|facts| {
            facts.cluster.as_mut().expect("one").moving = Some("5a".to_string());
        });
        assert_eq!(moving[0].0, Outcome::Fail);
        let left = judged(|facts| facts.owners[0].as_mut().expect("one").has_left = true);
        assert!(left[3].1.contains("has left in order"));
        let none = judged(|facts| (facts.cluster, facts.owners) = (None, Vec::new()));
        assert!(none[0].1.contains("is empty") && none[3].1.contains("yet"));
        let two = judged(|facts| facts.owners.push(None));
        assert!(two[3].1.contains("owns shard 0,") && two[4].1.ends_with("owned shard 1 yet"));
    }
}

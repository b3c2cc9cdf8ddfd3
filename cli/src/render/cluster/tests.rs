//! What a person reads of the shards of a cluster.

use super::*;

const NOW_NS: i64 = 1_795_244_404_000_000_000;

fn shard(number: u16, requests: Option<RequestRates>) -> Shard {
    Shard {
        shard: number,
        owner: format!("https://c{number}:7771"),
        name: format!("9-{number}"),
        version: "0.2.0".to_string(),
        owned_since_wall_ns: NOW_NS - 7_200_000_000_000,
        epoch: 3,
        sign_of_life_age_ns: Some(400_000_000),
        lag_ns: 25_000_000_000,
        requests,
        address_problem: String::new(),
    }
}

fn lines(cluster: &Cluster) -> Vec<String> {
    let text = text(cluster, NOW_NS);
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn a_cluster_shows_owners_their_requests_and_what_these_cost() {
    let requests = |puts: f64| RequestRates {
        seconds: 60.0,
        requests_per_second: puts + 13.0,
        puts_per_second: puts,
        lists_per_second: 1.0,
        gets_per_second: 12.0,
        dollars_per_day: (puts + 1.0) * 0.432 + 12.0 * 0.03456,
        dollars_per_million_writing: 5.0,
        dollars_per_million_reading: 0.4,
    };
    let shards =
        vec![shard(0, Some(requests(20.0))), shard(1, None), shard(2, Some(requests(9.0)))];
    let lines = lines(&Cluster { shards, ..Cluster::default() });
    let expected = [
        "SHARD OWNER NAME OWNED SINCE VERSION EPOCH SIGN OF LIFE LAG REQUESTS/S PUT/S $/DAY",
        "0 https://c0:7771 9-0 2 h ago 0.2.0 3 0.4 s 25 s 33.0 20.0 9.49",
        "1 https://c1:7771 9-1 2 h ago 0.2.0 3 0.4 s 25 s – – –",
        "2 https://c2:7771 9-2 2 h ago 0.2.0 3 0.4 s 25 s 22.0 9.0 4.73",
        "14.22 $ a day for requests, as many as in the last minute: 2.68 million PUT and \
         LIST × 5 $ + 2.07 million GET × 0.4 $",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_coordinator_without_a_cluster_shows_its_lag_and_no_requests() {
    let alone = Shard { version: "0.2.0".to_string(), ..Shard::default() };
    let astray = Shard { address_problem: "it leads elsewhere".to_string(), ..alone.clone() };
    let shown = lines(&Cluster { shards: vec![astray], ..Cluster::default() });
    assert_eq!(shown[2], "shard 0: it leads elsewhere");
    let lines = lines(&Cluster { shards: vec![alone], ..Cluster::default() });
    assert_eq!(lines[0], "SHARD OWNER OWNED SINCE VERSION LAG");
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn shards_without_an_answer_and_waiting_coordinators_are_below_the_others() {
    let missing = |number, name: &str, age_ns| MissingShard {
        shard: number,
        name: name.to_string(),
        epoch: name.len() as u64,
        sign_of_life_age_ns: age_ns,
        why: "its owner is not known".to_string(),
        ..MissingShard::default()
    };
    let waits = WaitingCoordinator {
        name: "9-w".to_string(),
        address: "https://w:7771".to_string(),
        version: "0.2.0".to_string(),
        sign_of_life_age_ns: 4_000_000_000,
    };
    let lines = lines(&Cluster {
        shards: vec![shard(0, None)],
        missing_shards: vec![missing(1, "9-1", Some(90_000_000_000)), missing(2, "", None)],
        waiting: vec![waits],
        waiting_left_out: 2,
        waiting_unknown: "the bucket\u{1b}[2J is away".to_string(),
    });
    let expected = [
        "",
        "SHARD OWNER NAME EPOCH SIGN OF LIFE NO ANSWER",
        "1 9-1 3 90 s its owner is not known",
        "2 – – – its owner is not known",
        "",
        "WAITING NAME VERSION SIGN OF LIFE",
        "https://w:7771 9-w 0.2.0 4 s",
        "2 further coordinators waiting",
        "the waiting coordinators are not known: the bucket\u{fffd}[2J is away",
    ];
    assert_eq!(lines[2..], expected);
}

#[test]
fn a_shard_without_an_owner_or_a_waiting_coordinator_needs_one_more() {
    let missing = |shard, sign_of_life_age_ns| MissingShard {
        shard,
        sign_of_life_age_ns,
        ..MissingShard::default()
    };
    let line = |ages_ns: &[Option<u64>], waiting_left_out| {
        let missing_shards = (1..).zip(ages_ns).map(|(shard, age)| missing(shard, *age));
        let missing_shards = missing_shards.collect();
        let cluster = Cluster { missing_shards, waiting_left_out, ..Cluster::default() };
        let text = text(&cluster, NOW_NS);
        text.lines()
            .find_map(|line| line.strip_prefix("no coordinator is known to wait: "))
            .map(str::to_string)
    };
    let (fresh, old) = (Some(GONE_AFTER_NS), Some(GONE_AFTER_NS + 1));
    let needs = |shards: &str| Some(format!("start one more for each of: shard {shards}"));
    assert_eq!(line(&[fresh, fresh], 0), None, "their owners live");
    assert_eq!(line(&[old, fresh, None], 0), needs("1, 3"));
    assert_eq!(line(&[old], 1), None, "one takes over");
}

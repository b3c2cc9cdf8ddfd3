//! One process with the agents of several shards.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use memtape_core::placement::shard_of;
use memtape_core::tape::layout::header;
use memtape_proto::v1;
use tempfile::TempDir;
use tokio::time::sleep;

use super::support::RunningAgent;
use super::support::coordinator::{FakeCoordinator, Seen};
use super::support::rank::{Rank, SMALL};
use super::{folder, has_steps};

/// A job in the shard of the node, of two, and one in the other shard.
const PRIMARY: &str = "alpha";
const OTHER: &str = "beta";

/// More reports than an agent makes that has nothing to do, in all streams of two agents.
const REPORTS_WHILE_IDLE: usize = 180;

/// A folder of spools whose agent knows that there are this many shards.
fn divided(shards: u16) -> TempDir {
    assert_eq!(["node-1", PRIMARY, OTHER].map(|name| shard_of(name, 2)), [0, 0, 1]);
    let spool = folder();
    std::fs::write(spool.path().join("shards"), shards.to_string()).expect("a file");
    spool
}

fn start(tapes: &Path, spool: &Path, coordinator: &str) -> RunningAgent {
    RunningAgent::start(tapes, coordinator, |config| config.spool_dir = Some(spool.into()))
}

fn hellos(seen: &Seen, shard: u32) -> usize {
    let shards = seen.hellos.iter().filter_map(|hello| hello.shard);
    shards.filter(|of| of.number == shard).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_only_tape_was_rejected_is_watched_later() {
    let (tapes, spool) = (folder(), divided(2));
    let coordinator = FakeCoordinator::start();
    let rejected = Rank::start(tapes.path(), OTHER, 0, SMALL);
    // Of an earlier start of the node.
    rejected.scribble(header::BOOT_ID, 7);
    let agent = start(tapes.path(), spool.path(), &coordinator.url());
    coordinator.wait("both streams", |seen| (seen.hellos.len() == 2).then_some(())).await;
    coordinator.wait_for_reports(REPORTS_WHILE_IDLE).await;
    let mut rank = Rank::start(tapes.path(), OTHER, 1, SMALL);
    rank.train(5);
    coordinator.wait("the rank's steps", |seen| has_steps(seen, &rank, 5)).await;
    assert_eq!(coordinator.seen().hellos.len(), 2, "an agent with a file ended meanwhile");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_of_a_shard_ends_without_files_and_starts_again() {
    let (tapes, spool) = (folder(), divided(2));
    let coordinator = FakeCoordinator::start();
    let agent = start(tapes.path(), spool.path(), &coordinator.url());
    for round in 1..=2 {
        let mut rank = Rank::start(tapes.path(), OTHER, 0, SMALL);
        rank.train(5);
        coordinator.wait("the rank's steps", |seen| has_steps(seen, &rank, 5)).await;
        rank.exit();
        coordinator.wait("its end", |seen| super::down_of(seen, &rank).map(drop)).await;
        std::fs::remove_file(&rank.path).expect("the tape");
        coordinator.wait_for_reports(REPORTS_WHILE_IDLE).await;
        assert_eq!(hellos(&coordinator.seen(), 1), round, "one agent for each rank");
        assert!(!spool.path().join("shard-1-of-2").exists(), "its empty spool is deleted");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_starts_deletes_no_dead_tape_of_another_within_the_bound() {
    let (tapes, spool) = (folder(), divided(2));
    let coordinator = FakeCoordinator::start();
    let [mut dead, mut other] = [PRIMARY, OTHER].map(|job| {
        let mut rank = Rank::start(tapes.path(), job, 0, SMALL);
        rank.train(5);
        rank
    });
    let bytes = dead.file.metadata().expect("the tape").blocks() * 512;
    let agent = RunningAgent::start(tapes.path(), &coordinator.url(), |config| {
        config.spool_dir = Some(spool.path().into());
        config.dead_tape_bytes_max = bytes * 3 / 2;
    });
    for rank in [&dead, &other] {
        coordinator.wait("the rank's steps", |seen| has_steps(seen, rank, 5)).await;
    }
    dead.exit();
    coordinator.wait("its end", |seen| super::down_of(seen, &dead).map(drop)).await;
    coordinator.wait_for_reports(REPORTS_WHILE_IDLE / 3).await;
    assert!(dead.path.exists(), "the other agent has no dead tape");
    other.exit();
    let is_deleted = |rank: &Rank| !rank.path.exists();
    coordinator.wait("room", |_| (is_deleted(&dead) || is_deleted(&other)).then_some(())).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clusters_behind_one_address_divide_an_agent_once_a_minute() {
    let (tapes, spool) = (folder(), divided(1));
    let coordinator = FakeCoordinator::start();
    // Two shards, then three, then two.
    let refuses = |number: usize, _: &str| v1::NotOwner {
        shards: 2 + number as u32 % 2,
        owner: String::new(),
    };
    coordinator.seen().refuses = Some(refuses);
    let mut ranks = [PRIMARY, OTHER].map(|job| Rank::start(tapes.path(), job, 0, SMALL));
    ranks.iter_mut().for_each(|rank| rank.train(5));
    let agent = start(tapes.path(), spool.path(), &coordinator.url());
    sleep(Duration::from_secs(4)).await;
    let attaches = coordinator.seen().attaches;
    assert!((2..40).contains(&attaches), "{attaches} streams within 4 s");
    ranks.iter_mut().for_each(|rank| rank.train(5));
    coordinator.seen().refuses = None;
    for rank in &ranks {
        coordinator.wait("the rank's steps", |seen| has_steps(seen, rank, 10)).await;
        super::assert_gapless(&coordinator.seen().steps(&rank.tape_id, None), 1, 10);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn owners_that_name_each_other_are_left_for_the_given_coordinators() {
    let tapes = folder();
    let [one, other, owner] = [(); 3].map(|()| FakeCoordinator::start());
    let refuses = |_: usize, owner: &str| v1::NotOwner { shards: 1, owner: owner.to_string() };
    for (coordinator, named) in [(&one, &other), (&other, &one)] {
        coordinator.seen().refuses = Some(refuses);
        coordinator.seen().owner = named.url();
    }
    let given = format!("{},{}", one.url(), owner.url());
    let agent = RunningAgent::start(tapes.path(), &given, |_| ());
    owner.wait("a stream", |seen| seen.hellos.first().map(drop)).await;
    assert!(other.seen().attaches > 0);
    agent.stop().await;
}

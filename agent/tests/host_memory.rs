//! What a rank takes of its host, read from real processes.

use std::process::{Command, Stdio};

use memtape_core::snapshot::origin::Origin;
use memtape_core::tape::Words;
use memtape_core::tape::layout::{header, hooks};
use memtape_proto::v1;

use crate::folder;
use crate::support::RunningAgent;
use crate::support::cgroup::MemoryCgroup;
use crate::support::coordinator::{FakeCoordinator, Seen};
use crate::support::rank::{Rank, SMALL};

const MIB: u64 = 1 << 20;

/// A shell with two children at first: one that waits and one that soon holds 64 MiB, for as long
/// as the first lives. A line on its input makes a third.
const FAMILY: &str = "\
sleep 600 & (head -c 67108864 /dev/zero; sleep 600) | tail & read go; sleep 600 & read go";

fn host_of(seen: &Seen, rank: &Rank) -> Option<v1::RankHost> {
    seen.newest(&rank.tape_id)?.host.clone()
}

/// Kills the processes below the shell: nothing of a test is left behind.
struct Family(u32);

impl Drop for Family {
    fn drop(&mut self) {
        let list = |parent: u32| -> Vec<u32> {
            let output = Command::new("pgrep").args(["-P", &parent.to_string()]).output();
            let text = output.map(|output| output.stdout).unwrap_or_default();
            String::from_utf8_lossy(&text).lines().filter_map(|pid| pid.parse().ok()).collect()
        };
        let mut pids = list(self.0);
        pids.extend(pids.clone().into_iter().flat_map(list));
        for pid in pids {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_and_kinds_of_memory_are_reported() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut command = Command::new("sh");
    command.args(["-c", FAMILY]).stdin(Stdio::piped());
    let mut rank = Rank::start_as(command, dir.path(), "job", 0, SMALL);
    let family = Family(rank.pid());
    let mut childless = Rank::start(dir.path(), "job", 1, SMALL);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    let big = |seen: &Seen| {
        let host = host_of(seen, &rank)?;
        // The shells between them, and `tail`, which holds what it was given.
        let is_big = |workers: &&v1::Workers| workers.anon_bytes >= 64 * MIB;
        let workers = host.workers.filter(|workers| is_big(&workers))?;
        workers.anon_parts_bytes.is_some_and(|bytes| bytes >= 64 * MIB).then_some((host, workers))
    };
    let (host, workers) = coordinator.wait("a worker that has grown", big).await;
    assert!((3..=6).contains(&workers.count), "{workers:?}");
    assert!(workers.anon_parts_bytes <= Some(workers.anon_bytes), "{workers:?}");
    assert!(workers.anon_bytes < 160 * MIB && workers.left_out == 0, "{workers:?}");
    assert!(host.anon_bytes.is_some_and(|bytes| (1..16 * MIB).contains(&bytes)), "{host:?}");
    assert!(host.file_bytes.is_some() && host.swap_bytes.is_some() && host.missing.is_empty());
    let rss = coordinator.seen().newest(&rank.tape_id).and_then(|report| report.rss_bytes);
    assert!(rss > host.anon_bytes, "{rss:?} {host:?}");

    rank.say("go");
    let more = |seen: &Seen| {
        let now = host_of(seen, &rank)?.workers?;
        (now.count == workers.count + 1).then_some(())
    };
    coordinator.wait("another worker", more).await;
    let none = |seen: &Seen| Some(host_of(seen, &childless)?.workers?.count);
    assert_eq!(coordinator.wait("a rank without workers", none).await, 0);

    // A process that is gone takes nothing, which is not zero.
    childless.kill();
    let gone =
        |seen: &Seen| seen.downs.iter().find(|down| down.tape_id == childless.tape_id).cloned();
    coordinator.wait("its end", gone).await;
    let host = coordinator.seen().newest(&childless.tape_id).and_then(|report| report.host.clone());
    assert!(host.is_none(), "{host:?}");
    agent.stop().await;
    drop(family);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_a_hostile_tape_are_clamped() {
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let mut rank = Rank::start(dir.path(), "job", 0, SMALL);
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    // A recorder that keeps no sums says nothing of any.
    coordinator.wait("a report", |seen| seen.newest(&rank.tape_id).map(|_| ())).await;
    let outside = |seen: &Seen| seen.newest(&rank.tape_id).map(|rank| rank.outside.clone());
    assert_eq!(outside(&coordinator.seen()), Some(Vec::new()));
    rank.pin(3 * MIB);
    rank.pin(MIB);
    let pinned = Origin::HostPinned as u32;
    let is_pinned = |rank: &Rank, bytes: u64| {
        let tape_id = rank.tape_id.clone();
        move |seen: &Seen| {
            let found = seen.newest(&tape_id)?.outside.iter().find(|of| of.origin == pinned)?;
            (found.bytes == bytes).then_some(found.count)
        }
    };
    assert_eq!(coordinator.wait("pinned bytes", is_pinned(&rank, 4 * MIB)).await, 0);

    // A tape is its own process's to scribble on: sums that cannot be are left out, all others
    // are as bounded as the header is.
    for word in 0..128 {
        rank.scribble(header::OUTSIDE_BYTES + word, u64::MAX);
    }
    rank.scribble(header::HOOKS, u64::MAX);
    let word = Words::outside_word(Origin::Nccl, 0).expect("a word");
    rank.scribble(word, 7 * MIB);
    let only_nccl = |seen: &Seen| {
        let found = &seen.newest(&rank.tape_id)?.outside;
        (found.len() == 1 && found[0].bytes == 7 * MIB).then_some(found[0].origin)
    };
    let origin = coordinator.wait("what can be", only_nccl).await;
    assert_eq!(origin, Origin::Nccl as u32);
    rank.scribble(header::OUTSIDE, 2);
    let nothing = |seen: &Seen| seen.newest(&rank.tape_id)?.outside.is_empty().then_some(());
    coordinator.wait("nothing, of a version that is not known", nothing).await;
    rank.scribble(header::HOOKS, hooks::REPORT);
    rank.train(2);
    coordinator.wait("its steps", |seen| crate::has_steps(seen, &rank, 2)).await;
    agent.stop().await;
}

/// The limit and the use are those of the rank's own cgroup, not of the agent's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cgroup_is_the_ranks_own() {
    let limit = 300 * MIB;
    let cgroup = match MemoryCgroup::make(limit) {
        Ok(cgroup) => cgroup,
        Err(why) => return eprintln!("SKIPPED: no cgroup can be made here ({why})"),
    };
    let dir = folder();
    let coordinator = FakeCoordinator::start();
    let rank = Rank::start(dir.path(), "job", 0, SMALL);
    cgroup.add(rank.pid());
    let agent = RunningAgent::start(dir.path(), &coordinator.url(), |_| ());
    let found = |seen: &Seen| host_of(seen, &rank)?.cgroup;
    let found = coordinator.wait("the cgroup", found).await;
    assert_eq!((found.limit_bytes, found.oom_kills), (Some(limit), Some(0)), "{found:?}");
    assert!(found.bytes.is_some_and(|bytes| bytes < limit), "{found:?}");
    agent.stop().await;
}

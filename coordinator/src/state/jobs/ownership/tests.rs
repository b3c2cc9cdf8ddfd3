//! Tests of `ownership.rs`: whose a rank is, and what other nodes can claim.

use memtape_core::identity::owner::Owner;

use super::*;
use crate::state::counters::Loss;
use crate::state::effects::Context;
use crate::state::jobs::attempt::Limits;
use crate::state::jobs::tests::{killed, limits};
use crate::state::messages::RankEnd;
use memtape_disk::clock::Now;
use memtape_store::records::End;

pub(in crate::state) fn owned(tape: &str, job: &str, rank: u32, uid: u32) -> RankUp {
    let owner = Owner { uid, ..Owner::default() };
    let (tape_id, job) = (format!("{tape}-{uid}"), job.to_string());
    RankUp { tape_id, job, rank, owner, ..RankUp::default() }
}

const NONE: [u32; 0] = [];

/// The job of a rank that is announced.
fn job_of(jobs: &mut Jobs, node: &str, up: RankUp) -> String {
    let announced = jobs.announce(Now::default(), node, up).unwrap();
    jobs.get(announced.serial).unwrap().record.job.clone()
}

/// Rank `rank` of 4.
fn of_four(tape: &str, rank: u32) -> RankUp {
    RankUp { world_size: 4, ..owned(tape, "llm", rank, 7) }
}

/// The ranks of an attempt that its job has proved.
fn proved(jobs: &Jobs, serial: u32) -> Vec<u32> {
    let attempt = jobs.get(serial).unwrap();
    let proved = jobs.proved(&attempt.record.job);
    attempt.ranks.keys().copied().filter(|rank| proved.has(attempt, *rank)).collect()
}

#[test]
fn ranks_beyond_the_memory_are_refused() {
    let mut jobs = Jobs::new(Limits { ranks_max: 3, ..limits() });
    let mut announce = |rank: u32| {
        let announced =
            jobs.announce(Now::default(), "a", owned(&format!("t{rank}"), "llm", rank, 1));
        (announced.map(|_| ()), jobs.ranks())
    };
    for rank in 0..3 {
        assert_eq!(announce(rank), (Ok(()), (rank as usize + 1, 3)));
    }
    assert_eq!(announce(3), (Err(Loss::NoRoom), (3, 3)));
    // One that is known goes on.
    assert_eq!(announce(1).0, Ok(()));
}

#[test]
fn a_job_belongs_to_its_owner() {
    let mut jobs = Jobs::new(limits());
    let jobs = &mut jobs;
    assert_eq!(job_of(jobs, "a", owned("t0", "llm", 0, 1000)), "llm@1000");
    assert_eq!(job_of(jobs, "b", owned("t7", "llm", 7, 1000)), "llm@1000");
    // Another owner's rank is a rank of another job, on any node, dead or alive.
    assert_eq!(job_of(jobs, "b", owned("t8", "llm", 8, 666)), "llm@666");
    assert_eq!(job_of(jobs, "a", owned("t9", "llm", 9, 666)), "llm@666");
    // No owner takes the id of another owner's job.
    assert_eq!(job_of(jobs, "a", owned("u0", "llm@1001", 0, 666)), "llm@1001@666");
    assert_eq!(job_of(jobs, "a", owned("u1", "llm", 0, 1001)), "llm@1001");
    assert_eq!(jobs.current("llm@1001").unwrap().ranks.len(), 1);
    let called: Vec<&String> = jobs.called("llm").collect();
    assert_eq!(called, ["llm@1000", "llm@1001", "llm@666"]);
}

/// Nine dead ranks of a pod whose namespace its agent does not know, before the job itself, as
/// finding N1 had it.
#[test]
fn an_unknown_namespace_equals_no_other() {
    let mut jobs = Jobs::new(limits());
    let jobs = &mut jobs;
    let up = |tape: &str, rank, namespace: &str| {
        let owner = Owner { namespace: namespace.to_string().into(), ..Owner::default() };
        RankUp { owner, ..owned(tape, "prod", rank, 0) }
    };
    for rank in 0..9 {
        assert_eq!(job_of(jobs, "n", up(&format!("t{rank}"), rank, "~")), "prod@0.~n");
    }
    assert_eq!(job_of(jobs, "m", up("u0", 0, "~")), "prod@0.~m");
    assert_eq!(job_of(jobs, "n", up("a0", 0, "team-a")), "prod@0.team-a");
    assert_eq!(job_of(jobs, "n", up("b8", 8, "team-b")), "prod@0.team-b");
    assert_eq!(jobs.current("prod@0.team-a").unwrap().ranks.len(), 1);
    // One user with two accounts is two owners, and joins no attempt of the other.
    let other = Owner { account: Some(9), ..up("", 0, "team-a").owner };
    job_of(jobs, "n", RankUp { owner: other, ..up("a1", 1, "team-a") });
    assert_eq!(jobs.serials("prod@0.team-a").len(), 2);
}

/// A node without a rank of an attempt begins a newer attempt, which replaces the older one
/// only when no rank of the older is here.
#[test]
fn a_forged_attempt_replaces_none_that_runs() {
    let mut jobs = Jobs::new(limits());
    let now = Now { mono_ns: 1, wall_ns: 1_000 };
    let up = |tape: &str, attempt| RankUp {
        attempt,
        start_wall_ns: i64::MAX - 7,
        ..owned(tape, "llm", 0, 7)
    };
    let real = jobs.announce(now, "a", up("t0", 0)).unwrap().serial;
    let forged = jobs.announce(now, "thief", up("t1", 1)).unwrap().serial;
    let current = |jobs: &Jobs| jobs.current("llm@7").unwrap().record.serial;
    assert_eq!(current(&jobs), real);
    assert_eq!(proved(&jobs, real), [0]);
    assert_eq!(proved(&jobs, forged), NONE);
    // Another of the same number changes nothing, and each is reached by its number.
    jobs.announce(now, "thief", up("t3", 0)).unwrap();
    let numbered = |jobs: &Jobs, number| {
        jobs.chosen("llm@7", |of| of.record.attempt == number).unwrap().record.serial
    };
    assert_eq!((current(&jobs), numbered(&jobs, 0)), (real, real));
    assert_eq!(numbered(&jobs, 1), forged);
    let next = jobs.announce(now, "a", up("t2", 2)).unwrap().serial;
    let is_replaced = |jobs: &Jobs, by| jobs.is_replaced(&jobs.own("llm@7"), real, by);
    assert!(!is_replaced(&jobs, forged) && is_replaced(&jobs, next));
    // Its start is no later than now: what comes next is newer.
    assert_eq!((jobs.serials("llm@7").last(), current(&jobs)), (Some(&next), next));
    jobs.node_lost(now, "a");
    assert!(!is_replaced(&jobs, forged), "its agent may come back");
    // The job begins again while the forged attempts run.
    let again = jobs.announce(now, "a", up("t4", 3)).unwrap().serial;
    assert_eq!(current(&jobs), again);
    // As after a restart of the coordinator: no rank was heard, and a forged attempt is the newest.
    jobs.announce(now, "thief", up("t5", 4)).unwrap();
    let all = jobs.attempts.values_mut().flat_map(|attempt| attempt.ranks.values_mut());
    all.for_each(|rank| rank.presence = Presence::Unknown);
    assert_eq!(current(&jobs), again);
}

/// What finding N3 did: a node that runs nothing of a job announces one rank more.
#[test]
fn a_complete_attempt_takes_no_further_rank() {
    let mut jobs = Jobs::new(limits());
    let jobs = &mut jobs;
    let now = Now::default();
    let mut serial = 0;
    for rank in 0..4 {
        serial = jobs.announce(now, "a", of_four(&format!("t{rank}"), rank)).unwrap().serial;
        assert_eq!(proved(jobs, serial).is_empty(), rank < 3, "not all ranks are known");
    }
    assert_eq!(proved(jobs, serial), [0, 1, 2, 3]);
    for (rank, world_size) in [(9, 10), (9, 4), (3, 4), (4, 5)] {
        let up = RankUp { world_size, ..of_four(&format!("x{rank}-{world_size}"), rank) };
        let forged = jobs.announce(now, "evil", up).unwrap().serial;
        assert_ne!(forged, serial);
        assert_eq!(proved(jobs, forged), NONE);
    }
    assert_eq!(proved(jobs, serial), [0, 1, 2, 3]);
    assert_eq!(jobs.current("llm@7").unwrap().record.serial, serial);
}

/// A rank with a start long ago, of a world of its own, beside a running job; another node that
/// completes an attempt that is over, and begins the next; and a job that is announced again
/// when it has ended.
#[test]
fn a_job_is_on_its_own_nodes() {
    let mut jobs = Jobs::new(limits());
    let jobs = &mut jobs;
    let now = Now { mono_ns: 1, wall_ns: 1_000 };
    let up = |tape: &str, rank, attempt, start_wall_ns| RankUp {
        attempt,
        start_wall_ns,
        ..of_four(tape, rank)
    };
    let announce = |jobs: &mut Jobs, node: &str, up| jobs.announce(now, node, up).unwrap().serial;
    let end = |jobs: &mut Jobs, serial| {
        let attempt = jobs.attempts.get_mut(&serial).unwrap();
        attempt.ranks.values_mut().for_each(|rank| rank.presence = Presence::Ended);
        attempt.record.ended_wall_ns = Some(900);
    };
    let current = |jobs: &Jobs| jobs.current("llm@7").unwrap().record.serial;
    // Three of four ranks, and the attempt is over: another node makes it no complete one.
    let first = (0..3).map(|rank| announce(jobs, "a", up(&format!("f{rank}"), rank, 0, 9)));
    let first = first.last().unwrap();
    end(jobs, first);
    assert_eq!(announce(jobs, "evil", up("j", 3, 0, 9)), first);
    let mut real = 0;
    for rank in 0..4 {
        let node = if rank < 2 { "a" } else { "b" };
        real = announce(jobs, node, up(&format!("r{rank}"), rank, 1, 500));
    }
    let of_one = RankUp { world_size: 1, ..up("x", 0, 0, 1) };
    let backdated = announce(jobs, "evil", of_one);
    for rank in 0..4 {
        announce(jobs, "evil", up(&format!("e{rank}"), rank, 2, 800));
    }
    assert_eq!((current(jobs), proved(jobs, real).len()), (real, 4));
    assert_eq!(proved(jobs, backdated), NONE);
    // It ends: one node is no job of two.
    end(jobs, real);
    let shown = current(jobs);
    assert_eq!(jobs.get(shown).unwrap().record.node, "evil");
    assert_eq!(proved(jobs, shown), NONE);
    // It moves to two other nodes.
    let mut moved = 0;
    for rank in 0..4 {
        let node = if rank < 2 { "c" } else { "d" };
        moved = announce(jobs, node, up(&format!("m{rank}"), rank, 3, 950));
    }
    assert_eq!((current(jobs), proved(jobs, moved).len()), (moved, 4));
}

/// A rank beyond the number of ranks that its own launcher states proves nothing, whenever it
/// comes.
#[test]
fn a_rank_beyond_its_world_is_not_proved() {
    let mut jobs = Jobs::new(limits());
    let mut serial = 0;
    for rank in [9, 0, 1, 2, 3] {
        let up = of_four(&format!("t{rank}"), rank);
        serial = jobs.announce(Now::default(), "a", up).unwrap().serial;
    }
    assert_eq!(proved(&jobs, serial), [0, 1, 2, 3]);
}

#[test]
fn ranks_of_two_slurm_jobs_are_two_attempts() {
    let mut jobs = Jobs::new(limits());
    let jobs = &mut jobs;
    let up = |tape: &str, rank, slurm_job: &str| {
        let mut up = RankUp { pid: 7, ..of_four(tape, rank) };
        up.workload.slurm_job = slurm_job.to_string();
        up
    };
    let announce = |jobs: &mut Jobs, up| jobs.announce(Now::default(), "n", up).unwrap().serial;
    let serial = announce(jobs, up("t0", 0, "4711"));
    assert_eq!(announce(jobs, up("t1", 1, "4711")), serial);
    // Two of four are not most of them.
    assert_eq!(proved(jobs, serial), NONE);
    let other = announce(jobs, up("t3", 3, "77"));
    assert!(announce(jobs, up("t4", 3, "")) != serial && other != serial);
    // Of a process that is gone its agent knows no Slurm job. It is shown, and proves nothing.
    assert_eq!(announce(jobs, RankUp { pid: 0, ..up("t5", 3, "") }), serial);
    assert_eq!(proved(jobs, serial), NONE);
    assert_eq!(announce(jobs, up("t2", 2, "4711")), serial);
    assert_eq!(proved(jobs, serial), [0, 1, 2]);
}

/// One rank of a world of its own, beside a job of which not all ranks are known, or before it.
#[test]
fn an_attempt_on_more_nodes_stands_before_one_on_fewer() {
    for (forged_at, nodes) in [(7, ["a", "b"]), (0, ["a", "b"]), (7, ["a", "a"])] {
        let mut jobs = Jobs::new(limits());
        let now = Now::default();
        let (mut forged, mut real) = (0, 0);
        for rank in 0..7 {
            let of_one = RankUp { world_size: 1, ..owned("x", "llm", 0, 7) };
            if rank == forged_at {
                forged = jobs.announce(now, "evil", of_one.clone()).unwrap().serial;
            }
            let up = RankUp { world_size: 8, ..owned(&format!("t{rank}"), "llm", rank, 7) };
            real = jobs.announce(now, nodes[rank as usize % 2], up).unwrap().serial;
            if rank == 6 && forged_at > rank {
                forged = jobs.announce(now, "evil", of_one).unwrap().serial;
            }
        }
        assert_eq!(jobs.current("llm@7").unwrap().record.serial, real, "{forged_at} {nodes:?}");
        assert_eq!(proved(&jobs, forged), NONE, "{forged_at} {nodes:?}");
    }
}

/// A job of one node begins again and again, until its first attempts are forgotten.
#[test]
fn attempts_that_are_made_up_are_forgotten_before_the_jobs_own() {
    let mut jobs = Jobs::new(limits());
    let now = Now::default();
    let up = |tape: String, attempt| RankUp { attempt, world_size: 1, ..owned(&tape, "llm", 0, 7) };
    let mut real = jobs.announce(now, "a", up("t0".to_string(), 0)).unwrap().serial;
    let forged = [90, 91, 92].map(|attempt| {
        jobs.announce(now, "evil", up(format!("x{attempt}"), attempt)).unwrap().serial
    });
    for attempt in 1..70 {
        jobs.rank_down(&mut Context::new(now), "a", &format!("t{}-7", attempt - 1), killed());
        real = jobs.announce(now, "a", up(format!("t{attempt}"), attempt)).unwrap().serial;
        while let Some(surplus) = jobs.surplus(None, |_| false) {
            jobs.forget(&mut Context::new(now), surplus);
        }
    }
    assert_eq!(proved(&jobs, real), [0]);
    assert!(forged.iter().all(|forged| jobs.get(*forged).is_none()));
}

/// The agent of a job of one node is away, and another node has an attempt as large.
#[test]
fn no_attempt_follows_one_that_may_run() {
    let mut jobs = Jobs::new(limits());
    let mut now = Now { mono_ns: 1, wall_ns: 1_000_000_000_000 };
    let announce = |jobs: &mut Jobs, now, node: &str, tape: &str, attempt| {
        let ups = (0..4).map(|rank| RankUp { attempt, ..of_four(&format!("{tape}{rank}"), rank) });
        ups.map(|up| jobs.announce(now, node, up).unwrap().serial).last().unwrap()
    };
    announce(&mut jobs, now, "a", "t", 0);
    let forged = announce(&mut jobs, now, "evil", "x", 1);
    jobs.node_lost(now, "a");
    jobs.tick(now, |_| true);
    assert_eq!(proved(&jobs, forged), NONE);
    // It is heard of no more.
    now.mono_ns += FAILURE_AGE_SECONDS_MAX * 1_000_000_000;
    jobs.tick(now, |_| true);
    assert_eq!(proved(&jobs, forged), [0, 1, 2, 3]);
    // It comes back, ends, and goes on elsewhere: what was announced before its end is not its own.
    announce(&mut jobs, now, "a", "t", 0);
    now.wall_ns += 2_000_000_000;
    for rank in 0..4 {
        let end = RankEnd { wall_ns: now.wall_ns, ..killed() };
        jobs.rank_down(&mut Context::new(now), "a", &format!("t{rank}-7"), end);
    }
    assert_eq!(proved(&jobs, forged), NONE);
    now.wall_ns += 1_000_000_000;
    let moved = announce(&mut jobs, now, "b", "m", 2);
    jobs.node_lost(now, "evil");
    assert_eq!(proved(&jobs, moved), [0, 1, 2, 3]);
}

/// Another node announces ranks of attempts that are over.
#[test]
fn a_late_rank_changes_nothing_of_its_attempt() {
    for (world_size, joins) in [(0, false), (3, true)] {
        let mut jobs = Jobs::new(limits());
        let now = Now { mono_ns: 1, wall_ns: 1_000_000_000_000 };
        let up = |tape: &str, rank| RankUp { world_size, ..owned(tape, "llm", rank, 7) };
        let real = jobs.announce(now, "a", up("t", 0)).unwrap().serial;
        let end = RankEnd { wall_ns: 900, ..killed() };
        jobs.rank_down(&mut Context::new(now), "a", "t-7", end);
        let late = jobs.announce(now, "evil", up("x", 1)).unwrap().serial;
        assert_eq!(late == real, joins);
        jobs.announce(now, "evil", up("x", 1)).unwrap();
        jobs.announce(now, "evil", up("y", 2)).unwrap();
        assert_eq!(jobs.get(real).unwrap().record.ended_wall_ns, Some(900));
        let end = RankEnd { end: End::Unknown, wall_ns: 77, ..killed() };
        jobs.rank_down(&mut Context::new(now), "evil", "x-7", end);
        jobs.announce(now, "evil", up("x", 1)).unwrap();
        assert_eq!(jobs.get(real).unwrap().record.ended_wall_ns, Some(900));
    }
}

/// A rank that names a Slurm job, where the others are in none, and one that changes it.
#[test]
fn one_rank_names_no_slurm_job_for_the_others() {
    let mut jobs = Jobs::new(limits());
    let now = Now::default();
    let up = |tape: &str, rank, slurm_job: &str| {
        let mut up = RankUp { pid: 7, ..of_four(tape, rank) };
        up.workload.slurm_job = slurm_job.to_string();
        up
    };
    let first = jobs.announce(now, "a", up("t1", 1, "")).unwrap().serial;
    assert_ne!(jobs.announce(now, "evil", up("x", 0, "999")).unwrap().serial, first);
    assert_eq!(jobs.announce(now, "evil", up("x0", 0, "")).unwrap().serial, first);
    for rank in 2..4 {
        jobs.announce(now, "a", up(&format!("t{rank}"), rank, "")).unwrap();
    }
    jobs.announce(now, "evil", up("x0", 0, "999")).unwrap();
    assert_eq!(proved(&jobs, first), [0, 1, 2, 3]);
    // Most ranks are in no Slurm job, as their agents learn later.
    let mut announce = |rank: u32, pid, slurm_job: &str| {
        let up = RankUp { attempt: 1, pid, ..up(&format!("u{rank}"), rank, slurm_job) };
        jobs.announce(now, "a", up).unwrap().serial
    };
    let second = announce(0, 7, "4711");
    for (rank, pid) in [(1, 0), (2, 0), (1, 7), (2, 7), (3, 7)] {
        assert_eq!(announce(rank, pid, ""), second);
    }
}

//! Tests of `ownership.rs`: whose a rank is, and what other nodes can claim.

use memtape_core::identity::owner::Owner;

use super::*;
use crate::state::counters::Loss;
use crate::state::jobs::attempt::Limits;
use crate::state::jobs::tests::limits;
use memtape_disk::clock::Now;

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
    attempt.ranks.keys().copied().filter(|rank| jobs.is_proved(attempt, *rank)).collect()
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
    assert!(!jobs.is_replaced(real, forged) && jobs.is_replaced(real, next));
    // Its start is no later than now: what comes next is newer.
    assert_eq!((jobs.serials("llm@7").last(), current(&jobs)), (Some(&next), next));
    for serial in [real, next] {
        let attempt = jobs.attempts.get_mut(&serial).unwrap();
        attempt.ranks.values_mut().for_each(|rank| rank.presence = Presence::Unknown);
    }
    assert!(jobs.is_replaced(real, forged), "no rank of it is here");
    // The job begins again while the forged attempts run.
    let again = jobs.announce(now, "a", up("t4", 3)).unwrap().serial;
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

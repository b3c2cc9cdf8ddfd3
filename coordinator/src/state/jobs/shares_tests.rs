//! Tests of `shares.rs`: floods by one node, and by one owner on a node.

use memtape_core::identity::owner::Owner;

use super::*;
use crate::state::jobs::attempt::Limits;
use crate::state::jobs::ownership::tests::owned;
use crate::state::jobs::tests::{killed, limits};
use crate::state::messages::{RankEnd, RankUp};
use memtape_disk::clock::Now;
use memtape_store::records::{End, Totals};

/// Takes all ranks of an attempt for ended.
fn end(jobs: &mut Jobs, serial: u32, ended_wall_ns: i64) {
    let attempt = jobs.attempts.get_mut(&serial).unwrap();
    for rank in attempt.ranks.values_mut() {
        let before = Held::of(rank);
        rank.end(RankEnd { end: End::Exited, ..killed() });
        jobs.holdings.change(&rank.record.node, before, Held::of(rank));
    }
    attempt.record.ended_wall_ns = Some(ended_wall_ns);
}

/// Announces as the loop does: first removes a surplus attempt.
fn announce(jobs: &mut Jobs, node: &str, up: RankUp) -> Result<u32, Loss> {
    let begins = jobs.begins_attempt(node, &up);
    let newcomer = ((node, up.owner.key()), begins);
    if let Some(serial) = jobs.surplus(Some(newcomer), |_| false) {
        jobs.remove(serial);
    }
    jobs.announce(Now::default(), node, up).map(|announced| announced.serial)
}

fn of_node(jobs: &Jobs, node: &str) -> usize {
    jobs.attempts().filter(|attempt| attempt.begun_by() == node).count()
}

/// Compares the holdings with counts of the ranks.
fn check_holdings(jobs: &Jobs) {
    let mut counted = Holdings::default();
    for rank in jobs.attempts().flat_map(|attempt| attempt.ranks.values()) {
        counted.add(rank);
    }
    assert_eq!(jobs.holdings, counted);
}

/// 1,000 forged owners of one stolen agent, running or over.
#[test]
fn a_stolen_agent_pushes_out_only_what_came_by_it() {
    for is_ended in [false, true] {
        let mut jobs = Jobs::new(limits());
        for number in 0..JOBS_MAX {
            let node = format!("node-{}", number % 50);
            let up = owned(&format!("r{number}"), &format!("real-{number}"), 0, number as u32 % 7);
            let serial = announce(&mut jobs, &node, up).unwrap();
            if number % 2 == 0 {
                end(&mut jobs, serial, number as i64);
            }
        }
        let running = |jobs: &Jobs| jobs.attempts().filter(|of| of.ranks_here() > 0).count();
        for number in 0..JOBS_MAX as u32 {
            let up = owned(&format!("f{number}"), &format!("forged-{number}"), 0, 10_000 + number);
            if let Ok(serial) = announce(&mut jobs, "stolen", up)
                && is_ended
            {
                end(&mut jobs, serial, i64::from(number));
            }
        }
        let of_others = jobs.attempts().filter(|of| of.begun_by() != "stolen");
        let others_run = of_others.filter(|of| of.ranks_here() > 0).count();
        assert_eq!(others_run, JOBS_MAX / 2, "every running job of the others is there");
        // 50 nodes have 20 jobs each: an equal part of what is over is the most that is taken.
        assert!(of_node(&jobs, "stolen") <= 21, "{}", of_node(&jobs, "stolen"));
        assert!((0..50).all(|node| of_node(&jobs, &format!("node-{node}")) >= 19));
        // The first rank of another node still finds a place.
        let before = running(&jobs);
        assert!(announce(&mut jobs, "new", owned("n", "new", 0, 1)).is_ok());
        assert_eq!(running(&jobs), before + 1);
        check_holdings(&jobs);
    }
}

#[test]
fn a_node_has_bounded_ranks_and_running_jobs() {
    let mut jobs = Jobs::new(limits());
    for number in 0..JOBS_RUNNING_PER_NODE_MAX {
        let up = owned(&format!("t{number}"), &format!("job-{number}"), 0, number as u32);
        assert!(announce(&mut jobs, "a", up).is_ok());
    }
    let of_x = |tape: &str, rank| RankUp { world_size: 100_000, ..owned(tape, "x", rank, 1) };
    let more = |name: &str| RankUp { world_size: 100_000, ..owned(name, name, 0, 1) };
    assert_eq!(announce(&mut jobs, "a", more("x")), Err(Loss::NodeFull));
    assert!(announce(&mut jobs, "b", more("x")).is_ok());
    end(&mut jobs, 0, 1);
    assert!(announce(&mut jobs, "a", more("y")).is_ok(), "one has ended");
    // Ranks of a job that began elsewhere count, too.
    for rank in 1..=RANKS_RUNNING_PER_NODE_MAX as u32 {
        let _ = announce(&mut jobs, "a", of_x(&format!("u{rank}"), rank));
    }
    assert_eq!(jobs.holdings.of("a").running, RANKS_RUNNING_PER_NODE_MAX);
    assert_eq!(announce(&mut jobs, "a", of_x("z", 60_000)), Err(Loss::NodeFull));
    assert!(announce(&mut jobs, "b", of_x("z", 60_001)).is_ok());
    check_holdings(&jobs);
}

/// One user has as many running jobs as a node can have, by subordinate ids: another user's job is
/// accepted, and the first user gets nothing back.
#[test]
fn a_user_who_fills_a_node_keeps_no_other_off_it() {
    let mut jobs = Jobs::new(limits());
    let flood = |number: u32| {
        let up = owned(&format!("f{number}"), &format!("flood-{number}"), 0, 100_000 + number);
        RankUp { owner: Owner { account: Some(2001), ..up.owner }, ..up }
    };
    for number in 0..JOBS_RUNNING_PER_NODE_MAX as u32 + 9 {
        let _ = announce(&mut jobs, "n", flood(number));
    }
    assert_eq!(of_node(&jobs, "n"), JOBS_RUNNING_PER_NODE_MAX);
    let of_victim =
        |jobs: &Jobs| jobs.attempts().filter(|of| of.record.job.starts_with("real")).count();
    for number in 0..200 {
        let up = owned(&format!("r{number}"), &format!("real-{number}"), 0, 2002);
        let _ = announce(&mut jobs, "n", up);
    }
    assert_eq!(of_victim(&jobs), JOBS_RUNNING_PER_NODE_MAX / 2);
    for number in 1_000..2_000 {
        let _ = announce(&mut jobs, "n", flood(number));
    }
    assert_eq!(of_victim(&jobs), JOBS_RUNNING_PER_NODE_MAX / 2);
    // A further rank of a job that is there pushes out none.
    let rank = owned("r0-1", "real-0", 1, 2002);
    assert!(!jobs.begins_attempt("n", &rank) && announce(&mut jobs, "n", rank).is_ok());
    assert_eq!(of_node(&jobs, "n"), JOBS_RUNNING_PER_NODE_MAX);
    check_holdings(&jobs);
}

#[test]
fn ranks_of_a_full_node_give_way_to_its_own_alone() {
    let mut jobs = Jobs::new(Limits { ranks_max: 40_000, ..limits() });
    let most = jobs.ranks_per_node_max();
    assert_eq!(most, 5_000);
    let real = announce(&mut jobs, "b", owned("real", "real", 0, 1)).unwrap();
    end(&mut jobs, real, 0);
    for number in 0..60 {
        for rank in 0..100 {
            let up = owned(&format!("t{number}-{rank}"), &format!("job-{number}"), rank, 1);
            announce(&mut jobs, "a", up).unwrap();
        }
        let serial = jobs.current(&format!("job-{number}@1")).unwrap().record.serial;
        end(&mut jobs, serial, number);
    }
    assert!(jobs.holdings.of("a").ranks <= most);
    assert!(jobs.get(real).is_some(), "what ended first is another node's");
    assert!(jobs.current("job-0@1").is_none() && jobs.current("job-59@1").is_some());
    check_holdings(&jobs);
}

#[test]
fn forged_attempts_push_out_no_attempt_of_another_node() {
    let mut jobs = Jobs::new(limits());
    for attempt in 0..5 {
        let up = RankUp { attempt, ..owned(&format!("r{attempt}"), "llm", 0, 1) };
        let serial = announce(&mut jobs, "a", up).unwrap();
        end(&mut jobs, serial, 1);
    }
    for attempt in 100..300 {
        let up = RankUp { attempt, ..owned(&format!("f{attempt}"), "llm", 0, 1) };
        if let Ok(serial) = announce(&mut jobs, "stolen", up) {
            end(&mut jobs, serial, 2);
        }
    }
    assert_eq!(of_node(&jobs, "a"), 5);
    assert!(of_node(&jobs, "stolen") <= ATTEMPTS_PER_JOB_MAX);
}

#[test]
fn running_jobs_give_way_to_the_first_of_a_smaller_node_alone() {
    let mut jobs = Jobs::new(limits());
    for number in 0..JOBS_MAX {
        let up = owned(&format!("f{number}"), &format!("flood-{number}"), 0, 666);
        jobs.announce(Now::default(), &format!("n{}", number % 5), up).unwrap();
    }
    let owner = |uid| Owner { uid, ..Owner::default() };
    let surplus = |node, uid| {
        let owner = owner(uid);
        jobs.surplus(Some(((node, owner.key()), true)), |_| false)
    };
    assert_eq!(jobs.surplus(None, |_| false), None);
    // Of its own node, another owner's; of another node, any owner's.
    assert_eq!(surplus("n4", 666), None);
    assert_eq!(surplus("n4", 1000), Some(JOBS_MAX as u32 - 1));
    assert_eq!(surplus("n0", 1000), Some(JOBS_MAX as u32 - 5), "of its own node");
    assert_eq!(surplus("new", 666), Some(JOBS_MAX as u32 - 1));
}

#[test]
fn a_flood_of_jobs_costs_other_owners_nothing() {
    let mut jobs = Jobs::new(limits());
    for number in 0..300 {
        let up = owned(&format!("r{number}"), &format!("real-{number}"), 0, 1000);
        let serial = announce(&mut jobs, "n", up).unwrap();
        end(&mut jobs, serial, number);
    }
    for number in 0..JOBS_MAX {
        let up = owned(&format!("f{number}"), &format!("flood-{number}"), 0, 666);
        if let Ok(serial) = announce(&mut jobs, "n", up) {
            end(&mut jobs, serial, 1000);
        }
    }
    let of = |uid| jobs.attempts().filter(move |of| of.record.owner.uid == uid);
    assert_eq!((of(1000).count(), of(666).count()), (300, JOBS_MAX - 300));
    // Where the owner has most, what has an open incident goes last.
    let open = of(666).next().unwrap().record.serial;
    assert_ne!(jobs.surplus(None, |serial| serial == open), Some(open));
}

#[test]
fn the_oldest_ended_attempt_is_forgotten_first() {
    let mut jobs = Jobs::new(limits());
    for number in 0..JOBS_MAX as i64 {
        let up = RankUp {
            tape_id: format!("t{number}"),
            job: format!("job-{number}"),
            start_wall_ns: number,
            ..RankUp::default()
        };
        assert_eq!(jobs.surplus(None, |_| false), None);
        // Of one node each.
        let node = format!("n{number}");
        let serial = jobs.announce(Now::default(), &node, up).unwrap().serial;
        if [7, 8, 9].contains(&number) {
            end(&mut jobs, serial, 100 - number);
        }
    }
    assert_eq!(jobs.surplus(None, |_| false), Some(9));
    assert_eq!(jobs.remove(9).unwrap().record.job, "job-9@0");
    assert!(!jobs.tapes.contains_key("t9") && !jobs.jobs.contains_key("job-9@0"));
    assert_eq!(jobs.surplus(None, |_| false), None);
}

#[test]
fn further_devices_count_as_ranks() {
    let mut jobs = Jobs::new(Limits { ranks_max: 40_000, ..limits() });
    let mut report = |node: &str, rank: u32| {
        let up = owned(&format!("{node}-{rank}"), &format!("of-{node}"), rank, 1);
        let tape_id = up.tape_id.clone();
        announce(&mut jobs, node, up).ok()?;
        let totals = (0..16).map(|device| Totals { device, ..Totals::default() });
        let mut report = RankReport { tape_id, totals: totals.collect(), ..RankReport::default() };
        let mut context = Context::new(Now::default());
        jobs.admit_devices(&mut context, node, &mut report);
        jobs.admit_devices(&mut context, "other", &mut report);
        Some(report.totals.len())
    };
    let devices: Vec<usize> = (0..400).filter_map(|rank| report("stolen", rank)).collect();
    assert_eq!((devices[0], devices.iter().sum::<usize>()), (16, 5000), "an eighth of all");
    assert_eq!(report("honest", 0), Some(16));
    check_holdings(&jobs);
    let serials: Vec<u32> = jobs.attempts().map(|attempt| attempt.record.serial).collect();
    serials.into_iter().for_each(|serial| drop(jobs.remove(serial)));
    assert_eq!(jobs.holdings, Holdings::default());
}

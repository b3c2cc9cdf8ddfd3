//! Which job and which attempt a rank belongs to, which attempt stands for its job, and which ranks
//! an attempt has proved to be its own.
//!
//! A job is a name and its owner; `core` makes its id. A rank joins an attempt of the same number
//! and the same number of ranks, whose owner and Slurm job are its own. An agent proves its node
//! alone, and claims all else of its ranks, so a stolen one can begin attempts under any name: they
//! stand for no job that runs without it, and nothing is done because of them. Records and ranks
//! are changed elsewhere.

use std::collections::BTreeSet;

use memtape_core::identity::owner::is_called;

use crate::state::jobs::attempt::{Attempt, Presence, Rank};
use crate::state::jobs::{CLOCKS_APART_NS, Jobs};
use crate::state::messages::RankUp;

impl Jobs {
    /// The attempt that a new tape joins: one that lacks this rank and was not over when the tape
    /// began, the nearest in time.
    pub(super) fn attempt_for(&self, job: &str, up: &RankUp) -> Option<u32> {
        let fitting = self.attempts_at(job).filter(|attempt| attempt.takes(up));
        let nearest =
            fitting.min_by_key(|attempt| attempt.record.started_wall_ns.abs_diff(up.start_wall_ns));
        nearest.map(|attempt| attempt.record.serial)
    }

    /// The attempts at a job, in order of their start.
    pub(crate) fn attempts_at(&self, job: &str) -> impl DoubleEndedIterator<Item = &Attempt> {
        self.serials(job).iter().filter_map(|serial| self.attempts.get(serial))
    }

    /// The attempt that stands for its job.
    pub(crate) fn current(&self, job: &str) -> Option<&Attempt> {
        self.chosen(job, |_| true)
    }

    /// Of the attempts that are meant the one that runs, before others one of the job's own, then
    /// one with all its ranks, then the newest.
    pub(crate) fn chosen(
        &self,
        job: &str,
        is_meant: impl Fn(&Attempt) -> bool,
    ) -> Option<&Attempt> {
        let own = self.own(job);
        let order = |attempt: &&Attempt| {
            let runs = attempt.runs();
            let is_own = own.contains(&attempt.record.serial);
            (runs, runs && is_own, runs && attempt.is_complete())
        };
        self.attempts_at(job).filter(|attempt| is_meant(attempt)).max_by_key(order)
    }

    /// The attempts of a job that are its own, in the order in which they were announced: the first
    /// one with all its ranks, and those on nodes of these. While none of them runs, also one on
    /// other nodes, with as many ranks and on as many nodes as the first: one agent is one node.
    fn own(&self, job: &str) -> BTreeSet<u32> {
        let mut all: Vec<&Attempt> = self.attempts_at(job).collect();
        all.sort_unstable_by_key(|attempt| attempt.record.serial);
        let first = all.iter().find(|attempt| attempt.is_complete()).or(all.first());
        let Some(first) = first else { return BTreeSet::new() };
        let (mut nodes, mut own) = (first.own_nodes(), BTreeSet::from([first.record.serial]));
        let mut runs = first.runs();
        for attempt in &all {
            if !attempt.own_nodes().is_disjoint(&nodes) {
                nodes.extend(attempt.proved_nodes());
                own.insert(attempt.record.serial);
                runs |= attempt.runs();
            }
        }
        let moved = all.iter().filter(|attempt| {
            attempt.is_complete()
                && attempt.record.world_size == first.record.world_size
                && attempt.own_nodes().len() >= first.own_nodes().len()
        });
        own.extend(moved.filter(|_| !runs).map(|attempt| attempt.record.serial));
        own
    }

    /// Does a newer attempt replace an older one? While ranks of the older are here, only if both
    /// attempts have a rank on the same node.
    pub(crate) fn is_replaced(&self, older: u32, newer: u32) -> bool {
        let (Some(older), Some(newer)) = (self.get(older), self.get(newer)) else { return true };
        older.ranks_here() == 0 || !older.own_nodes().is_disjoint(&newer.own_nodes())
    }

    /// The jobs with this id or name.
    pub(crate) fn called<'a>(&'a self, text: &str) -> impl Iterator<Item = &'a String> {
        self.jobs.keys().filter(move |id| is_called(id, text))
    }

    /// Has its job proved that this rank of an attempt is its own? What another rank says causes
    /// nothing.
    pub(crate) fn is_proved(&self, attempt: &Attempt, rank: u32) -> bool {
        let serial = attempt.record.serial;
        self.current(&attempt.record.job).is_some_and(|of| of.record.serial == serial)
            && self.own(&attempt.record.job).contains(&serial)
            && attempt.proved().any(|of| of.record.rank == rank)
    }
}

impl Attempt {
    /// Is a rank here that is not late?
    fn runs(&self) -> bool {
        self.ranks.values().any(|rank| rank.presence == Presence::Here && !rank.record.is_late)
    }

    /// Is a new rank of this node late: the attempt is over, and has no rank there?
    pub(super) fn is_late(&self, node: &str) -> bool {
        self.has_ended() && self.ranks.values().all(|rank| rank.record.node != node)
    }

    /// Can a new tape be a rank of this attempt?
    fn takes(&self, up: &RankUp) -> bool {
        let record = &self.record;
        let is_same = record.attempt == up.attempt && record.world_size == up.world_size;
        let slurm_job = self.slurm_job();
        // Of a process that is gone its agent knows no Slurm job.
        let is_gone = up.pid == 0 && up.workload.slurm_job.is_empty();
        is_same
            && record.owner == up.owner
            && (slurm_job.is_none_or(|job| job == up.workload.slurm_job) || is_gone)
            && !self.ranks.contains_key(&up.rank)
            && (record.world_size == 0 || !self.is_complete())
            && record
                .ended_wall_ns
                .is_none_or(|ended_ns| up.start_wall_ns <= ended_ns.saturating_add(CLOCKS_APART_NS))
    }

    /// The Slurm job of its ranks; none where no agent names one.
    fn slurm_job(&self) -> Option<&str> {
        let mut named = self.ranks.values().map(|rank| rank.record.workload.slurm_job.as_str());
        named.find(|job| !job.is_empty())
    }

    /// Are all ranks known that its launcher announced? It takes no further rank then.
    fn is_complete(&self) -> bool {
        let world_size = self.record.world_size;
        let known = self.ranks.range(..world_size.max(1));
        known.filter(|(_, rank)| !rank.record.is_late).count() >= world_size.max(1) as usize
    }

    /// The ranks that are proved: all of them are known, or most are in one Slurm job, and they are
    /// in the Slurm job of the others. Where no launcher announced the ranks, those are proved that
    /// are on the node which began the attempt. A late rank proves nothing.
    pub(crate) fn proved(&self) -> impl Iterator<Item = &Rank> {
        let (slurm_job, world_size) = (self.slurm_job(), self.record.world_size);
        let is_in = move |rank: &&Rank| {
            let is_of_node = world_size > 0 || rank.record.node == self.begun_by();
            let is_of_world = world_size == 0 || rank.record.rank < world_size;
            let of_rank = rank.record.workload.slurm_job.as_str();
            let is_of_job = slurm_job.is_none_or(|job| job == of_rank);
            is_of_node && is_of_world && is_of_job && !rank.record.is_late
        };
        let most = || self.ranks.values().filter(is_in).count() > world_size as usize / 2;
        let is_enough = world_size == 0 || self.is_complete() || (slurm_job.is_some() && most());
        self.ranks.values().filter(move |rank| is_enough && is_in(rank))
    }

    /// The nodes of its proved ranks; where none is proved, of all that are not late.
    fn own_nodes(&self) -> BTreeSet<&str> {
        let proved = self.proved_nodes();
        let all = self.ranks.values().filter(|rank| !rank.record.is_late);
        match proved.is_empty() {
            true => all.map(|rank| rank.record.node.as_str()).collect(),
            false => proved,
        }
    }

    fn proved_nodes(&self) -> BTreeSet<&str> {
        self.proved().map(|rank| rank.record.node.as_str()).collect()
    }
}

#[cfg(test)]
pub(in crate::state) mod tests {
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
        let announce =
            |jobs: &mut Jobs, node: &str, up| jobs.announce(now, node, up).unwrap().serial;
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
}

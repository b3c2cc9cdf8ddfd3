//! Ownership of jobs: the job that a rank of an owner joins.
//!
//! A job belongs to the owner whose rank came first. `core` defines owners, and the names that
//! owners share; records and ranks are changed elsewhere.

use memtape_core::identity::owner::{Owner, may_be_named, shared_name};

use crate::state::jobs::Jobs;
use crate::state::messages::RankUp;

impl Jobs {
    /// The name of a tape's job for its owner: another owner's job of the same name is another job.
    pub(super) fn name_for(&self, up: &RankUp) -> Option<String> {
        let Some(owner) = &up.owner else {
            // Of an agent that hides it.
            let is_taken = self.limits.owners_required && self.owner(&up.job).is_some();
            return (!is_taken).then(|| up.job.clone());
        };
        let is_free = |job: &String| {
            may_be_named(job, owner) && self.owner(job).is_none_or(|known| known.admits(owner))
        };
        [up.job.clone(), shared_name(&up.job, owner)].into_iter().find(is_free)
    }

    /// Owner of a job; none while no agent has reported one, and where there is no such job.
    pub(crate) fn owner(&self, job: &str) -> Option<&Owner> {
        let serials = self.jobs.get(job)?;
        serials.iter().find_map(|serial| self.attempts.get(serial)?.record.owner.as_ref())
    }
}

#[cfg(test)]
pub(in crate::state) mod tests {
    use super::*;
    use crate::state::counters::Loss;
    use crate::state::jobs::attempt::{Limits, Presence};
    use crate::state::jobs::tests::limits;
    use memtape_disk::clock::Now;

    pub(in crate::state) fn owned(tape: &str, job: &str, rank: u32, uid: u32) -> RankUp {
        let owner = Some(Owner { uid, ..Owner::default() });
        let (tape_id, job) = (format!("{tape}-{uid}"), job.to_string());
        RankUp { tape_id, job, rank, owner, ..RankUp::default() }
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
    fn a_job_belongs_to_its_first_owner() {
        let mut jobs = Jobs::new(limits());
        let mut announce = |node: &str, up: RankUp| {
            let announced = jobs.announce(Now::default(), node, up).unwrap();
            jobs.get(announced.serial).unwrap().record.job.clone()
        };
        assert_eq!(announce("a", owned("t0", "llm", 0, 1000)), "llm");
        assert_eq!(announce("b", owned("t7", "llm", 7, 1000)), "llm");
        // Another owner's rank is a rank of another job, on any node, dead or alive.
        assert_eq!(announce("b", owned("t8", "llm", 8, 666)), "llm@666");
        assert_eq!(announce("a", owned("t9", "llm", 9, 666)), "llm@666");
        // No owner takes the name that another one would get.
        assert_eq!(announce("a", owned("u0", "llm@1001", 0, 666)), "llm@1001@666");
        assert_eq!(announce("a", owned("u1", "llm", 0, 1001)), "llm@1001");
        assert_eq!(announce("a", owned("u2", "llm@1001", 1, 1001)), "llm@1001");
        assert_eq!(jobs.newest("llm").unwrap().ranks.len(), 2);
        assert_eq!(jobs.owner("llm").map(|owner| owner.uid), Some(1000));
    }

    #[test]
    fn a_rank_without_owner_joins_no_job_of_an_owner_where_there_are_roles() {
        for owners_required in [false, true] {
            let mut jobs = Jobs::new(Limits { owners_required, ..limits() });
            let mut announce = |tape: &str, job: &str, owner: Option<Owner>| {
                let up = RankUp { owner, ..owned(tape, job, tape.len() as u32, 7) };
                jobs.announce(Now::default(), "a", up).map(|_| ())
            };
            assert_eq!(announce("t", "llm", Some(Owner { uid: 7, ..Owner::default() })), Ok(()));
            let expected = if owners_required { Err(Loss::NotOwner) } else { Ok(()) };
            assert_eq!(announce("tt", "llm", None), expected);
            // A job without a known owner takes every rank without one.
            assert_eq!(announce("ttt", "old", None), Ok(()));
            assert_eq!(announce("tttt", "old", None), Ok(()));
        }
    }

    #[test]
    fn an_unknown_namespace_joins_no_known_namespace() {
        let mut jobs = Jobs::new(limits());
        let mut announce = |tape: &str, rank, namespace: &str| {
            let owner = Some(Owner { namespace: namespace.to_string(), ..Owner::default() });
            let up = RankUp { owner, ..owned(tape, "llm", rank, 0) };
            let announced = jobs.announce(Now::default(), "n", up).unwrap();
            jobs.get(announced.serial).unwrap().record.job.clone()
        };
        // Found dead first, then one that lives: the job is in that one's namespace.
        assert_eq!(announce("t0", 0, ""), "llm");
        assert_eq!(announce("t1", 1, "team-a"), "llm");
        assert_eq!(announce("t2", 2, "team-b"), "llm@0.team-b");
        assert_eq!(announce("t3", 3, ""), "llm@0");
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
        let next = jobs.announce(now, "a", up("t2", 2)).unwrap().serial;
        assert!(!jobs.is_replaced(real, forged) && jobs.is_replaced(real, next));
        // Its start is no later than now: what comes next is newer.
        assert_eq!(jobs.serials("llm").last(), Some(&next));
        let attempt = jobs.attempts.get_mut(&real).unwrap();
        attempt.ranks.values_mut().for_each(|rank| rank.presence = Presence::Unknown);
        assert!(jobs.is_replaced(real, forged), "no rank of it is here");
    }

    #[test]
    fn agents_that_name_different_jobs_do_not_agree() {
        let mut jobs = Jobs::new(limits());
        let mut announce = |tape: &str, rank, slurm_job: &str| {
            let mut up = owned(tape, "llm", rank, 7);
            up.workload.slurm_job = slurm_job.to_string();
            let serial = jobs.announce(Now::default(), "n", up).unwrap().serial;
            jobs.get(serial).unwrap().agents_agree()
        };
        assert!(announce("t0", 0, "4711") && announce("t1", 1, "") && announce("t2", 2, "4711"));
        assert!(!announce("t3", 3, "77"));
    }
}

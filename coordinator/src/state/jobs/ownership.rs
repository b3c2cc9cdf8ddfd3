//! Whose jobs are: which job a rank of an owner joins, and whose job gives way where there is no
//! room.
//!
//! A job belongs to the owner whose rank came first. What an owner is, and the names that owners
//! share, `core` decides; records and ranks are changed elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use memtape_core::identity::owner::{Owner, may_be_named, own_tape_id, shared_name};
use memtape_core::limits::{ATTEMPTS_PER_JOB_MAX, JOBS_MAX};

use crate::state::jobs::Jobs;
use crate::state::jobs::attempt::Attempt;
use crate::state::messages::RankUp;

impl Jobs {
    /// The attempt and the rank of a tape that was announced before; by an agent before version
    /// 1.6 under a name that does not say whose it is.
    pub(super) fn known_tape(&mut self, node: &str, up: &RankUp) -> Option<(u32, u32)> {
        if let Some(known) = self.tapes.get(&up.tape_id) {
            return Some(*known);
        }
        let old = own_tape_id(&up.tape_id, up.owner.as_ref()?.uid)?;
        let (serial, number) = *self.tapes.get(old)?;
        let record = &self.attempts.get(&serial)?.ranks.get(&number)?.record;
        if record.owner.is_some() || record.node != node {
            return None;
        }
        // What the agent kept under the old name may still come.
        self.tapes.remove(old);
        self.old_names.insert(old.to_string(), (serial, number));
        self.tapes.insert(up.tape_id.clone(), (serial, number));
        Some((serial, number))
    }

    /// The name of the job that a tape's owner means: another owner's job of the same name is
    /// another job.
    pub(super) fn name_for(&self, up: &RankUp) -> Option<String> {
        let Some(owner) = &up.owner else { return Some(up.job.clone()) };
        let is_free = |job: &String| {
            may_be_named(job, owner) && self.owner(job).is_none_or(|known| known.admits(owner))
        };
        [up.job.clone(), shared_name(&up.job, owner)].into_iter().find(is_free)
    }

    /// Whose a job is; none while no agent has said it, and where there is no such job.
    pub(crate) fn owner(&self, job: &str) -> Option<&Owner> {
        let serials = self.jobs.get(job)?;
        serials.iter().find_map(|serial| self.attempts.get(serial)?.record.owner.as_ref())
    }

    /// The attempt to forget first when there is no room: the oldest that is over
    /// of a job that has too many, else its newest;
    /// or, of the owner who has most, the one that was over first, those without an open incident
    /// before the others. Where all attempts of that owner run, one of them gives way to the first
    /// rank of another owner, `newcomer`, who has less than an equal part.
    pub(crate) fn surplus(
        &self,
        newcomer: Option<&Owner>,
        has_open_incident: impl Fn(u32) -> bool,
    ) -> Option<u32> {
        let crowded = self.jobs.values().find(|serials| serials.len() > ATTEMPTS_PER_JOB_MAX);
        if let Some(serials) = crowded {
            let is_over = |serial: &&u32| {
                self.attempts.get(*serial).is_some_and(|attempt| attempt.ranks_here() == 0)
            };
            // Attempts that an agent makes up push out none that runs.
            return serials.iter().find(is_over).or(serials.last()).copied();
        }
        // Before it is full: the next job or rank shall find a place.
        if self.jobs.len() < JOBS_MAX && self.tapes.len() < self.limits.ranks_max {
            return None;
        }
        let mut of_owners = BTreeMap::<Option<&Owner>, Vec<&Attempt>>::new();
        for attempt in self.attempts.values() {
            of_owners.entry(attempt.record.owner.as_ref()).or_default().push(attempt);
        }
        let size = |of: &[&Attempt]| match self.tapes.len() >= self.limits.ranks_max {
            true => of.iter().map(|attempt| attempt.ranks.len()).sum(),
            false => of.iter().map(|of| &of.record.job).collect::<BTreeSet<_>>().len(),
        };
        let (owner, most) = of_owners.iter().max_by_key(|(_, of)| size(of))?;
        let over = most.iter().filter(|attempt| attempt.ranks_here() == 0);
        let oldest = over.min_by_key(|attempt| {
            let record = &attempt.record;
            let has_open = has_open_incident(record.serial);
            let ended = (record.ended_wall_ns.is_none(), record.ended_wall_ns);
            (has_open, ended, record.started_wall_ns)
        });
        let gives_way = || {
            let newcomer = newcomer.filter(|of| Some(*of) != *owner)?;
            let own = of_owners.get(&Some(newcomer)).map_or(0, |of| size(of));
            let is_more = size(most) > own.saturating_add(1);
            most.iter().max_by_key(|attempt| attempt.record.serial).filter(|_| is_more)
        };
        oldest.or_else(gives_way).map(|attempt| attempt.record.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Now;
    use crate::records::End;
    use crate::state::counters::Loss;
    use crate::state::jobs::attempt::Limits;
    use crate::state::jobs::tests::{killed, limits};
    use crate::state::messages::RankEnd;

    fn owned(tape: &str, job: &str, rank: u32, uid: u32) -> RankUp {
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
    fn a_tape_of_an_updated_agent_is_the_same_tape() {
        let mut jobs = Jobs::new(limits());
        let old = RankUp { tape_id: "t0".to_string(), owner: None, ..owned("t0", "llm", 0, 7) };
        let before = jobs.announce(Now::default(), "a", old).unwrap();
        let after = jobs.announce(Now::default(), "a", owned("t0", "llm", 0, 7)).unwrap();
        assert_eq!((after.serial, after.is_new_attempt), (before.serial, false));
        assert_eq!(jobs.rank_of("t0-7").unwrap().1.record.tape_id, "t0-7");
        assert!(jobs.rank_of("t0").is_some(), "what was kept under the old name still comes");
        // Another user's tape is not, and the job is its owner's from then on.
        let other = jobs.announce(Now::default(), "a", owned("t0", "llm", 0, 8)).unwrap();
        assert!(other.is_new_attempt && other.serial != before.serial);
        assert_eq!(jobs.owner("llm").map(|owner| owner.uid), Some(7));
        let other = jobs.announce(Now::default(), "b", owned("t9", "llm", 5, 8)).unwrap();
        assert_eq!(jobs.get(other.serial).unwrap().record.job, "llm@8");
    }

    #[test]
    fn a_namespace_that_is_not_known_joins_none_that_is() {
        let mut jobs = Jobs::new(limits());
        let mut announce = |tape: &str, rank, namespace: &str| {
            let owner = Some(Owner { uid: 0, namespace: namespace.to_string() });
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

    #[test]
    fn running_jobs_give_way_to_the_first_of_another_owner_alone() {
        let mut jobs = Jobs::new(limits());
        for number in 0..JOBS_MAX {
            let up = owned(&format!("f{number}"), &format!("flood-{number}"), 0, 666);
            jobs.announce(Now::default(), "n", up).unwrap();
        }
        let owner = |uid| Owner { uid, ..Owner::default() };
        assert_eq!(jobs.surplus(None, |_| false), None);
        assert_eq!(jobs.surplus(Some(&owner(666)), |_| false), None);
        assert_eq!(jobs.surplus(Some(&owner(1000)), |_| false), Some(JOBS_MAX as u32 - 1));
    }

    #[test]
    fn a_flood_of_jobs_costs_other_owners_nothing() {
        let mut jobs = Jobs::new(limits());
        for number in 0..300 {
            let up = owned(&format!("r{number}"), &format!("real-{number}"), 0, 1000);
            let announced = jobs.announce(Now::default(), "n", up).unwrap();
            let attempt = jobs.attempts.get_mut(&announced.serial).unwrap();
            attempt.ranks.get_mut(&0).unwrap().end(RankEnd { end: End::Exited, ..killed() });
            attempt.record.ended_wall_ns = Some(number);
        }
        for number in 0..2 * JOBS_MAX {
            if let Some(serial) = jobs.surplus(None, |_| false) {
                jobs.remove(serial);
            }
            let up = owned(&format!("f{number}"), &format!("flood-{number}"), 0, 666);
            // Where all of the flood runs it finds no room.
            let _ = jobs.announce(Now::default(), "n", up);
        }
        let of =
            |uid| jobs.attempts().filter(move |of| of.record.owner.as_ref().unwrap().uid == uid);
        assert_eq!((of(1000).count(), of(666).count()), (300, JOBS_MAX - 300));
        // Where the owner has most, what has an open incident goes last.
        let open = of(666).next().unwrap().record.serial;
        assert_ne!(jobs.surplus(None, |serial| serial == open), Some(open));
    }

    #[test]
    fn what_is_over_longest_is_forgotten_first() {
        let mut jobs = Jobs::new(limits());
        for number in 0..JOBS_MAX as i64 {
            let up = RankUp {
                tape_id: format!("t{number}"),
                job: format!("job-{number}"),
                start_wall_ns: number,
                ..RankUp::default()
            };
            assert_eq!(jobs.surplus(None, |_| false), None);
            let announced = jobs.announce(Now::default(), "n", up).unwrap();
            let attempt = jobs.attempts.get_mut(&announced.serial).unwrap();
            if [7, 8, 9].contains(&number) {
                attempt.ranks.get_mut(&0).unwrap().end(RankEnd { end: End::Exited, ..killed() });
                attempt.record.ended_wall_ns = Some(100 - number);
            }
        }
        assert_eq!(jobs.surplus(None, |_| false), Some(9));
        assert_eq!(jobs.remove(9).unwrap().record.job, "job-9");
        assert!(!jobs.tapes.contains_key("t9") && !jobs.jobs.contains_key("job-9"));
        assert_eq!(jobs.surplus(None, |_| false), None);
    }
}

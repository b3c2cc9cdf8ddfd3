//! Which job and which attempt a rank belongs to, which attempt stands for its job, and which ranks
//! an attempt has proved to be its own.
//!
//! A job is a name and its owner; `core` makes its id. A rank joins an attempt of the same number
//! and the same number of ranks, whose owner and Slurm job are its own. An agent proves its node
//! alone, and claims all else of its ranks, so a stolen one can begin attempts under any name: they
//! stand for no job that runs without it, and nothing is done because of them. Records and ranks
//! are changed elsewhere.

use std::collections::BTreeSet;
use std::ops::RangeBounds;

use memtape_core::identity::owner::is_called;
use memtape_core::limits::FAILURE_AGE_SECONDS_MAX;

use crate::state::jobs::attempt::{Attempt, OfSlurmJob, Presence, Rank};
use crate::state::jobs::{CLOCKS_APART_NS, Jobs};
use crate::state::messages::RankUp;
use memtape_store::records::RankRecord;

/// The attempts of a job that are its own, and the one of these that stands for the job.
#[derive(Debug)]
pub(crate) struct Proved<'a> {
    pub(crate) jobs: &'a Jobs,
    pub(crate) own: BTreeSet<u32>,
    pub(crate) current: Option<u32>,
}

impl Proved<'_> {
    /// Is this rank of an attempt proved? What another rank says causes nothing.
    pub(crate) fn has(&self, attempt: &Attempt, rank: u32) -> bool {
        self.current == Some(attempt.record.serial) && attempt.has_proved(rank)
    }
}

impl Jobs {
    /// The attempt that a new tape joins: one that lacks this rank and was not over when the tape
    /// began, the nearest in time.
    pub(super) fn attempt_for(&self, node: &str, job: &str, up: &RankUp) -> Option<u32> {
        let fitting = self.attempts_at(job).filter(|attempt| attempt.takes(node, up));
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

    /// Chooses among matching attempts: running first, then the job's own, then complete, then
    /// newest.
    pub(crate) fn chosen(
        &self,
        job: &str,
        is_meant: impl Fn(&Attempt) -> bool,
    ) -> Option<&Attempt> {
        self.chosen_of(job, &self.own(job), is_meant)
    }

    fn chosen_of(
        &self,
        job: &str,
        own: &BTreeSet<u32>,
        is_meant: impl Fn(&Attempt) -> bool,
    ) -> Option<&Attempt> {
        let order = |attempt: &&Attempt| {
            let runs = attempt.runs();
            let is_own = own.contains(&attempt.record.serial);
            (runs, is_own, runs && attempt.is_complete())
        };
        self.attempts_at(job).filter(|attempt| is_meant(attempt)).max_by_key(order)
    }

    /// The attempts of a job that are its own: the one on most nodes, of these the first announced,
    /// and those on nodes of these. A stolen certificate is one node, however much it claims. An
    /// attempt on other nodes follows when all of these are over that were announced before, and it
    /// has as many ranks and nodes as the last one.
    pub(crate) fn own(&self, job: &str) -> BTreeSet<u32> {
        let all = self.attempts_at(job).map(|attempt| (attempt, attempt.own_nodes()));
        let mut all: Vec<(&Attempt, &BTreeSet<String>)> = all.collect();
        all.sort_unstable_by_key(|(attempt, _)| attempt.record.serial);
        let Some((first, of_first)) = all.iter().rev().max_by_key(|(_, nodes)| nodes.len()) else {
            return BTreeSet::new();
        };
        let mut nodes: BTreeSet<&String> = of_first.iter().collect();
        let mut own = BTreeSet::from([first.record.serial]);
        for (attempt, of) in &all {
            if of.iter().any(|node| nodes.contains(node)) {
                nodes.extend(attempt.proved_of_job().into_iter().flat_map(|(_, of)| &of.nodes));
                own.insert(attempt.record.serial);
            }
        }
        for (attempt, of) in &all {
            let mut owned = all.iter().filter(|(of, _)| own.contains(&of.record.serial));
            let is_as_large = owned.clone().next_back().is_some_and(|(last, of_last)| {
                attempt.record.world_size == last.record.world_size && of.len() >= of_last.len()
            });
            if is_as_large
                && !own.contains(&attempt.record.serial)
                && attempt.is_complete()
                && owned.all(|(of, _)| self.follows(attempt, of))
            {
                own.insert(attempt.record.serial);
            }
        }
        own
    }

    /// Is an attempt over, and was before another one was announced?
    fn follows(&self, later: &Attempt, earlier: &Attempt) -> bool {
        let announced_ns = later.record.first_seen_wall_ns.saturating_add(CLOCKS_APART_NS);
        earlier.record.ended_wall_ns.is_none_or(|at| at <= announced_ns) && !self.may_run(earlier)
    }

    /// Is a rank here that is not late, or was it heard of not long ago?
    fn may_run(&self, attempt: &Attempt) -> bool {
        let silent_ns = |rank: &Rank| self.now_ns.saturating_sub(rank.reported_ns);
        let ranks = attempt.ranks.values().filter(|rank| !rank.record.is_late);
        let mut ranks = ranks.filter(|_| !attempt.has_ended());
        ranks.any(|rank| match rank.presence {
            Presence::Here => true,
            Presence::Unknown => silent_ns(rank) < FAILURE_AGE_SECONDS_MAX * 1_000_000_000,
            Presence::Ended => false,
        })
    }

    /// Does a newer attempt replace an older one? Only one of the job's `own` does, and while ranks
    /// of the older are here, only if both attempts have a rank on the same node.
    pub(crate) fn is_replaced(&self, own: &BTreeSet<u32>, older: u32, newer: u32) -> bool {
        let (Some(older), Some(newer)) = (self.get(older), self.get(newer)) else { return true };
        own.contains(&newer.record.serial)
            && (older.ranks_here() == 0 || !older.own_nodes().is_disjoint(newer.own_nodes()))
    }

    /// The jobs with this id or name.
    pub(crate) fn called<'a>(&'a self, text: &str) -> impl Iterator<Item = &'a String> {
        self.jobs.keys().filter(move |id| is_called(id, text))
    }

    /// What a job has proved.
    pub(crate) fn proved(&self, job: &str) -> Proved<'_> {
        let own = self.own(job);
        let current = self.chosen_of(job, &own, |_| true).map(|attempt| attempt.record.serial);
        Proved { current: current.filter(|serial| own.contains(serial)), own, jobs: self }
    }
}

impl Attempt {
    /// Adds a rank.
    pub(super) fn insert(&mut self, rank: Rank) {
        let (record, can_prove) = (&rank.record, self.can_prove(&rank.record));
        let of_job = self.slurm_jobs.entry(record.workload.slurm_job.clone()).or_default();
        of_job.known += usize::from(is_slurm_job_known(record));
        of_job.ranks += usize::from(can_prove);
        of_job.nodes.extend(can_prove.then(|| record.node.clone()));
        self.nodes.extend((!record.is_late).then(|| record.node.clone()));
        self.ranks.insert(record.rank, rank);
        self.roles_due = true;
    }

    /// Is a rank here that is not late?
    fn runs(&self) -> bool {
        let is_here = |rank: &Rank| rank.presence == Presence::Here && !rank.record.is_late;
        !self.has_ended() && self.ranks.values().any(is_here)
    }

    /// Is a new rank of this node late: the attempt is over, and all its ranks there are late?
    pub(super) fn is_late(&self, node: &str) -> bool {
        self.has_ended() && !self.nodes.contains(node)
    }

    /// Can a new tape be a rank of this attempt?
    fn takes(&self, node: &str, up: &RankUp) -> bool {
        let record = &self.record;
        // Without a launcher that says how many there are, each node has attempts of its own.
        let is_same = record.attempt == up.attempt
            && record.world_size == up.world_size
            && (record.world_size > 0 || self.begun_by() == node);
        let is_gone = up.pid == 0 && up.workload.slurm_job.is_empty();
        is_same
            && record.owner == up.owner
            && !self.ranks.contains_key(&up.rank)
            && (record.world_size == 0 || !self.is_complete())
            && record
                .ended_wall_ns
                .is_none_or(|ended_ns| up.start_wall_ns <= ended_ns.saturating_add(CLOCKS_APART_NS))
            && (is_gone || self.slurm_job().is_none_or(|job| job == up.workload.slurm_job))
    }

    /// The Slurm job of most of its ranks, empty where they are in none; none where no agent knows.
    fn slurm_job(&self) -> Option<&str> {
        let known = self.slurm_jobs.iter().filter(|(_, of_job)| of_job.known > 0);
        known.max_by_key(|(_, of_job)| of_job.known).map(|(job, _)| job.as_str())
    }

    /// Are all ranks known that its launcher announced? It takes no further rank then.
    fn is_complete(&self) -> bool {
        let known: usize = self.slurm_jobs.values().map(|of_job| of_job.ranks).sum();
        known >= self.record.world_size.max(1) as usize
    }

    /// The ranks that are proved: all of them are known, or most are in one Slurm job, and they are
    /// in the Slurm job of most. Where no launcher announced the ranks, all are on one node. A late
    /// rank proves nothing.
    pub(crate) fn proved(&self) -> impl Iterator<Item = &Rank> {
        self.proved_among(..)
    }

    /// Is this rank proved, as far as the attempt itself shows?
    pub(crate) fn has_proved(&self, rank: u32) -> bool {
        self.proved_among(rank..=rank).next().is_some()
    }

    fn proved_among(&self, ranks: impl RangeBounds<u32>) -> impl Iterator<Item = &Rank> {
        let slurm_job = self.proved_of_job().map(|(slurm_job, _)| slurm_job);
        self.ranks.range(ranks).map(|(_, rank)| rank).filter(move |rank| {
            slurm_job == Some(&rank.record.workload.slurm_job) && self.can_prove(&rank.record)
        })
    }

    /// Not a late rank, and none beyond the number that its own launcher stated.
    fn can_prove(&self, record: &RankRecord) -> bool {
        let world_size = self.record.world_size;
        (world_size == 0 || record.rank < world_size) && !record.is_late
    }

    /// The Slurm job whose ranks are proved, empty where they are in none.
    fn proved_of_job(&self) -> Option<(&String, &OfSlurmJob)> {
        let slurm_job = self.slurm_job().unwrap_or_default();
        let (slurm_job, of_job) = self.slurm_jobs.get_key_value(slurm_job)?;
        let world_size = self.record.world_size;
        let are_most = !slurm_job.is_empty() && of_job.ranks > world_size as usize / 2;
        (world_size == 0 || self.is_complete() || are_most).then_some((slurm_job, of_job))
    }

    /// The nodes of its proved ranks; where none is proved, of all that are not late.
    fn own_nodes(&self) -> &BTreeSet<String> {
        let proved = self.proved_of_job().map(|(_, of_job)| &of_job.nodes);
        proved.filter(|nodes| !nodes.is_empty()).unwrap_or(&self.nodes)
    }
}

/// Of a process that is gone its agent knows no Slurm job.
pub(super) fn is_slurm_job_known(record: &RankRecord) -> bool {
    record.pid > 0 || !record.workload.slurm_job.is_empty()
}

#[cfg(test)]
pub(in crate::state) mod tests;
